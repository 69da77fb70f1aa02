"""Search for one text, token by token. Imports no TensorFlow.

The results equal those of bert4keras' ``AutoRegressiveDecoder``.
"""

from __future__ import annotations

from typing import Any, Generator, List, Tuple

import numpy as np

from amp_xla.data.batches.order import generator
from amp_xla.models.options import GenerationOptions

# Receives the probability of each token after each live beam, float32 [live, V]; yields the tokens
# to add and the index of the beam that each extends, both int [live]; returns the text's tokens.
Search = Generator[Tuple[np.ndarray, np.ndarray], np.ndarray, List[int]]


def search(options: GenerationOptions, end_id: int, most: int, number: int) -> Search:
    """Start the search for a text; it waits for the first probabilities.

    Args:
      options: search options.
      end_id: token that ends a text.
      most: maximum number of tokens in a text.
      number: number of the text; with the seed it determines the tokens that are drawn.
    """
    running = (_draw if options.draws else _beams)(options, end_id, most, number)
    next(running)
    return running


def _beams(options: GenerationOptions, end_id: int, most: int, _: int) -> Search:
    """Keep the beams with the highest sum of log-probabilities; one beam is the greedy search.

    A beam that ends while another has a higher sum is dropped.
    """
    tokens, scores, beams = np.zeros((1, 0), np.int64), np.zeros(1), options.beams
    last = parents = np.zeros(1, np.int64)
    while True:
        probabilities = yield last, parents
        sums = scores[:, None] + np.log(_with_temperature(probabilities, options) + 1e-12)
        chosen = sums.argpartition(-beams, axis=None)[-beams:]
        parents, last = chosen // sums.shape[1], chosen % sums.shape[1]
        tokens, scores = np.concatenate([tokens[parents], last[:, None]], 1), sums.ravel()[chosen]
        length = tokens.shape[1]
        if length >= options.min_tokens:
            best, alive = int(scores.argmax()), last != end_id
            if not alive[best]:
                return list(map(int, tokens[best]))
            tokens, scores, parents, last = (x[alive] for x in (tokens, scores, parents, last))
            beams = len(parents)
        if length == most:
            return list(map(int, tokens[int(scores.argmax())]))


def _draw(options: GenerationOptions, end_id: int, most: int, number: int) -> Search:
    """Draw the tokens of one text."""
    random, text = generator(options.seed, number), [0]
    while True:
        probabilities = yield np.array(text[-1:]), np.zeros(1, np.int64)
        values = _with_temperature(probabilities, options)[0]
        ids = values.argsort()[::-1][: options.top_k]
        values = values[ids] / values[ids].sum()
        if options.top_p is not None:
            # Drop the tokens after the one at which the sum reaches top_p.
            values[1:][np.cumsum(values)[:-1] >= options.top_p] = 0
            values /= values.sum()
        token = int(ids[random.choice(len(values), p=values)])
        text.append(token)
        length = len(text) - 1
        if length == most or (token == end_id and length >= options.min_tokens):
            return text[1:]


def _with_temperature(probabilities: np.ndarray, options: GenerationOptions) -> Any:
    if options.temperature == 1.0:
        return probabilities
    probabilities = np.power(probabilities, 1.0 / options.temperature)
    return probabilities / probabilities.sum(axis=-1, keepdims=True)
