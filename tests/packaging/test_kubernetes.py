"""The manifest in scripts/kubernetes agrees with itself and the image."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.running import ROOT

FOLDER = ROOT / "scripts" / "kubernetes"
MANIFEST = yaml.safe_load((FOLDER / "mpijob.yaml").read_text(encoding="utf-8"))


def pod(role: str) -> Any:
    return MANIFEST["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]


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
