"""bert4keras language models whose vocabulary projection runs on the predicted positions only."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.errors import AmpXlaError
from amp_xla.models.encoders import build_transformer_model, mean_over_tokens
from amp_xla.models.weights import google
from amp_xla.process import durable

VOCAB_MULTIPLE = 64
MATCH = 5.0  # logit of the position that a head looks at when training starts
POSITIONS = 512  # position embeddings of a new model, at least
NEVER = -1e4  # logit of rows that only fill the vocabulary up; fits float16
CHECKPOINT = "bert_model.ckpt"
APPLICATIONS = {"mlm": "encoder", "lm": "lm", "unilm": "unilm"}

# name -> layers, hidden size, heads: every dimension a multiple of 8; heads of 64, where the model
# is tiny of 32: there, many neighbours to look at are worth more than precise looks
SIZES = {
    "tiny": (3, 192, 6),
    "small": (4, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


def padded_vocab(size: int) -> int:
    """Height of the embedding matrix: tensor cores want a multiple of 64."""
    return -(-size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


class LanguageModel:
    """BERT with a tied vocabulary projection at given positions.

    Args:
      vocab_size: tokens that exist; rows beyond fill up to a multiple of 64, never predicted.
      objective: ``mlm``, ``lm`` or ``unilm``: which positions attend to which.
      bert: folder of a checkpoint in Google's format to go on from; its shapes win.
      length: L, or the longest where there are several.
      layers, hidden, heads: shape of a new model.
      dropout_rate: of activations and attention weights.
      weights: False where they come later, from a run's checkpoint: ``bert`` then needs none.
      positions: where new position embeddings start: ``sinusoids`` or ``random``.
      attention: where the heads of the first two new layers start: ``neighbours`` or ``random``.
      init_range: standard deviation of new weights; None = 0.02 at 768, more in narrower models.
      several: sequences have different lengths; the graph is built for any.

    Attributes:
      model: Keras model, token and segment ids int [B, L] -> float32 [B, L, hidden].
      transformer: bert4keras' own object.
    """

    def __init__(
        self,
        vocab_size: int,
        length: int,
        layers: int,
        hidden: int,
        heads: int,
        objective: str = "mlm",
        bert: Optional[str] = None,
        dropout_rate: float = 0.1,
        weights: bool = True,
        positions: str = "sinusoids",
        attention: str = "neighbours",
        init_range: Optional[float] = None,
        several: bool = False,
    ) -> None:
        self.vocab_size = vocab_size
        self.length = None if several else length
        self.padded = padded_vocab(vocab_size)
        self.config: Dict[str, Any] = {
            "vocab_size": vocab_size,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden,
            "max_position_embeddings": max(POSITIONS, length),
            "type_vocab_size": 2,
            "hidden_act": "gelu",
            "hidden_dropout_prob": dropout_rate,
            "attention_probs_dropout_prob": dropout_rate,
            # BERT's 0.02 is for 768; a narrower model needs larger weights to pass as much on.
            "initializer_range": init_range or round(0.02 * math.sqrt(768 / hidden), 4),
        }
        if bert is not None:
            found = google.read_config(Path(bert) / google.CONFIG)
            if found["vocab_size"] != vocab_size:
                raise AmpXlaError(
                    f"{Path(bert) / google.CONFIG} is for {found['vocab_size']} tokens, the "
                    f"prepared text has {vocab_size}; prepare it with --vocab {bert}/vocab.txt"
                )
            if weights:
                prefix = google.read(bert, vocab_size, length, language_model=True).prefix
            self.config.update(found)
        config = dict(self.config)
        for theirs in ("directionality", "pooler_fc_size", "pooler_num_attention_heads"):
            config.pop(theirs, None)
        self.transformer = build_transformer_model(
            model=_bert(self.config["initializer_range"], positions == "sinusoids"),
            application=APPLICATIONS[objective],
            with_mlm="linear",
            return_keras_model=False,
            vocab_size=self.padded,
            max_position=config["max_position_embeddings"],
            segment_vocab_size=config["type_vocab_size"],
            sequence_length=self.length,
            dropout_rate=dropout_rate,
            attention_dropout_rate=dropout_rate,
            **{
                k: config[k]
                for k in (
                    "hidden_size",
                    "num_hidden_layers",
                    "num_attention_heads",
                    "intermediate_size",
                    "hidden_act",
                )
            },
        )
        last = f"Transformer-{self.config['num_hidden_layers'] - 1}-FeedForward-Norm"
        # bert4keras' own head, over all positions, stays in the graph unused: nothing runs it.
        self.model = keras.models.Model(
            self.transformer.model.inputs, self.transformer.layers[last].output
        )
        if bert is not None and weights:
            self.transformer.load_embeddings = self._pad_rows
            self.transformer.load_weights_from_checkpoint(prefix)
        elif bert is None and attention == "neighbours":
            self._look_at_neighbours(backwards=objective == "lm")

    def _look_at_neighbours(self, backwards: bool) -> None:
        """Starts every head of the first two layers on a neighbour: -1, 1, -2, 2 and so on.

        Attention that starts random is an average over the whole text; a small model sits at the
        unigram loss for a thousand steps before a head finds out that the next word matters.
        """
        heads, layers = self.config["num_attention_heads"], self.config["num_hidden_layers"]
        for layer in range(min(2, layers)):
            numbers = range(layer * heads, (layer + 1) * heads)
            offsets = [-1 - n if backwards else (1 + n // 2) * (-1, 1)[n % 2] for n in numbers]
            query, key = _looking_at(offsets, self.config["hidden_size"])
            attention = self.transformer.layers[f"Transformer-{layer}-MultiHeadSelfAttention"]
            K.batch_set_value([(attention.q_dense.kernel, query), (attention.k_dense.kernel, key)])

    def start_from_vectors(self, vectors: Any, known: Any) -> None:
        """Sets the embeddings of ``known`` tokens, as far from zero as random ones would be.

        The projection is tied to them, so they are what the model predicts with, too.

        Args:
          vectors: float32 [vocabulary, hidden], rows of mean square 1.
          known: bool [vocabulary]; other tokens keep their random start.
        """
        table = self.transformer.layers["Embedding-Token"].embeddings
        values = K.get_value(table)
        values[: self.vocab_size][known] = vectors[known] * self.config["initializer_range"]
        K.set_value(table, values)

    @property
    def weights(self) -> List[Any]:
        """All that is trained, the head included; bert4keras' order."""
        return list(self.transformer.model.trainable_weights)

    def logits(self, vectors: Any, positions: Any) -> Any:
        """float [B, L, hidden], int32 [B, K] -> float [B * K, padded vocabulary]."""
        hidden = self.config["hidden_size"]
        length = self.length or tf.shape(vectors)[1]
        rows = tf.range(tf.shape(positions)[0])[:, None] * length
        picked = tf.gather(tf.reshape(vectors, [-1, hidden]), tf.reshape(positions + rows, [-1]))
        return self._project(picked)

    def _project(self, picked: Any) -> Any:
        """float [N, hidden] -> float [N, padded vocabulary]."""
        layers = self.transformer.layers
        # Their arithmetic only: calling a layer would make Keras trace where its input comes from.
        picked = layers["MLM-Norm"].call(layers["MLM-Dense"].call(picked))
        table = layers["Embedding-Token"].embeddings
        (bias,) = layers["MLM-Bias"].weights
        fill = np.zeros(self.padded, np.float32)
        fill[self.vocab_size :] = NEVER
        scores = tf.matmul(picked, table, transpose_b=True)
        return scores + (bias + fill)

    def head(self, inputs: Dict[str, Any], vectors: Any) -> Dict[str, Any]:
        """Loss and hits of every predicted position.

        Args:
          inputs: ``positions``, ``labels`` int32 [B, K]; ``weights`` float32 [B, K].
          vectors: the encoder's output.

        Returns:
          ``loss``, ``hits``: float32 [B * K], zero where the weight is.
        """
        logits = tf.cast(self.logits(vectors, inputs["positions"]), tf.float32)
        labels = tf.reshape(inputs["labels"], [-1])
        weights = tf.reshape(inputs["weights"], [-1])
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        hits = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels)
        return {"loss": each * weights, "hits": tf.cast(hits, tf.float32) * weights}

    def topic_loss(self, inputs: Dict[str, Any], vectors: Any) -> Any:
        """How badly the mean of a sequence's vectors foretells its masked words, in any order.

        A masked word is mostly guessed from its neighbours, so little of what a text is about
        needs to be in the mean, which a classifier starts from; this puts it there (bag-of-words
        prediction, as in Ma et al., arXiv 2401.11248). One row of logits a sequence, through the
        same head: no new weights, hardly any work.

        Args:
          inputs: ``token_ids`` int [B, L]; ``labels`` int32, ``weights`` float32 [B, K].
          vectors: float [B, L, hidden].

        Returns:
          float32 scalar, mean over the predicted positions.
        """
        weights = inputs["weights"]
        mean = mean_over_tokens([vectors, inputs["token_ids"]])
        chances = tf.nn.log_softmax(tf.cast(self._project(mean), tf.float32))
        batch = tf.shape(weights)[0]
        rows = tf.broadcast_to(tf.range(batch)[:, None], tf.shape(weights))
        where = tf.stack([rows, inputs["labels"]], -1)
        counts = tf.scatter_nd(where, weights, tf.stack([batch, self.padded]))
        return -tf.reduce_sum(counts * chances) / tf.maximum(tf.reduce_sum(weights), 1.0)

    def flops(self, length: int, positions: int) -> float:
        """Floating-point operations of training on a sequence: matrix products, both ways.

        2 a multiply-add; the backward pass costs two forward passes (Kaplan et al.,
        arXiv 2001.08361, section 2.1). Recomputation is not counted: it is overhead.
        """
        hidden, layers = self.config["hidden_size"], self.config["num_hidden_layers"]
        inner = self.config["intermediate_size"]
        token = layers * (4 * hidden * hidden + 2 * hidden * inner + 2 * length * hidden)
        predicted = hidden * hidden + hidden * self.padded
        return 6.0 * (length * token + positions * predicted)

    def _pad_rows(self, values: Any) -> Any:
        missing = self.padded - len(values)
        return np.concatenate([values, np.zeros((missing,) + values.shape[1:], values.dtype)])

    # -- what others load ----------------------------------------------------------------------

    def write_config(self, path: str) -> None:
        """``bert_config.json`` as Google's BERT has it."""
        durable.write(Path(path), json.dumps(self.config, indent=2).encode() + b"\n")

    def write_checkpoint(self, folder: str) -> None:
        """The weights in the session as ``bert_model.ckpt`` under Google's variable names."""
        mapping = self.transformer.variable_mapping()
        names: List[str] = []
        tensors: List[Any] = []
        for layer, variables in mapping.items():
            if layer in self.transformer.layers:
                names += variables
                tensors += self.transformer.layers[layer].trainable_weights
        values = K.batch_get_value(tensors)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            with tf.Graph().as_default(), tf.Session() as session:
                made = []
                for name, value in zip(names, values):
                    if value.shape[:1] == (self.padded,):
                        value = value[: self.vocab_size]
                    hold = tf.placeholder(tf.float32, value.shape)
                    made.append(
                        (tf.get_variable(name, initializer=hold, use_resource=True), hold, value)
                    )
                session.run(
                    tf.global_variables_initializer(), {hold: value for _, hold, value in made}
                )
                saver = tf.train.Saver([variable for variable, _, _ in made])
                prefix = os.path.join(temporary, CHECKPOINT)
                saver.save(session, prefix, write_meta_graph=False, write_state=False)
            # The index comes last: what looks for a checkpoint looks for it.
            for name in sorted(os.listdir(temporary)):
                shutil.move(os.path.join(temporary, name), os.path.join(folder, name))


