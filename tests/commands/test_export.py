"""export leaves a whole folder or none."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List

import pytest

from amp_xla.commands import export, predict
from amp_xla.process.exits import exit_code


def test_a_full_disk_is_one_line_and_the_repetition_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    errors: List[Exception] = [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError(f"variables.data; {os.strerror(errno.EFBIG)}"),  # as TensorFlow says it
    ]

    def write(saved: Any, folder: Path) -> str:
        folder.mkdir()
        (folder / "part").touch()
        if errors:
            raise errors.pop()
        return "its signature"

    saved_run = SimpleNamespace(recipe="any", path=tmp_path)
    monkeypatch.setattr(predict, "find", lambda *_: saved_run)
    monkeypatch.setattr(predict, "own_recipe", lambda name: name)
    monkeypatch.setattr(predict, "recipe_module", lambda name: SimpleNamespace(export=write))
    words = ["--run", str(tmp_path), "--to", str(tmp_path / "models" / "first")]
    for _ in range(2):
        assert exit_code(export.main, words) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert not list((tmp_path / "models").iterdir())
    assert exit_code(export.main, [*words, "--format", "hf"]) == 2
    assert "is written with --format savedmodel" in capsys.readouterr().err
    assert exit_code(export.main, words) == 0
    assert (tmp_path / "models" / "first" / "part").exists()
    assert exit_code(export.main, words) == 2
    assert "exists already" in capsys.readouterr().err
