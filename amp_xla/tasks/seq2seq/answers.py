"""Text generation: evaluation on dev texts, and answers to new texts."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Sequence

import numpy as np

from amp_xla import backend
from amp_xla.data.batches.buckets import MULTIPLE
from amp_xla.data.labelled import Labelled
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.models import dropout
from amp_xla.models.language_model import LanguageModel
from amp_xla.models.options import GenerationOptions
from amp_xla.process import output
from amp_xla.process.progress import Progress
from amp_xla.tasks.seq2seq.data import framed
from amp_xla.tasks.seq2seq.decoding import CachedDecoder, generate
from amp_xla.tasks.seq2seq.scores import rouge_l, words
from amp_xla.training import distributed
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Evaluation, held_out
from amp_xla.training.step import restore_weights

TEXTS = 1024  # ROUGE-L is measured on this number of dev texts: a larger dev set would take long
ROWS = 32  # rows in a batch of the decoder: texts x beams


def writer(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    """Return a function that turns token ids into one line of text by bert4keras' ``decode``."""
    numbers = {token: i for i, token in enumerate(tokenizer.tokens)}
    decode = backend.bert4keras("tokenizers").Tokenizer(numbers).decode
    return lambda ids: " ".join(decode(list(ids)).split())


def evaluation(
    lm: LanguageModel, inputs: Dict[str, Any], data: Labelled, max_source: int, max_target: int
) -> Evaluation:
    """Return a function that computes loss, perplexity, accuracy, and ROUGE-L of greedy search."""
    tokenizer, dev = data.tokenizer, data.dev
    sources = framed(tokenizer, dev.texts[:TEXTS], max_source)
    rows, length = min(ROWS, len(sources)), max(map(len, sources))
    with dropout.inference():
        decoder = CachedDecoder(lm, rows, 1, length, max_target)
    held = held_out(lm, inputs, data.dev_batches)
    options, write = GenerationOptions(), writer(tokenizer)
    ranks = distributed.current()
    mine = slice(ranks.world.rank, TEXTS, ranks.world.size)
    targets = list(map(words, (dev.pairs or [])[mine]))

    def evaluate() -> Dict[str, float]:
        metrics = held()
        generated = generate(decoder, tokenizer.sep_id, options, sources[mine])
        scores = list(map(rouge_l, map(words, map(write, generated)), targets))
        sums = np.array([math.fsum(scores), len(scores)])
        total, count = ranks.total(sums).tolist()
        return {**metrics, "rouge_l": total / max(count, 1.0)}

    return evaluate


def predict(
    config: Any,
    checkpoint: Checkpoint,
    lines: Sequence[str],
    generation: GenerationOptions = GenerationOptions(),
) -> Answers:
    """Return the text that the checkpoint's model generates for each line."""
    max_length, max_target = config.batches.max_length, config.max_target
    tokenizer = Tokenizer.of_folder(str(checkpoint.path))
    sources = framed(tokenizer, lines, max_length - max_target)
    longest = max(map(len, sources))
    length = min(-(-longest // MULTIPLE) * MULTIPLE, max_length - max_target)
    rows = min(len(lines), max(1, ROWS // generation.beams))
    with dropout.inference():
        lm = config.encoder.language_model(tokenizer.vocab_size, max_length, "unilm", False)
        decoder = CachedDecoder(lm, rows, generation.beams, length, max_target)
    restore_weights(checkpoint, lm.weights)
    progress = Progress(0, 0)
    distributed.current().ask = lambda: progress.alive("generating ...")
    generated = generate(decoder, tokenizer.sep_id, generation, sources)
    texts = map(writer(tokenizer), generated)
    return Answers([([output.printable(text)], {"generated": text}) for text in texts])
