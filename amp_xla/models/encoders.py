"""bert4keras encoders; classification heads and global pointers."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.models import derivatives, packed
from amp_xla.models.weights import Shape, google
from amp_xla.models.weights.hugging_face import OWN_HEAD
from amp_xla.models.weights.pretrained import TOKENS

# Keys of a ``bert_config.json`` that bert4keras reads
KEYS = (
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
POOLER = "Pooler-Dense"  # bert4keras' name, by which it finds the weights in checkpoints
# Google's names of the weights with one row per token of the vocabulary
VOCABULARY = {TOKENS, "cls/predictions/output_bias"}
POINTER_SIZE = 64  # size of a head of global pointers
Extend = Callable[[Any], Any]


def transformer(
    bert: Optional[str],
    config: Optional[Mapping[str, Any]] = None,
    length: Optional[int] = None,
    weights: bool = True,
    extend: Extend = lambda base: base,
    pooler: bool = False,
) -> Any:
    """Build an encoder as bert4keras' model object.

    Its ``model`` is the Keras model: token and segment ids, int [B, L] -> float32 [B, L, hidden].

    Args:
      bert: folder of pretrained weights; None = an untrained model.
      config: a ``bert_config.json``; with ``bert``, only dropout is used, and vocab_size checked.
      length: maximum number of tokens per sequence.
      weights: False = read only the configuration from ``bert``.
      extend: function from bert4keras' model class to a subclass, which is built instead.
      pooler: add the pooler, for ``pooled``; its weights are new if ``bert`` has none.

    Raises:
      AmpXlaError: a file of the folder is missing, damaged or does not fit.
    """
    config = config or {}
    folder = None if bert is None else google.pretrained(bert)
    if folder is not None:
        if weights:
            folder.check_sizes(config.get("vocab_size"), length)
        config = with_rates(folder.config, config)
    built = build(config, extend)
    if pooler:
        built.layers[POOLER] = _pooler(config)
    if folder is not None and weights:
        loaded, mapping = folder.take(tensors(built)), _mapping(built)
        if not loaded.keys() >= set(mapping[POOLER]):
            del mapping[POOLER]
        built.load_weights_from_checkpoint(loaded, mapping)
    return built


def pooler_activation(config: Mapping[str, Any]) -> str:
    """Return the activation of the pooler, or of the dense layer of a classifier without pooler."""
    family = config["model_type"]
    if family not in OWN_HEAD:
        return "tanh"
    return "gelu" if family == "electra" else str(config["hidden_act"])


def _pooler(config: Mapping[str, Any]) -> Any:
    """Build the dense layer on the first token's vector, as Hugging Face's classifiers have it."""
    layer = keras.layers.Dense(
        config["hidden_size"], pooler_activation(config), name=POOLER,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
    )  # fmt: skip
    with tf.name_scope(f"{POOLER}/"):
        layer.build([None, config["hidden_size"]])
    return layer


def with_rates(pretrained: Mapping[str, Any], config: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the configuration ``pretrained`` with the dropout rates of ``config``."""
    rates = {name: rate for name, rate in config.items() if name.endswith("dropout_prob")}
    return {**pretrained, **rates}


def build(config: Mapping[str, Any], extend: Extend = lambda base: base, **arguments: Any) -> Any:
    """Build bert4keras' transformer from a ``bert_config.json``, with initial weights.

    GELU, layer norm and attention get hand-written derivatives. ``extend`` is as for
    ``transformer``, ``arguments`` as for ``build_transformer_model``.
    """
    models = backend.bert4keras("models")
    base = getattr(models, CLASSES[config["model_type"]])
    if "layer_norm_eps" in config:
        base = _with_epsilon(base, config["layer_norm_eps"])
    shape = {name: config[name] for name in KEYS if config.get(name) is not None}
    derivatives.install()
    return models.build_transformer_model(
        model=extend(base), return_keras_model=False, **shape, **arguments
    )


def tensors(transformer: Any) -> Dict[str, Shape]:
    """Return the shapes of a bert4keras model's weights, by Google's names."""
    shapes = {name: K.int_shape(variable) for name, variable in variables(transformer).items()}
    return {name: shape[::-1] if name == _NSP else shape for name, shape in shapes.items()}


def values(transformer: Any, vocab_size: int) -> Dict[str, np.ndarray]:
    """Return a bert4keras model's weights by Google's names, without the vocabulary's padding."""
    named = variables(transformer)
    arrays = dict(zip(named, K.batch_get_value(list(named.values()))))
    for name in VOCABULARY & set(arrays):
        arrays[name] = arrays[name][:vocab_size]
    arrays.update({name: arrays[name].T for name in {_NSP} & set(arrays)})
    return arrays


def variables(transformer: Any) -> Dict[str, Any]:
    """Return, by Google's names, those variables of a bert4keras model that checkpoints hold."""
    layers, prefixed = transformer.layers, transformer.prefixed
    return {
        name: variable
        for layer, names in _mapping(transformer).items()
        if prefixed(layer) in layers
        for variable, name in zip(layers[prefixed(layer)].weights, names)
    }


