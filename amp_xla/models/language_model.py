"""bert4keras language models whose vocabulary projection runs on the predicted positions only."""

from __future__ import annotations

import functools
import math
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import numpy as np

from amp_xla.backend import K, keras, tf
from amp_xla.data.pretraining import cooccurrence
from amp_xla.errors import AmpXlaError
from amp_xla.models import encoders, losses
from amp_xla.models.weights import google
from amp_xla.process.progress import note

VOCAB_MULTIPLE = 64
MATCH = 5.0  # initial logit of the neighbour to which a head attends
NEVER = -1e4  # logit of vocabulary padding; fits float16
CHECKPOINT = "bert_model.ckpt"
APPLICATIONS = {"mlm": "encoder", "lm": "lm", "unilm": "unilm"}


class LanguageModel:
    """BERT with a tied vocabulary projection at given positions.

    Args:
      config: content of a ``bert_config.json``; the token embeddings are padded to a multiple of
        64 rows, for tensor cores. The default ``initializer_range`` is 0.02 at hidden size 768 and
        larger in narrower models, which need larger weights for the same variance.
      length: maximum number of tokens per sequence.
      objective: ``mlm``, ``lm`` or ``unilm``; it decides which positions attend to which.
      bert: folder of BERT weights to start from; its sizes replace those of ``config``.
      weights: False = read only the configuration from ``bert``.
      informed: start with sinusoidal positions, with heads that attend to neighbours and, for
        ``unilm``, by copying tokens of the source.
      any_length: build the graph for sequences of any length; False = of ``length`` only.

    Attributes:
      config: complete configuration, with the values that were read or are defaults.
      padded: number of rows of the token embeddings.
      model: Keras model, token and segment ids int [B, L] -> float32 [B, L, hidden].
      transformer: bert4keras' model object.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        length: int,
        objective: str = "mlm",
        bert: Optional[str] = None,
        weights: bool = True,
        informed: bool = False,
        any_length: bool = True,
    ) -> None:
        spread = round(0.02 * math.sqrt(768 / config["hidden_size"]), 4)
        self.config = {"initializer_range": spread, "layer_norm_eps": 1e-12, **config}
        self.vocab_size: int = config["vocab_size"]
        self.padded = -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
        self._length = None if any_length else length
        if bert is not None:
            folder = google.pretrained(bert)
            self._check(folder, bert)
            if weights:
                folder.check_sizes(self.vocab_size, length)
            self.config.update(
                encoders.with_rates(folder.config, config), vocab_size=self.vocab_size
            )
        extend = functools.partial(_extended, self.config["initializer_range"], informed)
        self.transformer = encoders.build(
            {**self.config, "vocab_size": self.padded}, extend,
            application=APPLICATIONS[objective], with_mlm="linear", sequence_length=self._length,
        )  # fmt: skip
        last = f"Transformer-{self.config['num_hidden_layers'] - 1}-FeedForward-Norm"
        # The graph also has bert4keras' head over all positions, which never runs.
        self.model = keras.models.Model(
            self.transformer.model.inputs, self.transformer.layers[last].output
        )
        if bert is not None and weights:
            self._load(folder)
        elif informed:
            copies = objective == "unilm"
            self._look_at_neighbours(min(2, self.config["num_hidden_layers"] - copies), objective)
            if copies:
                self._start_by_copying()

    def _check(self, folder: Any, bert: str) -> None:
        kind, rows = folder.config["model_type"], folder.config["vocab_size"]
        if kind != "bert":
            raise AmpXlaError(
                f"{folder.path} has model_type {kind}; a language model can only start from a bert"
            )
        if not 0 <= rows - self.vocab_size < VOCAB_MULTIPLE:  # a few rows may be unused
            raise AmpXlaError(
                f"{folder.path} has a vocabulary of {rows} tokens, but the text was prepared with "
                f"one of {self.vocab_size}: prepare it with --vocab {bert}/vocab.txt"
            )

    def _load(self, folder: Any) -> None:
        """Load the weights of a folder; if it has no head, the head keeps its initial weights."""
        rows = folder.config["vocab_size"]
        needed = {
            name: (rows, *shape[1:]) if name in encoders.VOCABULARY else shape
            for name, shape in encoders.tensors(self.transformer).items()
        }
        if not folder.has_head():
            note(f"{folder.path.parent} has no head that predicts tokens: a new one is trained")
            needed = {name: shape for name, shape in needed.items() if name.startswith("bert/")}
        every = self.transformer.variable_mapping().items()
        mapping = {layer: names for layer, names in every if needed.keys() & set(names)}
        self.transformer.load_embeddings = self._fit_rows
        self.transformer.load_weights_from_checkpoint(folder.take(needed), mapping)

    def _start_by_copying(self) -> None:
        """Make a new model predict the tokens that its last layer attends to.

        The layer's projection starts as a rotation, which separates copied tokens from the token at
        the position itself; the head's transform starts as its inverse. With random weights a
        small model is slow to learn that targets contain words of their sources.
        """
        size, layers = self.config["hidden_size"], self.transformer.layers
        last = layers[f"Transformer-{self.config['num_hidden_layers'] - 1}-MultiHeadSelfAttention"]
        turn, _ = np.linalg.qr(np.random.RandomState(0).standard_normal((size, size)))
        dense = (last.v_dense, last.o_dense, layers["MLM-Dense"])
        K.batch_set_value([(x.kernel, y) for x, y in zip(dense, (np.eye(size), turn, turn.T))])

    def _look_at_neighbours(self, layers: int, objective: str) -> None:
        """Make each head of the first ``layers`` attend to a neighbour: -1, 1, -2, 2 and so on.

        Random attention averages over the whole text; a small model stays at the unigram loss for
        a thousand steps before a head attends to the next word.
        """
        heads, backwards = self.config["num_attention_heads"], objective == "lm"
        for layer in range(layers):
            numbers = range(layer * heads, (layer + 1) * heads)
            offsets = [-1 - n if backwards else (1 + n // 2) * (-1, 1)[n % 2] for n in numbers]
            query, key = _neighbour_kernels(offsets, self.config["hidden_size"])
            attention = self.transformer.layers[f"Transformer-{layer}-MultiHeadSelfAttention"]
            K.batch_set_value([(attention.q_dense.kernel, query), (attention.k_dense.kernel, key)])

    def start_from_counts(self, text: Any, special_ids: Iterable[int], seed: int) -> None:
        """Set the token embeddings, which the projection shares, to vectors from co-occurrence.

        Args:
          text: ``Sequences`` in which tokens are counted.
          special_ids: tokens that keep their random vectors, as do tokens that are not in ``text``.
          seed: seed of the vectors' rotation.
        """
        sample, size = cooccurrence.sample(text), self.config["hidden_size"]
        vectors, known = cooccurrence.word_vectors(sample, self.vocab_size, size, special_ids, seed)
        table = self.transformer.layers["Embedding-Token"].embeddings
        values = K.get_value(table)
        values[: self.vocab_size][known] = vectors[known] * self.config["initializer_range"]
        K.set_value(table, values)

    @property
    def weights(self) -> List[Any]:
        """All trainable variables, in bert4keras' order."""
        return list(self.transformer.model.trainable_weights)

    def placeholders(self) -> Dict[str, Any]:
        """Build the inputs by name: token and segment ids, positions, labels and weights."""
        kinds = {"positions": tf.int32, "labels": tf.int32, "weights": tf.float32}
        token_ids, segment_ids = self.model.inputs
        return {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            **{name: tf.placeholder(kind, [None, None], name) for name, kind in kinds.items()},
        }

    def logits(self, vectors: Any, positions: Any) -> Any:
        """Build the logits: float [B, L, hidden], int32 [B, K] -> float [B * K, padded]."""
        hidden = self.config["hidden_size"]
        length = self._length or tf.shape(vectors)[1]
        rows = tf.range(tf.shape(positions)[0])[:, None] * length
        picked = tf.gather(tf.reshape(vectors, [-1, hidden]), tf.reshape(positions + rows, [-1]))
        return self.project(picked)

    def project(self, picked: Any) -> Any:
        """Project to the vocabulary: float [N, hidden] -> float [N, padded]."""
        layers = self.transformer.layers
        # `layer.call`, because `layer()` would make Keras trace where its input comes from.
        picked = layers["MLM-Norm"].call(layers["MLM-Dense"].call(picked))
        table = layers["Embedding-Token"].embeddings
        (bias,) = layers["MLM-Bias"].weights
        fill = np.zeros(self.padded, np.float32)
        fill[self.vocab_size :] = NEVER
        scores = tf.matmul(picked, table, transpose_b=True)
        return scores + (bias + fill)

    def head(self, inputs: Dict[str, Any], vectors: Any, smoothing: float = 0.0) -> Dict[str, Any]:
        """Build the loss and the hit of each predicted position.

        Args:
          inputs: ``positions``, ``labels`` int32 [B, K]; ``weights`` float32 [B, K].
          vectors: the encoder's output.
          smoothing: share of a label's weight that is spread over all labels.

        Returns:
          ``loss`` and ``hits``, float32 [B * K], multiplied by the weights.
        """
        logits = tf.cast(self.logits(vectors, inputs["positions"]), tf.float32)
        labels = tf.reshape(inputs["labels"], [-1])
        weights = tf.reshape(inputs["weights"], [-1])
        known = logits[:, : self.vocab_size] if smoothing else logits
        each = losses.cross_entropy(labels, known, smoothing)
        hits = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels)
        return {"loss": each * weights, "hits": tf.cast(hits, tf.float32) * weights}

    def loss(
        self, inputs: Dict[str, Any], topic: Optional[Any] = None, smoothing: float = 0.0
    ) -> Tuple[Any, Any]:
        """Build the training loss, float32 scalar, and its metrics by name.

        Args:
          inputs: from ``placeholders``.
          topic: weight of ``topic_loss``; None = no topic loss.
          smoothing: as for ``head``.
        """
        out = self.head(inputs, self.model.output, smoothing)
        weights = tf.reshape(inputs["weights"], [-1])
        loss = losses.weighted_mean(out["loss"], weights)
        metrics = {"accuracy": losses.weighted_mean(out["hits"], weights)}
        if topic is None:
            return loss, metrics
        topic_loss = self.topic_loss(inputs, self.model.output)
        return loss + topic * topic_loss, {**metrics, "mlm_loss": loss, "topic_loss": topic_loss}

    def topic_loss(self, inputs: Dict[str, Any], vectors: Any) -> Any:
        """Build the loss of predicting a sequence's masked words from the mean of its vectors.

        A masked word can be guessed from its neighbours, so the mean vector, which classifiers use,
        learns little about the topic. This bag-of-words loss (as in Ma et al., arXiv 2401.11248)
        uses the same head: one row of logits per sequence and no new weights.

        Args:
          inputs: ``token_ids`` int [B, L]; ``labels`` int32, ``weights`` float32 [B, K].
          vectors: float [B, L, hidden].

        Returns:
          float32 scalar, mean over the predicted positions.
        """
        weights = inputs["weights"]
        mean = encoders.mean_over_tokens([vectors, inputs["token_ids"]])
        chances = tf.nn.log_softmax(tf.cast(self.project(mean), tf.float32))
        batch = tf.shape(weights)[0]
        rows = tf.broadcast_to(tf.range(batch)[:, None], tf.shape(weights))
        cells = tf.stack([rows, inputs["labels"]], -1)
        counts = tf.scatter_nd(cells, weights, tf.stack([batch, self.padded]))
        return -tf.reduce_sum(counts * chances) / tf.maximum(tf.reduce_sum(weights), 1.0)

    def _fit_rows(self, values: Any) -> Any:
        """Drop rows after the vocabulary, and append zeros up to ``padded`` rows."""
        values = values[: self.vocab_size]
        missing = self.padded - len(values)
        return np.concatenate([values, np.zeros((missing,) + values.shape[1:], values.dtype)])

    def architecture(self) -> bytes:
        """Return the content of ``bert_config.json``."""
        return encoders.encoded(self.config)

    def write_checkpoint(self, folder: str) -> None:
        """Write the weights as ``bert_model.ckpt`` under Google's variable names."""
        values = encoders.values(self.transformer, self.vocab_size)
        google.write_tensors(os.path.join(folder, CHECKPOINT), values)


