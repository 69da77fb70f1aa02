"""``make inspect RECIPE=...``: what mixed precision would make of a recipe, on any machine.

    python -m amp_xla inspect --recipe classification --gpu 8.0 --lists fork -- --layers 12

Prints a table and writes ``amp.json``; what follows ``--`` are the recipe's own flags.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from typing_extensions import Literal

from amp_xla.config import parse, split_words
from amp_xla.rewrite import recipe_job


@dataclasses.dataclass(frozen=True)
class Config:
    """Show what mixed precision would convert, without a GPU. After `--`: the recipe's flags."""

    recipe: str = "classification"
    """module in recipes/"""
    gpu: str = "8.0"
    """compute capability to pretend: 7.0 V100, 7.5 T4, 8.0 A100, 8.6 RTX 30, 9.0 H100"""
    lists: Optional[Literal["fork", "stock"]] = None
    """whose op lists: NVIDIA's TensorFlow 1.15, or the installed one; none = fork on 1.15"""
    out: Optional[str] = None
    """folder for amp.json; none = runs/<recipe>/inspect"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Inspects a recipe, prints the table, writes amp.json."""
    own, words = split_words(argv)
    config = parse(Config, own, "python -m amp_xla inspect")
    from amp_xla.training.progress import note

    note(f"building {config.recipe} ...")
    job = recipe_job.open_recipe(config.recipe, words).job
    note("running TensorFlow's mixed-precision pass against a virtual GPU ...")
    report = inspect(job, config.gpu, config.lists, next(recipe_job.feeds(job)))
    print(report)
    folder = Path(config.out or f"runs/{config.recipe}/inspect")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "amp.json"
    path.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten: {path}")
    return 0


def inspect(
    model: Any,
    gpu: str,
    lists: Optional[str],
    batch: Optional[Sequence[Any]] = None,
    batch_size: int = 32,
    length: int = 128,
) -> Any:
    """See ``amp_xla.rewrite.inspect``."""
    from amp_xla.rewrite import report, training_graph, virtual_gpu

    training = training_graph.view(model)
    if batch is None:
        shapes = _shapes(training, batch_size, length)
    else:
        shapes = training_graph.placeholder_shapes(training, batch)
    graph_def = training.export(training.fetches)
    rewritten = virtual_gpu.rewrite(graph_def, training.fetches, gpu, lists)
    return report.build(training, rewritten, shapes)


def _shapes(training: Any, batch_size: int, length: int) -> Dict[str, List[int]]:
    """Placeholder shapes with the unknown dimensions filled in: the first is the batch."""
    found = {}
    for name in training.feeds:
        shape = training.graph.get_tensor_by_name(f"{name}:0").shape
        if shape.rank is not None:
            unknown = [batch_size] + [length] * (shape.rank - 1)
            found[name] = [d or u for d, u in zip(shape.as_list(), unknown)]
    return found
