"""Text classification in JAX: the job of recipes/classification.py without TensorFlow.

    make train RECIPE=jax_classification

trains a small BERT from scratch with JAX and Optax, in an environment without TensorFlow.
JAX 0.10.2: dev accuracy 0.8891, 0.8870, 0.8761, seeds 1 to 3, float32, 2.8 minutes; 2-core AMD
EPYC, load 4; 2026-11-26. Any precision can be chosen:

    make train RECIPE=jax_classification ARGS="--policy p=f32,c=bf16,o=f32 --loss-scale 1"
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Optional

from amp_xla.data.labelled import BatchOptions
from amp_xla.data.text.options import TextFiles, VocabularyOptions
from amp_xla.models.options import EncoderOptions
from amp_xla.process import json_files
from amp_xla.tasks.classification.data import read
from amp_xla.training import launch, options
from amp_xla.training.context import RunContext, text_defaults
from amp_xla.training.recipe import Recipe, lazy
from amp_xla.training.sample_scores import scored


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a text classifier in JAX."""

    seed: options.Seed = 1
    files: TextFiles = TextFiles()
    vocabulary: VocabularyOptions = VocabularyOptions()
    encoder: EncoderOptions = EncoderOptions()
    batches: BatchOptions = BatchOptions()
    training: options.ClassifierOptions = options.ClassifierOptions()
    update: options.UpdateOptions = options.UpdateOptions()
    attention: options.Attention = "plain"
    intervals: options.Intervals = options.Intervals()
    run: options.RunOptions = options.RunOptions()
    policy: Optional[str] = None
    """dtypes of parameters, compute and output as in jmp, e.g. p=f32,c=f16,o=f32; none = compute in
    float16 on a GPU, bfloat16 on a TPU, else float32"""
    loss_scale: Optional[str] = None
    """loss scale: a number (1 = off) or dynamic; none = 1000 in float16, else 1"""

    defaults = text_defaults


def build(config: Config, context: RunContext) -> Any:
    """Build the job: data, model and training step."""
    from amp_xla.jax import processes, step
    from amp_xla.jax.engine import JaxJob
    from amp_xla.process.progress import note
    from amp_xla.tasks.classification.jax_model import architecture, dropout, new_model, precision

    processes.check_rows(config.batches.batch_size)
    data = context.shared(read(config.files, context.preparation()))
    policy, scale = precision(config)
    note(f"policy {policy}, loss scale {scale}")
    shape = architecture(config, data.tokenizer.vocab_size)
    steps = context.steps(data.batches)
    model = policy.cast_to_param(
        new_model(config, shape, len(data.labels), weights=context.reads_weights)
    )
    update = config.update
    rate = step.schedule(update.learning_rate, int(update.warmup * steps), steps)
    optimizer = step.adamw(rate, update.weight_decay, update.clip_norm)
    return JaxJob(
        step.start(model, optimizer, scale),
        step.training_step(
            optimizer, rate, policy, dropout(config, shape, policy.compute_dtype),
            config.training.label_smoothing, config.seed),
        step.inference(policy), data.batches, data.dev_batches, len(data.labels),
        {**data.assets, "bert_config.json": json_files.encode(shape)},
        {"policy": str(policy), "loss scale": scale},
        data.fingerprints,
    )  # fmt: skip


recipe = Recipe(
    Config, build, "accuracy", lazy("amp_xla.tasks.classification.jax_model:predict"),
    scored=scored, exportable=lazy("amp_xla.tasks.classification.jax_model:exportable"),
    join=lazy("amp_xla.jax.processes:join"),
)  # fmt: skip
main = functools.partial(launch.main, recipe)


if __name__ == "__main__":
    launch.run_program(recipe)
