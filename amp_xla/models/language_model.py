"""bert4keras language models whose vocabulary projection runs on the predicted positions only."""

from __future__ import annotations

import math
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from amp_xla.backend import keras, tf
from amp_xla.errors import AmpXlaError
from amp_xla.models import encoders, losses
from amp_xla.models.weights import google, pretrained
from amp_xla.process.progress import note

VOCAB_MULTIPLE = 64
NEVER = -1e4  # logit of vocabulary padding; fits float16
CHECKPOINT = "bert_model.ckpt"
APPLICATIONS = {"mlm": "encoder", "lm": "lm", "unilm": "unilm"}


class LanguageModel:
    """BERT with a tied vocabulary projection at given positions.

    Args:
      config: content of a ``bert_config.json``; the token embeddings are padded to a multiple of
        64 rows, for tensor cores. The default ``initializer_range`` is BERT's 0.02, and larger in
        models narrower than BERT-base, which need larger weights for the same variance.
      objective: ``mlm``, ``lm`` or ``unilm``; it decides which positions attend to which.
      bert: folder of BERT weights; its values replace ``config``'s except dropout and vocab_size.
      weights: False = read only the configuration from ``bert``.
      any_length: build the graph for sequences of any length; False = of ``length`` only.

    Attributes:
      config: complete configuration, with the values that were read or are defaults.
      padded: number of rows of the token embeddings.
      model: Keras model, token and segment ids int [B, L] -> float32 [B, L, hidden].
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        length: int,
        objective: str = "mlm",
        bert: Optional[str] = None,
        weights: bool = True,
        any_length: bool = True,
    ) -> None:
        spread = round(0.02 * max(1.0, math.sqrt(768 / config["hidden_size"])), 4)
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
        stddev = self.config["initializer_range"]
        self.transformer = encoders.build(
            {**self.config, "vocab_size": self.padded}, lambda base: _spread(stddev, base),
            application=APPLICATIONS[objective], with_mlm="linear", sequence_length=self._length,
        )  # fmt: skip
        last = f"Transformer-{self.config['num_hidden_layers'] - 1}-FeedForward-Norm"
        # The graph also has bert4keras' head over all positions, which never runs.
        self.model = keras.models.Model(
            self.transformer.model.inputs, self.transformer.layers[last].output
        )
        if bert is not None and weights:
            self._load(folder)

    def _check(self, folder: Any, bert: str) -> None:
        kind, rows = folder.config["model_type"], folder.config["vocab_size"]
        if kind != "bert":
            raise AmpXlaError(
                f"{folder.path} has model_type {kind}; a language model can only start from bert"
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

    @property
    def weights(self) -> List[Any]:
        """All trainable variables, in bert4keras' order."""
        return list(self.transformer.model.trainable_weights)

    def placeholders(self) -> Dict[str, Any]:
        """Build the inputs by name: token and segment ids, positions, labels and weights."""
        shape = [None, None]
        positions = tf.placeholder(tf.int32, shape, name="positions")
        return {**encoders.inputs_of(self.model, shape, shape), "positions": positions}

    def logits(self, vectors: Any, positions: Any) -> Any:
        """Build logits [B * K, padded] of hidden states [B, L, hidden] at positions [B, K]."""
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
        """Build loss and hits (1 = right, 0 = wrong) of each position, float32 [B * K].

        Both are multiplied by the position's weight.

        Args:
          inputs: ``positions``, ``labels`` int32 [B, K]; ``weights`` float32 [B, K].
          vectors: the encoder's output.
          smoothing: share of a label's weight that is spread over all labels.
        """
        logits = tf.cast(self.logits(vectors, inputs["positions"]), tf.float32)
        labels = tf.reshape(inputs["labels"], [-1])
        weights = tf.reshape(inputs["weights"], [-1])
        known = logits[:, : self.vocab_size] if smoothing else logits
        each = losses.cross_entropy(labels, known, smoothing)
        hits = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels)
        return {"loss": each * weights, "hits": tf.cast(hits, tf.float32) * weights}

    def loss(self, inputs: Dict[str, Any], smoothing: float = 0.0) -> Tuple[Any, Any]:
        """Build the training loss, float32 scalar, and its metrics by name; see ``head``."""
        out = self.head(inputs, self.model.output, smoothing)
        weights = tf.reshape(inputs["weights"], [-1])
        loss = losses.weighted_mean(out["loss"], weights)
        return loss, {"accuracy": losses.weighted_mean(out["hits"], weights)}

    def _fit_rows(self, values: Any) -> Any:
        """Keep the vocabulary's rows, and append rows of zeros until there are ``padded`` rows."""
        values = values[: self.vocab_size]
        missing = self.padded - len(values)
        return np.concatenate([values, np.zeros((missing,) + values.shape[1:], values.dtype)])

    def architecture(self) -> bytes:
        """Return the content of ``bert_config.json``."""
        return pretrained.encoded(self.config)

    def write_checkpoint(self, folder: str) -> None:
        """Write the weights as ``bert_model.ckpt`` under Google's variable names."""
        values = encoders.values(self.transformer, self.vocab_size)
        google.write_tensors(os.path.join(folder, CHECKPOINT), values)


def _spread(stddev: float, base: Any) -> Any:
    """Return a subclass of bert4keras' BERT; initial weights have standard deviation ``stddev``."""

    class Bert(base):
        @property
        def initializer(self) -> Any:
            return keras.initializers.TruncatedNormal(stddev=stddev)

    return Bert
