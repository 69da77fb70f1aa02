"""Text classification with Keras: the job of recipes/classification.py by ``model.fit``.

    make train RECIPE=keras_classification

trains a small BERT from scratch on TensorFlow 2, in mixed precision by a Keras policy.
TensorFlow 2.17.1: dev accuracy 0.9022, seed 1, mixed_bfloat16, 2.4 minutes; 2-core Xeon, shared;
2026-11-23.

    make train RECIPE=keras_classification ARGS="--policy mixed_float16 --loss-scale dynamic"

The same in a script: examples/keras_fit.py; a loop of your own: docs/precision.md.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from typing import Any, Dict, List, Optional

from typing_extensions import Literal

from amp_xla.config import parse
from amp_xla.data import labelled
from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.text.options import TextFiles, VocabularyOptions
from amp_xla.errors import SettingsError
from amp_xla.models.options import EncoderOptions, Pooling
from amp_xla.process.exits import exit_code
from amp_xla.process.world import world
from amp_xla.tasks.classification.keras_model import keras_batch, optimizer, precision
from amp_xla.training.answers import LabelAnswers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.context import RunContext, loop_options, text_defaults
from amp_xla.training.options import ClassifierOptions, Intervals, RunOptions, Seed, UpdateOptions
from amp_xla.training.run import RunFolder


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a text classifier by Keras' model.fit."""

    seed: Seed = 1
    """seed of weights, order and dropout"""
    files: TextFiles = TextFiles()
    vocabulary: VocabularyOptions = VocabularyOptions()
    encoder: EncoderOptions = EncoderOptions()
    pooling: Pooling = "mean"
    """vector of a text: mean of its tokens; the first token (cls); or that through BERT's pooler,
    which transformers' classifiers need (export --format hf)"""
    batches: BatchOptions = BatchOptions()
    training: ClassifierOptions = ClassifierOptions()
    update: UpdateOptions = UpdateOptions()
    intervals: Intervals = Intervals()
    run: RunOptions = RunOptions()
    policy: Optional[Literal["float32", "mixed_float16", "mixed_bfloat16"]] = None
    """Keras policy; none = float32 if AMP_XLA_PRECISION is not amp, else mixed_float16 on a GPU or
    mixed_bfloat16 on a CPU"""
    loss_scale: Optional[str] = None
    """loss scale: a number (1 = off) or dynamic; none = environment variable AMP_XLA_LOSS_SCALE, or
    if that is not set, 1000 in float16 and 1 otherwise"""
    xla: Optional[Literal["off", "on", "no_lazy", "lite"]] = None
    """XLA mode; none = environment variable AMP_XLA_XLA, or off if that is not set"""

    def defaults(self) -> Dict[str, Any]:
        """Return the settings of a resumed run, or the defaults of ``--bert``."""
        return text_defaults("keras_classification", self)


def main(argv: Optional[List[str]] = None) -> int:
    """Train."""
    config = parse(Config, argv, "amp-xla train keras_classification")
    if world().size > 1:
        raise SettingsError(
            "NP: this recipe trains in one process; RECIPE=classification trains on several ranks"
        )
    folder = RunFolder("keras_classification", config.run.name, resume=config.run.resume)
    try:
        fit(config, folder)
    finally:
        folder.close()
    return 0


def fit(unpinned: Config, folder: RunFolder) -> None:
    """Build the model and train it; a resumed run uses the vocabulary of its checkpoint."""
    resume_from = folder.newest()
    context = RunContext(unpinned, resume_from)
    config = context.config
    policy, scale = precision(config)
    from amp_xla.backend import tf
    from amp_xla.callbacks.recipe import RecipeRun
    from amp_xla.models import dropout, losses
    from amp_xla.process.progress import note
    from amp_xla.training import job
    from amp_xla.training.evaluation import classification as scores
    from amp_xla.training.step import Inference

    job.seed_everything(config.seed)
    data = context.shared(labelled.read(config.files, context.preparation()))
    note(f"Keras policy {policy}, loss scale {scale}")
    step_input = dropout.install(config.seed)
    vocab, length = data.tokenizer.vocab_size, config.batches.max_length
    model = config.encoder.classifier(
        vocab, len(data.labels), length, weights=context.reads_weights, pooling=config.pooling
    )
    steps = context.steps(data.batches)

    def loss(target: Any, logits: Any) -> Any:
        number = tf.cast(tf.reshape(target, [-1]), tf.int32)
        return losses.cross_entropy(number, logits, config.training.label_smoothing)

    model.compile(optimizer(config, steps, scale), loss)
    inputs = {
        **dict(zip(("token_ids", "segment_ids"), model.inputs)),
        "labels": tf.placeholder(tf.int32, [None], name="labels"),
        "weights": tf.placeholder(tf.float32, [None], name="weights"),
    }
    with dropout.inference():
        logits = model(model.inputs)
    outputs = {"logits": logits, "loss": losses.cross_entropy(inputs["labels"], logits)}
    run = RecipeRun(
        folder, unpinned, loop_options(config), data.batches, keras_batch, step_input,
        evaluate=scores(Inference(inputs, outputs), data.dev_batches, len(data.labels)),
        assets={**data.assets, "bert_config.json": config.encoder.architecture(vocab, length)},
        identity={**data.fingerprints, "policy": policy, "loss scale": str(scale)},
    )  # fmt: skip
    model.fit(epochs=config.training.epochs, callbacks=[run], verbose=0)
    note(f"predict with: amp-xla predict {shlex.quote(str(folder.path))} FILE")


def predict(checkpoint: Checkpoint, lines: List[str]) -> LabelAnswers:
    """Return the label probabilities of each line, a text or two texts separated by a tab."""
    config = checkpoint.config(Config)
    policy = checkpoint.identity["data"].get("policy")
    precision(dataclasses.replace(config, policy=policy, xla="off", loss_scale=None))
    from amp_xla.tasks.classification import answers

    return answers.predict(config, checkpoint, lines)


def exportable(checkpoint: Checkpoint) -> Any:
    """Return the model for ``amp-xla export``, in float32 with the constants of the run."""
    checkpoint.apply_precision(float32=True)
    from amp_xla.tasks.classification.export import classifier

    return classifier(checkpoint.config(Config), checkpoint)


if __name__ == "__main__":
    sys.exit(exit_code(main))
