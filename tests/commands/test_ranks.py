"""The launcher of ranks: signals, its end, the address on which it listens, refused flags.

A small program replaces the ranks and writes files at each event. tests/integration/test_ranks.py
trains with real ranks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List

import psutil
import pytest

from amp_xla.commands import ranks
from amp_xla.errors import AmpXlaError
from tests.support.horovod import ROOT, need_horovod

pytestmark = pytest.mark.once
LAUNCHER = """
import sys
from amp_xla.commands import ranks
from amp_xla.process import stopping
from amp_xla.process.exits import exit_code
stopping._GRACE_SECONDS = 0.5  # a program with nothing to save ends after this time
stand_in = [sys.executable, "stand_in.py"]
sys.exit(exit_code(lambda: ranks.Launcher(stand_in, 2, None).wait()))
"""
STAND_IN = """
import os, pathlib, signal, sys, time
sys.path.insert(0, {root!r})
from amp_xla.process.world import announce
from amp_xla.process.world import stop_with_launcher, world
rank = world().rank
announce(world())
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(f"stopping-{{rank}}").touch())
stop_with_launcher()
pathlib.Path(f"up-{{rank}}").write_text(str(os.getpid()))
while not os.path.exists("step-ended"):
    time.sleep(0.02)
sys.exit(143)
"""


LATE = """
import sys, time
sys.path.insert(0, {root!r})
from amp_xla.process.world import world
time.sleep(14 * world().rank)
import amp_xla.setup
from amp_xla.training import distributed
print(distributed.join().gather(world().rank))
"""


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def start(folder: Path, before: str = "") -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", before + LAUNCHER],
        cwd=str(folder),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Any]:
    need_horovod()
    (tmp_path / "stand_in.py").write_text(STAND_IN.format(root=str(ROOT)))
    process = start(tmp_path)
    try:
        until(lambda: (tmp_path / "up-0").exists() and (tmp_path / "up-1").exists())
        yield process
    finally:
        (tmp_path / "step-ended").touch()
        process.kill()
        process.wait()


def test_it_waits_until_a_long_step_has_ended(launcher: Any, tmp_path: Path) -> None:
    launcher.terminate()
    until((tmp_path / "stopping-0").exists)
    time.sleep(2)
    assert launcher.poll() is None
    (tmp_path / "step-ended").touch()
    assert launcher.wait(30) == 143


def test_it_listens_on_the_loopback_only_and_the_second_signal_kills(
    launcher: Any, tmp_path: Path
) -> None:
    process = psutil.Process(launcher.pid)
    connections = getattr(process, "net_connections", None) or process.connections
    listening = [c.laddr.ip for c in connections() if c.status == "LISTEN"]
    assert listening == ["127.0.0.1"]
    launcher.terminate()
    until((tmp_path / "stopping-0").exists)
    time.sleep(1)  # a signal that arrives sooner counts as the same one
    launcher.terminate()
    assert launcher.wait(30) == 128 + signal.SIGKILL


def test_ranks_stop_if_the_launcher_is_killed(launcher: Any, tmp_path: Path) -> None:
    launcher.kill()
    until(lambda: all((tmp_path / f"stopping-{rank}").exists() for rank in (0, 1)))


STARTING = """
import os, pathlib, signal, sys, time
sys.path.insert(0, {root!r})
from amp_xla.process import exits
from amp_xla.process.world import world
exits.guard()
rank = world().rank
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN if rank == {deaf} else signal.SIG_DFL)
pathlib.Path(f"up-{{rank}}").write_text(str(os.getpid()))
time.sleep(240)
"""
CODES = {"SIGTERM": 143, "SIGUSR1": 0, "SIGINT": 130}


@pytest.mark.parametrize(("target", "deaf", "name"), [
    (None, -1, "SIGINT"), (None, 0, "SIGUSR1"), (None, 1, "SIGTERM"), (1, 0, "SIGTERM"),
    (0, -1, "SIGUSR1"),
])  # fmt: skip
def test_a_signal_before_the_ranks_train_ends_all(
    tmp_path: Path, target: Any, deaf: int, name: str
) -> None:
    """The deaf rank stands for one that imports a library, or waits for another rank."""
    need_horovod()
    (tmp_path / "stand_in.py").write_text(STARTING.format(root=str(ROOT), deaf=deaf))
    process = start(tmp_path)
    up = [tmp_path / f"up-{rank}" for rank in (0, 1)]
    until(lambda: all(path.exists() and path.read_text() for path in up))
    victim = process.pid if target is None else int(up[target].read_text())
    os.kill(victim, getattr(signal, name))
    errors = process.communicate(timeout=120)[1].decode()
    assert (process.returncode, errors) == (CODES[name], "")


EARLY = """
import os, pathlib, sys, time
sys.path.insert(0, {root!r})
from amp_xla.process import exits
from amp_xla.process.world import world
pathlib.Path(f"up-{{world().rank}}").write_text(str(os.getpid()))
while not os.path.exists("sent"):
    time.sleep(0.02)
