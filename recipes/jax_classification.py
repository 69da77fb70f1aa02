"""Text classification in JAX: the job of recipes/classification.py without TensorFlow.

    make train RECIPE=jax_classification

trains a small BERT from scratch with Equinox and Optax, in an environment without TensorFlow.
JAX 0.10.2: dev accuracy 0.8891, 0.8870, 0.8761, seeds 1 to 3, float32, 2.8 minutes; 2-core AMD
EPYC, load 4; 2026-11-26. Any precision can be chosen:

    make train RECIPE=jax_classification ARGS="--policy p=f32,c=bf16,o=f32 --loss-scale 1"
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from amp_xla.config import parse
from amp_xla.errors import SettingsError
from amp_xla.process.exits import exit_code
from amp_xla.training import json_files
from amp_xla.training.answers import LabelAnswers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.classifier import ClassifierConfig, Questions
from amp_xla.training.context import RunContext


@dataclasses.dataclass(frozen=True)
class Config(ClassifierConfig):
    """Train a text classifier in JAX."""

    recipe = "jax_classification"
    policy: Optional[str] = None
    """dtypes of parameters, compute and output as in jmp, e.g. p=f32,c=f16,o=f32; none = compute in
    float16 on a GPU, bfloat16 on a TPU, else float32"""
    loss_scale: Optional[str] = None
    """loss scale: a number (1 = off) or dynamic; none = 1000 in float16, else 1"""


def build(config: Config, context: RunContext) -> Any:
    """Build the job up to the first step."""
    from amp_xla.jax import processes, step
    from amp_xla.jax.engine import Job
    from amp_xla.process.progress import note

    processes.check_rows(config.batches.batch_size)
    data = config.read()
    policy, scale = precision(config)
    note(f"policy {policy}, loss scale {scale}")
    shape = architecture(config, data.tokenizer.vocab_size)
    steps = config.steps(data.batches)
    model = policy.cast_to_param(
        new_model(config, shape, len(data.labels), weights=context.reads_weights)
    )
    update = config.update
    rate = step.schedule(update.learning_rate, int(update.warmup * steps), steps)
    optimizer = step.adamw(rate, update.weight_decay, update.clip_norm)
    return Job(
        step.start(model, optimizer, scale),
        step.training_step(
            optimizer, rate, policy, config.encoder.dropout, config.training.label_smoothing,
            config.seed),
        step.inference(policy), data.batches, data.dev_batches, len(data.labels),
        {**data.assets, "bert_config.json": json_files.encode(shape)},
        {"policy": str(policy), "loss scale": scale},
        data.fingerprints,
    )  # fmt: skip


def precision(config: Config) -> Tuple[Any, Any]:
    """Return the policy and the loss scale."""
    import jax

    from amp_xla.precision.policy import get_policy
    from amp_xla.settings import Settings, default_loss_scale

    here = {"gpu": "p=f32,c=f16,o=f32", "tpu": "p=f32,c=bf16,o=f32"}
    try:
        policy = get_policy(config.policy or here.get(jax.default_backend(), "float32"))
    except ValueError as error:
        raise SettingsError(f"--policy {config.policy}: {error}") from error
    scale = Settings(loss_scale=config.loss_scale).loss_scale
    return policy, scale or default_loss_scale(policy.names[1])


def architecture(config: Config, vocab_size: int) -> Dict[str, Any]:
    """Return the content of ``bert_config.json``, from ``--bert`` or from the options."""
    from amp_xla.jax import weights

    bert, length = config.encoder.bert, config.batches.max_length
    if bert is None:
        return config.encoder.config(vocab_size, length)
    pretrained = weights.pretrained(bert)
    pretrained.check_sizes(vocab_size, length)
    return pretrained.config


def new_model(config: Config, shape: Dict[str, Any], classes: int, weights: bool) -> Any:
    """Return the classifier, with the weights of ``--bert`` if ``weights`` is true."""
    import equinox as eqx

    from amp_xla.jax import bert
    from amp_xla.jax.weights import load

    model = bert.new_classifier(bert.Shape.of(shape), classes, config.seed)
    if weights and config.encoder.bert is not None:
        loaded = load(model.bert, config.encoder.bert)
        model = eqx.tree_at(lambda m: m.bert, model, loaded)
    return model


def main(argv: Optional[List[str]] = None) -> int:
    """Train."""
    config = parse(Config, argv, "amp-xla train jax_classification")
    from amp_xla.jax import processes
    from amp_xla.training.launch import train

    return train("jax_classification", config, build, config.loop, processes.join)


def predict(checkpoint: Checkpoint, lines: List[str]) -> LabelAnswers:
    """Return the label probabilities of each line, a text or two texts separated by a tab."""
    from amp_xla.jax import bert, processes, step  # first: one line if there is no JAX
    from amp_xla.jax.engine import restored

    config = checkpoint.config(Config)
    import jax
    import numpy as np

    questions = Questions(config, checkpoint, lines)
    shape = bert.Shape.of(json.loads(Path(checkpoint.file("bert_config.json")).read_text()))
    policy, _ = precision(config)
    like = bert.new_classifier(shape, len(questions.labels), config.seed)
    model = restored(checkpoint, policy.cast_to_param(like), ".model")
    infer = step.inference(policy)

    def chances(batch: Any) -> Any:
        texts = processes.share({name: batch[name] for name in ("token_ids", "segment_ids")})
        return np.asarray(jax.nn.softmax(infer(model, texts)))

    devices = jax.device_count()
    return questions.answers(chances, -(-config.batches.batch_size // devices) * devices)


def exportable(checkpoint: Checkpoint) -> Any:
    """Return the model for ``amp-xla export``, in float32."""
    import amp_xla.jax  # noqa: F401  # first: one line if there is no JAX
    from amp_xla.tasks.classification.jax_export import classifier

    return classifier(checkpoint.config(Config), checkpoint)


if __name__ == "__main__":
    sys.exit(exit_code(main))
