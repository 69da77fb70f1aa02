"""Text generation by a UniLM with cached keys and values, so that each token is computed once.

bert4keras' ``AutoRegressiveDecoder`` computes the source and all earlier tokens again for each
token, and projects all positions to the vocabulary. Here the source is computed once per text, and
the beams share its keys and values. All shapes are fixed.
"""

from __future__ import annotations

from typing import Any, Callable, Generator, List, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.data.batches.order import generator
from amp_xla.models.derivatives import mask_bias
from amp_xla.models.language_model import LanguageModel
from amp_xla.models.options import GenerationOptions
from amp_xla.training import distributed

Attend = Callable[[int, Any, Any, Any], Any]
# Receives the probability of each token after each beam, float32 [K, V], live beams first; yields
# tokens to add and the index of the beam that each extends, both int [live]; returns all tokens.
Search = Generator[Tuple[np.ndarray, np.ndarray], np.ndarray, List[int]]


class CachedDecoder:
    """Next-token probabilities for a batch of texts with several beams each.

    The caches are local variables, so checkpoints do not contain them.

    Args:
      lm: language model with the objective ``unilm``.
      rows, beams: texts per batch, B; beams per text, K.
      source, target: maximum number of tokens in a source, S, and in a target, T.
    """

    def __init__(self, lm: LanguageModel, rows: int, beams: int, source: int, target: int) -> None:
        self.rows, self.beams, self.source, self.target = rows, beams, source, target
        self._lm, self._layers = lm, lm.transformer.layers
        self._count, heads = lm.config["num_hidden_layers"], lm.config["num_attention_heads"]
        size = lm.config["hidden_size"] // heads

        def cache(*shape: int) -> Any:
            return tf.Variable(
                tf.zeros([*shape, size]), trainable=False, name="keys_and_values",
                collections=[tf.GraphKeys.LOCAL_VARIABLES], use_resource=True,
            )  # fmt: skip

        self._source_cache = cache(2 * self._count, rows, heads, source)
        self._target_cache = cache(2 * self._count, rows, beams, heads, target)
        self._source_ids = tf.placeholder(tf.int32, [rows, source])
        self._tokens, self._parents, self._positions = (
            tf.placeholder(tf.int32, [rows, beams]) for _ in range(3)
        )
        self._number = tf.placeholder(tf.int32, [])
        self._source_bias = mask_bias(tf.not_equal(self._source_ids, 0))[:, None, None, :]
        self._start, self._step = self._first_step(), self._next_step()
        self._run: List[Any] = []

    def start(self, source_ids: np.ndarray) -> np.ndarray:
        """Return the probabilities of the first token: int [B, S] -> float32 [B, V]."""
        if not self._run:
            session = backend.session()
            fed = [self._source_ids, self._number, self._tokens, self._parents, self._positions]
            self._run = [
                session.make_callable(self._start, fed[:1]), session.make_callable(self._step, fed)
            ]  # fmt: skip
        self._ids = source_ids
        probabilities: np.ndarray = self._run[0](source_ids)[0]
        return probabilities

    def step(
        self, number: int, tokens: np.ndarray, parents: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        """Return the probabilities of the next token, float32 [B, K, V].

        The beams have ``number`` target tokens so far. ``tokens`` are added to the beams with the
        indices ``parents``, at the position ids ``positions``; all three are int [B, K].
        """
        probabilities = self._run[1](self._ids, number, tokens, parents, positions)[0]
        return np.reshape(probabilities, (self.rows, self.beams, -1))

    def _first_step(self) -> List[Any]:
        """Build the probabilities of the first token, and the operations that fill the caches."""
        cached: List[Any] = []

        def attend(layer: int, query: Any, key: Any, value: Any) -> Any:
            query, key, value = map(_transposed, (query, key, value))
            cached.extend([key, value])
            scores = tf.matmul(query, key, transpose_b=True) + self._source_bias
            return _transposed(tf.matmul(tf.nn.softmax(scores), value))

        positions = np.tile(np.arange(self.source), (self.rows, 1))
        vectors = self._transform(self._source_ids, 0, positions, attend)
        last = tf.reduce_sum(tf.cast(tf.not_equal(self._source_ids, 0), tf.int32), 1) - 1
        cells = tf.stack([tf.range(self.rows), tf.maximum(last, 0)], 1)
        return [
            self._project(tf.gather_nd(vectors, cells)),
            self._source_cache.assign(tf.stack(cached), read_value=False),
            self._target_cache.assign(tf.zeros(self._target_cache.shape), read_value=False),
        ]

    def _next_step(self) -> List[Any]:
        """Build the probabilities after one more token, and the operation that caches the token."""
        source_cache = tf.unstack(self._source_cache.read_value())
        shape = self._target_cache.shape.as_list()
        beams = tf.reshape(self._target_cache.read_value(), [shape[0], -1, *shape[3:]])
        parents = self._parents + self.beams * tf.range(self.rows)[:, None]
        earlier = tf.gather(beams, tf.reshape(parents, [-1]), axis=1)
        target_cache = tf.unstack(tf.reshape(earlier, shape))
        steps = tf.range(self.target)
        is_current = tf.cast(tf.equal(steps, self._number), tf.float32)[:, None]
        future_bias = mask_bias(steps <= self._number)
        cached: List[Any] = []

        def attend(layer: int, query: Any, key: Any, value: Any) -> Any:
            # A beam's keys and values in the target are [B, K, heads, T, D].
            keys = target_cache[2 * layer] + is_current * key[..., None, :]
            values = target_cache[2 * layer + 1] + is_current * value[..., None, :]
            cached.extend([keys, values])
            in_source = tf.matmul(_transposed(query), source_cache[2 * layer], transpose_b=True)
            in_target = tf.matmul(keys, query[..., None])[..., 0] + future_bias
            scores = tf.concat([_transposed(in_source + self._source_bias), in_target], -1)
            weights = tf.split(tf.nn.softmax(scores), [self.source, self.target], -1)
            out = tf.matmul(_transposed(weights[0]), source_cache[2 * layer + 1])
            return _transposed(out) + tf.matmul(weights[1][..., None, :], values)[..., 0, :]

        vectors = self._transform(self._tokens, 1, self._positions, attend)
        probabilities = self._project(tf.reshape(vectors, [-1, vectors.shape[2]]))
        with tf.control_dependencies([earlier]):
            caching = self._target_cache.assign(tf.stack(cached), read_value=False)
        return [probabilities, caching]

    def _transform(self, token_ids: Any, segment: int, positions: Any, attend: Attend) -> Any:
        """Build the vectors of tokens, int [B, L] -> float [B, L, hidden].

        ``attend`` takes a layer's number, scaled queries, keys and values, and returns vectors.
        Queries, keys, values and these vectors are [B, L, heads, D].
        """
        # `layer.call`, because `layer()` would make Keras trace where its input comes from.
        tables = [self._layers[f"Embedding-{n}"].embeddings for n in ("Token", "Segment")]
        position_table = self._layers["Embedding-Position"].embeddings
        x = (
            tf.gather(tables[0], token_ids)
            + tables[1][segment]
            + tf.gather(position_table, positions)
        )
        x = self._layers["Embedding-Norm"].call(x)
        for layer in range(self._count):
            name = f"Transformer-{layer}-MultiHeadSelfAttention"
            attention = self._layers[name]
            query, key, value = (
                tf.reshape(dense.call(x), [*x.shape[:2], attention.heads, -1])
                for dense in (attention.q_dense, attention.k_dense, attention.v_dense)
            )
            out = attend(layer, query * attention.key_size**-0.5, key, value)
            out = attention.o_dense.call(tf.reshape(out, x.shape))
            x = self._layers[f"{name}-Norm"].call(x + out)
            feed = self._layers[f"Transformer-{layer}-FeedForward"]
            out = feed.o_dense.call(feed.i0_dense.call(x))
            x = self._layers[f"Transformer-{layer}-FeedForward-Norm"].call(x + out)
        return x

    def _project(self, vectors: Any) -> Any:
        logits = tf.cast(self._lm.project(vectors), tf.float32)
        return tf.nn.softmax(logits[:, : self._lm.vocab_size])


def _transposed(x: Any) -> Any:
    """Swap positions and heads: [B, L, heads, D] <-> [B, heads, L, D]."""
    return tf.transpose(x, (0, 2, 1, 3))


def generate(
    decoder: CachedDecoder, end_id: int, options: GenerationOptions, sources: Sequence[List[int]]
) -> List[List[int]]:
    """Return the tokens generated for each source; beam search is that of bert4keras' decoder.

    Args:
      decoder: has the weights of a run, and as many beams as ``options``.
      end_id: token that ends a text; it is removed from the end of the result.
      sources: tokens [CLS] ... [SEP].
    """
    start, ranks = _draw if options.draws else _beams, distributed.current()
    answers: List[List[int]] = []
    for first in range(0, len(sources), decoder.rows):
        if not ranks.several:  # the others may have one batch less
            ranks.ask()
        batch = sources[first : first + decoder.rows]
        searches = [start(options, end_id, decoder.target, first + i) for i in range(len(batch))]
        answers += _searched(decoder, batch, searches)
    return [ids[:-1] if ids[-1] == end_id else ids for ids in answers]


def _searched(
    decoder: CachedDecoder, sources: Sequence[List[int]], searches: Sequence[Search]
) -> List[List[int]]:
    for running in searches:
        next(running)  # each waits for the first probabilities
    ids = np.zeros((decoder.rows, decoder.source), np.int32)
    for row, source in zip(ids, sources):
        row[: len(source)] = source
    positions = np.tile((ids != 0).sum(1, keepdims=True), (1, decoder.beams))
    probabilities = decoder.start(ids)[:, None]
    answers: List[List[int]] = [[] for _ in sources]  # empty = not finished
    for number in range(decoder.target):
        tokens, parents = np.zeros((2, decoder.rows, decoder.beams), np.int32)
        for i, running in enumerate(searches):
            if not answers[i]:
                try:
                    last, continued = running.send(probabilities[i])
                except StopIteration as end:
                    answers[i] = end.value
                    continue
                tokens[i, : len(last)], parents[i, : len(last)] = last, continued
        if all(answers):
            break
        probabilities = decoder.step(number, tokens, parents, positions + number)
    return answers


def _beams(options: GenerationOptions, end_id: int, most: int, _: int) -> Search:
    """Run beam search, by the sum of log-probabilities, for one text; one beam is greedy search.

    From token ``min_tokens`` on, search stops if the best beam ends; other ended beams are dropped.
    """
    tokens, scores, beams = np.zeros((1, 0), np.int64), np.zeros(1), options.beams
    last = parents = np.zeros(1, np.int64)
    while True:
        probabilities = (yield last, parents)[: len(scores)]
        sums = scores[:, None] + np.log(_with_temperature(probabilities, options) + 1e-12)
        # A small vocabulary has fewer first tokens than there are beams.
        chosen = sums.argpartition(-min(beams, sums.size), axis=None)[-beams:]
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
    # In float32, or without the division by the maximum, the powers of all tokens may become 0.
    ratios = probabilities / probabilities.max(axis=-1, keepdims=True).astype(np.float64)
    powers = ratios ** (1.0 / options.temperature)
    return powers / powers.sum(axis=-1, keepdims=True)
