"""The launcher of ranks: signals, its end, the address on which it listens.

A small program replaces the ranks and writes files at each event. tests/integration/test_ranks.py
trains with real ranks.
"""

import os
import signal
import time

import psutil
import pytest

from tests.support.horovod import need_horovod
from tests.support.running import start_python, until

pytestmark = pytest.mark.once
LAUNCHER = """
import sys
from amp_xla.commands import ranks
from amp_xla.process import stopping
from amp_xla.process.exits import exit_code
stopping._GRACE_SECONDS = 0.5  # a program with nothing to save ends after this time
stand_in = [sys.executable, "stand_in.py"]
sys.exit(exit_code(lambda: ranks.Launcher(stand_in, 2).wait()))
"""
STAND_IN = """
import os, pathlib, signal, sys, time
from amp_xla.process.world import announce, stop_with_launcher, world
rank = world().rank
announce(world())
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(f"stopping-{rank}").touch())
stop_with_launcher()
pathlib.Path(f"up-{rank}").write_text(str(os.getpid()))
while not os.path.exists("step-ended"):
    time.sleep(0.02)
sys.exit(143)
"""
# The deaf rank stands for one that imports a library, or waits for another rank; an early one has
# not called `guard` yet.
STARTING = """
import os, pathlib, signal, time
from amp_xla.process import exits
from amp_xla.process.world import world
rank = world().rank
if not {early}:
    exits.guard()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if rank == {deaf} else signal.SIG_DFL)
pathlib.Path("up-%d" % rank).write_text(str(os.getpid()))
while not os.path.exists("sent"):
    time.sleep(0.02)
exits.guard()
time.sleep(240)
"""
LOST = """
import os, signal, sys
from amp_xla.errors import RankLost
from amp_xla.process.exits import exit_code
from amp_xla.process.world import world
def lost():
    raise RankLost("another rank has ended; step-9 is whole")
if world().rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(exit_code(lost))
"""
LATE = """
import time
from amp_xla.process.world import world
time.sleep(8 * world().rank)
import amp_xla.setup
from amp_xla.training import distributed
print(distributed.join().gather(world().rank))
"""
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


def start(folder, program, before="", **variables):
    """Start the launcher with two ranks that run a program."""
    need_horovod()
    (folder / "stand_in.py").write_text(program)
    return start_python("-c", before + LAUNCHER, cwd=folder, **variables)


def pids(folder):
    """Return the process ids of the ranks, once they run."""
    up = [folder / f"up-{rank}" for rank in (0, 1)]
    until(lambda: all(path.exists() and path.read_text() for path in up))
    return [int(path.read_text()) for path in up]


def ended(process):
    out, errors = process.communicate(timeout=240)
    return process.returncode, out.decode(), errors.decode()


@pytest.fixture
def launcher(tmp_path):
    process = start(tmp_path, STAND_IN)
    try:
        pids(tmp_path)
        yield process
    finally:
        (tmp_path / "step-ended").touch()
        process.kill()
        process.communicate()


def test_it_waits_until_a_long_step_has_ended(launcher, tmp_path):
    launcher.terminate()
    until((tmp_path / "stopping-0").exists)
    time.sleep(2)
    assert launcher.poll() is None
    (tmp_path / "step-ended").touch()
    assert launcher.wait(30) == 143


def test_it_listens_on_the_loopback_only_and_the_second_signal_kills(launcher, tmp_path):
    process = psutil.Process(launcher.pid)
    connections = getattr(process, "net_connections", None) or process.connections
    listening = [c.laddr.ip for c in connections() if c.status == "LISTEN"]
    assert listening == ["127.0.0.1"]
    launcher.terminate()
    until((tmp_path / "stopping-0").exists)
    time.sleep(1)  # a signal that arrives sooner counts as the same one
    launcher.terminate()
    assert launcher.wait(30) == 128 + signal.SIGKILL


def test_ranks_stop_if_the_launcher_is_killed(launcher, tmp_path):
    launcher.kill()
    until(lambda: all((tmp_path / f"stopping-{rank}").exists() for rank in (0, 1)))


CODES = {"SIGTERM": 143, "SIGUSR1": 0, "SIGINT": 130}


@pytest.mark.parametrize(("target", "deaf", "early", "name"), [
    (None, -1, False, "SIGINT"), (None, 0, False, "SIGUSR1"), (1, 0, False, "SIGTERM"),
    (None, -1, True, "SIGINT"), (1, -1, True, "SIGINT"),
])  # fmt: skip
def test_a_signal_before_the_ranks_train_ends_all(tmp_path, target, deaf, early, name):
    process = start(tmp_path, STARTING.format(deaf=deaf, early=early))
    up = pids(tmp_path)
    os.kill(process.pid if target is None else up[target], getattr(signal, name))
    (tmp_path / "sent").touch()
    assert ended(process) == (CODES[name], "", "")


@pytest.mark.parametrize("number, before", [(0, False), (1, True)])
def test_a_signal_while_the_ranks_are_started(tmp_path, number, before):
    code = WHILE_STARTING.format(number=number, before=before)
    program = STARTING.format(deaf=-1, early=False)
    assert ended(start(tmp_path, program, code)) == (143, "", "")


def test_the_newest_checkpoint_is_named_if_rank_0_is_killed(tmp_path):
    code, _, said = ended(start(tmp_path, LOST))
    errors = said.splitlines()
    assert code == 137 and len(errors) == 2, errors
    assert errors[0].startswith("error: rank 0 on ") and "killed by SIGKILL" in errors[0]
    assert errors[1] == "stopping: another rank has ended; step-9 is whole"


@pytest.mark.slow
def test_ranks_wait_for_one_that_starts_late(tmp_path):
    """Horovod itself would abort after the time-out."""
    process = start(tmp_path, LATE, HOROVOD_GLOO_TIMEOUT_SECONDS="5")
    code, out, errors = ended(process)
    assert (code, out) == (0, "[0, 1]\n"), errors
