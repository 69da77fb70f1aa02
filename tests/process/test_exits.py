"""Ends of programs: exit codes, one line if the user can fix the error; the bar, no text obeyed."""

import contextlib
import fcntl
import http.client
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from unittest import mock

import pytest

from amp_xla.data.text import unpacked
from amp_xla.errors import DataError, RankLost
from amp_xla.process import checkout, exits, output, world
from amp_xla.process.checkout import as_typed
from amp_xla.process.progress import Progress, note
from tests.support.running import ROOT, environment, run, run_python

pytestmark = pytest.mark.once
PLACES = ["checkout", "docs", "elsewhere", "on PATH", "not on PATH", "a module"]


@pytest.mark.parametrize("place", PLACES)
def test_messages_name_commands_as_they_are_typed_here(monkeypatch, tmp_path, place):
    script = tmp_path / "my bin" / "amp-xla"
    if "PATH" in place:
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m amp_xla "$@"\n')
        script.chmod(0o755)
    if place == "on PATH":
        monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(checkout, "ROOT", tmp_path if place == "a module" else ROOT)
    monkeypatch.setattr(checkout, "_SCRIPT", script)
    monkeypatch.chdir({"checkout": ROOT, "docs": ROOT / "docs"}.get(place, tmp_path))
    typed = as_typed("amp-xla nonsense")
    done = run(["sh", "-c", typed], Path.cwd(), PYTHONPATH=str(ROOT))
    assert done.returncode == 2 and "unknown command 'nonsense'" in done.stderr, typed
    assert as_typed(typed) == typed
    assert ("make -C" in as_typed("make env, to make it")) == (place in PLACES[1:3])


def test_packages_are_added_as_it_is_typed_here(monkeypatch):
    text = "run pip install x; docs: ./amp-xla runs; pip install 'amp-xla[tf2]'"
    monkeypatch.chdir(ROOT)
    for prefix, count in (("/usr", 0), (ROOT / ".venvs" / "tf2", 2)):
        monkeypatch.setattr("sys.prefix", str(prefix))
        assert as_typed(as_typed(text)).count("./amp-xla pip install") == count
        horovod = "build_horovod.sh tf2 builds it" if count else "have it: make docker-train"
        assert horovod in checkout.horovod_from()
    monkeypatch.setattr(checkout, "_SCRIPT", Path(sys.executable))  # an installed package
    monkeypatch.setattr("sys.prefix", "/usr")
    assert "have it: docker run" in checkout.horovod_from()


@pytest.mark.parametrize(("error", "line"), [
    (ImportError("broken"), "ONNX needs the package tf2onnx (broken): pip install a b"),
    (ModuleNotFoundError("no", name="packaging.v"), "packaging (no): pip install packaging"),
])  # fmt: skip
def test_a_missing_package_is_named(monkeypatch, error, line):
    def missing(name):
        raise error

    monkeypatch.setattr(unpacked.importlib, "import_module", missing)
    with pytest.raises(DataError, match=re.escape(line)):
        unpacked.extra("tf2onnx.convert", "ONNX", "a b")


PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a parent's nohup is inherited
from amp_xla.errors import AmpXlaError
from amp_xla.process import stopping
from amp_xla.process.exits import exit_code
def user(): raise AmpXlaError("no file \\x1b[31m\\n.tsv")
def full(): open("/dev/full", "wb", 0).write(b"1")
def swallow():
    try:
        os.kill(os.getpid(), int(sys.argv[2]))
        time.sleep(60)
    except BaseException as error:
        raise ImportError('swallowed') from error
def never():
    stopping._GRACE_SECONDS = 0.5
    waiting = [os.getpid()]
    while True:
        try:
            if waiting: os.kill(waiting.pop(), 15)
            time.sleep(60)
        except BaseException: pass
def prints():
    for _ in range(9999): print("x" * 99)
