"""What a run folder shows to people: config, process, assets, as files beside the checkpoints.

Nothing here is read to resume or to predict; the checkpoint has its own. Copies are compared with
it, so that a person who opens one can rely on it. No TensorFlow here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from amp_xla.config import document
from amp_xla.process.progress import note
from amp_xla.training import documents
from amp_xla.training.checkpoint import Saved, manifest
from amp_xla.training.run import RunFolder

# Settings that change no step, where a checkpoint is too old to say which these are.
_FREE = ("log_every", "train", "dev", "bert", "vocab", "data")
CONFIG, PROCESS = "config.json", "run.json"


def write(
    run: RunFolder,
    config: Any,
    process: Mapping[str, Any],
    assets: Mapping[str, bytes],
    kept: Optional[Saved],
) -> None:
    """Writes them all; for a run that goes on, says which were not what they should be.

    Args:
      run: its folder, begun.
      config: the recipe's frozen dataclass.
      process: what runs now; a run that goes on keeps what it began with, if that is usable.
      assets: file name -> content.
      kept: the checkpoint that the run goes on from, or None.

    Raises:
      AmpXlaError: the disk refused.
    """
    wrong = [] if kept is None else differing(run.path, kept)
    if wrong:
        words = "; ".join(f"{name} ({what})" for name, what in wrong)
        note(f"written anew in {run.path}: {words}")
    if kept is None or PROCESS in dict(wrong):
        run.write(PROCESS, documents.encode(process))
    run.write(CONFIG, documents.encode(document(config)))
    for name, data in sorted(assets.items()):
        run.write(name, data)


def differing(run: Path, saved: Saved) -> List[Tuple[str, str]]:
    """The copies in a run folder that are not what a checkpoint of it says: (file, how) of each."""
    found = []
    for name, digest in sorted(saved.state["identity"]["assets"].items()):
        path = run / name
        try:
            if manifest.sha256(path) != digest:
                found.append((name, "differs from the checkpoint's"))
        except OSError as error:
            found.append((name, "missing" if not path.exists() else str(error.strerror)))
    for name, compare in ((CONFIG, _config), (PROCESS, _process)):
        try:
            what = compare(documents.read(run / name), saved)
        except ValueError as error:
            what = f"unreadable: {error}" if (run / name).exists() else "missing"
        if what:
            found.append((name, what))
    return found


def _config(values: Dict[str, Any], saved: Saved) -> str:
    values.pop("run", None)
    identity = saved.state["identity"]
    free = identity.get("may change", _FREE)
    sides = [identity["config"], _flat(values)]
    then, now = ({k: v for k, v in side.items() if k not in free} for side in sides)
    names = sorted(k for k in {*then, *now} if then.get(k, "absent") != now.get(k, "absent"))
    return f"differs from the checkpoint's in {', '.join(names)}" if names else ""


def _process(values: Dict[str, Any], saved: Saved) -> str:
    recipe = saved.state.get("recipe", values["recipe"])
    return "" if values["recipe"] == recipe else f"of the recipe {values['recipe']}, not {recipe}"


def _flat(values: Mapping[str, Any]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for name, value in values.items():
        found.update(_flat(value) if isinstance(value, dict) else {name: value})
    return found
