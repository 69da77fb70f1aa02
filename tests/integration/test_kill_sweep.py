"""SIGKILL anywhere: what is left after resuming is, byte for byte, the uninterrupted run.

Each chain is one run that several processes work on: every one but the last is killed at a
chosen point, the next resumes. The points are every file operation of writing a first and a
later checkpoint, every one of resuming, and the moments in training that have a state of their
own. Processes are real and so is the signal; see ``forkserver``.
"""

from __future__ import annotations

import concurrent.futures
import itertools
from typing import Any, Dict, List, Tuple

import pytest

from amp_xla.training.checkpoint import MANIFEST, STATE
from tests.integration.killing import Run, Server

COPIES = ("config.json", "labels.json", "vocab.txt")
FIRST, LATER = "step-00000005", "step-00000016"
# (what it is, fault). Steps 3 and 12 overflow; each has two micro-batches, an epoch eight steps.
MOMENTS = [
    ("first step of the run", {"step": [0, "before"]}),
    ("between the first micro-batches", {"step": [0, "inside"]}),
    ("just after an overflow, before it is checkpointed", {"step": [3, "after"]}),
    ("last step of an epoch", {"step": [7, "before"]}),
    ("last step of an epoch, done", {"step": [7, "after"]}),
    ("inside an evaluation", {"evaluate": [0, 1]}),
    ("first step of an epoch", {"step": [8, "before"]}),
    ("just before the loss scale grows", {"step": [11, "before"]}),
    ("just after the loss scale has grown", {"step": [11, "after"]}),
    ("between two micro-batches", {"step": [12, "inside"]}),
    ("just after the second overflow", {"step": [13, "after"]}),
    ("inside the evaluation before a promotion", {"evaluate": [0, 2]}),
    ("first step of the last epoch", {"step": [16, "after"]}),
    ("after a checkpoint was begun", {"step": [21, "after"]}),
    ("last step of the run", {"step": [23, "before"]}),
    ("last step of the run, done", {"step": [23, "after"]}),
    ("inside the last evaluation", {"evaluate": [0, 0]}),
]


def operations(run: Run, checkpoint: str) -> Tuple[List[Dict[str, Any]], List[Dict[str, Any]]]:
    """Faults at each file operation of writing ``checkpoint``: up to its rename, and after it.

    Left out is what a kill cannot show, because the page cache outlives the process: fsync, and
    opening for it.
    """
    before: List[Dict[str, Any]] = []
    after: List[Dict[str, Any]] = []
    chosen = before
    for where, value, name, what in run.records("file"):
        if where != "checkpoint" or value[0] != checkpoint:
            continue
        written = what and what[0] in (STATE, MANIFEST)
        if name != "fsync" and (name != "open" or written):
            chosen.append({"checkpoint": value})
        if name == "rename" and what[-1] == checkpoint:
            chosen = after
    return before, after


def chains(reference: Run) -> List[List[Dict[str, Any]]]:
    """Faults, dealt to runs so that no process finds the moment it is to be killed at gone by."""
    first, first_after = operations(reference, FIRST)
    later, later_after = operations(reference, LATER)
    first_after.append({"step": [5, "before"]})
    later_after.append({"step": [16, "before"]})
    moments = [fault for _, fault in MOMENTS]
    # Opening the lock; tidying up, the copies (play removes them), the metrics: of each six
    # operations two are syncs.
    resuming: List[Dict[str, Any]] = [{"main": i} for i in range(23) if i % 6 not in (0, 3)]
    resuming += [{"restore": "before"}, {"restore": "after"}]
    dealt = [first + later, moments]
    for early, late in itertools.zip_longest(first_after, later_after):
        # A resuming process is killed after each: it has something to clean up or to set right.
        chain = [early] if early else []
        chain += [resuming.pop()] if resuming else []
        chain += [late, resuming.pop()] if resuming else [late]
        dealt.append(chain)
    dealt[-1] += resuming
    return dealt


def play(server: Server, folder: Any, faults: List[Dict[str, Any]]) -> Run:
    run = Run(server, folder)
    for fault in faults:
        for name in COPIES if "main" in fault else ():
            if (run.path / name).exists():
                (run.path / name).unlink()
        code = run(fault)
        assert code == -9, f"{faults}: at {fault} it ended with {code}\n{run.text()}"
    code = run()
    assert code == 0, f"{faults}: the last process ended with {code}\n{run.text()}"
    return run


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(
    servers: Any, reference: Run, tmp_path: Any, all_of_them: bool
) -> None:
    expected, samples = reference.state(), reference.samples()
    assert len(samples) == 24
    todo = list(enumerate(chains(reference)))
    if not all_of_them:
        todo = todo[:2] + todo[2::3]
    kills = sum(len(faults) for _, faults in todo)
    assert kills >= 25
    different = []

    def work(server: Server) -> None:
        while todo:
            number, faults = todo.pop(0)
            run = play(server, tmp_path / str(number), faults)
            if run.state() != expected or run.samples() != samples:
                different.append((faults, run.text()))

    with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
        for done in [pool.submit(work, server) for server in servers]:
            done.result()
    assert not different, different
    print(f"{kills} kills, 0 differences")
