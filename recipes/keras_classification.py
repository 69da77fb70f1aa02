"""Text classification with Keras: the job of recipes/classification.py by ``model.fit``.

    make train RECIPE=keras_classification

trains a small BERT from scratch on TensorFlow 2, in mixed precision by a Keras policy.
TensorFlow 2.17.1: dev accuracy 0.9022, seed 1, mixed_bfloat16, 2.4 minutes; 2-core Xeon, shared;
2026-11-23, before it trained by the public callback.

    make train RECIPE=keras_classification ARGS="--policy mixed_float16 --loss-scale dynamic"

The same in a script: examples/keras_fit.py; a loop of your own: docs/precision.md.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from typing import Any, ClassVar, Dict, List, Optional

from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, parse, within
from amp_xla.data import labelled
from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.text.options import TextFiles, VocabularyOptions
from amp_xla.errors import SettingsError
from amp_xla.models.options import EncoderOptions
from amp_xla.process.exits import exit_code
from amp_xla.process.world import world
from amp_xla.tasks.classification import keras_model
from amp_xla.training.answers import LabelAnswers
from amp_xla.training.checkpoint import ARCHITECTURE, Checkpoint
from amp_xla.training.context import RunContext, text_defaults
from amp_xla.training.options import ClassifierOptions, RunOptions, Seed, UpdateOptions
from amp_xla.training.run import RunFolder


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a text classifier by Keras' model.fit."""

    REMOVED: ClassVar[Dict[str, Any]] = {"evaluate_every": 0}
    seed: Seed = 1
    """seed of weights, order and dropout"""
    files: TextFiles = TextFiles()
    vocabulary: VocabularyOptions = VocabularyOptions()
    encoder: EncoderOptions = EncoderOptions()
    batches: BatchOptions = BatchOptions()
    training: ClassifierOptions = ClassifierOptions()
    update: UpdateOptions = UpdateOptions()
    log_every: Annotated[int, within(at_least=1), MAY_CHANGE] = 20
    """steps between lines of metrics.jsonl"""
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
    policy, scale = keras_model.precision(config)
    from amp_xla.backend import keras, tf
    from amp_xla.callbacks import Run
    from amp_xla.models import losses
    from amp_xla.process.progress import note
    from amp_xla.training import job

    job.seed_everything(config.seed)
    data = context.shared(labelled.read(config.files, context.preparation()))
    note(f"Keras policy {policy}, loss scale {scale}")
    vocab, length = data.tokenizer.vocab_size, config.batches.max_length
    model = config.encoder.classifier(
        vocab, len(data.labels), length, weights=context.reads_weights
    )
    steps = context.steps(data.batches)

    def loss(target: Any, logits: Any) -> Any:
        number = tf.cast(tf.reshape(target, [-1]), tf.int32)
        return losses.cross_entropy(number, logits, config.training.label_smoothing)

    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    model.compile(keras_model.optimizer(config, steps, scale), loss, metrics=[accuracy])
    run = Run(
        folder, monitor="val_accuracy", log_every=config.log_every,
        config=dataclasses.replace(unpinned, policy=policy, loss_scale=str(scale)),
        files={**data.assets, ARCHITECTURE: config.encoder.architecture(vocab, length)},
        identity=data.fingerprints,
    )  # fmt: skip
    patience = config.training.patience
    stops = [keras.callbacks.EarlyStopping("val_accuracy", patience=patience)] if patience else []
    model.fit(
        keras_model.endless(data.batches, keras_model.train_batch),
        steps_per_epoch=data.batches.steps_per_epoch(),
        validation_data=keras_model.endless(data.dev_batches, keras_model.dev_batch),
        validation_steps=data.dev_batches.steps_per_epoch(),
        epochs=config.training.epochs, callbacks=[run, *stops], verbose=0,
    )  # fmt: skip
    note(f"predict with: amp-xla predict {shlex.quote(str(folder.path))} FILE")


def predict(checkpoint: Checkpoint, lines: List[str]) -> LabelAnswers:
    """Return the label probabilities of each line, a text or two texts separated by a tab."""
    config = checkpoint.config(Config)
    # Until November 2026 a run saved its policy with its data.
    policy = config.policy or checkpoint.identity["data"].get("policy")
    keras_model.precision(dataclasses.replace(config, policy=policy, xla="off", loss_scale=None))
    from amp_xla.tasks.classification import answers

    return answers.predict(config, checkpoint, lines)


def exportable(checkpoint: Checkpoint) -> Any:
    """Return the model for ``amp-xla export``, in float32 with the constants of the run."""
    checkpoint.apply_precision(float32=True)
    from amp_xla.tasks.classification.export import classifier

    return classifier(checkpoint.config(Config), checkpoint)


if __name__ == "__main__":
    sys.exit(exit_code(main))