def _mapping(transformer: Any) -> Dict[str, Any]:
    """Return layer -> Google's names of weights; add the pooler's bias if bert4keras omits it."""
    mapping: Dict[str, Any] = transformer.variable_mapping()
    kernels = mapping.get(POOLER, [])[:1]  # absent in T5
    return {**mapping, POOLER: [*kernels, *(x.replace("kernel", "bias") for x in kernels)]}


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


def pooled(transformer: Any, pooling: str = "mean", slots: int = 1) -> Any:
    """Build the vector of each text, float [B, hidden]; for packed rows [B, slots, hidden].

    ``pooling`` is an ``options.Pooling``; "pooler" needs a transformer with a pooler. ``slots`` is
    the number of texts per row; if above 1, the transformer's class is from ``packed.extended``.
    """
    model = transformer.model
    if slots > 1:
        vectors = packed.pooled(model, slots, pooling != "mean")
    elif pooling == "mean":
        layer = keras.layers.Lambda(mean_over_tokens, name="Pooling")
        vectors = layer([model.output, model.inputs[0]])
    else:
        vectors = keras.layers.Lambda(lambda x, mask=None: x[:, 0], name="Pooling")(model.output)
    return transformer.layers[POOLER](vectors) if pooling == "pooler" else vectors


def classifier(vectors: Any, inputs: Any, classes: int, dropout: float) -> Any:
    """Build a Keras model of ``inputs`` that returns logits, float32 [..., classes].

    The logits are the output of a dense layer on ``vectors``, with dropout before it.
    """
    dropped = keras.layers.Dropout(dropout, name="Pooling-Dropout")(vectors)
    return keras.models.Model(inputs, scores(dropped, classes, "Logits"))


def scores(vectors: Any, count: int, name: str) -> Any:
    """Build the output of a new dense layer, float32 [..., count], on float [..., hidden]."""
    start = keras.initializers.TruncatedNormal(stddev=0.02)
    # float32 also under a Keras policy: a softmax of rounded logits is inaccurate.
    return keras.layers.Dense(count, kernel_initializer=start, name=name, dtype="float32")(vectors)


def inputs_of(
    model: Any, labels: Sequence[Any], weights: Sequence[Any], kind: Any = None
) -> Dict[str, Any]:
    """Return the placeholders of training by name: a model's inputs, labels and weights.

    Args:
      labels, weights: shapes of these two placeholders; the weights are float32.
      kind: dtype of the labels; None = int32.
    """
    return {
        **named_inputs(model),
        "labels": tf.placeholder(kind or tf.int32, labels, name="labels"),
        "weights": tf.placeholder(tf.float32, weights, name="weights"),
    }


def named_inputs(model: Any) -> Dict[str, Any]:
    """Return the inputs of a Keras model by the names that they have in batches."""
    names = ["token_ids", "segment_ids", "position_ids", "slots"][: len(model.inputs) // 2 * 2]
    return dict(zip([*names, "windows"], model.inputs))


def mean_over_tokens(pair: Any, mask: Any = None) -> Any:
    """Return the mean vector of each text without padding, float [B, hidden].

    ``pair``: vectors of tokens, float [B, L, hidden], and token ids, int [B, L], 0 for padding.
    """
    vectors, token_ids = pair
    weights = tf.cast(tf.not_equal(token_ids, 0), vectors.dtype)[:, :, None]
    # At least one: a padding row has no token, and 0 / 0 would make the batch not finite.
    return tf.reduce_sum(vectors * weights, 1) / tf.maximum(tf.reduce_sum(weights, 1), 1.0)


def pointer(kind: str, heads: int, name: str, spans: bool = True, bias: float = 0.0) -> Any:
    """Return bert4keras' pointer layer with an additive mask, as ONNX and half precision need.

    Args:
      kind: ``GlobalPointer`` or ``EfficientGlobalPointer``.
      heads: number of planes of scores, each [L, L].
      spans: score spans (first token, last token); False = score all token pairs, without RoPE.
      bias: initial value of the scores; needs an ``EfficientGlobalPointer``.
    """

    class Pointer(getattr(backend.bert4keras("layers"), kind)):  # type: ignore[misc]
        def build(self, input_shape: Any) -> None:
            super().build(input_shape)
            if bias:  # half of it comes from each of the two tokens
                self.q_dense.bias_initializer = keras.initializers.Constant(bias)

        def call(self, inputs: Any, mask: Any = None) -> Any:
            places = tf.range(tf.shape(inputs)[1])
            allowed = tf.logical_and(mask[:, :, None], mask[:, None])
            if spans:
                allowed = tf.logical_and(allowed, places[:, None] <= places)
            return super().call(inputs) + derivatives.mask_bias(allowed)[:, None]

    return Pointer(heads, POINTER_SIZE, RoPE=spans, tril_mask=False, name=name)