sys.exit(exit_code(globals()[sys.argv[1]]))
"""


@pytest.mark.parametrize("words, code, line", [
    ("user", 2, "error: no file \\x1b[31m\\n.tsv\n"),
    ("full", 2, "error: No space left on device\n"),
    (f"swallow {signal.SIGINT:d}", 130, "stopped by SIGINT\n"),
    (f"swallow {signal.SIGHUP:d}", 129, "stopped by SIGHUP\n"),
    ("never", 143, "SIGTERM: ended; there was nothing to save\n"),
])  # fmt: skip
def test_the_end_of_a_program_is_one_line(words, code, line):
    """Also of code that swallows every exception, or never gives up."""
    assert run_python("-c", PROGRAM, *words.split(), timeout=60, code=code) == (code, "", line)


def test_a_failed_write_to_standard_output_is_one_line():
    words = ["sh", "-c", '"$0" -c "$1" prints > /dev/full', sys.executable, PROGRAM]
    done = run(words, PYTHONPATH=str(ROOT))
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert "error: " in done.stderr and "No space left" in done.stderr


def streams(words, lost, broken, cwd):
    """Run a command whose streams ``lost`` are closed, or are pipes that nobody reads."""
    given = {0: subprocess.DEVNULL, 1: subprocess.PIPE, 2: subprocess.PIPE}
    if broken:
        read_end, write_end = os.pipe()
        os.close(read_end)
        given.update(dict.fromkeys(lost, write_end))
    with subprocess.Popen(
        [sys.executable, "-m", "amp_xla", *words.split()], stdin=given[0], stdout=given[1],
        stderr=given[2], cwd=str(cwd), env=environment(), universal_newlines=True,
        preexec_fn=None if broken else lambda: [os.close(number) for number in lost],
    ) as process:  # fmt: skip
        out, err = (text or "" for text in process.communicate(timeout=240))
    if broken:
        os.close(write_end)
    assert "Traceback" not in err and "Exception ignored" not in err, err
    return process.returncode, out, err


LOST = [((0,), False), ((1,), False), ((2,), False), ((0, 1, 2), False), ((1,), True), ((2,), True)]


@pytest.mark.parametrize(("lost", "broken"), LOST)
def test_a_stream_that_is_closed_changes_no_exit_code(lost, broken, tmp_path):
    printing = 141 if broken and 1 in lost else 0
    for words, code in (("--help", printing), ("verify --help", 0), ("predct", 2),
                        ("runs none", 2)):  # fmt: skip
        done = streams(words, lost, broken, tmp_path)
        assert done[0] == code, (words, done)


@pytest.mark.slow
def test_training_and_answers_without_a_stream(tmp_path):
    lines = [f"salt {n} soup\tcook\nbolt {n} nut\tbuild\n" for n in range(16)]
    (tmp_path / "t.tsv").write_text("".join(lines))
    (tmp_path / "x.json").write_text('{"text": "salt 1 soup"}\n{"text": "bolt 2 nut"}\n')
    model = "--layers 1 --hidden 64 --max-length 8 --shapes 1 --vocab-size 99 --epochs 1"
    train = f"train classification -- --train t.tsv --dev t.tsv {model} --name"
    assert streams(f"{train} a", (0, 1, 2), False, tmp_path)[0] == 0
    assert streams(f"{train} b", (2,), True, tmp_path)[0] == 0
    predict = "predict runs/classification/a"
    code, answers, err = streams(f"{predict} x.json", (), False, tmp_path)
    assert code == 0 and answers.count("\n") == 2 and "columns: text" in err
    for broken in (False, True):
        assert streams(f"{predict} x.json", (2,), broken, tmp_path)[:2] == (0, answers)
    for words, lost, line in (
        (predict, (0,), "input is closed; give the name of a file"),
        (f"{predict} x.json", (1,), "output is closed, so the answers"),
    ):
        code, _, err = streams(words, lost, False, tmp_path)
        assert code == 2 and f"error: standard {line}" in err, err


@pytest.mark.parametrize(("code", "caught", "left"), [
    (130, "ValueError", (130, "", "")), (130, "KeyboardInterrupt", (0, "saved\n", "")),
    (143, "KeyboardInterrupt", (143, "", "")),
])  # fmt: skip
def test_a_script_catches_ctrl_c_or_ends_by_its_exit_code(code, caught, left):
    program = f"""
from amp_xla.process.stopping import Stopped, ending
try:
    raise ending(Stopped("stopped", {code})) from None
except {caught}:
    print("saved")
