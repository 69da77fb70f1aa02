"""The pool: answers come back, a dead worker is replaced and named, nobody outlives the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import List

import pytest

from amp_xla.process import children
from amp_xla.process.workers import WorkerError, Workers
from tests.process import pieces, trees
from tests.process.pieces import Piece
from tests.running import ROOT, environment

PARENT = """
import sys, threading
from amp_xla.process.workers import Workers
from tests.process import pieces
with Workers(2, print) as pool:
    waiting = [pool.submit(pieces.sleep, pieces.Piece(str(i), i)) for i in range(3)]
    waiting[0].result()
"""


def test_answers_and_exceptions_come_back() -> None:
    said: List[str] = []
    with Workers(2, said.append) as pool:
        assert list(pool.map(pieces.square, [Piece(str(i), i) for i in range(7)])) == [
            i * i for i in range(7)
        ]
        with pytest.raises(KeyError, match="lost"):
            pool.submit(pieces.fail, Piece("lost", 0)).result()
        with pytest.raises(RuntimeError, match="(?s)Traceback.*this and that"):
            pool.submit(pieces.fail, Piece("odd", 1)).result()
        assert len(trees.children(os.getpid())) >= 2
    assert said == []


def test_a_dead_worker_is_named_and_its_piece_done_again(tmp_path: Path) -> None:
    said: List[str] = []
    with Workers(2, said.append) as pool:
        work = [Piece(f"p{i}", i, str(tmp_path)) for i in range(4)]
        todo = [pieces.square, pieces.square, pieces.die_once, pieces.square]
        done = [pool.submit(function, piece) for function, piece in zip(todo, work)]
        assert [future.result() for future in done] == [0, 1, 4, 9]
        assert len(said) == 1 and "SIGKILL over piece p2; doing it again" in said[0]
        with pytest.raises(WorkerError, match="piece bad was given to 3 workers.*exit code 9"):
            pool.submit(pieces.die, Piece("bad", 0)).result()
        assert pool.submit(pieces.square, work[3]).result() == 9  # the pool still works


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_die_with_their_parent(how: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=str(ROOT), env=environment())
    workers = trees.wait_for_children(parent.pid, 2)
    time.sleep(0.5)  # some are asleep in their piece by now, or on their way: both must end
    parent.send_signal(how)
    parent.wait(30)
    assert trees.gone(workers)


def test_a_child_whose_parent_has_gone_already_ends() -> None:
    command = children.command("amp_xla.commands.header")
    command[3] = "1" if os.getpid() != 1 else "2"  # not its parent
    assert subprocess.run(command, env=environment()).returncode == 137
