"""One rank: a table over ranks and the same table whole, in TensorFlow's own operations.

`python -m tests.sok.worker FOLDER CASE...`, alone or under horovodrun; each rank writes its results
to FOLDER/CASE-RANKS-RANK.json.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, List

import numpy as np

import amp_xla.sok as sok
from amp_xla import backend
from amp_xla.sok import ranks

tf: Any = backend.tensorflow()
tf.compat.v1.enable_resource_variables()
EAGER = tf.executing_eagerly()
legacy = getattr(tf.keras.optimizers, "legacy", tf.keras.optimizers)


def sparse(keys: Any, dtype: Any = tf.int64) -> Any:
    """int64 [rows, nnz], below 0 if there is none -> SparseTensor of ``dtype``."""
    where = tf.where(keys >= 0)
    values = tf.cast(tf.gather_nd(keys, where), dtype)
    return tf.SparseTensor(where, values, tf.shape(keys, out_type=tf.int64))


class Table:
    """A layer and its reference, trained on the same samples."""

    def __init__(self, name: str, heights: int, width: int, slots: int, nnz: int, **more: Any):
        self.slots, self.nnz, self.width = slots, nnz, width
        kind, self.keys = more.pop("kind", "sparse"), more.pop("keys", tf.int64)
        self.combiner = more.pop("combiner", "mean")
        if kind == "sparse":
            self.layer: Any = sok.DistributedEmbedding(
                self.combiner, heights, width, slots, nnz, name=name, **more
            )
        else:
            self.layer = sok.All2AllDenseEmbedding(heights, width, slots, nnz, name=name, **more)
        self.kind = kind
        self.variable = self.layer.embedding_variable
        self.height = self.layer.rows.height
        self.whole = tf.Variable(np.ones((self.height, width), np.float32), name=f"{name}_whole")

    def ones(self) -> Any:
        return sok.Saver().load_embedding_values(self.variable, tf.ones([self.height, self.width]))

    def mine(self, keys: Any) -> Any:
        """[batch, slots, nnz] of this rank -> [batch, slots * ..., width]."""
        if self.kind == "sparse":
            keys = sparse(tf.reshape(keys, [-1, self.nnz]), self.keys)
        return tf.cast(self.layer(keys), tf.float32)

    def reference(self, keys: Any) -> Any:
        if self.kind == "sparse":
            vectors = tf.nn.embedding_lookup_sparse(
                self.whole, sparse(tf.reshape(keys, [-1, self.nnz])), None, combiner=self.combiner
            )
            return tf.reshape(vectors, [-1, self.slots, self.width])
        return tf.gather(self.whole, keys)


class Job:
    """Tables, a dense layer over them all, Adam on both; and its reference."""

    def __init__(self, tables: List[Table], scale: Any = None, rate: float = 0.1) -> None:
        self.tables = tables
        size = sum(t.slots * t.width * (t.nnz if t.kind == "dense" else 1) for t in tables)
        start = np.linspace(-1, 1, size, dtype=np.float32)[:, None] / np.sqrt(size)
        self.kernel, self.other = (tf.Variable(start, name=n) for n in ("kernel", "kernel_whole"))
        self.adams = [sok.optimizers.Adam(rate), legacy.Adam(rate), legacy.Adam(rate)]
        self.scaled = None
        if scale is not None:
            optimizer = sok.tf.keras.mixed_precision.LossScaleOptimizer(legacy.Adam(rate), scale)
            self.scaled = optimizer

    def _loss(self, vectors: List[Any], kernel: Any, labels: Any) -> Any:
        flat = tf.concat([tf.reshape(v, [tf.shape(labels)[0], -1]) for v in vectors], 1)
        flat = tf.reshape(flat, [-1, int(kernel.shape[0])])
        logits = tf.matmul(flat, kernel)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))

    def step(self, keys: List[Any], labels: Any, factor: Any) -> Dict[str, Any]:
        rank, size = ranks.place()
        count = tf.shape(labels)[0] // size
        share = slice(rank * count, (rank + 1) * count)
        variables = [t.variable for t in self.tables]
        with tf.GradientTape() as tape:
            mine = [t.mine(k[share]) for t, k in zip(self.tables, keys)]
            loss = self._loss(mine, self.kernel, labels[share]) * factor
            if self.scaled is not None:
                scaled = self.scaled.get_scaled_loss(loss)
        with tf.GradientTape() as tape_whole:
            whole = [t.reference(k) for t, k in zip(self.tables, keys)]
            loss_whole = self._loss(whole, self.other, labels)
        seen = {
            "apart": tf.reduce_max(
                [tf.reduce_max(tf.abs(a - b[share])) for a, b in zip(mine, whole)]
            ),
            "loss": _mean(loss), "loss_whole": loss_whole,
            "kernel": self.kernel + 0.0,
        }  # fmt: skip
        tables, others = sok.split_embedding_variable_from_others([self.kernel, *variables])
        assert [v.name for v in tables] == [v.name for v in variables] and len(others) == 1
        target = loss if self.scaled is None else scaled
        of_tables, of_others = tape.gradient(target, [tables, others])
        references = [t.whole for t in self.tables]
        of_whole, of_kernel = tape_whole.gradient(loss_whole, [references, self.other])
        if self.scaled is None:
            with sok.OptimizerScope(tables):
                done = [self.adams[0].apply_gradients(zip(of_tables, tables))]
            done.append(
                self.adams[1].apply_gradients([(_mean(g), v) for g, v in zip(of_others, others)])
            )
        else:
            # Averaged while scaled: float16's small gradients must not be lost on the way.
            every = of_tables + [_mean(gradient) for gradient in of_others]
            gradients = self.scaled.get_unscaled_gradients(every)
            done = [self.scaled.apply_gradients(list(zip(gradients, tables + others)))]
        done.append(
            self.adams[2].apply_gradients(
                list(zip(of_whole + [of_kernel], references + [self.other]))
            )
        )
        if not EAGER:
            with tf.control_dependencies([seen[name] for name in seen]):
                seen["done"] = tf.group(*done)
        if self.scaled is not None:
            seen["scale"] = tf.cast(self.scaled.loss_scale, tf.float32)
        return seen


def _mean(gradient: Any) -> Any:
    module = ranks.hvd()
    if module is None:
        return tf.convert_to_tensor(gradient)
    return module.allreduce(tf.convert_to_tensor(gradient), op=module.Average)


def keys_for(table: Table, batch: int, step: int) -> Any:
    """int64 [batch, slots, nnz]; of a sparse table some are missing, never the first of a slot."""
    draw = np.random.RandomState(step)
    keys = draw.randint(0, table.height, (batch, table.slots, table.nnz))
    if table.kind == "sparse":
        missing = draw.rand(*keys.shape) < 0.3
        missing[:, :, 0] = False
        keys = np.where(missing, -1, keys)
    return keys.astype(np.int64)


def train(job: Job, batch: int, steps: int, factors: Any = None) -> List[Dict[str, Any]]:
    """Return the results of each step."""

    def data(step: int) -> Any:
        labels = np.random.RandomState(1000 + step).randint(0, 2, (batch, 1)).astype(np.float32)
        factor = np.float32(1 if factors is None else factors(step, ranks.place()[0]))
        return [keys_for(t, batch, step) for t in job.tables], labels, factor

    results = []
    if EAGER:
        for table in job.tables:
            table.ones()
        function = tf.function(job.step)
        for step in range(steps):
            keys, labels, factor = data(step)
            out = function([tf.constant(k) for k in keys], tf.constant(labels), factor)
            results.append({k: np.asarray(v).tolist() for k, v in out.items()})
        return results
    inputs: Any = (
        [tf.compat.v1.placeholder(tf.int64, [None, t.slots, t.nnz]) for t in job.tables],
        tf.compat.v1.placeholder(tf.float32, [None, 1]),
        tf.compat.v1.placeholder(tf.float32, []),
    )
    out = job.step(*inputs)
    ones = [table.ones() for table in job.tables]
    session = tf.compat.v1.Session()
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(ones)
    for step in range(steps):
        keys, labels, factor = data(step)
        feed = {**dict(zip(inputs[0], keys)), inputs[1]: labels, inputs[2]: factor}
        seen = session.run(out, feed)
        results.append({k: np.asarray(v).tolist() for k, v in seen.items() if v is not None})
    return results


def figures(name: str) -> Any:
    """SparseOperationKit's own unit tests, by their figures; `small` ones are for every day."""
    small = name.startswith("small_")
    base = name[6:] if small else name
    batch, steps = (256, 8) if small else (16384, 30)
    if base in OTHERS:
        return OTHERS[base]()
    if base == "tf1":
        return train(Job([Table("one", 8192, 4, 30, 10)]), batch, steps)
    if base == "tf1_uint32":
        return train(Job([Table("one", 8192, 4, 30, 10, keys=tf.uint32)]), batch, steps)
    if base == "tf1_two_tables":
        both = [Table("first", 8192, 4, 20, 10, combiner="sum"), Table("second", 8192, 8, 10, 10)]
        return train(Job(both), batch, steps)
    batch, steps = (512, 10) if small else (65536, 100)
    options: Dict[str, Any] = {"kind": "dense"} if "dense" in base else {}
    if "odd" in base:  # a height that no number of ranks divides
        options["vocabulary_size"] = 1021
    if "mixed" in base:
        options["dtype"] = half_policy()
    scale = "dynamic" if "mixed" in base or "nan" in base else None
    poison = (lambda step, rank: np.nan if (step, rank) == (3, 1) else 1) if "nan" in base else None
    return train(Job([Table("tf2", 1024, 4, 10, 4, **options)], scale, 1e-3), batch, steps, poison)


