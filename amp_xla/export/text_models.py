"""Classifiers and language models, to export."""

from __future__ import annotations

import dataclasses
from typing import Optional

from amp_xla.backend import tf
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import AmpXlaError
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import MEAN_POOLING, Exportable
from amp_xla.models import encoders
from amp_xla.models.options import LanguageModelOptions
from amp_xla.models.weights import google
from amp_xla.training import checkpoint as checkpoints
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.classifier import ClassifierConfig


def classifier(config: ClassifierConfig, checkpoint: Checkpoint) -> Exportable:
    """Return the classifier of a run."""
    tokenizer = Tokenizer.from_assets(checkpoint.file)
    labels = Labels.load(checkpoint.file("labels.json"))
    length = config.batches.max_length

    def build(folder: Optional[str]) -> Parts:
        options = dataclasses.replace(config.encoder, bert=folder or config.encoder.bert)
        encoder = options.transformer(tokenizer.vocab_size, length, weights=folder is not None)
        model = encoders.classifier(encoder.model, len(labels), 0.0)
        kernel, bias = model.get_layer("Logits").weights
        return Parts(
            encoder, {"probabilities": tf.nn.softmax(model.output), "logits": model.output},
            {"classifier.weight": kernel, "classifier.bias": bias},
        )  # fmt: skip

    return exportable(checkpoint, build, length, labels.names, formula=MEAN_POOLING)


def language_model(
    options: LanguageModelOptions, objective: str, averaged: bool, checkpoint: Checkpoint
) -> Exportable:
    """Return the language model of a run.

    Raises:
      AmpXlaError: the run has averaged weights, but not of this checkpoint.
    """
    vocab_size = Tokenizer.from_assets(checkpoint.file).vocab_size
    length = google.pretrained(str(checkpoint.path)).config["max_position_embeddings"]
    if averaged and checkpoint.path != checkpoints.best(checkpoint.path.parent):
        raise AmpXlaError(
            f"{checkpoint.run} has averaged weights for its best checkpoint only; leave out "
            "--checkpoint"
        )

    def build(folder: Optional[str]) -> Parts:
        model = dataclasses.replace(options, bert=folder or checkpoint.architecture)
        lm = model.language_model(vocab_size, length, objective, folder is not None, several=True)
        # bert4keras' own head, over all positions; behind the vocabulary is padding.
        return Parts(lm.transformer, {"logits": lm.transformer.model.output[..., :vocab_size]}, {})

    return exportable(
        checkpoint, build, length, kind="ForMaskedLM" if objective == "mlm" else None,
        source=str(checkpoint.run) if averaged else None,
    )  # fmt: skip
