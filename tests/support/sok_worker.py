"""Train tables over ranks; in cases named ``plain_...`` the same tables in TensorFlow's operations.

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
    """A table, whose rows are ones, and how its ids come."""

    def __init__(self, name, height, width, slots, nnz, plain=False, **more):
        self.height, self.width, self.slots, self.nnz, self.plain = height, width, slots, nnz, plain
        self.kind, self.keys = more.pop("kind", "sparse"), more.pop("keys", tf.int64)
        self.combiner = more.pop("combiner", "mean")
        self.rows = slots * (nnz if self.kind == "dense" else 1)  # per sample
        if plain:
            self.variable = tf.Variable(np.ones((height, width), np.float32), name=name)
            return
        sizes, more = (0, width, slots, nnz), {"vocabulary_size": height, "name": name, **more}
        if self.kind == "dense":
            self.layer = sok.All2AllDenseEmbedding(*sizes, **more)
        else:
            self.layer = sok.DistributedEmbedding(self.combiner, *sizes, **more)
        self.variable = self.layer.embedding_variable

    def ones(self):
        return sok.Saver().load_embedding_values(self.variable, tf.ones([self.height, self.width]))

    def vectors(self, keys):
        """Look up ids, int64 [batch, slots, nnz], and return float32 [batch, numbers]."""
        if self.kind == "dense":
            found = tf.gather(self.variable, keys) if self.plain else self.layer(keys)
        else:
            keys = sparse(tf.reshape(keys, [-1, self.nnz]), tf.int64 if self.plain else self.keys)
            if self.kind == "ragged" and not self.plain:
                keys = tf.RaggedTensor.from_value_rowids(
                    keys.values, keys.indices[:, 0], keys.dense_shape[0]
                )
            found = (
                tf.nn.embedding_lookup_sparse(self.variable, keys, None, combiner=self.combiner)
                if self.plain
                else self.layer(keys)
            )
        return tf.reshape(tf.cast(found, tf.float32), [-1, self.rows * self.width])


class Job:
    """Tables below a dense layer, trained by Adam."""

    def __init__(self, tables, scale=None, rate=0.1):
        self.tables = tables
        size = sum(table.rows * table.width for table in tables)
        start = np.linspace(-1, 1, size, dtype=np.float32)[:, None] / np.sqrt(size)
        self.kernel = tf.Variable(start, name="kernel")
        self.adams, self.scaled = [sok.optimizers.Adam(rate), legacy.Adam(rate)], None
        if scale is not None:
            wrap = sok.tf.keras.mixed_precision.LossScaleOptimizer
            self.scaled = wrap(legacy.Adam(rate), scale)

    def step(self, keys, labels, factor):
        """Train on this rank's share of a batch."""
        rank, size = ranks.place()
        count = tf.shape(labels)[0] // size
        share = slice(rank * count, (rank + 1) * count)
        with tf.GradientTape() as tape:
            vectors = [t.vectors(k[share]) for t, k in zip(self.tables, keys)]
            logits = tf.matmul(tf.concat(vectors, 1), self.kernel)
            each = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels[share], logits=logits)
            loss = target = tf.reduce_mean(each) * factor
            if self.scaled is not None:
                target = self.scaled.get_scaled_loss(loss)
        seen = {"loss": _mean(loss), "kernel": self.kernel + 0.0}
        variables = [table.variable for table in self.tables]
        tables, others = sok.split_embedding_variable_from_others([self.kernel, *variables])
        assert len(tables) == sum(not table.plain for table in self.tables)
        of_tables, of_others = tape.gradient(target, [tables, others])
        # Averaged while scaled: float16's small gradients must not be lost on the way.
        means = [_mean(gradient) for gradient in of_others]
        if self.scaled is None:
            done = [self.adams[1].apply_gradients(zip(means, others))]
            with sok.OptimizerScope(tables):
                done += [self.adams[0].apply_gradients(zip(of_tables, tables))] if tables else []
        else:
            gradients = self.scaled.get_unscaled_gradients(of_tables + means)
            done = [self.scaled.apply_gradients(list(zip(gradients, tables + others)))]
            seen["scale"] = tf.cast(self.scaled.loss_scale, tf.float32)
        if not EAGER:
            with tf.control_dependencies([seen["loss"], seen["kernel"]]):
                seen["done"] = tf.group(*done)
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
    """Return the results of each step, and this rank's rows of the tables after them."""
    if EAGER:
        step = tf.function(job.step)
    else:
        inputs = [tf.compat.v1.placeholder(tf.int64, [None, t.slots, t.nnz]) for t in job.tables]
        labels = tf.compat.v1.placeholder(tf.float32, [None, 1])
        factor = tf.compat.v1.placeholder(tf.float32, [])
        out = job.step(inputs, labels, factor)
        value(tf.compat.v1.global_variables_initializer())

        def step(*arrays):
            feed = dict(zip([*inputs, labels, factor], [*arrays[0], *arrays[1:]]))
            return tf.compat.v1.keras.backend.get_session().run(out, feed)

    for table in job.tables:
        if not table.plain:
            value(table.ones())
    results = []
    for number in range(steps):
        targets = np.random.RandomState(1000 + number).randint(0, 2, (batch, 1))
        scaled = np.float32(1 if factors is None else factors(number, ranks.place()[0]))
        keys = [keys_for(table, batch, number) for table in job.tables]
        found = step(keys, targets.astype(np.float32), scaled)
        results.append({k: np.asarray(v).tolist() for k, v in found.items() if v is not None})
    return {"steps": results, "tables": [value(t.variable).tolist() for t in job.tables]}


def figures(case):
    """Return the results of a case of SparseOperationKit's unit tests, with fewer samples."""
    plain, name = case.startswith("plain_"), case.replace("plain_", "")
    if name == "two_tables":
        first = Table("first", 8192, 4, 20, 10, plain, combiner="sum", keys=tf.uint32)
        second = Table("second", 8192, 8, 10, 10, plain, kind="ragged")
        return train(Job([first, second]), 256, 5)
    options = {}
    if name == "dense_odd_mixed":  # a height that no number of ranks divides
        module = getattr(tf.keras.mixed_precision, "experimental", tf.keras.mixed_precision)
        options = {"kind": "dense", "dtype": module.Policy("mixed_float16")}
    poison = (lambda step, rank: np.nan if (step, rank) == (3, 1) else 1) if name == "nan" else None
    table = Table(name, 1021, 4, 10, 4, plain, **options)
    return train(Job([table], None if plain else "dynamic", 1e-3), 512, 7, poison)


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
    table = Table("kept", 101, 3, 1, 1)
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