FOLDER = ""


def value(tensor: Any) -> Any:
    """Of a tensor or a variable, now; a graph's variables keep what they have."""
    if EAGER:
        return np.asarray(tensor)
    return tf.compat.v1.keras.backend.get_session().run(tensor)


def filled(table: Table) -> None:
    """The table holds 0, 1, 2, ... row by row."""
    whole = np.arange(table.height * table.width, dtype=np.float32)
    value(sok.Saver().load_embedding_values(table.variable, whole.reshape(table.height, -1)))


def dump() -> Any:
    table = Table("kept", 0, 3, 1, 1, vocabulary_size=101)
    value(table.variable)
    filled(table)
    value(sok.Saver().dump_to_file(table.variable, f"{FOLDER}/dump-{ranks.place()[1]}"))
    return value(table.variable).tolist()


def restore(of: int = 1) -> Any:
    table = Table("kept", 0, 3, 1, 1, vocabulary_size=101)
    value(table.variable)
    value(sok.Saver().restore_from_file(table.variable, f"{FOLDER}/dump-{of}"))
    return value(table.variable).tolist()


def start() -> Any:
    """A new table's rows, as any number of ranks draws them."""
    layer = sok.DistributedEmbedding("sum", 0, 4, 1, 1, vocabulary_size=101, seed=5, name="drawn")
    return value(layer.embedding_variable).tolist()


