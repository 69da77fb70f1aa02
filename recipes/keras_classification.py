"""Text classification with Keras: the job of recipes/classification.py by ``model.fit``.

    make train RECIPE=keras_classification

trains a small BERT from scratch on TensorFlow 2, in mixed precision by a Keras policy.
TensorFlow 2.17.1: dev accuracy 0.9022, seed 1, mixed_bfloat16, 2.4 minutes; 2-core Xeon, shared;
2026-11-23, before it trained by the public callback.

    make train RECIPE=keras_classification ARGS="--policy mixed_float16 --loss-scale dynamic"

The same in a script: examples/keras_fit.py; a loop of your own: docs/precision.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
import sys
from typing import Any, ClassVar, Dict, List, Optional

from amp_xla.config import parse
from amp_xla.data.labelled import BatchOptions
from amp_xla.data.text.options import TextFiles, VocabularyOptions
from amp_xla.errors import SettingsError
from amp_xla.models.options import EncoderOptions, Pooling
from amp_xla.process.exits import exit_code
from amp_xla.process.world import world
from amp_xla.tasks.classification import keras_model
from amp_xla.tasks.classification.data import read
from amp_xla.training import options
from amp_xla.training.checkpoint import ARCHITECTURE
from amp_xla.training.context import RunContext, served, text_defaults
from amp_xla.training.run import RunFolder


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a text classifier by Keras' model.fit."""

    REMOVED: ClassVar[Dict[str, Any]] = {"evaluate_every": 0}
    seed: options.Seed = 1
    files: TextFiles = TextFiles()
    vocabulary: VocabularyOptions = VocabularyOptions()
    encoder: EncoderOptions = EncoderOptions()
    pooling: Pooling = "mean"
    """vector of a text: mean of its tokens; the first token (cls); or that through BERT's pooler,
    which transformers' classifiers need (export --format hf)"""
    batches: BatchOptions = BatchOptions()
    training: options.ClassifierOptions = options.ClassifierOptions()
    update: options.UpdateOptions = options.UpdateOptions()
    log_every: options.LogEvery = 20
    run: options.RunOptions = options.RunOptions()
    policy_options: keras_model.PolicyOptions = keras_model.PolicyOptions()

    defaults = text_defaults


def main(argv: Optional[List[str]] = None) -> int:
    """Train."""
    config = parse(Config, argv, "amp-xla train keras_classification")
    if world().size > 1:
        raise SettingsError(
            "NP: this recipe trains in one process; RECIPE=classification trains on several ranks"
        )
    folder = RunFolder("keras_classification", config.run.name, resume=config.run.resume)
    with contextlib.closing(folder):
        fit(config, folder)
    return 0


def fit(unpinned: Config, folder: RunFolder) -> None:
    """Build the model and train it; a resumed run uses the vocabulary of its checkpoint."""
    resume_from = folder.newest()
    context = RunContext(unpinned, resume_from)
    config = context.config
    policy, scale = keras_model.precision(config.policy_options)
    from amp_xla.backend import keras, tf
    from amp_xla.callbacks import Run
    from amp_xla.models import losses
    from amp_xla.process.progress import note
    from amp_xla.training import job

    job.seed_everything(config.seed)
    data = read(config.files, context.preparation())
    note(f"{data.description}\nKeras policy {policy}, loss scale {scale}")
    vocab, length = data.tokenizer.vocab_size, config.batches.max_length
    model = config.encoder.classifier(
        vocab, len(data.labels), length, weights=context.reads_weights, pooling=config.pooling
    )
    steps = context.steps(data.batches)

    def loss(target: Any, logits: Any) -> Any:
        number = tf.cast(tf.reshape(target, [-1]), tf.int32)
        return losses.cross_entropy(number, logits, config.training.label_smoothing)

    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    model.compile(keras_model.optimizer(config, steps, scale), loss, metrics=[accuracy])
    run = Run(
        folder, monitor="val_accuracy", log_every=config.log_every, config=unpinned,
        files={**data.assets, ARCHITECTURE: config.encoder.architecture(vocab, length)},
        identity={**data.fingerprints, "policy": policy, "loss scale": str(scale)},
    )  # fmt: skip
    patience = config.training.patience
    stops = [keras.callbacks.EarlyStopping("val_accuracy", patience=patience)] if patience else []
    model.fit(
        **keras_model.data_of_fit(data), epochs=config.training.epochs, callbacks=[run, *stops],
        verbose=0,
    )  # fmt: skip
    note(f"predict with: amp-xla predict {shlex.quote(str(folder.path))} FILE")


# by amp-xla predict and export; the latter in float32 with the constants of the run
predict = functools.partial(keras_model.predict, Config)
exportable = served(Config, "amp_xla.tasks.classification.export:classifier", float32=True)


if __name__ == "__main__":
    sys.exit(exit_code(main))
