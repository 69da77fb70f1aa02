"""Tricks for fine-tuning: adversarial training, R-Drop, averaged weights, layer-wise rates."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

from amp_xla.backend import keras, tf
from amp_xla.errors import SettingsError
from amp_xla.models import fused, losses
from amp_xla.training.optimizers.adamw import AdamW
from amp_xla.training.optimizers.average import averaged

EMBEDDING = "Embedding-Token"  # bert4keras' names
_LAYER = re.compile(r"(?:^|/)Transformer-(\d+)-")
_EMBEDDINGS = re.compile(r"(?:^|/)Embedding-")

Objective = Callable[[Any], Tuple[Any, Any]]


class Tricks:
    """Tricks applied to a model.

    Args:
      options: ``TrickOptions``.
      model: a Keras model with a bert4keras encoder and one output [B, ...].
      pretrained: whether training starts from pretrained weights.
      recompute: whether transformer layers are recomputed in the backward pass.

    Attributes:
      variables: weights to train.

    Raises:
      SettingsError, UnsupportedError: a trick does not fit the model or another setting.
    """

    def __init__(self, options: Any, model: Any, pretrained: bool, recompute: bool) -> None:
        self._options, self._model = options, model
        numbers = [_LAYER.search(v.name) for v in model.trainable_weights]
        self._layers = max((int(match.group(1)) + 1 for match in numbers if match), default=0)
        freeze = options.freeze
        if options.fgm and recompute:
            raise SettingsError("--fgm and --recompute exclude each other; remove one of them")
        if options.r_drop and not any(getattr(layer, "rate", 0) for layer in model.layers):
            raise SettingsError("--r-drop needs dropout, and --dropout is 0")
        if freeze is not None and not pretrained:
            raise SettingsError(
                f"--freeze {freeze}: random weights would stay random; it needs --bert or "
                "--warm-start"
            )
        if options.r_drop and fused.batch():
            raise fused.unfit("--r-drop 0, because R-Drop doubles the rows", options.r_drop)
        if not self._layers and (freeze or options.layer_decay < 1.0):
            raise SettingsError(
                "--layer-decay and --freeze above 0 need layers with separate weights; this "
                "model's layers share theirs"
            )
        if freeze is not None and freeze > self._layers:
            raise SettingsError(
                f"--freeze {freeze}: the model has {self._layers} layers; allowed is 0 (the "
                f"embeddings alone) to {self._layers}"
            )
        frozen = -1 if freeze is None else freeze
        self.variables: List[Any] = [v for v in model.trainable_weights if self._depth(v) > frozen]

    @property
    def rule(self) -> Any:
        """Function that creates the optimizer: its class or a ``functools.partial`` of it."""
        rule: Any = averaged(AdamW, self._options.ema)
        if self._options.layer_decay < 1.0:
            rule = functools.partial(rule, factor=self._rate)
        return rule

    def loss(
        self,
        objective: Objective,
        weights: Any,
        loss_scale: Any,
        divergence: Callable[[Any, Any], Any] = losses.divergence,
        inputs_of_model: Optional[Sequence[Any]] = None,
    ) -> Tuple[Any, Any]:
        """Build loss and metrics of a batch.

        With FGM, loss and metrics are computed on the perturbed texts. With R-Drop, they are means
        over two dropout masks, and the divergence is added to the loss.

        Args:
          objective: function from an output of the model to the float32 loss (a mean over the
            batch, weighted by ``weights``) and the metrics (one tensor or several).
          weights: float32 [B, ...], 0 for padding.
          loss_scale: the optimizer's loss scale, float32 scalar.
          divergence: for R-Drop: function from two outputs to their divergence, shaped like
            ``weights``.
          inputs_of_model: tensors to call the model with, instead of its own placeholders.
        """
        options, model = self._options, self._model
        layer, delta = model.get_layer(EMBEDDING), None
        inputs: Any = inputs_of_model
        if inputs is None:
            inputs, output, vectors = model.inputs, model.output, layer.get_output_at(0)
        else:
            with _added(layer, None) as looked_up:
                output = model(inputs)
            (vectors,) = looked_up
        if not options.fgm and not options.r_drop:
            return objective(output)
        copies = 2 if options.r_drop else 1
        if options.fgm:
            slots = inputs[3] if len(inputs) > 3 else None
            delta = perturbation(objective(output)[0] * loss_scale, vectors, options.fgm, slots)
            delta = tf.concat([delta] * copies, 0)
        if copies > 1:  # one pass for both masks; Keras tracks Lambda layers only
            twice = keras.layers.Lambda(lambda x, mask=None: tf.concat([x, x], 0), name="Twice")
            inputs = [twice(x) for x in inputs]
        with _added(layer, delta):
            output = model(inputs)
        if copies == 1:
            return objective(output)
        first, second = tf.split(output, 2)
        loss, metrics = tf.nest.map_structure(
            lambda a, b: 0.5 * (a + b), objective(first), objective(second)
        )
        apart = losses.weighted_mean(divergence(first, second), weights)
        return loss + 0.25 * options.r_drop * apart, metrics

    def _depth(self, variable: Any) -> int:
        """Return 0 for embeddings, 1 for the lowest layer and so on, layers + 1 for the head."""
        match = _LAYER.search(variable.name)
        if match:
            return int(match.group(1)) + 1
        return 0 if _EMBEDDINGS.search(variable.name) else self._layers + 1

    def _rate(self, variable: Any) -> float:
        return float(self._options.layer_decay ** (self._layers + 1 - self._depth(variable)))


def perturbation(loss: Any, vectors: Any, epsilon: float, slots: Optional[Any] = None) -> Any:
    """Build the change of word embeddings that raises a loss most: epsilon * g / |g| per text.

    Miyato et al., "Adversarial Training Methods for Semi-Supervised Text Classification",
    arXiv:1605.07725. The norm is computed per text, so the result depends neither on batches, ranks
    and micro-batches nor on the loss scale. An infinity or a NaN in the gradient makes the
    loss of the perturbed texts NaN, so the update is skipped. The result is float32; 0 for padding.

    Args:
      loss: float32 scalar, multiplied by the loss scale.
      vectors: float [B, L, hidden], the looked-up embeddings that ``loss`` depends on.
      slots: int [B, L], number of a token's text in a packed row, -1 for padding.
    """
    (gradient,) = tf.gradients(loss, [vectors])
    gradient = tf.cast(gradient, tf.float32)
    # The largest element becomes 1, so that no square underflows or overflows.
    gradient = tf.math.divide_no_nan(gradient, tf.reduce_max(tf.abs(gradient)))
    squares = tf.reduce_sum(tf.square(gradient), -1, keepdims=True)
    if slots is None:
        norm = tf.sqrt(tf.reduce_sum(squares, 1, keepdims=True))
    else:
        # Not a matrix product, which mixed precision would compute in half.
        same = tf.equal(slots[:, :, None], slots[:, None, :])
        squares = tf.cast(same, tf.float32) * squares[:, None, :, 0]
        norm = tf.sqrt(tf.reduce_sum(squares, -1, keepdims=True))
    return tf.stop_gradient(epsilon * tf.math.divide_no_nan(gradient, norm))


@contextlib.contextmanager
def _added(layer: Any, delta: Optional[Any]) -> Iterator[List[Any]]:
    """Within the block add ``delta`` to a layer's results; yield a list that collects the sums."""
    call, results = layer.call, []

    def shifted(*args: Any, **kwargs: Any) -> Any:
        output = call(*args, **kwargs)
        results.append(output if delta is None else output + tf.cast(delta, output.dtype))
        return results[-1]

    vars(layer)["call"] = shifted
    try:
        yield results
    finally:
        vars(layer).pop("call", None)
