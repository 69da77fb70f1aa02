"""Train tables over ranks, and the same tables whole in TensorFlow's operations.

`python -m tests.support.sok_worker FOLDER CASE...`, alone or under horovodrun; each rank writes its
results to FOLDER/CASE-RANKS-RANK.json.
"""

import contextlib
import io
import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np

import amp_xla.sok as sok
from amp_xla import backend
from amp_xla.precision.agreement import joined
from amp_xla.sok import ranks

tf = backend.tensorflow()
tf.compat.v1.enable_resource_variables()
EAGER = tf.executing_eagerly()
legacy = getattr(tf.keras.optimizers, "legacy", tf.keras.optimizers)


def sparse(keys, dtype=tf.int64):
    """Convert ids, int64 [rows, nnz], -1 = none, to a SparseTensor of ``dtype``."""
    where = tf.where(keys >= 0)
    values = tf.cast(tf.gather_nd(keys, where), dtype)
    return tf.SparseTensor(where, values, tf.shape(keys, out_type=tf.int64))


class Table:
    """A layer and its reference, which are trained on the same samples."""

    def __init__(self, name, heights, width, slots, nnz, **more):
        self.slots, self.nnz, self.width = slots, nnz, width
        self.kind, self.keys = more.pop("kind", "sparse"), more.pop("keys", tf.int64)
        self.combiner = more.pop("combiner", "mean")
        if self.kind == "dense":
            self.layer = sok.All2AllDenseEmbedding(heights, width, slots, nnz, name=name, **more)
        else:
            self.layer = sok.DistributedEmbedding(
                self.combiner, heights, width, slots, nnz, name=name, **more
            )
        self.variable = self.layer.embedding_variable
        self.height = self.layer.rows.height
        self.whole = tf.Variable(np.ones((self.height, width), np.float32), name=f"{name}_whole")

    def ones(self):
        return sok.Saver().load_embedding_values(self.variable, tf.ones([self.height, self.width]))

    def mine(self, keys):
        """Look up this rank's ids, [batch, slots, nnz]."""
        if self.kind != "dense":
            keys = sparse(tf.reshape(keys, [-1, self.nnz]), self.keys)
        if self.kind == "ragged":
            keys = tf.RaggedTensor.from_value_rowids(
                keys.values, keys.indices[:, 0], keys.dense_shape[0]
            )
        return tf.cast(self.layer(keys), tf.float32)

    def reference(self, keys):
        if self.kind != "dense":
            vectors = tf.nn.embedding_lookup_sparse(
                self.whole, sparse(tf.reshape(keys, [-1, self.nnz])), None, combiner=self.combiner
            )
            return tf.reshape(vectors, [-1, self.slots, self.width])
        return tf.gather(self.whole, keys)


class Job:
    """Tables below a dense layer, trained by Adam; and their reference."""

    def __init__(self, tables, scale=None, rate=0.1):
        self.tables = tables
        size = sum(t.slots * t.width * (t.nnz if t.kind == "dense" else 1) for t in tables)
        start = np.linspace(-1, 1, size, dtype=np.float32)[:, None] / np.sqrt(size)
        self.kernel, self.other = (tf.Variable(start, name=n) for n in ("kernel", "kernel_whole"))
        self.adams = [sok.optimizers.Adam(rate), legacy.Adam(rate), legacy.Adam(rate)]
        self.scaled = None
        if scale is not None:
            wrap = sok.tf.keras.mixed_precision.LossScaleOptimizer
            self.scaled = wrap(legacy.Adam(rate), scale)

    def _loss(self, vectors, kernel, labels):
        flat = tf.concat([tf.reshape(v, [tf.shape(labels)[0], -1]) for v in vectors], 1)
        flat = tf.reshape(flat, [-1, int(kernel.shape[0])])
        logits = tf.matmul(flat, kernel)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))

    def step(self, keys, labels, factor):
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
            means = [(_mean(g), v) for g, v in zip(of_others, others)]
            with sok.OptimizerScope(tables):
                done = [self.adams[0].apply_gradients(zip(of_tables, tables))]
            done.append(self.adams[1].apply_gradients(means))
        else:
            # Averaged while scaled: float16's small gradients must not be lost on the way.
            every = of_tables + [_mean(gradient) for gradient in of_others]
            gradients = self.scaled.get_unscaled_gradients(every)
            done = [self.scaled.apply_gradients(list(zip(gradients, tables + others)))]
        pairs = list(zip([*of_whole, of_kernel], [*references, self.other]))
        done.append(self.adams[2].apply_gradients(pairs))
        if not EAGER:
            with tf.control_dependencies([seen[name] for name in seen]):
                seen["done"] = tf.group(*done)
        if self.scaled is not None:
            seen["scale"] = tf.cast(self.scaled.loss_scale, tf.float32)
        return seen


