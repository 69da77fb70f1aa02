"""Predictions of a masked language model for [MASK]."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.data.text.tokenizer import MASK, Tokenizer
from amp_xla.errors import AmpXlaError
from amp_xla.models import dropout
from amp_xla.models.language_model import POSITIONS, SIZES, LanguageModel
from amp_xla.models.options import Filling, LanguageModelOptions
from amp_xla.models.weights import google


class Fill:
    """A model for texts with [MASK].

    Args:
      tokenizer: tokenizer of the model.
      texts: with at least one [MASK] each.
      bert: folder with the model's ``bert_config.json``; None = use ``shape``.
      shape: layers, hidden size, heads.
      top: predictions per [MASK].

    Attributes:
      weights: variables; load them before the call.

    Raises:
      AmpXlaError: a text has more tokens than the model has positions.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        bert: Optional[str],
        shape: Tuple[int, int, int],
        top: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._rows = [tokenizer.encode_masked(text) for text in texts]
        length = max(map(len, self._rows))
        most = POSITIONS
        if bert is not None:
            most = google.pretrained(bert).config["max_position_embeddings"]
        for number, row in enumerate(self._rows, 1):
            if len(row) > most:
                raise AmpXlaError(f"text {number} has {len(row):,} tokens; the model reads {most}")
        with dropout.inference():
            lm = LanguageModel(tokenizer.vocab_size, length, *shape, bert=bert, weights=False)
        self.weights: List[Any] = lm.weights
        self._inputs = lm.model.inputs
        self._positions = tf.placeholder(tf.int32, [None, None], name="positions")
        logits = lm.logits(lm.model.output, self._positions)[:, : tokenizer.vocab_size]
        chances = tf.nn.softmax(tf.cast(logits, tf.float32))
        self._predictions = tf.nn.top_k(chances, min(top, tokenizer.vocab_size))

    @classmethod
    def of_run(
        cls,
        checkpoint: Any,
        objective: str,
        encoder: LanguageModelOptions,
        texts: Sequence[str],
        top: int,
    ) -> Fill:
        """Build the model of a pretraining run, still without its weights.

        Args:
          checkpoint: checkpoint of the run.
          objective, encoder: settings of the run.
          texts, top: as for ``Fill``.

        Raises:
          AmpXlaError: the run was not trained with masks, or a text is too long.
        """
        if objective != "mlm":
            raise AmpXlaError(
                f"{checkpoint.run} was trained with --objective {objective}; to fill in {MASK}, "
                "mlm is needed"
            )
        bert = checkpoint.architecture or encoder.bert
        return cls(Tokenizer.from_assets(checkpoint.file), texts, bert, SIZES[encoder.model], top)

    def __call__(self) -> List[List[Filling]]:
        """Return the predictions for each text, in order of its [MASK] tokens."""
        run = backend.session().make_callable(self._predictions, [*self._inputs, self._positions])
        return [self._fill(run, np.array(row)) for row in self._rows]

    def _fill(self, run: Any, row: Any) -> List[Filling]:
        masks = np.flatnonzero(row == self._tokenizer.mask_id)
        ids = np.zeros((1, self._inputs[0].shape[1]), np.int32)
        ids[0, : len(row)] = row
        chances, tokens = run(ids, np.zeros_like(ids), masks[None])
        return [
            Filling(mask, self._tokenizer.tokens[token], float(chance))
            for mask in range(len(masks))
            for chance, token in zip(chances[mask], tokens[mask])
        ]
