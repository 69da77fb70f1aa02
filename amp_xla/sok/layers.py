"""The two embedding layers of SparseOperationKit 1.x."""

from __future__ import annotations

from typing import Any, Optional

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.sok import ranks, table

tf: Any = backend.tensorflow()

COMBINERS = ("sum", "mean")


class _Embedding(tf.keras.layers.Layer):
    def __init__(
        self,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        use_hashtable: bool = True,
        key_dtype: Optional[Any] = None,
        embedding_initializer: Optional[Any] = None,
        vocabulary_size: Optional[int] = None,
        seed: int = 1,
        average_gradients: bool = True,
        **layer: Any,
    ) -> None:
        super().__init__(**layer)
        if slot_num < 1:
            raise AmpXlaError(f"slot_num is {slot_num}; allowed: 1 or more")
        height = vocabulary_size or max_vocabulary_size_per_gpu * ranks.place()[1]
        self.rows = table.Rows(height, embedding_vec_size, self.name)
        self.slot_num, self._initializer, self._seed = slot_num, embedding_initializer, seed
        self._averaged = average_gradients

    @property
    def embedding_variable(self) -> Any:
        """Return the variable with this rank's rows of the table, float32 [rows, width]."""
        if not self.built:
            self.build(None)
        return self._table

    def build(self, input_shape: Any) -> None:
        def drawn(shape: Any, dtype: Any = None, **_: Any) -> Any:
            # A Python function, because a constant would be stored in the graph.
            value = tf.numpy_function(lambda: self.rows.drawn(self._seed), [], tf.float32)
            value.set_shape(tuple(shape))
            return value

        if not self.built:
            self._table = self.add_weight(
                name=f"{self.name}/embeddings",
                shape=(self.rows.here, self.rows.width),
                dtype=tf.float32,
                initializer=drawn if self._initializer is None else self._initializer,
                trainable=True,
                use_resource=True,
                # With autocast, a policy would cast the table, and its gradient would be dense.
                experimental_autocast=False,
            )
            self._table._amp_xla_rows = self.rows
        super().build(input_shape)

    def _computed(self, vectors: Any) -> Any:
        """Cast to the compute dtype; if that is an integer dtype (TensorFlow 1.15), to float32."""
        dtype = tf.as_dtype(getattr(self, "_compute_dtype", None) or tf.float32)
        return tf.cast(vectors, dtype if dtype.is_floating else tf.float32)

    def _vectors(self, keys: Any, slots: Any) -> Any:
        """Return the vectors, float32 [N, width], of the ids ``keys``, int [N].

        ``slots``, int64 [N], has the slot of each id, for the message if an id is out of range.
        """
        ids = tf.cast(keys, tf.int64)
        known = tf.logical_and(ids >= 0, ids < self.rows.height)
        wrong_slots, wrong_ids = (tf.boolean_mask(x, ~known) for x in (slots, ids))
        message = [f"{self.name}: slot", wrong_slots, "has id", wrong_ids]
        message.append(f"; allowed: 0 to {self.rows.height - 1}")
        check = tf.debugging.Assert(tf.reduce_all(known), message, summarize=1)  # the first one
        with tf.control_dependencies([check]):
            ids = tf.identity(ids)
        return ranks.rows_of(self.embedding_variable, ids, self.name, self._averaged)


class DistributedEmbedding(_Embedding):
    """Layer that looks up the vectors of each slot's ids and combines them into one per slot.

    Args:
      combiner: ``sum`` or ``mean`` over the ids of a slot; an empty slot gives zeros.
      max_vocabulary_size_per_gpu: number of rows per rank.
      embedding_vec_size: size of a vector.
      slot_num: number of slots per sample.
      max_nnz, max_feature_num, use_hashtable, key_dtype: ignored. A slot may have any number of
        ids, of any integer dtype. Ids are row numbers, so hash the values first.
      embedding_initializer: initializer of this rank's rows; None = uniform, with values that
        do not depend on the number of ranks.
      vocabulary_size: number of rows of the whole table; None = ``max_vocabulary_size_per_gpu``
        times the number of ranks.
      seed: seed of the initial values.
      average_gradients: average gradients over ranks. Set it to False if each rank's loss is its
        share of the mean over the whole batch, as in this project's training loop.

    The layer takes ids as a SparseTensor [batch * slot_num, max_nnz] or as a RaggedTensor with as
    many rows, and returns [batch, slot_num, width] in its compute dtype.

    Raises:
      AmpXlaError: a value is not allowed; or there are several ranks, but ``Init`` was not called.
    """

    def __init__(
        self,
        combiner: str,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        max_nnz: int = 1,
        max_feature_num: int = 1,
        **more: Any,
    ) -> None:
        if combiner not in COMBINERS:
            raise AmpXlaError(f"combiner is {combiner!r}; allowed: {', '.join(COMBINERS)}")
        super().__init__(max_vocabulary_size_per_gpu, embedding_vec_size, slot_num, **more)
        self.combiner = combiner

    def call(self, inputs: Any, training: bool = True) -> Any:
        if isinstance(inputs, tf.RaggedTensor):
            keys, where, count = inputs.values, inputs.value_rowids(), inputs.nrows()
        else:
            keys, where, count = inputs.values, inputs.indices[:, 0], inputs.dense_shape[0]
        vectors = self._vectors(keys, where % self.slot_num)
        summed = tf.math.unsorted_segment_sum(vectors, where, count)
        if self.combiner == "mean":
            each = tf.math.unsorted_segment_sum(tf.ones_like(where, tf.float32), where, count)
            summed /= tf.maximum(each, 1.0)[:, None]
        # Combined in float32, because a sum of hundreds of vectors is inaccurate in float16.
        return self._computed(tf.reshape(summed, [-1, self.slot_num, self.rows.width]))


class All2AllDenseEmbedding(_Embedding):
    """Layer that looks up one vector per id, for a fixed number of ids per slot.

    Args:
      nnz_per_slot: number of ids per slot; the other arguments are ``DistributedEmbedding``'s.

    The layer takes ids, int [batch, slot_num, nnz_per_slot], and returns
    [batch, slot_num, nnz_per_slot, width] in its compute dtype.
    """

    def __init__(
        self,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        nnz_per_slot: int = 1,
        **more: Any,
    ) -> None:
        super().__init__(max_vocabulary_size_per_gpu, embedding_vec_size, slot_num, **more)
        self.nnz_per_slot = nnz_per_slot

    def call(self, inputs: Any, training: bool = True) -> Any:
        keys = tf.reshape(inputs, [-1])
        numbers = tf.range(tf.size(keys, out_type=tf.int64), dtype=tf.int64)
        slots = numbers // self.nnz_per_slot % self.slot_num
        vectors = self._computed(self._vectors(keys, slots))
        return tf.reshape(vectors, [-1, self.slot_num, self.nnz_per_slot, self.rows.width])
