"""The model card of an exported folder: ``README.md`` in Hugging Face's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.process.output import printable
from amp_xla.report import page, record
from amp_xla.report.findings import changed, words
from amp_xla.report.record import Record, dictionary, number
from amp_xla.training.checkpoint import Checkpoint

FOLDER = Path("FOLDER")  # the exported folder in a card: it may be moved
_DATA = ("train", "dev", "data", "bert", "vocab")  # settings that name files
_LIBRARIES = (
    ("sentence_transformers", "sentence-transformers"), ("build_transformer_model", "bert4keras"),
    ("from roformer", "roformer"), ("tf.saved_model", "tensorflow"), ("onnxruntime", "onnx"),
)  # fmt: skip
_OVER_WINDOWS = {  # task -> how the answers of a text's windows become one
    "text-classification": "The logits of a text are the mean of its windows' logits.",
    "token-classification": "The tag of a token is that of the window where the token is furthest "
    "from an edge.",
    "question-answering": "The answer is the best span of all windows; the score of no answer is "
    "the lowest of all windows.",
}  # fmt: skip
_CODE = "```\n{}\n```"
_Score = Tuple[str, str, str, float, str]  # data, samples, metric, value, 95% interval
_NOT_VERSIONS = (
    "command", "recipe", "started", "host", "ranks", "gpus", "revision", "parameters"
)  # fmt: skip


def write(
    folder: Path, saved: Checkpoint, task: str, labels: Sequence[str], use: List[str]
) -> None:
    """Write the card from the figures in the run folder about the checkpoint; measure nothing.

    Args:
      task, labels: as in ``Exportable``.
      use: lines that say how to load the folder ``FOLDER``; the first names the library.
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
    front = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    config = run.config
    used = (k for k in _DATA if k in config and (k in ("train", "dev") or config[k] is not None))
    files = {name: _shown(config[name]) for name in used}
    versions = {k: v for k, v in run.process.items() if k not in _NOT_VERSIONS and v}
    differs = {name: value for name, (value, _) in changed(run).items() if name not in files}
    parts = [
        f"# {_cell(run.name)}",
        f"A model of amp_xla's recipe `{_cell(saved.recipe)}`: {saved.path.name} of "
        f"{run.total_steps or run.steps:,} steps.",
        "## Load", _CODE.format("\n".join(map(printable, use))),
        _windows(config, task),
        "## Data", "\n".join(f"- {name}: {value}" for name, value in files.items()),
        f"Labels: {_cell(', '.join(labels))}" if labels else "",
        "## Metrics", _table("data | samples | metric | value | 95% interval", (
            (data, samples, words(metric), f"{value:.4f}", interval)
            for data, samples, metric, value, interval in scores
        )) if scores else "The run has no evaluation of this checkpoint.",
        "## Training", _CODE.format(page.visible(page.command(run))),
        _table("setting other than the default | value", (
            (name, _shown(page.value(value))) for name, value in differs.items()
        )) if differs else "All settings are defaults.",
        "Versions: " + ", ".join(f"{k} {_cell(page.value(v))}" for k, v in versions.items()),
    ]  # fmt: skip
    text = "\n".join(["---", *front, "---", ""]) + "\n" + "\n\n".join(filter(None, parts)) + "\n"
    (folder / "README.md").write_text(text, encoding="utf-8")


def _windows(config: Dict[str, Any], task: str) -> str:
    """Return how a long text is cut for the model; empty if the run had no windows."""
    length, stride = (number(config.get(name)) for name in ("max_length", "stride"))
    if not stride > 0:
        return ""
    return (
        f"Texts of more than {length:g} tokens were cut into windows of {length:g} tokens, with "
        f"[CLS] and [SEP], each {stride:g} tokens after the one before it; the last ends with the "
        f"text. {_OVER_WINDOWS.get(task, '')}"
    )


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
    """Return a setting as text; of a path only the last part."""
    return "built-in text" if value is None else _cell(Path(page.value(value)).name)


def _cell(text: str) -> str:
    return page.visible(text).replace("|", "\\|").replace("<", "&lt;")


def _table(head: str, rows: Any) -> str:
    line = "---|" * (head.count("|") + 1)
    return "\n".join([f"| {head} |", f"|{line}", *(f"| {' | '.join(row)} |" for row in rows)])