"""
    assert run_python("-c", program, code=None) == left


def test_a_signal_during_the_imports_ends_the_process():
    program = "import os; from amp_xla.process import exits; exits.guard(); os.kill(os.getpid(), 2)"
    assert run_python("-c", program, code=None) == (-signal.SIGINT, "", "")


def test_a_rendezvous_server_that_ends_within_an_answer_is_lost(monkeypatch):
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "localhost")
    monkeypatch.setattr(world, "_status", mock.Mock(side_effect=http.client.BadStatusLine("")))
    world.announce(world.World(1, 2))
    with pytest.raises(RankLost, match="the rendezvous server has ended"):
        world.meet(world.World(1, 2))


def test_the_revision_is_that_of_a_repository_that_has_the_package(tmp_path, monkeypatch):
    (tmp_path / "checkout.py").touch()
    monkeypatch.setattr(checkout, "__file__", str(tmp_path / "checkout.py"))
    monkeypatch.setenv("SOURCE_REVISION", "of the image")
    commit = "git -c user.name=n -c user.email=e commit -q --allow-empty -m theirs"
    subprocess.run(f"git init -q; {commit}", shell=True, cwd=str(tmp_path), check=True)
    assert checkout.revision() == "of the image"
    subprocess.run(["git", "add", "."], cwd=str(tmp_path), check=True)
    assert checkout.revision().endswith("+changes")


POOLS = """
import multiprocessing, os, signal
from amp_xla.process.stopping import SignalWatch
with SignalWatch():
    signal.signal(signal.SIGRTMIN + 1, lambda *_: None)  # the script handles it
    os.kill(os.getpid(), signal.SIGRTMIN + 1)
    for _ in range(200):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, range(-3, 1)) == [3, 2, 1, 0]
"""


@pytest.mark.timeout(120)
def test_pools_end_though_the_signal_that_ends_a_worker_comes_while_it_is_forked():
    assert run_python("-c", POOLS) == (0, "", "")


def test_foreign_text_cannot_control_the_terminal(capsys):
    note("one\n\x1b[2Jtwo\x07 a\tb\r \u202ec\udc80 中文　Ünïcode")
    output.lines(["label\x1b[2J\nturned \u202e\t0.9", "\u0645\u06cc\u200c\u062e 👩\u200d👧\u2028"])
    said = capsys.readouterr()
    assert said.err == "one\n\\x1b[2Jtwo\\x07 a\\tb\\r \\u202ec\\udc80 中文　Ünïcode\n"
    # Joiners of Persian and of emoji stay.
    assert said.out.startswith(
        "label\\x1b[2J\\nturned \\u202e\t0.9\n\u0645\u06cc\u200c\u062e 👩\u200d👧"
    )
    note(f"first\n{'x' * 10**6} end")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "first" and len(second) < 2100 and second.endswith("x end")


def test_a_stream_without_settings_as_in_a_notebook_is_written():
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        assert exits.exit_code(output.lines, ["中"]) == 0
    assert stream.getvalue() == "中\n"


VALUES = {"loss": "0.1234", "scale": "1000", "skipped": "0", "accuracy": "0.987", "samples/s": "77"}


@pytest.mark.parametrize("columns, shown", [(40, 1), (60, 2), (80, 4), (120, 5)])
def test_the_bar_shows_whole_values_and_ends_before_the_last_lines(columns, shown, monkeypatch):
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        bar = Progress(104, 100)
        note("the first step is slow")
        for _ in range(4):
            bar.advance(8)
        bar.show(104, VALUES)
        note("epoch 1: dev accuracy 0.5")
        bar.close()
        told = ""
        while "0.5\r\n" not in told:
            told += os.read(reader, 1 << 16).decode()
    assert re.split(r"[\r\n]+", told)[0] == "the first step is slow"  # no bar above it
    *_, last, dev, end = re.split(r"[\r\n]+", told)
    assert (dev, end) == ("epoch 1: dev accuracy 0.5", "") and last.startswith("100% 104/104")
    words = [f"{name} {value}" for name, value in VALUES.items()]
    assert last.split("left, ")[1].split(" |")[0].strip() == "  ".join(words[:shown])
    assert len(last) <= columns


def test_a_terminal_of_unknown_width_gets_lines_instead_of_a_bar(monkeypatch):
    reader, terminal = pty.openpty()  # 0 columns
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        bar = Progress(104, 103)
        bar.advance(8)
        bar.show(104, VALUES)
        bar.close()
        assert os.read(reader, 1 << 16).decode().startswith("step 104/104  loss 0.1234  scale 1000")


def test_a_file_that_does_not_fit_leaves_nothing(tmp_path):
    code = "import pathlib, sys; from amp_xla.process import durable; "
    code += "durable.replace(pathlib.Path(sys.argv[1]), b'1' * 4096)"
    words = ["sh", "-c", 'ulimit -f 1; exec "$0" -c "$1" "$2"', sys.executable, code]
    done = run([*words, str(tmp_path / "report.html")])
    assert done.stderr.endswith(f"File too large: '{tmp_path}/report.html'\n"), done.stderr
    assert not list(tmp_path.iterdir())
