"""scripts/kubernetes without Kubernetes: the manifest, and the pods' signals on real ranks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List

import pytest
import yaml

from tests.horovod import need_horovod
from tests.integration.test_classification import TINY, write_corpus
from tests.packaging.checkout import ROOT
from tests.running import environment

FOLDER = ROOT / "scripts" / "kubernetes"
MANIFEST = yaml.safe_load((FOLDER / "mpijob.yaml").read_text(encoding="utf-8"))


def pod(role: str, manifest: Any = MANIFEST) -> Any:
    return manifest["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]


@pytest.mark.once
def test_the_manifest_agrees_with_itself_and_the_image() -> None:
    spec = MANIFEST["spec"]
    (launcher,), (worker,) = pod("Launcher")["containers"], pod("Worker")["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == str(spec["slotsPerWorker"])
    assert launcher["image"] == worker["image"]
    assert {m["name"] for m in worker["volumeMounts"]} == {
        v["name"] for v in pod("Worker")["volumes"]
    }
    for role in ("Launcher", "Worker"):
        assert pod(role)["terminationGracePeriodSeconds"] == 300
        assert spec["mpiReplicaSpecs"][role]["restartPolicy"] == "OnFailure"
    assert launcher["args"][-1] == "--resume"
    workspace = re.search(r"^WORKDIR (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert workspace is not None and launcher["workingDir"] == workspace.group(1)
    (stop,) = worker["lifecycle"]["preStop"]["exec"]["command"]
    for path in (stop, f"{workspace.group(1)}/{launcher['command'][0]}"):
        assert os.access(str(ROOT / Path(path).relative_to(workspace.group(1))), os.X_OK), path


# mpirun's part, as far as the scripts need it: ranks, and SIGUSR1 handed on to them.
MPIRUN = """#!{python}
import os, sys
words = sys.argv[sys.argv.index("train") + 1 :]
os.execv("{python}", ["{python}", "-m", "amp_xla", "ranks", "--np", "2", *words])
"""


class Launcher:
    """The launcher's pod: its command with small data, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.log.write_text("")
        (container,) = pod("Launcher")["containers"]
        words = ["--train", "train.tsv", "--dev", "dev.tsv", *TINY, "--epochs", "99"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(ROOT / container["command"][0]), *container["args"], *words],
                cwd=str(folder),
                env=environment({"PATH": f"{folder}:{os.environ['PATH']}"}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:  # a test that failed leaves nothing behind
            self.process.terminate()
            self.process.wait(60)

    def step(self) -> int:
        """The last that the log names, once it has one."""
        end = time.monotonic() + 90
        while True:
            found = re.findall(r"^step (\d+)/", self.log.read_text(), re.MULTILINE)
            if found:
                return int(found[-1])
            assert time.monotonic() < end and self.process.poll() is None, self.log.read_text()
            time.sleep(0.2)

    def ranks(self) -> List[int]:
        """The processes below it that are ranks."""
        seen, found = [self.process.pid], []
        for pid in seen:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            seen += map(int, children)
            found += [int(c) for c in children if "train" in words_of(int(c))]
        return found


def words_of(pid: int) -> List[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.once
def test_evictions_stop_the_ranks_in_order_and_the_same_command_goes_on(tmp_path: Path) -> None:
    need_horovod()
    write_corpus(tmp_path / "train.tsv", 4000, 1)
    write_corpus(tmp_path / "dev.tsv", 80, 2)
    (tmp_path / "mpirun").write_text(MPIRUN.format(python=sys.executable))
    (tmp_path / "mpirun").chmod(0o755)

    with Launcher(tmp_path) as first:
        first.step()
        first.process.send_signal(signal.SIGTERM)  # the launcher's pod is evicted
        assert first.process.wait(60) == 143
    stopped = re.search(r"stopped by SIGUSR1 after step (\d+)", first.log.read_text())
    assert stopped is not None, first.log.read_text()

    with Launcher(tmp_path) as second:
        assert second.step() > int(stopped.group(1))
        (tmp_path / "proc").mkdir()
        ranks = second.ranks()
        assert len(ranks) == 2, ranks
        (tmp_path / "proc" / str(ranks[1])).symlink_to(f"/proc/{ranks[1]}")  # a worker's has one
        stop = [str(FOLDER / "stop.sh"), str(tmp_path / "proc")]
        subprocess.run(stop, check=True, timeout=60)
        assert not Path(f"/proc/{ranks[1]}").exists()
        assert second.process.wait(60) == 143
    assert "stopped by SIGTERM after step" in second.log.read_text()
