"""bert4keras encoders and classification heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.models import derivatives
from amp_xla.models.dropout import Dropout
from amp_xla.models.weights import google
from amp_xla.models.weights.pretrained import TOKENS, Pretrained
from amp_xla.models.weights.stored import Shape

# bert4keras' names -> names in Google's bert_config.json
_GOOGLE = {
    "max_position": "max_position_embeddings",
    "segment_vocab_size": "type_vocab_size",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
}
# Keys of a configuration that have the same name in bert4keras.
_SAME = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "embedding_size", "attention_head_size", "attention_key_size",
    "residual_attention_scores", "hierarchical_position", "shared_segment_embeddings",
)  # fmt: skip
# Family -> bert4keras' class
_CLASSES = {
    "bert": "BERT", "albert": "ALBERT", "electra": "ELECTRA", "nezha": "NEZHA",
    "roformer": "RoFormer", "roformer_v2": "RoFormerV2",
}  # fmt: skip


def encoder(*args: Any, **kwargs: Any) -> Any:
    """Build a bert4keras encoder; arguments as for ``transformer``.

    Returns:
      Keras model: int token ids and segment ids [B, L] -> float32 [B, L, hidden].

    Raises:
      AmpXlaError: a file of the folder is missing, damaged or does not fit.
    """
    return transformer(*args, **kwargs).model


def transformer(
    bert: Optional[str],
    extend: Callable[[Any], Any] = lambda base: base,
    length: Optional[int] = None,
    weights: bool = True,
    **configs: Any,
) -> Any:
    """Build an encoder as bert4keras' model object; its ``model`` is the Keras model.

    Args:
      bert: folder of pretrained weights, whose family and shapes have priority over ``configs``;
        None = an untrained BERT.
      extend: function that returns a subclass of bert4keras' class to build.
      length: tokens of the longest sequence.
      weights: False = read only the configuration from ``bert``.
      **configs: arguments of ``build_transformer_model``.
    """
    if bert is None:
        base = backend.bert4keras("models").BERT
        return build_transformer_model(
            model=extend(base), hidden_act="gelu", return_keras_model=False, **configs
        )
    folder = google.pretrained(bert)
    if weights:
        folder.check_sizes(configs.get("vocab_size"), length)
    rates = {name: rate for name, rate in configs.items() if name.endswith("dropout_rate")}
    built = build(folder, extend, **rates)
    if weights:
        built.load_weights_from_checkpoint(folder.take(tensors(built)))
    return built


def build(
    folder: Pretrained, extend: Callable[[Any], Any] = lambda base: base, **rates: float
) -> Any:
    """Build bert4keras' object for the configuration of a folder, without its weights.

    Args:
      folder: opened.
      extend: as for ``encoder``.
      **rates: dropout rates instead of those of the folder.
    """
    config = folder.config
    shape: Dict[str, Any] = {name: config[name] for name in _SAME if name in config}
    shape.update({name: config[key] for name, key in _GOOGLE.items() if key in config})
    shape.update(rates)
    base = getattr(backend.bert4keras("models"), _CLASSES[config["model_type"]])
    return build_transformer_model(
        model=extend(with_epsilon(base, config.get("layer_norm_eps", 1e-12))),
        return_keras_model=False, **shape,
    )  # fmt: skip


def tensors(transformer: Any) -> Dict[str, Shape]:
    """Return Google's name -> shape of the weights of a bert4keras model."""
    return {name: K.int_shape(variable) for name, variable in _variables(transformer).items()}


def values(transformer: Any, vocab_size: int) -> Dict[str, np.ndarray]:
    """Return Google's name -> weights of a bert4keras model, without padding of its vocabulary."""
    variables = _variables(transformer)
    arrays = dict(zip(variables, K.batch_get_value(list(variables.values()))))
    for name in {TOKENS, "cls/predictions/output_bias"} & set(arrays):
        arrays[name] = arrays[name][:vocab_size]
    return arrays


def _variables(transformer: Any) -> Dict[str, Any]:
    layers = transformer.layers
    return {
        name: variable
        for layer, names in transformer.variable_mapping().items()
        if layer in layers
        for variable, name in zip(layers[layer].trainable_weights, names)
    }


def epsilon(transformer: Any) -> float:
    """Return the epsilon of the layer norms of a bert4keras model."""
    norm = backend.bert4keras("layers").LayerNormalization
    return float(next(x.epsilon for x in transformer.layers.values() if isinstance(x, norm)))


def with_epsilon(base: Any, epsilon: float) -> Any:
    """Return a subclass whose layer norms have this epsilon, in both bert4keras."""
    models = backend.bert4keras("models")

    class Encoder(base):
        def apply(self, inputs: Any = None, layer: Any = None, *args: Any, **kwargs: Any) -> Any:
            if layer is models.LayerNormalization:
                kwargs["epsilon"] = epsilon
            return super().apply(inputs, layer, *args, **kwargs)

    return Encoder


def write_config(bert: Optional[str], path: str, **configs: Any) -> None:
    """Write the ``bert_config.json`` from which ``encoder`` builds the same model.

    Args:
      bert, **configs: arguments of ``encoder``.
      path: path of the file.
    """
    if bert is not None:
        config = google.pretrained(bert).config
    else:
        config = {_GOOGLE.get(name, name): value for name, value in configs.items()}
        config.update(model_type="bert", type_vocab_size=2, hidden_act="gelu")
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
    return head(pooled(encoder_model), encoder_model.inputs, classes, dropout)


def pooled(encoder_model: Any) -> Any:
    """Build the mean of the token vectors without padding, float [B, hidden], of an encoder."""
    layer = keras.layers.Lambda(mean_over_tokens, name="Pooling")
    return layer([encoder_model.output, encoder_model.inputs[0]])


def head(pooled: Any, inputs: Any, classes: int, dropout: float) -> Any:
    """Build a Keras model: ``inputs`` -> float32 logits [N, classes] of ``pooled`` vectors."""
    dropped = Dropout(dropout, name="Pooling-Dropout")(pooled)
    # float32 also under a Keras policy: a softmax of rounded logits is inaccurate.
    logits = keras.layers.Dense(
        classes, kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02), name="Logits",
        dtype="float32",
    )(dropped)  # fmt: skip
    return keras.models.Model(inputs, logits)


def mean_over_tokens(pair: Any, mask: Any = None) -> Any:
    """Return means without id 0: [float [B, L, hidden], token ids [B, L]] -> float [B, hidden]."""
    vectors, token_ids = pair
    weights = tf.cast(tf.not_equal(token_ids, 0), vectors.dtype)[:, :, None]
    # At least one: a padding row has no token, and 0 / 0 would make the batch not finite.
    return tf.reduce_sum(vectors * weights, 1) / tf.maximum(tf.reduce_sum(weights, 1), 1.0)