def _extended(stddev: float, sinusoids: bool, base: Any) -> Any:
    """Return a subclass of bert4keras' BERT whose initial weights have the deviation ``stddev``.

    Position embeddings can start as sinusoids, which are then trained. With sinusoids, attention to
    a neighbour is a linear map; with random embeddings a small model stays at the unigram loss for
    thousands of steps.
    """

    class Bert(base):
        @property
        def initializer(self) -> Any:
            return keras.initializers.TruncatedNormal(stddev=stddev)

        def apply(self, inputs: Any = None, layer: Any = None, *args: Any, **kwargs: Any) -> Any:
            if sinusoids and kwargs.get("name") == "Embedding-Position":
                kwargs["embeddings_initializer"] = lambda shape, dtype=None, **_: tf.constant(
                    _sinusoids(*shape) * stddev, tf.float32
                )
            return super().apply(inputs, layer, *args, **kwargs)

    return Bert


def _sinusoids(positions: int, size: int) -> Any:
    """Return float64 [positions, size], mean square 1 (Vaswani et al., arXiv 1706.03762)."""
    angles = np.arange(positions)[:, None] * _rates(size)[None, :]
    return math.sqrt(2.0) * np.concatenate([np.sin(angles), np.cos(angles)], 1)


def _rates(size: int) -> Any:
    """Return float64 [size / 2]: radians per position, largest first."""
    return 10000.0 ** -(np.arange(size // 2) / (size // 2))


def _neighbour_kernels(offsets: List[int], hidden: int) -> Tuple[Any, Any]:
    """Return query and key kernels, float32 [hidden, hidden]: head i attends to ``offsets[i]``.

    Both read the fastest sinusoids of a position. The query's are rotated by the offset, so that
    they equal the key's at that offset: sin(x + w) = sin x cos w + cos x sin w.
    """
    size = hidden // len(offsets)
    pairs = size // 2
    query, key = np.zeros((2, hidden, hidden), np.float32)
    sines = np.arange(pairs)
    cosines = sines + hidden // 2
    for head, offset in enumerate(offsets):
        first = head * size + np.arange(pairs)
        second = first + pairs
        turn = _rates(hidden)[:pairs] * offset
        key[sines, first] = key[cosines, second] = 1.0
        query[sines, first] = query[cosines, second] = np.cos(turn)
        query[cosines, first] = np.sin(turn)
        query[sines, second] = -np.sin(turn)
    # So that a perfect match has the logit MATCH after attention divides by sqrt(size).
    scale = math.sqrt(MATCH * math.sqrt(size) / pairs)
    return scale * query, scale * key
