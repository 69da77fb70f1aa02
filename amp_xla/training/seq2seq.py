"""Generated texts: evaluation on dev texts, and answers to new ones."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Sequence

import numpy as np

from amp_xla import backend
from amp_xla.data.batches.options import MULTIPLE
from amp_xla.data.seq2seq import TargetBatchOptions, Targets, framed
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.models import dropout
from amp_xla.models.decoding import CachedDecoder, Generator
from amp_xla.models.language_model import LanguageModel
from amp_xla.models.options import EncoderOptions, GenerationOptions
from amp_xla.report.texts import rouge_l, words
from amp_xla.training import distributed
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import HeldOut
from amp_xla.training.variables import restore_weights

TEXTS = 512  # dev texts to generate for, the first ones: bert4keras' examples take 100 or more
ROWS = 32  # texts at a time


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of tokens as bert4keras' ``decode`` writes it, in one line."""
    numbers = {token: i for i, token in enumerate(tokenizer.tokens)}
    text: str = backend.bert4keras("tokenizers").Tokenizer(numbers).decode(list(ids))
    return " ".join(text.split())


class Seq2seq(HeldOut):
    """Loss, perplexity and accuracy of dev targets, and ROUGE-L of generated texts.

    Args:
      lm, inputs, batches: as for ``HeldOut``; of all dev texts.
      generate: greedy.
      tokenizer: of the model.
      dev: the dev texts.
      wanted: their targets.
    """

    def __init__(
        self,
        lm: LanguageModel,
        inputs: Dict[str, Any],
        batches: Any,
        generate: Generator,
        tokenizer: Tokenizer,
        dev: Targets,
        wanted: Sequence[str],
    ) -> None:
        super().__init__(lm, inputs, batches)
        world = distributed.current().world
        mine = slice(world.rank, TEXTS, world.size)
        self._generate, self._tokenizer = generate, tokenizer
        self._sources, self._wanted = dev.sources[mine], wanted[mine]

    def __call__(self) -> Dict[str, float]:
        metrics = super().__call__()
        found = self._generate(self._sources)
        scores = [
            rouge_l(words(text_of(self._tokenizer, ids)), words(text))
            for ids, text in zip(found, self._wanted)
        ]
        sums = np.array([math.fsum(scores), len(scores)])
        total, count = distributed.current().total(sums).tolist()
        return {**metrics, "rouge_l": total / max(count, 1.0)}


def greedy(lm: LanguageModel, tokenizer: Tokenizer, dev: Targets, most: int) -> Generator:
    """Return the greedy search of an evaluation; ``most`` tokens of a target."""
    length = max(map(len, dev.sources[:TEXTS]))
    with dropout.inference():
        decoder = CachedDecoder(lm, min(ROWS, len(dev.sources)), 1, length, most)
    return Generator(decoder, tokenizer.sep_id, GenerationOptions())


def answers(
    checkpoint: Checkpoint,
    encoder: EncoderOptions,
    batches: TargetBatchOptions,
    lines: Sequence[str],
    options: GenerationOptions,
) -> List[str]:
    """Return the text that a run generates for each line.

    Args:
      checkpoint: of the run.
      encoder, batches: of its configuration.
      lines: sources.
      options: how to search.
    """
    tokenizer = Tokenizer.from_assets(checkpoint.file)
    sources = framed(tokenizer, lines, batches.max_source)
    longest = max(map(len, sources))
    length = min(-(-longest // MULTIPLE) * MULTIPLE, batches.max_source)
    rows = min(len(lines), max(1, ROWS // options.beams))
    with dropout.inference():
        lm = encoder.language_model(
            tokenizer.vocab_size, batches.max_length, "unilm", weights=False
        )
        decoder = CachedDecoder(lm, rows, options.beams, length, batches.max_target)
    restore_weights(checkpoint, lm.weights)
    found = Generator(decoder, tokenizer.sep_id, options)(sources)
    return [text_of(tokenizer, ids) for ids in found]
