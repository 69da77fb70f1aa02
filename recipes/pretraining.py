"""Pretraining: a BERT learns to fill in masked words, or to continue a text, from raw text.

    make train RECIPE=pretraining

trains a tiny BERT on docstrings of installed packages. bert4keras and other recipes can load it.
TensorFlow 1.15.5: held-out loss 4.6936, seed 1, 6.3 minutes; Intel(R) Xeon(R) Processor with
AVX-512 BF16, 2 cores, load 4; 2026-11-26. TensorFlow 2.17.1: held-out loss 4.5839, seed 1, 6.8
minutes; Intel(R) Xeon(R) Processor with AVX-512 BF16, 2 cores, load 5; 2026-11-26.

Then: `--bert runs/pretraining/latest` for the other recipes. Own text: docs/tasks/pretraining.md.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Optional

from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, flat
from amp_xla.models.options import LanguageModelOptions, training_flops
from amp_xla.process.progress import note
from amp_xla.tasks.pretraining import answers, options, presets
from amp_xla.tasks.pretraining.data.masking import Masking
from amp_xla.tasks.pretraining.data.stream import LengthOptions, Phases, read
from amp_xla.training import launch
from amp_xla.training import options as groups
from amp_xla.training.context import RunContext
from amp_xla.training.recipe import Recipe, lazy


@dataclasses.dataclass(frozen=True)
class Config:
    """Pretrain a language model."""

    REMOVED = presets.REMOVED
    preset: Annotated[Optional[presets.Preset], MAY_CHANGE] = None
    """defaults of a paper, or quick for a laptop; none = roberta if --model is base or large, else
    quick"""
    text: options.TextOptions = options.TextOptions()
    goal: options.ObjectiveOptions = options.ObjectiveOptions()
    optimization: options.OptimizerOptions = options.OptimizerOptions()
    seed: groups.Seed = 1
    length: LengthOptions = LengthOptions()
    encoder: LanguageModelOptions = LanguageModelOptions()
    update: groups.UpdateOptions = groups.UpdateOptions(learning_rate=1e-3, warmup=0.06)
    memory: groups.MemoryOptions = groups.MemoryOptions()
    attention: groups.Attention = "plain"
    precision_options: groups.PrecisionOptions = groups.PrecisionOptions()
    intervals: groups.Intervals = groups.Intervals(evaluate_every=1000, log_every=100)  # in updates
    run: groups.RunOptions = groups.RunOptions()

    defaults = presets.defaults


def build(config: Config, context: RunContext) -> Any:
    """Build the job: data, model and training step."""
    from amp_xla.training.evaluation import held_out
    from amp_xla.training.optimizers.average import in_place

    # prepared text -> batches
    data, length, goal = config.text.prepared(), config.length, config.goal
    tokenizer = data.tokenizer()
    note(f"{data.describe()}{data.warnings(tokenizer)}")
    note(presets.described(flat(config), flat(Config())))
    ranks = context.ranks.world.size
    context.micro_batches = length.accumulation(ranks)
    masking = Masking(tokenizer, goal.mask_rate, goal.mask, config.seed)
    phases, held = zip(*read(data, length, config.text.heldout, goal.objective, masking))
    batches = context.share(Phases(*phases))

    # batches -> logits -> loss -> update
    longest = max(phase.length for phase in phases)
    lm = config.encoder.language_model(
        tokenizer.vocab_size, longest, goal.objective, context.reads_weights, len(phases) > 1
    )
    inputs = lm.placeholders()
    loss, metrics = lm.loss(inputs)
    optimizer = config.optimization.build(context, length.steps)
    step = context.step(inputs, loss, optimizer, lm.weights, metrics)
    costs = [training_flops(lm.config, phase.length, phase.predicted) for phase in phases]
    note(options.described(length, phases, costs, ranks))

    # evaluation
    evaluate = held_out(lm, inputs, *map(context.ranks.share, reversed(held)))
    return context.job(
        lm.transformer.model, step, batches, in_place(optimizer, lm.weights)(evaluate),
        {**tokenizer.assets, "bert_config.json": lm.architecture()},
        {"data": data.settings["corpus_sha256"], "vocabulary": data.settings["vocab_sha256"]},
        export=in_place(optimizer, lm.weights)(lm.write_checkpoint),
        rates={"model_flops_per_second": lambda n: costs[n > phases[0].steps_per_epoch()] / ranks},
    )  # fmt: skip


recipe = Recipe(
    Config, build, lambda c: c.intervals.loop(monitor="loss", higher_is_better=False),
    fill=answers.fill, exportable=lazy("amp_xla.export.text_models:language_model"),
)  # fmt: skip
main = functools.partial(launch.main, recipe)


if __name__ == "__main__":
    launch.run_program(recipe)
