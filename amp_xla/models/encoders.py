"""bert4keras encoders and classification heads."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Mapping, Optional

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.models import derivatives
from amp_xla.models.weights import google
from amp_xla.models.weights.pretrained import TOKENS
from amp_xla.models.weights.stored import Shape

# Keys of a ``bert_config.json`` that bert4keras reads
_KEYS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "max_position_embeddings", "type_vocab_size", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "embedding_size", "attention_head_size", "attention_key_size",
    "residual_attention_scores", "hierarchical_position", "shared_segment_embeddings",
)  # fmt: skip
# Family -> bert4keras' class
CLASSES = {
    "bert": "BERT", "albert": "ALBERT", "electra": "ELECTRA", "nezha": "NEZHA",
    "roformer": "RoFormer", "roformer_v2": "RoFormerV2",
}  # fmt: skip
# Arguments of ``build`` for a family with all its known heads; RoFormerV2's have no names.
HEADS: Dict[str, Dict[str, Any]] = {
    **{name: {"with_mlm": True, "with_nsp": True} for name in CLASSES}, "roformer_v2": {},
    "electra": {"with_discriminator": True},
}  # fmt: skip
_NSP = "cls/seq_relationship/output_weights"  # Google's is [2, hidden], bert4keras' [hidden, 2]
# Google's names of the weights with one row per token of the vocabulary
VOCABULARY = {TOKENS, "cls/predictions/output_bias"}
Extend = Callable[[Any], Any]


def transformer(
    bert: Optional[str],
    config: Optional[Mapping[str, Any]] = None,
    length: Optional[int] = None,
    weights: bool = True,
    extend: Extend = lambda base: base,
) -> Any:
    """Build an encoder as bert4keras' model object.

    Its ``model`` is the Keras model: token and segment ids, int [B, L] -> float32 [B, L, hidden].

    Args:
      bert: folder of pretrained weights; None = an untrained model.
      config: content of a ``bert_config.json``. With ``bert``, only its dropout rates are used.
      length: maximum number of tokens per sequence.
      weights: False = read only the configuration from ``bert``.
      extend: function from bert4keras' model class to a subclass, which is built instead.

    Raises:
      AmpXlaError: a file of the folder is missing, damaged or does not fit.
    """
    config = config or {}
    if bert is None:
        return build(config, extend)
    folder = google.pretrained(bert)
    if weights:
        folder.check_sizes(config.get("vocab_size"), length)
    built = build(with_rates(folder.config, config), extend)
    if weights:
        built.load_weights_from_checkpoint(folder.take(tensors(built)))
    return built


def with_rates(pretrained: Mapping[str, Any], config: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the configuration ``pretrained`` with the dropout rates of ``config``."""
    rates = {name: rate for name, rate in config.items() if name.endswith("dropout_prob")}
    return {**pretrained, **rates}


def build(config: Mapping[str, Any], extend: Extend = lambda base: base, **arguments: Any) -> Any:
    """Build bert4keras' transformer from a ``bert_config.json``, with initial weights.

    Args:
      config: content of ``bert_config.json``: sizes, ``model_type`` and dropout rates.
      extend: as for ``transformer``.
      **arguments: other arguments of ``build_transformer_model``.
    """
    models = backend.bert4keras("models")
    base = getattr(models, CLASSES[config["model_type"]])
    if "layer_norm_eps" in config:
        base = _with_epsilon(base, config["layer_norm_eps"])
    shape = {name: config[name] for name in _KEYS if config.get(name) is not None}
    return build_transformer_model(
        model=extend(base), return_keras_model=False, **shape, **arguments
    )


def tensors(transformer: Any) -> Dict[str, Shape]:
    """Return the shapes of a bert4keras model's weights, by Google's names."""
    shapes = {name: K.int_shape(variable) for name, variable in variables(transformer).items()}
    return {name: shape[::-1] if name == _NSP else shape for name, shape in shapes.items()}


def values(transformer: Any, vocab_size: int) -> Dict[str, np.ndarray]:
    """Return a bert4keras model's weights, by Google's names; without vocabulary padding."""
    named = variables(transformer)
    arrays = dict(zip(named, K.batch_get_value(list(named.values()))))
    for name in VOCABULARY & set(arrays):
        arrays[name] = arrays[name][:vocab_size]
    arrays.update({name: arrays[name].T for name in {_NSP} & set(arrays)})
    return arrays


def variables(transformer: Any) -> Dict[str, Any]:
    """Return the variables of a bert4keras model that checkpoints hold, by Google's names."""
    layers, prefixed = transformer.layers, transformer.prefixed
    return {
        name: variable
        for layer, names in transformer.variable_mapping().items()
        if prefixed(layer) in layers
        for variable, name in zip(layers[prefixed(layer)].weights, names)
    }


def epsilon(transformer: Any) -> float:
    """Return the epsilon of the layer norms of a bert4keras model."""
    norm = backend.bert4keras("layers").LayerNormalization
    return float(next(x.epsilon for x in transformer.layers.values() if isinstance(x, norm)))


def _with_epsilon(base: Any, epsilon: float) -> Any:
    """Return a subclass whose layer norms have this epsilon, in all versions of bert4keras."""
    models = backend.bert4keras("models")

    class Encoder(base):
        def apply(self, inputs: Any = None, layer: Any = None, *args: Any, **kwargs: Any) -> Any:
            if layer is models.LayerNormalization:
                kwargs["epsilon"] = epsilon
            return super().apply(inputs, layer, *args, **kwargs)

    return Encoder


def encoded(config: Mapping[str, Any]) -> bytes:
    """Return the content of a ``bert_config.json``."""
    return json.dumps(config, indent=2).encode() + b"\n"


def build_transformer_model(*args: Any, **kwargs: Any) -> Any:
    """Call bert4keras' function of this name, with hand-written derivatives."""
    derivatives.install()
    return backend.bert4keras("models").build_transformer_model(*args, **kwargs)


def pooled(encoder_model: Any) -> Any:
    """Build the mean vector of each text, without padding, float [B, hidden]."""
    layer = keras.layers.Lambda(mean_over_tokens, name="Pooling")
    return layer([encoder_model.output, encoder_model.inputs[0]])


def classifier(vectors: Any, inputs: Any, classes: int, dropout: float) -> Any:
    """Build a Keras model: ``inputs`` -> logits of ``vectors``, float32 [N, classes]."""
    dropped = keras.layers.Dropout(dropout, name="Pooling-Dropout")(vectors)
    # float32 also under a Keras policy: a softmax of rounded logits is inaccurate.
    logits = keras.layers.Dense(
        classes, kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02), name="Logits",
        dtype="float32",
    )(dropped)  # fmt: skip
    return keras.models.Model(inputs, logits)


def mean_over_tokens(pair: Any, mask: Any = None) -> Any:
    """Return the means of vectors [B, L, hidden] over tokens other than 0, float [B, hidden]."""
    vectors, token_ids = pair
    weights = tf.cast(tf.not_equal(token_ids, 0), vectors.dtype)[:, :, None]
    # At least one: a padding row has no token, and 0 / 0 would make the batch not finite.
    return tf.reduce_sum(vectors * weights, 1) / tf.maximum(tf.reduce_sum(weights, 1), 1.0)
