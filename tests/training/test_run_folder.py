"""The run folder: what is looked at, what is refused, and that looking writes nothing."""

import errno
import os
import shutil
from unittest.mock import Mock

import pytest

from amp_xla.commands.recipe_job import SubjectOptions
from amp_xla.errors import AmpXlaError
from amp_xla.process import regular
from amp_xla.training import checkpoint
from amp_xla.training.metrics import MetricsLog
from amp_xla.training.run import RunFolder, check_name
from tests.support.commands import bytes_of

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "latest", "a/b", "../../../x", "/abs", ".hidden", "-d", "new\nline", "a\0b"],
)
def test_a_name_is_one_component_of_a_path(name):
    with pytest.raises(AmpXlaError, match="cannot be a run's name"):
        check_name(name)


def test_looking_writes_nothing(here):
    RunFolder("r", "mine", resume=True)
    RunFolder("r")
    assert bytes_of(here) == {}
    run = RunFolder("r", "mine")
    run.begin()
    run.close()
    (run.path / ".lock").unlink()
    before = bytes_of(here)
    again = RunFolder("r", "mine", resume=True)
    assert (again.continues, again.newest()) == (False, None)
    again.close()
    assert bytes_of(here) == before


def test_a_folder_that_cannot_be_written_is_refused_and_one_without_locks_is_a_warning(
    here, monkeypatch, capsys
):
    for name in (None, "mine"):
        with monkeypatch.context() as patch:
            patch.setattr("os.access", Mock(return_value=False))  # root may write everywhere
            with pytest.raises(PermissionError):
                RunFolder("r", name)
            patch.setattr("os.statvfs", Mock(return_value=Mock(f_flag=os.ST_RDONLY)))
            with pytest.raises(OSError, match="Read-only file system"):
                RunFolder("r", name)
            RunFolder("r", name, writes=False)
        for make in (lambda path: path.write_text(""), lambda path: path.symlink_to("nowhere")):
            make(here / "runs")
            with pytest.raises(NotADirectoryError, match="'runs'"):
                RunFolder("r", name)
            (here / "runs").unlink()
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOSYS, "not implemented")))
    run = RunFolder("r", "mine")
    run.begin()
    run.close()
    assert "without locks (not implemented)" in capsys.readouterr().err


def test_a_start_that_got_no_checkpoint_may_be_started_over(here):
    run = RunFolder("r", "mine")
    run.begin()
    (run.path / "metrics.jsonl").write_text("{}\n")
    (run.checkpoints / ".tmp-shards").mkdir()
    run.close()
    assert not (here / "runs" / "r" / "latest").exists()
    assert "--name 'my run' --resume continues" in RunFolder("r", "my run").continuing
    with pytest.raises(AmpXlaError, match="already holds a run"):
        RunFolder("r", "mine")
    again = RunFolder("r", "mine", resume=True)
    again.begin()
    assert not (run.checkpoints / ".tmp-shards").exists()
    again.mark_latest()
    again.close()
    assert (here / "runs" / "r" / "latest").resolve().name == "mine"
    with pytest.raises(AmpXlaError, match=r"\(checkpoints, metrics.jsonl\) but no checkpoint"):
        RunFolder("r", "mine", resume=True)


def listdir(path, listed=os.listdir):
    if "of-another-user" in str(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)
    return listed(path)


def test_the_newest_run_is_the_one_that_latest_names(here, monkeypatch):
    assert not RunFolder("r", resume=True).continues
    for name in ("one", "two"):
        run = RunFolder("r", name)
        run.begin()
        run.mark_latest()
        (run.checkpoints / "step-00000001").mkdir()
        run.close()
    run = RunFolder("r", resume=True)
    assert (run.name, run.continues) == ("two", True)
    run.close()
    for name in ("linked", "of-another-user"):  # neither is one to continue, nor an error
        (here / "runs" / "r" / name).mkdir()
    (here / "runs" / "r" / "linked" / "checkpoints").symlink_to(run.checkpoints.resolve())
    with monkeypatch.context() as patch:
        patch.setattr("os.listdir", listdir)
        assert checkpoint.runs_in(here / "runs" / "r") == ["one", "two"]
    latest = here / "runs" / "r" / "latest"
    for target in (None, "../../elsewhere", "three", "/tmp"):
        latest.unlink()
        if target:
            latest.symlink_to(target)
        with pytest.raises(AmpXlaError, match="the run to resume, one of: one, two"):
            RunFolder("r", resume=True)
        latest.symlink_to("two") if target is None else None


def test_links_are_not_followed(here):
    for name in ("outside", "out"):
        (here / name).mkdir()
    precious = here / "outside" / "precious"
    precious.write_text("data")
    run = RunFolder("r", "mine")
    run.begin()
    (run.checkpoints / ".tmp-shards").symlink_to(precious.parent)
    run.begin()
    run.close()
    assert not list(run.checkpoints.iterdir())
    (run.path / ".lock").unlink()
    for name in (".lock", "metrics.jsonl"):
        (run.path / name).symlink_to(precious)
    with pytest.raises(OSError, match=".lock"):
        RunFolder("r", "mine", resume=True)
    log = MetricsLog(run.path)
    log.write(1, "train", 1, {"loss": 1.0})
    assert b"loss" in next(run.path.glob("events*")).read_bytes()  # kill -9 loses no line
    log.close()
    for name in (".lock", "metrics.jsonl"):
        (run.path / name).unlink()
        os.link(str(precious), str(run.path / name))
    with pytest.raises(OSError, match="a hard link"):
        RunFolder("r", "mine", resume=True)
    with pytest.raises(OSError, match="a hard link"):
        regular.descriptor(str(run.path / "metrics.jsonl"), os.O_WRONLY)
    MetricsLog(run.path, events=False).close()  # writes a new file
    for link in (os.symlink, os.link, lambda _, path: os.mkfifo(path)):
        link(str(precious), str(here / "out" / "plan.json"))
        options = SubjectOptions(out=str(here / "out"))
        options.write("plan", "plan.json", Mock(to_json=dict))
        assert (here / "out" / "plan.json").read_text() == "{}\n"
        shutil.rmtree(str(here / "out"))
        (here / "out").mkdir()
    assert precious.read_text() == "data"