def _bert(stddev: float, sinusoids: bool) -> Any:
    """bert4keras' BERT with another spread of initial weights, and positions that know distances.

    Position embeddings may start as sinusoids (and are learned on from there): attention to a
    neighbour at some distance is one linear map from the first step. From random ones a small
    model sits at the unigram loss for thousands of steps before it learns to look at neighbours.
    """
    models = backend.bert4keras("models")

    class Bert(models.BERT):  # type: ignore[name-defined]  # untyped
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
    """float64 [positions, size], mean square 1 (Vaswani et al., arXiv 1706.03762)."""
    angles = np.arange(positions)[:, None] * _rates(size)[None, :]
    return math.sqrt(2.0) * np.concatenate([np.sin(angles), np.cos(angles)], 1)


def _rates(size: int) -> Any:
    """float64 [size / 2]: radians a position, fast ones first."""
    return 10000.0 ** -(np.arange(size // 2) / (size // 2))


def _looking_at(offsets: List[int], hidden: int) -> Tuple[Any, Any]:
    """Query and key kernels, float32 [hidden, hidden], of heads that look so many positions ahead.

    A head reads the fastest sinusoids alone. Its query turns them by its offset, so it is the key
    of the position that far away: sin(x + w) = sin x cos w + cos x sin w.
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
    # The logit of a perfect match, over sqrt(size) as attention divides it.
    scale = math.sqrt(MATCH * math.sqrt(size) / pairs)
    return scale * query, scale * key
