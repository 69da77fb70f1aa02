"""Heads that find entities: softmax, CRF, GlobalPointer, EfficientGlobalPointer; their losses.

bert4keras 0.11.3 derives a CRF's mask from scores of -1e12, which half precision cannot hold. Here
the masks are the weights of the batch, and losses are float32 in every precision.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple

from amp_xla.backend import configuring, keras, tf
from amp_xla.models import encoders, losses
from amp_xla.tasks.tagging.spans import is_flat

POINTERS = {
    "global_pointer": "GlobalPointer", "efficient_global_pointer": "EfficientGlobalPointer",
}  # fmt: skip
TRANSITION_RATE = 0.01  # peak learning rate of a CRF's transitions, 100 to 1000 times BERT's


class Transitions(keras.layers.Layer):
    """Layer with a score for each pair of successive tags; its output is its input.

    Scores are ``factor`` times the weights, which has the effect of a higher learning rate.
    """

    def __init__(self, factor: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._factor, self.supports_masking = factor, True

    def build(self, input_shape: Any) -> None:
        """Add the weights."""
        tags = int(input_shape[-1])
        self._weights_of_pairs = self.add_weight(
            name="transitions", shape=(tags, tags), initializer="zeros"
        )
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """Return ``inputs``."""
        return tf.identity(inputs)

    @property
    def matrix(self) -> Any:
        """Build the transition scores, float32 [tags, tags]; row = first tag, column = second."""
        return self._factor * tf.convert_to_tensor(self._weights_of_pairs)


class Tagger(NamedTuple):
    """A model with a head that finds entities.

    Attributes:
      head: softmax, crf, global_pointer or efficient_global_pointer.
      model: Keras model from token and segment ids to scores: float32 [B, L, tags] for softmax and
        crf, [B, labels, L, L] for the other heads.
      transitions: scores of tag pairs, float32 [tags, tags]; zeros for softmax, None for pointers.
      length: maximum number of tokens in a text; only the loss of a CRF uses it.
    """

    head: str
    model: Any
    transitions: Any
    length: int

    def inputs(self) -> Dict[str, Any]:
        """Return the placeholders by name; labels and weights as in ``data.with_labels``."""
        if is_flat(self.head):
            return encoders.inputs_of(self.model, [None] * 2, [None] * 2)
        return encoders.inputs_of(self.model, [None] * 4, [None], tf.bool)

    def total_loss(self, inputs: Dict[str, Any], scores: Any, smoothing: float = 0.0) -> Any:
        """Build the weighted sum of the losses in a batch, a float32 scalar."""
        labels, weights = inputs["labels"], inputs["weights"]
        # AMP converts neither this operation nor those that use its result.
        scores = tf.ensure_shape(tf.cast(scores, tf.float32), scores.shape)
        if self.head == "softmax":
            return tf.reduce_sum(losses.cross_entropy(labels, scores, smoothing) * weights)
        if self.head == "crf":
            return crf_loss(labels, scores, weights, self.transitions, self.length)
        return tf.reduce_sum(span_loss(labels, scores) * weights)

    def loss_and_metrics(
        self, inputs: Dict[str, Any], scores: Any, smoothing: float
    ) -> Tuple[Any, Dict[str, Any]]:
        """Build the mean loss, a float32 scalar, and the metrics of a step by name."""
        weights = inputs["weights"]
        total = self.total_loss(inputs, scores, smoothing)
        loss = total / tf.maximum(tf.reduce_sum(weights), 1e-6)
        if not is_flat(self.head):
            return loss, {}
        hits = tf.equal(tf.argmax(scores, -1, output_type=tf.int32), inputs["labels"])
        return loss, {"accuracy": losses.weighted_mean(tf.cast(hits, tf.float32), weights)}

    def outputs(self, scores: Any) -> Dict[str, Any]:
        """Return, by name, the tensors whose values ``spans.decode`` needs."""
        others = {"transitions": self.transitions} if is_flat(self.head) else {}
        return {"scores": scores, **others}


def tagger(config: Any, encoder: Any, labels: int, dropout: float) -> Tagger:
    """Build a tagger on ``encoder``, a Keras model with output [B, L, hidden].

    ``config`` is the recipe's configuration; ``dropout`` is the dropout rate before the head.
    """
    head, length = config.head, config.batches.max_length
    vectors = keras.layers.Dropout(dropout, name="Head-Dropout")(encoder.output)
    if not is_flat(head):
        scores = encoders.pointer(POINTERS[head], labels, "Spans")(vectors)
        return Tagger(head, keras.models.Model(encoder.inputs, scores), None, length)
    scores = encoders.scores(vectors, 1 + 2 * labels, "Tags")
    transitions: Any = tf.zeros([1 + 2 * labels] * 2)
    if head == "crf":
        layer = Transitions(TRANSITION_RATE / config.update.learning_rate, name="CRF")
        scores = layer(scores)
        transitions = layer.matrix
    return Tagger(head, keras.models.Model(encoder.inputs, scores), transitions, length)


def crf_loss(labels: Any, scores: Any, weights: Any, transitions: Any, length: int) -> Any:
    """Build the sum of -log p(tags) over the texts of a batch, a float32 scalar.

    ``labels`` are int32 [B, L], ``scores`` of each tag float32 [B, L, tags], ``weights`` float32
    [B, L], 1 for tokens and 0 for padding, which is at the end; ``transitions`` as in ``Tagger``;
    ``length`` is at least L.
    """
    tags = tf.shape(scores)[-1]
    at_labels = tf.reduce_sum(scores * tf.one_hot(labels, tags), -1)
    pairs = labels[:, :-1] * tags + labels[:, 1:]
    steps = tf.gather(tf.reshape(transitions, [-1]), pairs)
    of_labels = tf.reduce_sum(at_labels * weights) + tf.reduce_sum(steps * weights[:, 1:])
    if configuring.compiles():
        all_paths = _all_paths(scores, weights, transitions, length)
        return tf.reduce_sum(all_paths * weights[:, 0]) - of_labels

    def step(states: Any, token: Tuple[Any, Any]) -> Any:
        score, weight = token
        paths = tf.reduce_logsumexp(states[:, :, None] + transitions, 1) + score
        return tf.where(weight > 0, paths, states)

    tokens = (tf.transpose(scores[:, 1:], [1, 0, 2]), tf.transpose(weights[:, 1:]))
    states = tf.scan(step, tokens, initializer=scores[:, 0])
    last = tf.concat([scores[None, :, 0], states], 0)[-1]
    all_paths = tf.reduce_logsumexp(last, -1)
    return tf.reduce_sum(all_paths * weights[:, 0]) - of_labels


def _all_paths(scores: Any, weights: Any, transitions: Any, length: int) -> Any:
    """Build log of the sum of exp(score) over all paths of a text, float32 [B], without a loop.

    In a loop XLA would run one program per token. Here each step is a matrix of log scores, and
    neighbouring matrices are multiplied in log2(length) rounds, which takes more arithmetic.
    """
    one = tf.eye(int(scores.shape[-1]), batch_shape=[tf.shape(scores)[0], 1])
    nothing = (one - 1.0) * 1e30  # its logarithm: a step that changes nothing
    moves = transitions + scores[:, 1:, None]
    moves = tf.where_v2(weights[:, 1:, None, None] > 0, moves, nothing)
    moves = tf.concat([moves, nothing], 1)  # at least one
    for _ in range((length - 1).bit_length()):
        odd = tf.math.floormod(tf.shape(moves)[1], 2)
        moves = tf.concat([moves, nothing[:, :odd]], 1)
        moves = tf.reduce_logsumexp(moves[:, ::2, :, :, None] + moves[:, 1::2, None], 3)
    moves = tf.ensure_shape(moves, [None, 1, None, None])  # no text is longer
    return tf.reduce_logsumexp(scores[:, 0, :, None] + moves[:, 0], [1, 2])


def span_loss(labels: Any, scores: Any) -> Any:
    """Build the mean over labels of ``losses.several_labels``, float32 [B].

    Source: Su et al., "Global Pointer", arXiv:2208.03054. Both arguments are [B, labels, L, L].
    """
    shape = tf.concat([tf.shape(scores)[:2], [-1]], 0)
    labels, scores = (tf.reshape(x, shape) for x in (labels, scores))
    return tf.reduce_mean(losses.several_labels(labels, scores), -1)
