"""The run folder: runs/<recipe>/<name>/ with config, metrics, checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any, Dict, Optional

from amp_xla.errors import AmpXlaError


class RunFolder:
    """Creates and names the files of one run.

    Args:
      recipe: e.g. ``classification``.
      name: the run's own name; None makes one from the clock.
      root: where runs live.

    Raises:
      AmpXlaError: the folder holds another run already, or cannot be written.
    """

    def __init__(self, recipe: str, name: Optional[str] = None, root: str = "runs") -> None:
        fresh = name is None
        parent = Path(root) / recipe
        self.recipe = recipe
        self.name = name or time.strftime("%Y%m%d-%H%M%S")
        for attempt in range(100):
            self.path = parent / (self.name if not attempt else f"{self.name}-{attempt}")
            try:
                self.path.mkdir(parents=True)
                break
            except FileExistsError:
                if not fresh and not (self.path / "config.json").exists():
                    break
                if not fresh:
                    raise AmpXlaError(
                        f"{self.path} holds a run already; choose another --name, or delete it"
                    ) from None
            except OSError as error:
                raise AmpXlaError(f"cannot create the run folder {self.path}: {error}") from error
        self.name = self.path.name
        self.checkpoints = self.path / "checkpoints"
        self.checkpoints.mkdir(exist_ok=True)
        self._link_latest(parent)

    def _link_latest(self, parent: Path) -> None:
        latest = parent / "latest"
        try:
            if latest.is_symlink():
                latest.unlink()
            latest.symlink_to(self.path.name)
        except OSError:  # a file system without links: the name is printed anyway
            pass

    def write_config(self, config: Any) -> None:
        """Saves a dataclass as ``config.json``."""
        self.write_json("config.json", dataclasses.asdict(config))

    def write_json(self, name: str, value: Dict[str, Any]) -> None:
        """Writes ``value`` under ``name``, whole or not at all."""
        path = self.path / name
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, indent=1)
            file.write("\n")
        os.replace(temporary, path)
