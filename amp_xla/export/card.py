"""The model card of an exported folder: ``README.md`` in Hugging Face's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import jinja2
import numpy as np

from amp_xla.process.output import printable
from amp_xla.report import page, record
from amp_xla.report.findings import changed, words
from amp_xla.report.record import Record, dictionary, number
from amp_xla.training.checkpoint import Checkpoint

_TEMPLATE = Path(__file__).with_suffix(".txt")
FOLDER = Path("FOLDER")  # the exported folder in a card: it may be moved
_DATA = ("train", "dev", "data", "bert", "vocab")  # settings that name files
_LIBRARIES = (
    ("sentence_transformers", "sentence-transformers"), ("build_transformer_model", "bert4keras"),
    ("from roformer", "roformer"), ("tf.saved_model", "tensorflow"), ("onnxruntime", "onnx"),
)  # fmt: skip
_Score = Tuple[str, str, str, float, str]  # data, samples, metric, value, 95% interval
_NOT_VERSIONS = (
    "command", "recipe", "started", "host", "ranks", "gpus", "revision", "parameters"
)  # fmt: skip


def write(
    folder: Path, saved: Checkpoint, task: str, labels: Sequence[str], use: List[str]
) -> None:
    """Write the card of an exported checkpoint, with its scores from the run folder.

    ``task`` and ``labels`` are as in ``Exportable``. ``use``: lines that explain how to load the
    folder, which they call ``FOLDER``. The card names the library that the first line uses.
    """
    run = record.read(saved.run)
    scores = list(_scores(run, saved))
    library = next((name for word, name in _LIBRARIES if word in use[0]), "transformers")
    head: Dict[str, Any] = {"library_name": library, "tags": ["amp_xla", "bert4keras"]}
    results = [
        {
            "task": {"type": task}, "dataset": {"name": data, "type": data},
            "metrics": [{"type": metric, "value": value}],
        }
        for data, _, metric, value, _ in scores
    ]  # fmt: skip
    if task:
        head["pipeline_tag"] = task
    if task and results:
        head["model-index"] = [{"name": run.name, "results": results}]
    config = run.config
    used = (k for k in _DATA if k in config and (k in ("train", "dev") or config[k] is not None))
    files = {name: _shown(config[name]) for name in used}
    versions = {k: v for k, v in run.process.items() if k not in _NOT_VERSIONS and v}
    template = jinja2.Template(_TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True)
    text = template.render(
        head=head, run=run, saved=saved, use=use, task=task, files=files, labels=labels,
        scores=scores, length=number(config.get("max_length")), stride=number(config.get("stride")),
        command=page.visible(page.command(run)),
        differs={name: value for name, (value, _) in changed(run).items() if name not in files},
        versions=", ".join(f"{k} {_cell(page.value(v))}" for k, v in versions.items()),
        cell=_cell, shown=_shown, printable=printable, words=words,
        json=lambda value: json.dumps(value, ensure_ascii=False),
    )  # fmt: skip
    (folder / "README.md").write_text(text + "\n", encoding="utf-8")


def _scores(run: Record, saved: Checkpoint) -> Iterator[_Score]:
    """Yield the scores of this checkpoint: on the dev set, and by ``amp-xla evaluate --file``."""
    rows = np.flatnonzero(run.dev.get("step", np.zeros(0)) == saved.step)
    data = _shown(run.config.get("dev"))
    for name in run.dev if len(rows) else ():
        value = float(run.dev[name][rows[-1]])
        if name.startswith("dev_") and np.isfinite(value):
            yield f"dev set ({data})", "", _cell(name[4:]), value, ""
    for result in run.evaluations.values():
        if result.get("checkpoint") != saved.path.name:
            continue
        for name, score in dictionary(result.get("metrics")).items():
            value, low, high = (number(dictionary(score).get(k)) for k in ("value", "low", "high"))
            interval = f"{low:.4f} to {high:.4f}" if np.isfinite([low, high]).all() else ""
            if np.isfinite(value):
                samples = f"{number(result.get('samples')):,.0f}"
                yield _shown(result.get("file")), samples, _cell(name), value, interval


def _shown(value: Optional[Any]) -> str:
    """Return a setting as text; a path is shortened to its last part."""
    return "built-in text" if value is None else _cell(Path(page.value(value)).name)


def _cell(text: str) -> str:
    return page.visible(text).replace("|", "\\|").replace("<", "&lt;")
