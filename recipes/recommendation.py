"""Recommendation: predict clicks by DLRM or DeepFM, with an embedding table spread over ranks.

    make train RECIPE=recommendation NP=2

trains on a built-in task: decide from which of two packages a pair of docstrings is. Metric: AUC.

    make train RECIPE=recommendation NP=8 ARGS="--train day_0.gz --dev day_1.gz --rows 50000000 --batch-size 65536"

trains on Criteo's files: label, 13 numbers and 26 slots, separated by tabs (docs/tasks/recommendation.md).
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from typing_extensions import Annotated, Literal

from amp_xla.config import within
from amp_xla.models.options import TowerOptions
from amp_xla.tasks.recommendation.data import SlotBatches, SlotFiles
from amp_xla.training import launch, options
from amp_xla.training.context import RunContext
from amp_xla.training.recipe import Recipe, lazy


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a click model with an embedding table spread over ranks."""

    files: SlotFiles = SlotFiles()
    batch_size: Annotated[int, within(at_least=1)] = 128
    """samples per step, over all ranks; on GPUs use 8,192 to 65,536"""
    table_optimizer: Literal["lazy_adam", "adam"] = "lazy_adam"
    """optimizer of the table: lazy_adam updates only the rows in the batch, adam all rows"""
    epochs: Annotated[int, within(1, 10**6)] = 2
    """number of passes over the training data"""
    patience: Annotated[int, within(at_least=0)] = 0
    """stop after this number of evaluations without improvement; 0 = never"""
    seed: options.Seed = 1
    model: TowerOptions = TowerOptions()
    update: options.UpdateOptions = options.UpdateOptions(learning_rate=2e-3, weight_decay=0.0)
    precision_options: options.PrecisionOptions = options.PrecisionOptions()
    intervals: options.Intervals = options.Intervals()
    run: options.RunOptions = options.RunOptions()


def build(config: Config, context: RunContext) -> Any:
    """Build the job: data, model and training step."""
    from amp_xla.backend import tf
    from amp_xla.process.progress import note
    from amp_xla.sok import optimizers
    from amp_xla.sok.saver import TableShards
    from amp_xla.tasks.recommendation import answers, model
    from amp_xla.training.evaluation import ranking
    from amp_xla.training.step import Inference

    # lines -> batches
    train, dev, values = config.files.read(config.batch_size)
    rows, columns = config.model.rows, train.columns
    context.micro_batches = 1
    batches = context.share(SlotBatches(train, config.batch_size, rows, values, config.seed))
    dev_batches = context.share(SlotBatches(dev, config.batch_size, rows, values, shuffle=False))
    note(model.described(train, dev, config.model, context.ranks.world.size))

    # batches -> logits -> loss
    inputs, network, logits = model.network(config, columns, values)
    inputs["labels"] = tf.placeholder(tf.float32, [None], name="labels")
    inputs["weights"] = tf.placeholder(tf.float32, [None], name="weights")
    loss, accuracy, each = model.losses(inputs["labels"], logits, inputs["weights"])

    # loss -> update
    lazy = config.table_optimizer == "lazy_adam"
    rule = (optimizers.LazyAdam if lazy else optimizers.Adam)(epsilon=1e-6)
    table = [network.table.embedding_variable]
    tables = TableShards(table, rule)
    steps = config.epochs * batches.steps_per_epoch()
    optimizer = context.optimizer(steps, sharded=tables)
    metrics = {"accuracy": accuracy}
    step = context.step(inputs, loss, optimizer, network.trainable_weights, metrics, table)

    # evaluation
    infer = Inference(inputs, {"logits": logits, "loss": each})
    evaluate = functools.partial(ranking, infer, dev_batches, len(dev))
    files = answers.assets(columns, values)
    identity = {"train": train.fingerprint(), "dev": dev.fingerprint()}
    return context.job(network, step, batches, evaluate, files, identity, sharded=tables)


recipe = Recipe(
    Config, build, "auc", lazy("amp_xla.tasks.recommendation.answers:predict"),
    export=lazy("amp_xla.tasks.recommendation.answers:export"),
)  # fmt: skip
main = functools.partial(launch.main, recipe)


if __name__ == "__main__":
    launch.run_program(recipe)
