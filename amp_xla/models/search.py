"""Search for one text, token by token, with the results of bert4keras' ``AutoRegressiveDecoder``.

The order of operations on float32 is its order, too. No TensorFlow is needed.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from amp_xla.data.batches.order import generator
from amp_xla.models.options import GenerationOptions


class Search:
    """The texts that are still under way.

    Args:
      options: how to search.
      end_id: token that ends a text.
      most: tokens after which a text ends without it.

    Attributes:
      tokens: of each text under way, int [live, t].
      answer: tokens of the result, int [t]; None = not yet.
    """

    def __init__(self, options: GenerationOptions, end_id: int, most: int) -> None:
        self._options, self._end, self._most = options, end_id, most
        self.tokens: np.ndarray = np.zeros((1, 0), np.int64)
        self.answer: Optional[np.ndarray] = None

    def advance(self, chances: np.ndarray) -> np.ndarray:
        """Add a token.

        Args:
          chances: probability of each token after ``tokens``, float32 [live, V].

        Returns:
          Row of the earlier ``tokens`` that each row continues, int [live].
        """
        raise NotImplementedError

    def _even(self, chances: np.ndarray) -> np.ndarray:
        if self._options.temperature == 1.0:
            return chances
        chances = np.power(chances, 1.0 / self._options.temperature)
        even: np.ndarray = chances / chances.sum(axis=-1, keepdims=True)
        return even


class BeamSearch(Search):
    """Beams with the highest sum of log-probabilities; one beam is the greedy search.

    A beam that ends while another has a higher sum is dropped.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._scores, self._beams = np.zeros(1), self._options.beams

    def advance(self, chances: np.ndarray) -> np.ndarray:
        """Add a token, as in ``Search``."""
        scores = self._scores[:, None] + np.log(self._even(chances) + 1e-12)
        chosen = scores.argpartition(-self._beams, axis=None)[-self._beams :]
        parents, last = chosen // scores.shape[1], chosen % scores.shape[1]
        self.tokens = np.concatenate([self.tokens[parents], last[:, None]], 1)
        self._scores = scores.ravel()[chosen]
        length = self.tokens.shape[1]
        if length >= self._options.min_tokens:
            best, alive = int(self._scores.argmax()), last != self._end
            if not alive[best]:
                self.answer = self.tokens[best]
                return parents
            self.tokens, self._scores, parents = (
                x[alive] for x in (self.tokens, self._scores, parents)
            )
            self._beams = len(parents)
        if length == self._most:
            self.answer = self.tokens[int(self._scores.argmax())]
        return parents


class Draw(Search):
    """One text whose tokens are drawn.

    Args:
      options, end_id, most: as for ``Search``.
      number: of the text; with the seed it decides the draws.
    """

    def __init__(self, options: GenerationOptions, end_id: int, most: int, number: int = 0) -> None:
        super().__init__(options, end_id, most)
        self._source = generator(options.seed, number)

    def advance(self, chances: np.ndarray) -> np.ndarray:
        """Add a token, as in ``Search``."""
        top_k, top_p = self._options.top_k, self._options.top_p
        values = self._even(chances)[0]
        values = values / values.sum()
        ids = np.arange(len(values))
        if top_k is not None:
            ids = values.argpartition(-min(top_k, len(values)))[-top_k:]
            values = values[ids] / values[ids].sum()
        if top_p is not None:
            order = values.argsort()[::-1]
            ids, values = ids[order], values[order]
            beyond = np.roll(np.cumsum(values) >= top_p, 1)  # after the one that reaches the share
            beyond[0] = False
            values[beyond] = 0
            values /= values.sum()
        token = ids[self._source.choice(len(values), p=values)]
        self.tokens = np.append(self.tokens, [[token]], 1)
        length = self.tokens.shape[1]
        if length == self._most or (token == self._end and length >= self._options.min_tokens):
            self.answer = self.tokens[0]
        return np.zeros(1, np.int64)
