"""Recommendation: an embedding table spread over ranks, DLRM or DeepFM above it, clicks by AUC.

    make train RECIPE=recommendation NP=2

trains on a built-in task: which of two packages of Python's library are two docstrings from?

    make train RECIPE=recommendation NP=8 ARGS="--train day_0.gz --dev day_1.gz --rows 50000000 --batch-size 65536"

trains on Criteo's files: label, 13 numbers, 26 slots, with tabs between them. docs/tables.md has more.
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any, List, Optional, Tuple

import numpy as np
from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, parse, within
from amp_xla.data.slots import batches as slots
from amp_xla.data.slots.built_in import two_packages
from amp_xla.data.slots.lines import CRITEO_NUMBERS, Columns, Lines
from amp_xla.errors import AmpXlaError, DataError
from amp_xla.models.options import TowerOptions
from amp_xla.process import durable
from amp_xla.process.exits import exit_code
from amp_xla.training import json_files
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.options import Intervals, PrecisionOptions, RunOptions, Seed, UpdateOptions

_COLUMNS = "columns.json"
_BUILT_IN_VALUES = 64


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a click model whose table is spread over ranks."""

    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file, Criteo's format, also .gz; none = built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """file to evaluate on, same format; needed with --train"""
    numbers: Annotated[Optional[int], within(at_least=0)] = None
    """columns of numbers behind the label; none = 13, as Criteo has them, and 0 of the built-in"""
    values: Annotated[Optional[int], within(at_least=1)] = None
    """values of a slot, with spaces between them, at most; none = 1, and 64 of the built-in"""
    batch_size: Annotated[int, within(at_least=1)] = 128
    """samples a step, of all ranks together; on GPUs 8,192 to 65,536"""
    table_optimizer: Literal["lazy_adam", "adam"] = "lazy_adam"
    """lazy_adam leaves rows alone that a batch does not ask for; adam passes over all of them"""
    epochs: Annotated[int, within(1, 10**6)] = 2
    """passes over the training data"""
    patience: Annotated[int, within(at_least=0)] = 0
    """evaluations without improvement until the run stops early; 0 = never"""
    seed: Seed = 1
    """decides weights and order"""
    model: TowerOptions = TowerOptions()
    update: UpdateOptions = UpdateOptions(learning_rate=2e-3, weight_decay=0.0)
    precision_options: PrecisionOptions = PrecisionOptions()
    intervals: Intervals = Intervals()
    run: RunOptions = RunOptions()

    def read(self) -> Tuple[Lines, Lines]:
        """(train, dev)."""
        block = slots.block_of(self.batch_size)
        if (self.train is None) != (self.dev is None):
            raise DataError("--train and --dev belong together: give both, or neither")
        if self.train is None or self.dev is None:
            sides = two_packages()
            named = zip(("built-in, train", "built-in, dev"), sides)
            train, dev = (Lines(name, self.numbers or 0, block, text) for name, text in named)
            return train, dev
        numbers = CRITEO_NUMBERS if self.numbers is None else self.numbers
        train = Lines(self.train, numbers, block)
        return train, Lines(self.dev, numbers, block, columns=train.columns)

    @property
    def values_a_slot(self) -> int:
        """``values``, made concrete."""
        return self.values or (_BUILT_IN_VALUES if self.train is None else 1)


def build(config: Config, resume_from: Optional[Checkpoint] = None) -> Any:
    """Everything up to the first step."""
    if (config.update.accumulate or 1) > 1 or config.update.recompute:
        raise AmpXlaError(
            "--accumulate and --recompute are for transformers: a step here takes little memory "
            "beside the table's; give it a larger --batch-size"
        )
    resolved = config.precision_options.resolve()
    from amp_xla.backend import tf
    from amp_xla.models.recommender import losses
    from amp_xla.process.progress import note
    from amp_xla.sok import optimizers
    from amp_xla.sok.shards import TableShards
    from amp_xla.training import distributed, job
    from amp_xla.training.evaluation import Ranking
    from amp_xla.training.step import Inference, TrainStep

    job.seed_everything(config.seed)
    train, dev = config.read()
    values, rows = config.values_a_slot, config.model.rows
    ranks = distributed.current()
    batches: Any = slots.SlotBatches(train, config.batch_size, rows, values, config.seed)
    dev_batches: Any = slots.SlotBatches(dev, config.batch_size, rows, values, shuffle=False)
    width = config.model.table_width
    note(
        f"{len(train):,} training and {len(dev):,} dev samples, {train.columns.numbers} numbers, "
        f"{train.columns.slots} slots; a table of {rows:,} x {width}: "
        f"{rows * width * 12 / ranks.world.size / 1e6:,.0f} MB a rank with Adam's moments"
    )
    batches, dev_batches = map(ranks.share, (batches, dev_batches))

    inputs = {
        "numbers": tf.placeholder(tf.float32, [None, train.columns.numbers], name="numbers"),
        "ids": tf.placeholder(tf.int64, [None, train.columns.slots, values], name="ids"),
        "labels": tf.placeholder(tf.float32, [None], name="labels"),
        "weights": tf.placeholder(tf.float32, [None], name="weights"),
    }
    model = _model(config, train.columns.slots, values)
    logits = model.call(inputs["numbers"], inputs["ids"])
    loss, accuracy, each = losses(inputs["labels"], logits, inputs["weights"])
    evaluate = Ranking(Inference(inputs, {"logits": logits, "loss": each}), dev_batches, len(dev))

    lazy = config.table_optimizer == "lazy_adam"
    rule = (optimizers.LazyAdam if lazy else optimizers.Adam)(epsilon=1e-6)
    tables = TableShards([model.table.embedding_variable], rule)

    def with_rate(rate: Any) -> Any:
        rule.learning_rate = rate
        return rule

    optimizer, rate = config.update.scheduled(
        config.epochs * batches.steps_per_epoch(), resolved.loss_scale,
        sharded=tables.holds, sharded_rule=with_rate,
    )  # fmt: skip
    step = TrainStep(
        inputs, None, loss, optimizer, model.trainable_weights, rate, {"accuracy": accuracy},
        sharded=[model.table.embedding_variable],
    )  # fmt: skip
    columns = {"numbers": train.columns.numbers, "slots": train.columns.slots, "values": values}
    return job.Job(
        model, step, batches, evaluate,
        {_COLUMNS: lambda path: durable.write(Path(path), json_files.encode(columns))},
        resolved, identity={"train": train.fingerprint(), "dev": dev.fingerprint()},
        sharded=tables,
    )  # fmt: skip


