"""Generation by a UniLM that computes each token once: keys and values of the others stay.

bert4keras' ``AutoRegressiveDecoder`` computes the source and all tokens so far again for each
token, and the vocabulary projection at all positions. Here the source is computed once per text,
and the beams share its keys and values. All shapes are fixed.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.models.derivatives import banned
from amp_xla.models.language_model import LanguageModel
from amp_xla.models.options import GenerationOptions
from amp_xla.models.search import search

Attend = Callable[[int, Any, Any, Any], Any]


class CachedDecoder:
    """Probabilities of the next token of several texts, with several beams each.

    Keys and values are local variables, so that no checkpoint holds them.

    Args:
      lm: of the objective ``unilm``.
      rows: texts at a time, B.
      beams: K.
      source: maximum tokens of a source, S.
      target: maximum tokens of a target, T.
    """

    def __init__(self, lm: LanguageModel, rows: int, beams: int, source: int, target: int) -> None:
        self.rows, self.beams, self.source, self.target = rows, beams, source, target
        self._lm, self._layers = lm, lm.transformer.layers
        self._count, heads = lm.config["num_hidden_layers"], lm.config["num_attention_heads"]
        size = lm.config["hidden_size"] // heads

        def cache(count: int, length: int, name: str) -> Any:
            return tf.Variable(
                tf.zeros([2 * self._count, count, heads, length, size]), trainable=False, name=name,
                collections=[tf.GraphKeys.LOCAL_VARIABLES], use_resource=True,
            )  # fmt: skip

        self._of_source = cache(rows, source, "source_keys_and_values")
        self._of_target = cache(rows * beams, target, "target_keys_and_values")
        self._source_ids = tf.placeholder(tf.int32, [rows, source])
        shape = [rows, beams]
        self._tokens, self._parents, self._positions = (
            tf.placeholder(tf.int32, shape) for _ in range(3)
        )
        self._number = tf.placeholder(tf.int32, [])
        self._hidden_from = banned(tf.not_equal(self._source_ids, 0))[:, None, None, :]
        self._start, self._step = self._of_sources(), self._of_tokens()
        self._run: List[Any] = []

    def start(self, source_ids: np.ndarray) -> np.ndarray:
        """Return the probabilities of the first token, float32 [B, V].

        Args:
          source_ids: int [B, S], 0 for padding.
        """
        if not self._run:
            session = backend.session()
            fed = [self._source_ids, self._number, self._tokens, self._parents, self._positions]
            self._run = [
                session.make_callable(self._start, fed[:1]), session.make_callable(self._step, fed)
            ]  # fmt: skip
        self._ids = source_ids
        chances: np.ndarray = self._run[0](source_ids)[0]
        return chances

    def step(
        self, number: int, tokens: np.ndarray, parents: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        """Return the probabilities of the next token, float32 [B, K, V].

        Args:
          number: tokens of the targets before this one.
          tokens: the token to add to each beam, int [B, K].
          parents: beam that it continues, int [B, K].
          positions: of the tokens, int [B, K].
        """
        rows = np.arange(self.rows)[:, None] * self.beams
        chances = self._run[1](self._ids, number, tokens, parents + rows, positions)[0]
        return np.reshape(chances, (self.rows, self.beams, -1))

    def _of_sources(self) -> List[Any]:
        """Build the first probabilities and the update of the caches."""
        kept: List[Any] = []

        def attend(layer: int, query: Any, key: Any, value: Any) -> Any:
            kept.extend([key, value])
            scores = tf.matmul(query, key, transpose_b=True) + self._hidden_from
            return tf.matmul(tf.nn.softmax(scores), value)

        positions = np.tile(np.arange(self.source), (self.rows, 1))
        vectors = self._transform(self._source_ids, 0, positions, attend)
        last = tf.reduce_sum(tf.cast(tf.not_equal(self._source_ids, 0), tf.int32), 1) - 1
        cells = tf.stack([tf.range(self.rows), tf.maximum(last, 0)], 1)
        return [
            self._chances(tf.gather_nd(vectors, cells)),
            self._of_source.assign(tf.stack(kept), read_value=False),
            self._of_target.assign(tf.zeros(self._of_target.shape), read_value=False),
        ]

    def _of_tokens(self) -> List[Any]:
        """Build the probabilities after one more token, and the update of the cache."""
        every = self.rows * self.beams
        of_source = tf.unstack(self._of_source.read_value())
        earlier = tf.gather(self._of_target.read_value(), tf.reshape(self._parents, [-1]), axis=1)
        of_target = tf.unstack(earlier)
        places = tf.range(self.target)
        here = tf.cast(tf.equal(places, self._number), tf.float32)[:, None]
        later = banned(places <= self._number)
        kept: List[Any] = []

        def alone(x: Any) -> Any:
            """[B, heads, K, D] -> [B * K, heads, 1, D]."""
            x = tf.transpose(x, (0, 2, 1, 3))
            return tf.reshape(x, [every, x.shape[2], 1, x.shape[3]])

        def together(x: Any) -> Any:
            """[B * K, heads, 1, D] -> [B, heads, K, D]."""
            x = tf.reshape(x, [self.rows, self.beams, x.shape[1], x.shape[3]])
            return tf.transpose(x, (0, 2, 1, 3))

        def attend(layer: int, query: Any, key: Any, value: Any) -> Any:
            keys = of_target[2 * layer] + here * alone(key)
            values = of_target[2 * layer + 1] + here * alone(value)
            kept.extend([keys, values])
            in_source = tf.matmul(query, of_source[2 * layer], transpose_b=True)
            in_target = together(tf.matmul(alone(query), keys, transpose_b=True)) + later
            scores = tf.concat([in_source + self._hidden_from, in_target], -1)
            weights = tf.split(tf.nn.softmax(scores), [self.source, self.target], -1)
            out = tf.matmul(weights[0], of_source[2 * layer + 1])
            return out + together(tf.matmul(alone(weights[1]), values))

        vectors = self._transform(self._tokens, 1, self._positions, attend)
        chances = self._chances(tf.reshape(vectors, [every, vectors.shape[2]]))
        with tf.control_dependencies([earlier]):
            return [chances, self._of_target.assign(tf.stack(kept), read_value=False)]

    def _transform(self, token_ids: Any, segment: int, positions: Any, attend: Attend) -> Any:
        """Build the vectors of tokens, int [B, L] -> float [B, L, hidden].

        ``attend`` takes the layer's number, queries divided by the root of their size, keys and
        values, [B, heads, L, D].
        """
        # `call`, since calling a layer would make Keras trace the origin of its input.
        tables = [self._layers[f"Embedding-{n}"].embeddings for n in ("Token", "Segment")]
        place = self._layers["Embedding-Position"].embeddings
        x = tf.gather(tables[0], token_ids) + tables[1][segment] + tf.gather(place, positions)
        x = self._layers["Embedding-Norm"].call(x)
        for layer in range(self._count):
            name = f"Transformer-{layer}-MultiHeadSelfAttention"
            attention = self._layers[name]
            query, key, value = (
                self._heads(dense.call(x), attention.heads)
                for dense in (attention.q_dense, attention.k_dense, attention.v_dense)
            )
            out = attend(layer, query * attention.key_size**-0.5, key, value)
            out = attention.o_dense.call(tf.reshape(tf.transpose(out, (0, 2, 1, 3)), x.shape))
            x = self._layers[f"{name}-Norm"].call(x + out)
            feed = self._layers[f"Transformer-{layer}-FeedForward"]
            out = feed.o_dense.call(feed.i0_dense.call(x))
            x = self._layers[f"Transformer-{layer}-FeedForward-Norm"].call(x + out)
        return x

    @staticmethod
    def _heads(x: Any, heads: int) -> Any:
        """[B, L, hidden] -> [B, heads, L, D]."""
        x = tf.reshape(x, [x.shape[0], x.shape[1], heads, x.shape[2] // heads])
        return tf.transpose(x, (0, 2, 1, 3))

    def _chances(self, vectors: Any) -> Any:
        logits = tf.cast(self._lm.project(vectors), tf.float32)
        return tf.nn.softmax(logits[:, : self._lm.vocab_size])


class Generator:
    """Texts generated from sources.

    Args:
      decoder: of a model with its weights.
      end_id: token that ends a text.
      options: how to search; as many beams as ``decoder`` has.
    """

    def __init__(self, decoder: CachedDecoder, end_id: int, options: GenerationOptions) -> None:
        self._decoder, self._end, self._options = decoder, end_id, options

    def __call__(self, sources: Sequence[Sequence[int]]) -> List[List[int]]:
        """Return the tokens generated for each source, without the one that ends them.

        Args:
          sources: token ids, [CLS] and [SEP] counted.
        """
        rows, answers = self._decoder.rows, []
        for first in range(0, len(sources), rows):
            answers += self._batch(sources[first : first + rows], first)
        return [ids[:-1] if ids[-1] == self._end else ids for ids in answers]

    def _batch(self, sources: Sequence[Sequence[int]], first: int) -> List[List[int]]:
        decoder, numbers = self._decoder, range(first, first + len(sources))
        searches = [search(self._options, self._end, decoder.target, n) for n in numbers]
        ids = np.zeros((decoder.rows, decoder.source), np.int32)
        for row, source in zip(ids, sources):
            row[: len(source)] = source
        positions = np.tile((ids != 0).sum(1, keepdims=True), (1, decoder.beams))
        chances = decoder.start(ids)[:, None]
        answers: List[List[int]] = [[] for _ in sources]  # empty: not yet
        live = [1] * len(sources)
        for number in range(decoder.target):
            tokens, parents = np.zeros((2, decoder.rows, decoder.beams), np.int32)
            for i, running in enumerate(searches):
                if not answers[i]:
                    try:
                        last, continued = running.send(chances[i, : live[i]])
                    except StopIteration as end:
                        answers[i] = end.value
                        continue
                    live[i] = len(last)
                    parents[i, : live[i]], tokens[i, : live[i]] = continued, last
            if all(answers):
                break
            chances = decoder.step(number, tokens, parents, positions + number)
        return answers