def _mean(gradient):
    module = joined()
    if module is None:
        return tf.convert_to_tensor(gradient)
    return module.allreduce(tf.convert_to_tensor(gradient), op=module.Average)


def keys_for(table, batch, step):
    """Return int64 [batch, slots, nnz]; unless the table is dense, some are missing, as -1."""
    draw = np.random.RandomState(step)
    keys = draw.randint(0, table.height, (batch, table.slots, table.nnz))
    if table.kind != "dense":
        missing = draw.rand(*keys.shape) < 0.3
        missing[:, :, 0] = False
        keys = np.where(missing, -1, keys)
    return keys.astype(np.int64)


def train(job, batch, steps, factors=None):
    """Return the results of each step."""

    def data(step):
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
    inputs = (
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


def figures(name):
    """Return the results of a case of SparseOperationKit's unit tests, with fewer samples."""
    if name == "two_tables":
        first = Table("first", 8192, 4, 20, 10, combiner="sum", keys=tf.uint32)
        second = Table("second", 8192, 8, 10, 10, kind="ragged")
        return train(Job([first, second]), 256, 5)
    options = {}
    if name == "dense_odd_mixed":  # a height that no number of ranks divides
        module = getattr(tf.keras.mixed_precision, "experimental", tf.keras.mixed_precision)
        policy = module.Policy("mixed_float16")
        options = {"kind": "dense", "vocabulary_size": 1021, "dtype": policy}
    poison = (lambda step, rank: np.nan if (step, rank) == (3, 1) else 1) if name == "nan" else None
    return train(Job([Table(name, 1024, 4, 10, 4, **options)], "dynamic", 1e-3), 512, 7, poison)


def tutorial():
    """Return the losses of the example. Run it last: it changes the global policy."""
    file = str(Path(__file__).parents[2] / "examples" / "sok" / f"amp_{backend.kind()}.py")
    sys.argv = [file, "--steps", "100", "--batch", "2048"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(file, run_name="__main__")
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed.getvalue())]


def value(tensor):
    return np.asarray(tensor) if EAGER else tf.compat.v1.keras.backend.get_session().run(tensor)


def saved(folder):
    """Return a table's rows, written to a folder and read again."""
    table = Table("kept", 0, 3, 1, 1, vocabulary_size=101)
    value(table.variable)
    whole = np.arange(303, dtype=np.float32).reshape(101, 3)
    value(sok.Saver().load_embedding_values(table.variable, whole))
    value(sok.Saver().dump_to_file(table.variable, folder))
    value(table.ones())
    value(_mean(tf.constant(1.0)))  # all ranks have written
    value(sok.Saver().restore_from_file(table.variable, folder))
    return value(table.variable).tolist()


def main(folder, *cases):
    for case in cases:
        sok.Init(global_batch_size=256)
        rank, size = ranks.place()
        if case == "saved":
            results = saved(f"{folder}/saved-{size}")
        else:
            results = tutorial() if case == "tutorial" else figures(case)
        with open(f"{folder}/{case}-{size}-{rank}.json", "w") as file:
            json.dump(results, file)
        if not EAGER:
            tf.compat.v1.reset_default_graph()
        tf.keras.backend.clear_session()


if __name__ == "__main__":
    main(*sys.argv[1:])