def refused() -> List[str]:
    """Return the errors for arguments and ids that are not allowed."""

    def said(function: Any) -> str:
        try:
            function()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    table = Table("range", 0, 2, 3, 2, vocabulary_size=7)
    bad = np.array([[[1, 2], [3, 9], [0, 1]]])
    value(table.variable)
    filled(table)
    ones = np.ones((7, 2), np.float32)
    kernel = tf.Variable([1.0], name="shared")
    return [
        said(lambda: value(table.mine(tf.constant(bad)))),
        said(lambda: sok.DistributedEmbedding("max", 1, 1, 1)),
        said(lambda: sok.All2AllDenseEmbedding(1, 1, 0)),
        said(lambda: sok.All2AllDenseEmbedding(0, 1, 1)),
        said(lambda: sok.Init(global_batch_size=0)),
        said(lambda: sok.OptimizerScope([kernel]).__enter__()),
        said(lambda: sok.Saver().dump_to_file(kernel, FOLDER)),
        said(lambda: value(sok.Saver().restore_from_file(table.variable, FOLDER + "/nowhere"))),
        said(lambda: value(sok.Saver().load_embedding_values(table.variable, ones[1:]))),
    ]


def ragged() -> Any:
    """The same ids as a RaggedTensor and as a SparseTensor, an empty slot among them."""
    layer = sok.DistributedEmbedding("mean", 0, 2, 2, 3, vocabulary_size=7, name="ragged")
    value(layer.embedding_variable)
    ids = [[1, 2, 3], [], [4], [5, 6]]
    rows = tf.ragged.constant(ids, dtype=tf.int64)
    return [value(layer(rows)).tolist(), value(layer(rows.to_sparse())).tolist()]


def lazy() -> Any:
    """Both Adams on the same gradients, of rows asked for always, once, never."""
    results = []
    for kind in (sok.optimizers.Adam, sok.optimizers.LazyAdam):
        adam = kind(0.1)
        variable = tf.Variable(np.ones((3, 2), np.float32), name=kind.__name__)

        def step(rows: Any, adam: Any = adam, variable: Any = variable) -> Any:
            gradient = tf.ones([tf.shape(rows)[0], 2]) * tf.cast(rows + 1, tf.float32)[:, None]
            return adam.apply_gradients([(tf.IndexedSlices(gradient, rows, [3, 2]), variable)])

        if EAGER:
            for rows in ([0, 1], [0], [0, 0]):
                step(tf.constant(rows))
        else:
            rows = tf.compat.v1.placeholder(tf.int32, [None])
            session, done = tf.compat.v1.keras.backend.get_session(), step(rows)
            session.run(tf.compat.v1.global_variables_initializer())
            for feed in ([0, 1], [0], [0, 0]):
                session.run(done, {rows: feed})
        results.append(value(variable).tolist())
    return results


OTHERS = {f.__name__: f for f in (dump, restore, start, refused, ragged, lazy)}
OTHERS["restore_of_2"] = lambda: restore(2)


def half_policy() -> Any:
    module = tf.keras.mixed_precision
    return getattr(module, "experimental", module).Policy("mixed_float16")


def main(folder: str, *cases: str) -> None:
    global FOLDER
    FOLDER = folder
    for case in cases:
        sok.Init(global_batch_size=256)
        results = figures(case)
        rank, size = ranks.place()
        with open(f"{folder}/{case}-{size}-{rank}.json", "w") as file:
            json.dump(results, file)
        if not EAGER:
            tf.compat.v1.reset_default_graph()
        tf.keras.backend.clear_session()


if __name__ == "__main__":
    main(*sys.argv[1:])
