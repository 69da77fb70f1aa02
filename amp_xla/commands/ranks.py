"""``amp-xla ranks --np 2 -- ...``: one training run on several GPUs.

    make train RECIPE=classification NP=2

The command starts the recipe once per rank, shows the output of rank 0, forwards signals, and ends
all ranks if one fails. For several machines see docs/launchers.md: horovodrun, mpirun and Slurm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple, cast

from amp_xla.backend import nvidia
from amp_xla.commands import slurm
from amp_xla.config import parse, split_words
from amp_xla.errors import AmpXlaError, RankLost
from amp_xla.process.checkout import ROOT, horovod_from, in_own_environment, running
from amp_xla.process.progress import note
from amp_xla.process.stopping import EXIT_CODES, SAME_SIGNAL_SECONDS
from amp_xla.process.world import ENDS_WITH_STDIN, TRAINING

# After one rank has failed, the others are killed after this time.
_GRACE_SECONDS = 12.0
# The same after a signal before all ranks train, when there is nothing to save.
_START_GRACE_SECONDS = 3.0
_MOST_RANKS = 64
_LAST_BYTES = 1 << 14  # of a rank's output, to find its error


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a recipe on several ranks. After `--`: the recipe's flags."""

    np: str = "auto"
    """number of ranks; auto = one per GPU of this machine"""
    slurm: bool = False
    """srun has started this process, which becomes one rank"""
    recipe: str = "classification"
    """name of a recipe, or path of its file"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command; return the exit code, see ``Launcher.wait``."""
    own, words = split_words(argv)
    config = parse(Config, own, "amp-xla ranks RECIPE")
    command = [*running("amp_xla"), "train", "--recipe", config.recipe, "--", *words]
    if {"-h", "--help"} & set(words):
        os.execv(sys.executable, command)
    count = sum(slurm.read(os.environ).slots) if config.slurm else _count(config.np)
    if count == 1:
        os.execv(sys.executable, command)
    _need_horovod(count)
    if config.slurm:
        os.execve(sys.executable, command, {**os.environ, **slurm.join(os.environ)})
    return Launcher(command, count).wait()


def _count(np: str) -> int:
    if np == "auto":
        gpus = len(nvidia.look().gpus)
        if not gpus:
            raise AmpXlaError(
                "--np auto needs a GPU, and the driver lists none; give a number, e.g. 2"
            )
        return gpus
    if not np.isdecimal() or not 1 <= int(np) <= _MOST_RANKS:
        raise AmpXlaError(
            f"--np {np[:20]!r}; allowed: auto, or a whole number from 1 to {_MOST_RANKS} (ranks of "
            f"one machine)"
        )
    return int(np)


def _need_horovod(count: int) -> None:
    """Build Horovod if this checkout's environment does not have it."""
    if importlib.util.find_spec("horovod") is not None:
        return
    if not in_own_environment():
        raise AmpXlaError(
            f"{count} ranks need Horovod, which {sys.executable} does not have; {horovod_from()}"
        )
    runtime = Path(sys.prefix).name.partition("-")[0]  # tf2-cuda is tf2 on a GPU
    if subprocess.run([str(ROOT / "scripts/build_horovod.sh"), runtime], stdout=2).returncode:
        raise AmpXlaError("Horovod could not be built; see the output above")
    importlib.invalidate_caches()