def _model(
    config: Config, slots_a_sample: int, values: int, first_rows: Optional[str] = None
) -> Any:
    """The model; a row of its table is drawn by its number, so any ranks begin alike."""
    from amp_xla import sok
    from amp_xla.models.recommender import Recommender

    sok.Init()
    tower = config.model
    table = sok.DistributedEmbedding(
        tower.combiner, tower.rows, tower.table_width, slots_a_sample, values,
        vocabulary_size=tower.rows, seed=config.seed, average_gradients=False, name="table",
        embedding_initializer=first_rows,
    )  # fmt: skip
    return Recommender(table, slots_a_sample, tower, config.seed)


def main(argv: Optional[List[str]] = None) -> int:
    config = parse(Config, argv, "python -m recipes.recommendation")
    from amp_xla.training.launch import train

    options = config.intervals.loop(monitor="auc", epochs=config.epochs, patience=config.patience)
    return train("recommendation", config, build, options)


def predict(checkpoint: Checkpoint, lines: List[str]) -> List[Tuple[str, float]]:
    """Label and probability for each line: as in training, the label first; it may be empty."""
    config = checkpoint.config(Config)
    columns, values = _columns(checkpoint)
    parsed = []
    for number, line in enumerate(lines, 1):
        found = line.count("\t")
        if found != sum(columns):
            raise DataError(
                f"line {number}: {found} columns behind the label; {sum(columns)} wanted"
            )
        features = "0\t" + line.split("\t", 1)[1]
        parsed.append(slots.parse(features.encode(), columns, values, f"line {number}"))
    inputs, outputs = _answering(checkpoint, config, columns, values)
    from amp_xla.training.step import Inference

    infer = Inference(inputs, outputs)
    answers: List[Tuple[str, float]] = []
    for first in range(0, len(parsed), config.batch_size):
        some = parsed[first : first + config.batch_size]
        made = slots.batch(some, columns, config.model.rows, values, np.arange(len(some)))
        for chance in infer(made)["probability"]:
            answers.append(("1", float(chance)) if chance > 0.5 else ("0", 1.0 - float(chance)))
    return answers


def export(checkpoint: Checkpoint, folder: Path) -> str:
    """Writes a SavedModel with the whole table, out of the shards of any number of ranks.

    Returns:
      What is in it, for the user.
    """
    config = checkpoint.config(Config)
    columns, values = _columns(checkpoint)
    inputs, outputs = _answering(checkpoint, config, columns, values)
    from amp_xla import backend
    from amp_xla.backend import tf

    tf.saved_model.simple_save(backend.session(), str(folder), inputs, outputs)
    return (
        f"numbers float32 [B, {columns.numbers}] and ids int64 [B, {columns.slots}, {values}] -> "
        f"probability float32 [B]; amp_xla.data.slots.batches.batch makes such arrays of lines"
    )


def _columns(checkpoint: Checkpoint) -> Tuple[Columns, int]:
    """Return the columns of a checkpoint's samples, and the values per slot."""
    try:
        known = json_files.read(Path(checkpoint.file(_COLUMNS)))
        json_files.require(known, {"numbers": int, "slots": int, "values": int})
    except ValueError as error:
        raise DataError(f"cannot use {checkpoint.path / _COLUMNS}: {error}") from error
    return Columns(known["numbers"], known["slots"]), known["values"]


def _answering(
    checkpoint: Checkpoint, config: Config, columns: Columns, values: int
) -> Tuple[Any, Any]:
    """(inputs, outputs) by name, of a model in one process that has a checkpoint's weights."""
    dataclasses.replace(config.precision_options, xla="off", loss_scale=None).resolve()
    from amp_xla.backend import tf
    from amp_xla.sok.shards import TableShards
    from amp_xla.training.variables import restore_weights

    inputs = {
        "numbers": tf.placeholder(tf.float32, [None, columns.numbers], name="numbers"),
        "ids": tf.placeholder(tf.int64, [None, columns.slots, values], name="ids"),
    }
    model = _model(config, columns.slots, values, "zeros")
    outputs = {"probability": tf.sigmoid(model.call(inputs["numbers"], inputs["ids"]))}
    tables = TableShards([model.table.embedding_variable])
    tables.read(checkpoint.path, weights_only=True)
    restore_weights(checkpoint, [v for v in model.weights if not tables.holds(v)])
    return inputs, outputs


if __name__ == "__main__":
    sys.exit(exit_code(main))
