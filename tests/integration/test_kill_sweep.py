"""SIGKILL anywhere: what is left after resuming is, byte for byte, the uninterrupted run.

Each chain is one run that several processes work on: every one but the last is killed at a
chosen point, the next resumes. The points are every file operation of writing a first and a
later checkpoint, every one of resuming, and the moments in training that have a state of their
own. Processes are real and so is the signal; see ``tests/support/killing.py``.
"""

import itertools

import pytest

from amp_xla.training.checkpoint import STATE, Checkpoint, steps
from amp_xla.training.manifest import MANIFEST
from amp_xla.training.options import PrecisionOptions
from tests.integration.test_refused import forged
from tests.support.killing import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FIRST, LATER = "step-00000005", "step-00000016"
# Steps 3 and 12 overflow; each has two micro-batches, an epoch eight steps.
MOMENTS = [
    {"step": [0, "before"]},
    {"step": [0, "inside"]},
    {"step": [3, "after"]},  # an overflow that no checkpoint has seen
    {"step": [7, "before"]},  # last step of an epoch
    {"step": [7, "after"]},
    {"evaluate": [0, 1]},
    {"step": [8, "before"]},  # first step of an epoch
    {"step": [11, "before"]},  # the loss scale grows
    {"step": [11, "after"]},
    {"step": [12, "inside"]},
    {"step": [13, "after"]},  # after the second overflow
    {"evaluate": [0, 2]},  # before a promotion
    {"step": [16, "after"]},
    {"step": [21, "after"]},  # a checkpoint was begun
    {"step": [23, "before"]},  # last step of the run
    {"step": [23, "after"]},
    {"evaluate": [0, 0]},
]


def operations(run, checkpoint):
    """Faults at each file operation of writing ``checkpoint``: up to its rename, and after it.

    Left out is what a kill cannot show, because the page cache outlives the process: fsync, and
    opening for it.
    """
    before = []
    after = []
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


def chains(reference):
    """Faults, dealt to runs so that no process finds the moment it is to be killed at gone by."""
    first, first_after = operations(reference, FIRST)
    later, later_after = operations(reference, LATER)
    first_after.append({"step": [5, "before"]})
    later_after.append({"step": [16, "before"]})
    # Opening the lock; tidying up, the copies, the metrics: of each six operations two are syncs.
    resuming = [{"main": i} for i in range(23) if i % 6 not in (0, 3)]
    resuming += [{"restore": "before"}, {"restore": "after"}]
    dealt = [first + later, MOMENTS]
    for early, late in itertools.zip_longest(first_after, later_after):
        # A resuming process is killed after each: it has something to clean up or to set right.
        chain = [early] if early else []
        chain += [resuming.pop()] if resuming else []
        chain += [late, resuming.pop()] if resuming else [late]
        dealt.append(chain)
    dealt[-1] += resuming
    return dealt


PARTS = {  # of the chains, and of the faults in each; files are those of any TensorFlow
    "writing": (slice(0, 1), 2), "training": (slice(1, 2), 2), "resuming": (slice(2, None, 7), 1),
    "all": (slice(None), 1),
}  # fmt: skip
MARKS = {"writing": pytest.mark.once, "resuming": pytest.mark.once, "all": pytest.mark.long}


@pytest.mark.parametrize("part", [pytest.param(x, marks=MARKS.get(x, ())) for x in PARTS])
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(reference, tmp_path, part):
    expected, samples = reference.state(), reference.samples()
    assert len(samples) == 24
    dealt = chains(reference)
    assert sum(map(len, dealt)) >= 50
    chosen, every = PARTS[part]
    for number, faults in enumerate(chain[::every] for chain in dealt[chosen]):
        run = Run(reference.server, tmp_path / str(number))
        for fault in faults:
            code = run(fault)
            assert code == -9, f"{faults}: at {fault} it ended with {code}\n{run.text()}"
        assert run() == 0, f"{faults}\n{run.text()}"
        assert (run.state(), run.samples()) == (expected, samples), f"{faults}\n{run.text()}"


OLDER = "from amp_xla.backend import configuring; configuring.compiles = lambda: False"


@pytest.mark.parametrize(
    "code, kind", [("", "hash"), pytest.param(OLDER, "random", marks=pytest.mark.once)]
)
def test_a_killed_run_with_xla_keeps_its_masks(server, tmp_path, code, kind):
    """And one from before the masks of XLA had a kind of their own."""
    whole, killed = (
        Run(server, tmp_path / name, precision_options=PrecisionOptions("fp32", "no_lazy"))
        for name in ("whole", "killed")
    )
    whole.code = killed.code = code
    assert whole() == 0, whole.text()
    assert killed({"step": [9, "inside"]}) == -9
    killed.code = ""
    if code:
        forged(killed.path, lambda state: state["identity"]["settings"].pop("dropout masks"))
    assert killed({"step": [21, "after"]}) == -9, killed.text()
    assert killed() == 0, killed.text()
    assert killed.state() == whole.state()
    last = Checkpoint(steps(killed.path / "checkpoints")[-1])
    assert last.identity["settings"]["dropout masks"] == kind
    if code:
        return
    forged(killed.path, lambda state: state["identity"]["settings"].update({"dropout masks": "x"}))
    assert killed(config={"epochs": 4}) == 2
    assert "setting dropout masks: x in the checkpoint, random now" in killed.text()