exits.guard()
time.sleep(240)
"""


@pytest.mark.parametrize("target", [None, 0, 1])
def test_an_interrupt_while_python_starts_has_no_traceback(tmp_path: Path, target: Any) -> None:
    need_horovod()
    (tmp_path / "stand_in.py").write_text(EARLY.format(root=str(ROOT)))
    process = start(tmp_path)
    up = [tmp_path / f"up-{rank}" for rank in (0, 1)]
    until(lambda: all(path.exists() and path.read_text() for path in up))
    os.kill(process.pid if target is None else int(up[target].read_text()), signal.SIGINT)
    (tmp_path / "sent").touch()
    errors = process.communicate(timeout=120)[1].decode()
    assert (process.returncode, errors) == (130, "")


WHILE_STARTING = """
import os, signal
from amp_xla.commands import ranks
class Rank(ranks.Rank):
    def __init__(self, number, *rest):
        if number == {number} and {before}:
            os.kill(os.getpid(), signal.SIGTERM)
        super().__init__(number, *rest)
        if number == {number} and not {before}:
            os.kill(os.getpid(), signal.SIGTERM)
ranks.Rank = Rank
"""


@pytest.mark.parametrize("number, before", [(0, False), (1, True)])
def test_a_signal_while_the_ranks_are_started(tmp_path: Path, number: int, before: bool) -> None:
    need_horovod()
    (tmp_path / "stand_in.py").write_text(STARTING.format(root=str(ROOT), deaf=-1))
    process = start(tmp_path, WHILE_STARTING.format(number=number, before=before))
    errors = process.communicate(timeout=120)[1].decode()
    assert (process.returncode, errors) == (143, "")


LOST = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from amp_xla.errors import RankLost
from amp_xla.process.exits import exit_code
from amp_xla.process.world import world
def lost():
    raise RankLost("another rank has ended; step-9 is whole")
if world().rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(exit_code(lost))
"""


def test_the_newest_checkpoint_is_named_if_rank_0_is_killed(tmp_path: Path) -> None:
    need_horovod()
    (tmp_path / "stand_in.py").write_text(LOST.format(root=str(ROOT)))
    process = start(tmp_path)
    errors = process.communicate(timeout=120)[1].decode().splitlines()
    assert process.returncode == 137 and len(errors) == 2, errors
    assert errors[0].startswith("error: rank 0 on ") and "killed by SIGKILL" in errors[0]
    assert errors[1] == "stopping: another rank has ended; step-9 is whole"


@pytest.mark.slow
def test_ranks_wait_for_one_that_starts_late(tmp_path: Path) -> None:
    """Horovod itself would abort after the time-out."""
    need_horovod()
    (tmp_path / "stand_in.py").write_text(LATE.format(root=str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER], cwd=str(tmp_path), capture_output=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOROVOD_GLOO_TIMEOUT_SECONDS": "10"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"[0, 1]\n"), done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--hosts", "a:1,b"], "allowed: NAME:RANKS,NAME:RANKS"),
        (["--hosts", "localhost:1,127.0.0.1:1"], "two names of this machine"),
    ],
)
def test_wrong_numbers_of_ranks_and_hosts_are_refused(flags: List[str], message: str) -> None:
    need_horovod()
    with pytest.raises(AmpXlaError, match=message):
        ranks.main([*flags, "--", "--epochs", "1"])
