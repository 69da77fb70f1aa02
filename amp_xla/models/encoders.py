"""bert4keras encoders and classification heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

from amp_xla import backend
from amp_xla.backend import keras, tf
from amp_xla.models import derivatives
from amp_xla.models.dropout import Dropout
from amp_xla.models.weights import google

# bert4keras' names -> names in Google's bert_config.json
_GOOGLE = {
    "max_position": "max_position_embeddings",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
}


def encoder(
    bert: Optional[str],
    kind: Any = "bert",
    length: Optional[int] = None,
    weights: bool = True,
    **configs: Any,
) -> Any:
    """Build a bert4keras BERT encoder.

    Args:
      bert: folder with ``bert_config.json`` and a checkpoint in Google's format, whose shapes have
        priority over ``configs``; None = an untrained encoder.
      kind: bert4keras' name or class of the architecture.
      length: tokens of the longest sequence.
      weights: False = read only the configuration from ``bert``.
      **configs: arguments of ``build_transformer_model``.

    Returns:
      Keras model: int token ids and segment ids [B, L] -> float32 [B, L, hidden].

    Raises:
      AmpXlaError: a file of the folder is missing, damaged or does not fit.
    """
    if bert is None:
        return build_transformer_model(model=kind, hidden_act="gelu", **configs)
    config = Path(bert) / google.CONFIG
    google.read_config(config)
    prefix = google.read(bert, configs.get("vocab_size"), length) if weights else None
    rates = {k: configs[k] for k in ("dropout_rate", "attention_dropout_rate") if k in configs}
    return build_transformer_model(str(config), prefix, model=kind, **rates)


def write_config(bert: Optional[str], path: str, **configs: Any) -> None:
    """Write the ``bert_config.json`` from which ``encoder`` builds the same model.

    Args:
      bert, **configs: arguments of ``encoder``.
      path: of the file.
    """
    if bert is not None:
        Path(path).write_bytes((Path(bert) / google.CONFIG).read_bytes())
        return
    config = {_GOOGLE.get(name, name): value for name, value in configs.items()}
    config.update(type_vocab_size=2, hidden_act="gelu")
    Path(path).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def build_transformer_model(*args: Any, **kwargs: Any) -> Any:
    """Call bert4keras' function of this name, with hand-written derivatives."""
    derivatives.install()
    return backend.bert4keras("models").build_transformer_model(*args, **kwargs)


def classifier(encoder_model: Any, classes: int, dropout: float) -> Any:
    """Build a classifier: mean of the token vectors without padding, dropout, one linear layer.

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
    """Build: float [N, hidden] -> Keras model from ``inputs`` to float32 logits [N, classes]."""
    pooled = Dropout(dropout, name="Pooling-Dropout")(pooled)
    # float32 also under a Keras policy: a softmax of rounded logits is inaccurate.
    logits = keras.layers.Dense(
        classes, kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02), name="Logits",
        dtype="float32",
    )(pooled)  # fmt: skip
    return keras.models.Model(inputs, logits)


def mean_over_tokens(pair: Any, mask: Any = None) -> Any:
    """Return means without id 0: [float [B, L, hidden], token ids [B, L]] -> float [B, hidden]."""
    vectors, token_ids = pair
    weights = tf.cast(tf.not_equal(token_ids, 0), vectors.dtype)[:, :, None]
    # At least one: a padding row has no token, and 0 / 0 would make the batch not finite.
    return tf.reduce_sum(vectors * weights, 1) / tf.maximum(tf.reduce_sum(weights, 1), 1.0)
