"""``amp-xla export``: write a trained model in the format of another program."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import glob
import importlib
import os
import shutil
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional

from typing_extensions import Literal

from amp_xla.commands.predict import SavedOptions, files_of
from amp_xla.commands.recipe_job import ScriptFunction, open_script
from amp_xla.config import parse, split_words
from amp_xla.errors import AmpXlaError
from amp_xla.export import card
from amp_xla.process import durable, output, regular
from amp_xla.process.stopping import temporary_folder
from amp_xla.settings import Precision, Settings
from amp_xla.training.checkpoint import Checkpoint, find
from amp_xla.training.recipe import Recipe, module_of

_FULL = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
WRITERS = {
    "hf": "hugging_face", "savedmodel": "saved_model", "onnx": "onnx_model", "google": "google"
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
    """Write a trained model for other programs; check that its outputs equal the run's."""

    run: str = "runs/classification/latest"
    """run folder, as printed at the end of training; or my_script.py:build_model with --weights"""
    script: Optional[str] = None
    """my_script.py:build_model, for a run of callbacks.Run"""
    weights: Optional[str] = None
    """weights of a script's model: file of save_weights, bert4keras checkpoint, or folder of a
    run's checkpoint"""
    format: Literal["hf", "savedmodel", "onnx", "google"] = "savedmodel"
    """hf: Hugging Face; savedmodel: TensorFlow Serving; onnx: ONNX Runtime; google: checkpoint for
    bert4keras"""
    dtype: Literal["fp32", "fp16", "int8"] = "fp32"
    """dtype of the stored weights: fp16 halves the size, int8 (onnx only) quarters it"""
    accept_accuracy: bool = False
    """write int8 weights even if under 98% of the answers to the run's dev texts stay the same"""
    to: Optional[str] = None
    """folder to write, which must not exist; none = export-FORMAT[-DTYPE] in the run folder"""
    saved: SavedOptions = SavedOptions()

    def folder(self, parent: str, plain: bool = False) -> Path:
        """Return ``--to``; by default PARENT/export-FORMAT[-DTYPE]; if plain, PARENT/export."""
        if self.dtype == "int8" and self.format != "onnx":
            raise AmpXlaError(f"--dtype int8 excludes --format {self.format}; allowed: onnx")
        dtype = "" if self.dtype == "fp32" else f"-{self.dtype}"
        name = "export" if plain else f"export-{self.format}{dtype}"
        folder = Path(parent, name) if self.to is None else Path(self.to)
        output.check_name(os.path.abspath(str(folder)))  # TensorFlow needs UTF-8
        if os.path.lexists(str(folder)):
            raise AmpXlaError(f"{folder} exists already: remove it, or name another one with --to")
        regular.refuse_unwritable(folder.parent)
        return folder


def main(argv: List[str]) -> int:
    """Run the command."""
    argv, words = split_words(argv)
    config = parse(Config, argv, "amp-xla export RUN")
    target = config.script if config.weights is None else config.run
    if target is not None:
        return _export_script(config, target, words)
    saved, recipe = config.saved.load(config.run)
    if recipe.export is None:
        recipe.need("exportable", config.run, "amp-xla export needs it")
    elif (config.format, config.dtype) != ("savedmodel", "fp32"):
        raise AmpXlaError(
            f"--format {config.format} --dtype {config.dtype}: recipe {saved.recipe} allows only "
            f"--format savedmodel --dtype fp32"
        )
    folder = config.folder(config.run, plain=recipe.export is not None)
    if recipe.export is not None:
        signature = all_or_nothing(folder, lambda temporary: _saved_model(recipe, saved, temporary))
        output.lines([f"written: {folder}, from {saved.path.name}: {signature}"])
        return 0
    model = recipe.call("exportable", saved)
    if model.graph is None and config.format != "hf":
        raise AmpXlaError(
            f"--format {config.format}: recipe {saved.recipe} allows only --format hf"
        )
    dev = _dev_texts(config, saved, recipe) if config.dtype == "int8" else None
    return _write(config, folder, model, saved, saved.path.name, dev)


def _write(
    config: Config, folder: Path, model: Any, saved: Any, source: str, dev: Any = None
) -> int:  # fmt: skip
    """Write a model and compare its outputs with the run's; ``saved`` is None for a script."""
    from amp_xla.export.model import compare

    writer = importlib.import_module(f"amp_xla.export.{WRITERS[config.format]}")
    samples, dtype = model.samples(), config.dtype.replace("int8", "fp32")
    expected = model.run(*samples)

    def write(temporary: Path) -> str:
        writer.write(model, temporary, dtype)
        if saved is not None:
            lines = writer.describe(model, card.FOLDER)
            card.write(temporary, saved, model.task, model.labels, lines)
        load = getattr(writer, "load", model.reload)  # `reload` reads the formats of --bert
        difference = compare(expected, load(temporary)(*samples), dtype)
        if dev is not None:
            from amp_xla.export import quantized

            return quantized.quantize(model, temporary, dev, config.accept_accuracy)
        return f"its outputs differ from the run's by at most {difference:.1g}"

    said = all_or_nothing(folder, write)
    output.lines([f"written: {folder}, from {source}; {said}", *writer.describe(model, folder)])
    return 0