class Rank:
    """The process of one rank."""

    def __init__(self, number: int, words: List[str]) -> None:
        self.number = number
        self.ended = 0.0
        self._output = tempfile.TemporaryFile() if number else None  # noqa: SIM115  # for `why`
        # A Python that starts answers SIGINT with a traceback; ``guard`` unblocks it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,  # closes if the launcher is killed; then the rank stops
                stdout=self._output,
                stderr=subprocess.STDOUT if number else None,
                start_new_session=True,  # the launcher forwards Ctrl-C
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @property
    def code(self) -> Optional[int]:
        """The exit code as in a shell (128 + the signal's number); None while the rank runs."""
        code = self._process.poll()
        if code is not None and not self.ended:
            self.ended = time.monotonic()
        return 128 - code if code is not None and code < 0 else code

    @property
    def stopped_by(self) -> Optional[int]:
        """The signal that the exit code stands for, e.g. SIGINT for 130, SIGUSR1 for 0; or None."""
        numbers = (n for n, code in _STOPPED.items() if self.code in (code, 128 + n))
        return next(numbers, None)

    def send(self, number: int) -> None:
        """Send a signal to the process and its children."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def why(self) -> str:
        """Return why the rank ended: its error line, a signal, or exit code and last output."""
        error = self.last("error: ")
        if error:
            return error[len("error: ") :].rstrip()
        code = self.code or 0
        killed_by = {128 + number: number.name for number in signal.Signals}
        if code in killed_by:
            return f"was killed by {killed_by[code]}"
        last = self.last("").strip()
        return f"ended with exit code {code}" + (f": {last[:300]}" if last else "")

    def last(self, start: str) -> str:
        """Return the last output line that begins with ``start`` and is not blank; '' if none."""
        if self._output is None:  # rank 0 writes to the terminal
            return ""
        end = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, end - _LAST_BYTES))
        lines = self._output.read().decode(errors="replace").splitlines(keepends=True)
        return next((x for x in reversed(lines) if x.startswith(start) and x.strip()), "")


# Exit code of a rank by the signal that has stopped it.
_STOPPED = {getattr(signal, name): code for name, code in EXIT_CODES.items()}


class Launcher:
    """The ranks of a run: ``count`` processes, each of which runs ``command``."""

    _received: Optional[Tuple[int, float]] = None  # the first signal, and when it came

    def __init__(self, command: List[str], count: int) -> None:
        address, interface = "127.0.0.1", "lo"
        plan = slurm.assign(f"localhost:{count}")
        # The port has no password, so it listens only on the address that the ranks need.
        self._server = slurm.rendezvous(address, 0, plan)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        port = int(self._server.server_address[1])
        self._starting, self._size = True, len(plan)  # some rank does not train yet
        self.ranks: List[Rank] = []
        # ``exit_code`` watches signals and would end this process; they must go to the ranks.
        signal.set_wakeup_fd(-1)
        for number in _STOPPED:
            signal.signal(number, self._forward)
        for slot in plan:
            if self._received:
                break
            variables = slurm.variables(slot, address, interface, port)
            variables[ENDS_WITH_STDIN], variables["HOROVOD_HOSTNAME"] = "1", socket.gethostname()
            assignments = (f"{name}={value}" for name, value in variables.items())
            self.ranks.append(Rank(slot.rank, ["env", *assignments, *command]))
        if self._received:  # while the last rank was being made
            for rank in self.ranks[-1:]:
                rank.send(self._received[0])

    def _forward(self, number: int, frame: Any = None) -> None:
        """Forward the first signal; kill all ranks at the second signal.

        Once all ranks train, only rank 0 gets the signal; the ranks agree on when to stop.
        """
        seconds = time.monotonic()
        if self._received is None:
            self._received = number, seconds
            for rank in self.ranks if self._are_starting() else self.ranks[:1]:
                rank.send(number)
        elif seconds - self._received[1] > SAME_SIGNAL_SECONDS:
            for rank in self.ranks:
                rank.send(signal.SIGKILL)

    def _are_starting(self) -> bool:
        trained = self._server.cache.get(TRAINING, {})
        self._starting = self._starting and len(trained) < self._size
        return self._starting

    def wait(self) -> int:
        """Wait for all ranks; return 0, or the exit code for a signal, a failed or a lost rank."""
        try:
            while any(rank.code is None for rank in self.ranks):
                if self._time_is_up():
                    break
                time.sleep(0.1)
        finally:
            silent = [rank for rank in self.ranks if rank.code is None]
            for rank in silent:
                rank.send(signal.SIGKILL)
        return self._verdict(silent)

    def _time_is_up(self) -> bool:
        """Return whether the ranks that are still running must be killed.

        If a signal has stopped one rank while others still start, forward it to all ranks.
        """
        now, starting = time.monotonic(), self._received is None and self._are_starting()
        ended = [rank for rank in self.ranks if rank.code is not None]
        if starting:
            # A rank that was stopped alone, when the others cannot know it yet.
            stopped = [rank for rank in ended if rank.stopped_by and now - rank.ended > 1]
            for rank in stopped[:1]:
                self._forward(cast(int, rank.stopped_by))
        if self._received is not None and self._starting:
            return now - self._received[1] > _START_GRACE_SECONDS
        since = [rank.ended for rank in ended if rank.code or self._received is not None]
        return bool(since) and now - min(since) > _GRACE_SECONDS

    def _verdict(self, silent: List[Rank]) -> int:
        codes = {rank.code for rank in self.ranks if rank not in silent}
        if self._received is not None and self._starting and 128 + signal.SIGKILL not in codes:
            return _STOPPED[self._received[0]]  # whatever the others said about one that ended
        if self._received is not None and not silent and len(codes) == 1:
            return codes.pop() or 0  # rank 0 has printed the reason
        failed = [rank for rank in self.ranks if rank.code and rank not in silent]
        failed.sort(key=lambda rank: rank.ended)
        guilty = [rank for rank in failed if rank.code != RankLost.exit_code]
        if guilty:
            # If several have the same exit code, report rank 0, which has printed its error.
            rank = min(guilty, key=lambda r: (r.code != guilty[0].code, r.number))
            if rank.number or (rank.code or 0) > 128:
                why = rank.why()
                named = why.startswith("rank ")
                place = "" if named else f"rank {rank.number} on {socket.gethostname()} "
                note(f"error: {place}{why}")
            if not rank.number and len(self.ranks) > 1:  # rank 0 did not name the checkpoint
                line = self.ranks[1].last("stopping: ").rstrip()
                if line:
                    note(line)
            return rank.code or 0
        if silent:
            names = " and ".join(f"rank {rank.number}" for rank in silent)
            note(f"error: {names} did not respond: killed; continue with --resume")
            return RankLost.exit_code
        return failed[0].code or 0 if failed else 0
