"""bert4keras encoders and the heads that recipes put on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from amp_xla import backend
from amp_xla.backend import keras, tf
from amp_xla.errors import AmpXlaError
from amp_xla.training import derivatives
from amp_xla.training.dropout import Dropout


def encoder(bert: Optional[str], kind: Any = "bert", **configs: Any) -> Any:
    """A bert4keras BERT encoder.

    Args:
      bert: folder with ``bert_config.json`` and a checkpoint in Google's format, whose shapes
        win over ``configs``; None builds an untrained one from ``configs``.
      kind: bert4keras' name of the architecture, or a class of its.
      **configs: arguments of ``build_transformer_model``.

    Returns:
      Keras model: int token ids and segment ids [B, L] -> float32 [B, L, hidden].

    Raises:
      AmpXlaError: the folder lacks a file; the message names it.
    """
    if bert is None:
        return build_transformer_model(model=kind, hidden_act="gelu", **configs)
    folder = Path(bert)
    config = folder / "bert_config.json"
    if not config.is_file():
        raise AmpXlaError(f"{folder} has no bert_config.json")
    checkpoint = checkpoint_prefix(folder)
    rates = {k: configs[k] for k in ("dropout_rate", "attention_dropout_rate") if k in configs}
    return build_transformer_model(str(config), str(checkpoint), model=kind, **rates)


def build_transformer_model(*args: Any, **kwargs: Any) -> Any:
    """bert4keras' function of this name, its GELU and layer norm differentiated by hand."""
    derivatives.install()
    return backend.bert4keras("models").build_transformer_model(*args, **kwargs)


def checkpoint_prefix(folder: Path) -> Path:
    """The TensorFlow checkpoint in ``folder``, e.g. ``bert_model.ckpt``.

    Raises:
      AmpXlaError: there is none, or more than one.
    """
    found = sorted(folder.glob("*.index"))
    if len(found) != 1:
        names = ", ".join(p.name for p in found) or "none"
        raise AmpXlaError(f"{folder} must hold one checkpoint (*.index); found: {names}")
    return found[0].with_suffix("")


def classifier(encoder_model: Any, classes: int, dropout: float) -> Any:
    """Mean of the token vectors (padding left out), dropout, one linear layer.

    Args:
      encoder_model: inputs token ids [B, L] first; 0 is padding. Output [B, L, hidden].
      classes: number of labels.
      dropout: rate before the linear layer.

    Returns:
      Keras model with the same inputs -> float32 logits [B, classes].
    """
    pooled = keras.layers.Lambda(mean_over_tokens, name="Pooling")(
        [encoder_model.output, encoder_model.inputs[0]]
    )
    return head(pooled, encoder_model.inputs, classes, dropout)


def head(pooled: Any, inputs: Any, classes: int, dropout: float) -> Any:
    """float [N, hidden] -> Keras model from ``inputs`` to float32 logits [N, classes]."""
    pooled = Dropout(dropout, name="Pooling-Dropout")(pooled)
    logits = keras.layers.Dense(
        classes, kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02), name="Logits"
    )(pooled)
    return keras.models.Model(inputs, logits)


def mean_over_tokens(pair: Any, mask: Any = None) -> Any:
    """[float [B, L, hidden], token ids [B, L]] -> float [B, hidden]; id 0 is left out."""
    vectors, token_ids = pair
    weights = tf.cast(tf.not_equal(token_ids, 0), vectors.dtype)[:, :, None]
    # At least one: a padding row has no token, and 0 / 0 would poison the whole batch.
    return tf.reduce_sum(vectors * weights, 1) / tf.maximum(tf.reduce_sum(weights, 1), 1.0)