def _export_script(config: Config, target: str, words: List[str]) -> int:
    """Export the model that a script builds, with the weights of a file or of a run."""
    script, saved, weights = ScriptFunction.of(target), None, config.weights
    if script is None:
        raise AmpXlaError(f"{target} is not a script; needed: my_script.py:build_model")
    if config.dtype == "int8":
        raise AmpXlaError("--dtype int8 needs the dev texts of a recipe's run; allowed: fp32, fp16")
    if weights is None:
        saved = find(Path(config.run), config.saved.checkpoint)
        if not saved.of_script:
            raise AmpXlaError(f"{config.run} is a run of recipe {saved.recipe}: leave out {target}")
        weights = str(saved.path)
    folder = config.folder(config.run if saved else f"runs/{Path(script.path).stem}")
    import amp_xla.setup as setup  # before the script's own import, which then changes nothing

    own = os.path.isfile(script.path) and "amp_xla" in Path(script.path).read_text(
        encoding="utf-8", errors="replace"
    )
    epsilon = setup.current().epsilon if own else None
    if saved is not None:
        stored = {name: saved.identity["settings"].get(name) for name in ("precision", "epsilon")}
        epsilon = Precision.of(Settings(**stored), None).epsilon
    setup.configure(precision="fp32", xla="off", epsilon=epsilon)
    from amp_xla.export import own_script

    with own_script.recorded() as built:
        model, batches, *_ = open_script(script, words, None)
    if setup.current().settings.precision == "amp":
        raise AmpXlaError(f"{script} calls configure(precision=amp); export needs precision=fp32")
    module = module_of(script.path)
    own_script.load(model, weights, built, module)
    batch = next(batches) if batches else None
    tokenizer = own_script.tokenizer_in(module)
    bert = config.format in ("hf", "google")
    exported = own_script.exportable(model, batch, built, tokenizer, bert)
    return _write(config, folder, exported, None, Path(weights).name)


def _dev_texts(config: Config, saved: Checkpoint, recipe: Recipe) -> Any:
    files, layout = files_of(saved, recipe)
    if not hasattr(files, "built_in"):
        raise AmpXlaError(
            f"--dtype int8 needs dev texts, and {saved.recipe} has none; allowed: fp32, fp16"
        )
    return files.built_in()[1] if files.dev is None else files.dataset(files.dev, layout)


def _saved_model(recipe: Recipe, saved: Any, folder: Path) -> str:
    """Write a SavedModel and a model card; return the signature of the SavedModel."""
    signature = str(recipe.call("export", saved, folder))
    from amp_xla.export.saved_model import LOAD

    card.write(folder, saved, "", (), [LOAD.format(card.FOLDER), signature])
    return signature


def all_or_nothing(folder: Path, write: Callable[[Path], Any]) -> Any:
    """Let ``write`` fill a temporary folder, rename it to ``folder``, return ``write``'s result.

    Raises:
      AmpXlaError: the disk is full, or another process made ``folder``. Nothing is left.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{durable.TEMPORARY}{folder.name}-"
    for left in folder.parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError), _locked(left) as unused:  # its process was killed
            if unused:
                shutil.rmtree(str(left), ignore_errors=True)
    try:
        # A new name: another process may be writing the same export, or have left a link.
        with temporary_folder(prefix, str(folder.parent)) as scratch, _locked(scratch):
            temporary = scratch / folder.name
            result = write(temporary)
            for path in temporary.rglob("*"):
                (durable.own if path.is_file() else durable.sync)(path)
            durable.publish(temporary, folder)
            return result
    except Exception as error:
        if getattr(error, "errno", 0) in (errno.ENOTEMPTY, errno.EEXIST):
            raise AmpXlaError(f"{folder} exists: another command wrote it meanwhile") from error
        full = [text for text in _FULL if text in str(error)]  # TensorFlow raises no OSError
        if full:
            raise AmpXlaError(f"cannot write {folder}: {full[0]}") from error
        raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder and yield True; yield False if it cannot be locked."""
    descriptor = os.open(str(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        locked = False
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        yield locked
    finally:
        os.close(descriptor)
