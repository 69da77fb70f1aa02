"""How processes end: one line, the documented code, and nothing lost of what they said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT, environment, run_python

FAULT = """
import os, sys
from amp_xla.process import exits
def endless(): return endless()
def memory(): raise MemoryError
def message(): raise RuntimeError("first line\\nsecond line")
sys.exit(exits.exit_code(globals()[sys.argv[1]]))
"""


@pytest.mark.parametrize("name, word", [
    ("endless", "RecursionError: maximum recursion"), ("memory", "MemoryError ("),
    ("message", "RuntimeError: first line second line ("),
])  # fmt: skip
def test_a_fault_is_one_line_and_a_file(tmp_path: Path, name: str, word: str) -> None:
    secret = "not-for-anybodys-eyes"
    done = run_python("-c", FAULT, name, cwd=tmp_path, env={"TOKEN": secret})
    assert done.code == 70 and done.out == "", done
    assert done.err.count("\n") == 1 and done.err.startswith("error: a fault of this program: ")
    assert word in done.err
    path = tmp_path / done.err.strip().rpartition("the traceback is in ")[2]
    text = path.read_text()
    assert "Traceback (most recent call last)" in text and f"in {name}" in text
    assert "amp_xla 0." in text and "Python 3." in text
    assert secret not in text + done.err


def test_where_nothing_can_be_written_the_line_still_comes(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file, not a folder")
    env = {"TMPDIR": str(tmp_path / "missing")}
    done = run_python("-c", FAULT, "message", cwd=tmp_path, env=env)
    assert done.code == 70 and done.err.count("\n") == 1, done


def test_a_fault_while_a_recipe_is_imported(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ZeroDivisionError('planted')")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = run_python("-m", "recipes.classification", cwd=tmp_path, env=env)
    assert done.code == 70 and done.err.count("\n") == 1 and "planted" in done.err, done


def shell(command: str, cwd: Path, **env: str) -> Any:
    return subprocess.run(
        ["bash", "-c", command], cwd=str(cwd), env=environment({"PY": sys.executable, **env}),
        capture_output=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nobody_reads_on(tmp_path: Path, unbuffered: str) -> None:
    script = "from amp_xla.process.exits import exit_code as e; import sys; "
    script += "sys.exit(e(lambda: [print('x' * 99) for _ in range(9999)] and 0))"
    done = shell(
        f'$PY -c "{script}" | head -1; exit ${{PIPESTATUS[0]}}', tmp_path,
        PYTHONUNBUFFERED=unbuffered,
    )  # fmt: skip
    assert done.returncode == 141 and done.stderr.count(b"\n") == 1, done
    done = shell(f'$PY -c "{script}" > /dev/full', tmp_path)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1, done
    assert b"error: " in done.stderr and b"No space left" in done.stderr


@pytest.mark.parametrize("number, code", [
    (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129),
])  # fmt: skip
def test_code_that_swallows_everything_does_not_swallow_a_signal(number: int, code: int) -> None:
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # a parent's nohup is inherited
        "from amp_xla.process.exits import exit_code\n"
        "def work():\n"
        "    try:\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        time.sleep(60)\n"
        "    except BaseException as error:\n"
        "        raise ImportError('swallowed') from error\n"
        "sys.exit(exit_code(work))\n"
    )
    done = run_python("-c", script)
    assert done.code == code, done
    assert done.err == f"stopped by {signal.Signals(number).name}\n"


def test_code_that_never_gives_up_is_ended() -> None:
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # a parent's nohup is inherited
        "from amp_xla.process.exits import exit_code\n"
        "def work():\n"
        "    waiting = [os.getpid()]\n"
        "    while True:\n"
        "        try:\n"
        "            if waiting: os.kill(waiting.pop(), 15)\n"
        "            time.sleep(60)\n"
        "        except BaseException: pass\n"
        "sys.exit(exit_code(work))\n"
    )
    done = run_python("-c", script, timeout=30)
    assert done.code == 143, done
    assert "SIGTERM: ended; there was nothing to save" in done.err


def test_what_a_dying_process_said_is_shown() -> None:
    script = (
        "import os\n"
        "from amp_xla.process.quiet import quiet_stderr\n"
        "many = [os.dup(0) for _ in range(20)]\n"  # a shell may know only one digit
        "with quiet_stderr():\n"
        "    os.write(2, b'oneDNN custom operations are on\\n')\n"
        "    os.write(2, b'shown\\n')\n"
        "with quiet_stderr():\n"
        "    os.write(2, b'F parse_flags: Unknown flags')\n"
        "    os.abort()\n"
    )
    done = run_python("-c", script)
    assert done.code == -signal.SIGABRT
    assert done.err == "shown\nF parse_flags: Unknown flags"


LOST = """
import os, pathlib, sys
from amp_xla.errors import AmpXlaError
from amp_xla.process.exits import exit_code
from amp_xla.process.kept_output import Output
from amp_xla.process.progress import note
def close(when):
    if when != sys.argv[1]:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    os.close(read_end)
    os.dup2(write_end, 1)
    os.dup2(write_end, 2)
def work():
    with Output() as output:
        close("before the folder")
        note("one")
        output.keep_in(pathlib.Path())
        close("after it")
        note("two")
        print("three")
        close("at the end")
    raise AmpXlaError("last words")
sys.exit(exit_code(work))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("when, lost", [
    ("before the folder", ["one", "two", "three", "last words"]),
    ("after it", ["two", "three", "last words"]), ("at the end", ["last words"]),
])  # fmt: skip
def test_what_nobody_takes_is_in_a_file(
    tmp_path: Path, when: str, lost: Any, unbuffered: str
) -> None:
    env = {"PYTHONUNBUFFERED": unbuffered}
    assert run_python("-c", LOST, when, cwd=tmp_path, env=env).code == 2
    text = (tmp_path / "output.txt").read_text()
    assert "standard error takes no more (Broken pipe); it goes on here\n" in text
    assert "standard output takes no more" in text
    for word in ("one", "two", "three", "last words"):
        assert text.count(word) == (word in lost), text
