"""``amp-xla convert``: write pretrained weights in the format of another program."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping

import numpy as np
from typing_extensions import Literal

from amp_xla.commands.export import WRITERS, all_or_nothing
from amp_xla.config import parse
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import AmpXlaError
from amp_xla.models.weights import Shape
from amp_xla.models.weights.pretrained import CONSTANTS, OPTIMIZER, TASKS, TOKENS, Pretrained
from amp_xla.process import output, regular

# How Google's tensor names begin in a head, and in the pooler
_HEAD = re.compile(r"(cls/\w+|discriminator_predictions|\w+/pooler)/")
_BIAS = "cls/predictions/output_bias"
_MOST = 3  # names to print


@dataclasses.dataclass(frozen=True)
class Config:
    """Write pretrained weights for other programs; say which tensors are left out, and why."""

    source: str = ""
    """folder in Google's, bert4keras' or Hugging Face's format, with configuration and
    vocabulary"""
    to: str = ""
    """folder to write, which must not exist"""
    format: Literal["hf", "google"] = "hf"
    """hf: Hugging Face; google: checkpoint for bert4keras"""


def main(argv: List[str]) -> int:
    """Run the command."""
    config = parse(Config, argv, "amp-xla convert SOURCE TO")
    if not config.source or not config.to:
        raise AmpXlaError("name both folders: amp-xla convert SOURCE TO --format hf (or google)")
    source, folder = Path(config.source), Path(config.to)
    if not source.is_dir():
        raise AmpXlaError(f"{source} is not a folder; needed: configuration, vocabulary, weights")
    if os.path.lexists(str(folder)):
        raise AmpXlaError(f"{folder} exists already: remove it, or name another one")
    regular.refuse_unwritable(folder.parent)
    from amp_xla.export.hugging_face import kind_of
    from amp_xla.export.model import Exportable  # TensorFlow is imported after the checks
    from amp_xla.models import encoders
    from amp_xla.models.weights import google

    tokenizer, opened = Tokenizer.of_folder(str(source)), google.pretrained(str(source))
    opened.check_sizes(tokenizer.vocab_size, None)
    family = opened.config["model_type"]
    transformer = encoders.build(opened.config, **encoders.HEADS[family])
    tensors = opened.take(_present(opened, encoders.tensors(transformer)), report=False)
    unused: Any = None  # the model is not run
    model = Exportable(
        opened.config, tensors, unused, unused, tokenizer, kind=kind_of(tensors),
        length=opened.config["max_position_embeddings"],
    )  # fmt: skip
    writer = importlib.import_module(f"amp_xla.export.{WRITERS[config.format]}")
    all_or_nothing(folder, lambda temporary: writer.write(model, temporary, "fp32"))
    line = f"written: {folder}, {len(tensors)} of {len(opened.stored())} tensors of {source}"
    left_out = []
    for reason, names in _left_out(opened, tensors).items():
        rest = f" and {len(names) - _MOST} others" if len(names) > _MOST else ""
        left_out.append(f"{', '.join(names[:_MOST])}{rest} ({reason})")
    line += f"; left out: {'; '.join(left_out)}" if left_out else ""
    output.lines([line, *writer.describe(model, folder)])
    return 0


def _present(opened: Pretrained, shapes: Mapping[str, Shape]) -> Dict[str, Shape]:
    """Return ``shapes``, Google's name -> shape, without the heads that are not in the files."""
    names, heads = opened.names(shapes), {name: _HEAD.match(name) for name in shapes}
    found = {head.group() for n, head in heads.items() if head and names[n] in opened.stored()}
    return {n: shapes[n] for n, head in heads.items() if not head or head.group() in found}


def _left_out(opened: Pretrained, tensors: Mapping[str, np.ndarray]) -> Dict[str, List[str]]:
    """Return, for each reason, the names of the files' tensors that are not written."""
    reasons: Dict[str, List[str]] = {}
    none = np.empty(0)
    copies = {"weight": tensors.get(TOKENS, none), "bias": tensors.get(_BIAS, none)}
    for name in sorted(set(opened.stored()) - set(opened.names(tensors).values())):
        reason = f"bert4keras' {opened.config['model_type']} has no such weights"
        decoder = re.search(r"(?:^|\.)predictions\.decoder\.(weight|bias)$", name)
        if decoder and np.array_equal(opened.stored()[name].read(), copies[decoder.group(1)]):
            reason = f"equal to the {'embeddings' if decoder.group(1) == 'weight' else 'bias'}"
        elif opened.tasks and name in opened.names([TASKS]).values():
            reason = "its first row is added to the embeddings of segments"
        elif re.search(CONSTANTS, name):
            reason = "constants"
        elif re.search(OPTIMIZER, name):
            reason = "of an optimizer"
        reasons.setdefault(reason, []).append(name)
    return reasons
