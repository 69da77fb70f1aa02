"""``amp-xla export``: write a trained model in the format of another program."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable, List, Optional

from typing_extensions import Literal

from amp_xla.commands.predict import SavedOptions
from amp_xla.config import parse
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable, output

_FULL = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
WRITERS = {
    "hf": "hugging_face", "savedmodel": "saved_model", "onnx": "onnx_model", "google": "google"
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
    """Write a trained model for other programs; check that its outputs equal the run's."""

    run: str = "runs/classification/latest"
    """run folder, as printed at the end of training"""
    format: Literal["hf", "savedmodel", "onnx", "google"] = "savedmodel"
    """hf: Hugging Face; savedmodel: TensorFlow Serving; onnx: ONNX Runtime; google: checkpoint for
    bert4keras"""
    dtype: Literal["fp32", "fp16"] = "fp32"
    """dtype of the stored weights; fp16 halves the size"""
    to: Optional[str] = None
    """folder to write, which must not exist; none = export-FORMAT in the run folder"""
    saved: SavedOptions = SavedOptions()


def main(argv: List[str]) -> int:
    """Run the command."""
    config = parse(Config, argv, "amp-xla export RUN")
    saved, recipe = config.saved.load(config.run)
    export: Any = getattr(recipe, "export", None)
    exportable: Any = getattr(recipe, "exportable", None)
    if export is None and exportable is None:
        raise AmpXlaError(f"{config.run}: recipe {saved.recipe} cannot export")
    if export is not None and (config.format, config.dtype) != ("savedmodel", "fp32"):
        raise AmpXlaError(
            f"--format {config.format} --dtype {config.dtype}: recipe {saved.recipe} allows only "
            f"--format savedmodel --dtype fp32"
        )
    half = "-fp16" if config.dtype == "fp16" else ""
    name = "export" if export is not None else f"export-{config.format}{half}"
    folder = Path(config.run, name) if config.to is None else Path(config.to)
    if os.path.lexists(str(folder)):
        raise AmpXlaError(f"{folder} exists already: remove it, or name another one with --to")
    if export is not None:
        signature = all_or_nothing(folder, lambda temporary: export(saved, temporary))
        output.lines([f"written: {folder}, from {saved.path.name}: {signature}"])
        return 0
    model = exportable(saved)
    if model.graph is None and config.format != "hf":
        raise AmpXlaError(
            f"--format {config.format}: recipe {saved.recipe} allows only --format hf"
        )
    writer = importlib.import_module(f"amp_xla.export.{WRITERS[config.format]}")
    difference = all_or_nothing(
        folder, lambda temporary: _compared(model, writer, temporary, config.dtype)
    )
    head = f"written: {folder}, from {saved.path.name}; "
    head += f"its outputs differ from the run's by at most {difference:.1g}"
    output.lines([head, *writer.describe(model, folder)])
    return 0


def _compared(model: Any, writer: Any, folder: Path, dtype: str) -> float:
    """Write the model; return the largest difference between its outputs and the run's."""
    from amp_xla.export.model import compare

    samples = model.samples()
    expected = model.run(*samples)
    writer.write(model, folder, dtype)
    load = getattr(writer, "load", model.reload)  # `reload` reads the formats of --bert
    return compare(expected, load(folder)(*samples), dtype)


def all_or_nothing(folder: Path, write: Callable[[Path], Any]) -> Any:
    """Let ``write`` fill a temporary folder, rename it to ``folder``, return ``write``'s result.

    Raises:
      AmpXlaError: the disk is full; the temporary folder was removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A new name: another process may be writing the same export, or have left a link.
    scratch = tempfile.mkdtemp(dir=str(folder.parent), prefix=f"{durable.TEMPORARY}{folder.name}-")
    temporary = Path(scratch, folder.name)
    try:
        result = write(temporary)
        for path in temporary.rglob("*"):
            (durable.sync_folder if path.is_dir() else durable.sync_file)(path)
        durable.publish(temporary, folder)
    except Exception as error:
        if getattr(error, "errno", 0) in (errno.ENOTEMPTY, errno.EEXIST):
            raise AmpXlaError(f"{folder} exists: another command wrote it meanwhile") from error
        full = [text for text in _FULL if text in str(error)]  # TensorFlow raises no OSError
        if full:
            raise AmpXlaError(f"cannot write {folder}: {full[0]}") from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return result
