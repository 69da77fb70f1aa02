"""Vectors of lines of text, for ``amp-xla predict --vectors``. Imports no TensorFlow by itself."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from amp_xla.data.text.tokenizer import Encoded, Tokenizer
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import in_order


def encode_lines(lines: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Return the tokens of lines to predict; a line is a text, or two texts separated by a tab.

    The tokens of a line do not depend on other lines.
    """
    split = [line.partition("\t") for line in lines]
    pairs = [second if tab else None for _, tab, second in split]
    return tokenizer.encode([first for first, _, _ in split], pairs, max_length)


def vectors(config: Any, checkpoint: Checkpoint, lines: Sequence[str]) -> np.ndarray:
    """Return the encoder's vector of each line by ``--pooling``, float32 [lines, hidden].

    Recipes without ``--pooling`` have the mean of a text's tokens.
    """
    from amp_xla.backend import keras, tf
    from amp_xla.models import dropout, encoders
    from amp_xla.training.step import Inference, restore_weights

    tokenizer = Tokenizer.of_folder(str(checkpoint.path))
    length, pooling = config.batches.max_length, vars(config).get("pooling", "mean")
    with dropout.inference():
        encoder = config.encoder.transformer(
            tokenizer.vocab_size, length, False, pooler=pooling == "pooler"
        )
        model = keras.models.Model(encoder.model.inputs, encoders.pooled(encoder, pooling))
    restore_weights(checkpoint, model.weights)
    inputs = dict(zip(("token_ids", "segment_ids"), model.inputs))
    infer = Inference(inputs, {"vectors": tf.cast(model.output, tf.float32)})
    encoded = encode_lines(lines, tokenizer, length)
    rows = in_order(encoded, length, config.batches.batch_size, lambda x: infer(x)["vectors"])
    return np.stack(rows)
