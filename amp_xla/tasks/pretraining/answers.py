"""Predictions of a pretraining run for the [MASK] tokens in texts; ``fill`` imports TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any, List, Sequence

import numpy as np

from amp_xla.data.text.tokenizer import MASK, Tokenizer
from amp_xla.errors import AmpXlaError
from amp_xla.models.options import Filling
from amp_xla.training.checkpoint import Checkpoint


def fill(
    config: Any, checkpoint: Checkpoint, texts: Sequence[str], top: int
) -> List[List[Filling]]:  # fmt: skip
    """Return the predictions for each text, in order of its [MASK] tokens.

    Args:
      texts: texts with at least one [MASK] each.
      top: number of predictions per [MASK].

    Raises:
      AmpXlaError: the run's objective is not ``mlm``, or a text is too long.
    """
    from amp_xla.backend import session, tf
    from amp_xla.models import dropout
    from amp_xla.training.step import restore_weights

    objective = config.goal.objective
    if objective != "mlm":
        raise AmpXlaError(
            f"{checkpoint.run} was trained with --objective {objective}; only a run with "
            f"--objective mlm can fill in {MASK}"
        )
    tokenizer = Tokenizer.of_folder(str(checkpoint.path))
    rows = [tokenizer.encode_masked(text) for text in texts]
    options = dataclasses.replace(config.encoder, bert=checkpoint.architecture)
    longest = max(map(len, rows))
    with dropout.inference():
        lm = options.language_model(tokenizer.vocab_size, longest, weights=False)
    most = lm.config["max_position_embeddings"]
    for number, row in enumerate(rows, 1):
        if len(row) > most:
            raise AmpXlaError(f"text {number} has {len(row):,} tokens; allowed: up to {most}")
    positions = tf.placeholder(tf.int32, [None, None], name="positions")
    logits = lm.logits(lm.model.output, positions)[:, : tokenizer.vocab_size]
    probabilities = tf.nn.softmax(tf.cast(logits, tf.float32))
    predictions = tf.nn.top_k(probabilities, min(top, tokenizer.vocab_size))
    restore_weights(checkpoint, lm.weights)
    run = session().make_callable(predictions, [*lm.model.inputs, positions])
    answers = []
    for row in rows:
        ids = np.array([row + [0] * (longest - len(row))], np.int32)
        masks = np.flatnonzero(ids[0] == tokenizer.mask_id)
        answers.append([
            Filling(mask, tokenizer.tokens[token], float(chance))
            for mask, pair in enumerate(zip(*run(ids, np.zeros_like(ids), masks[None])))
            for chance, token in zip(*pair)
        ])  # fmt: skip
    return answers
