"""Export of classifiers, taggers, similarity models and language models."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Union

from amp_xla.backend import keras, tf
from amp_xla.data.pairs import Method, Scale, apart
from amp_xla.data.spans import is_flat
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import LINEAR, MEAN, MEAN_POOLING, Exportable
from amp_xla.models import encoders, tagging
from amp_xla.models.options import EncoderOptions, LanguageModelOptions
from amp_xla.models.similarity import unit
from amp_xla.models.weights import google
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.classifier import ClassifierConfig
from amp_xla.training.similarity import threshold_of


def classifier(config: ClassifierConfig, checkpoint: Checkpoint) -> Exportable:
    """Return the classifier of a run."""
    labels = Labels.load(checkpoint.file("labels.json"))
    several = config.files.separator is not None

    def build(folder: Optional[str]) -> Parts:
        encoder = _encoder(config, checkpoint, folder)
        model = _classifier(encoder.model, len(labels))
        chances = (tf.sigmoid if several else tf.nn.softmax)(model.output)
        return Parts(
            encoder, {"probabilities": chances, "logits": model.output},
            _dense("classifier", model.get_layer("Logits")), model.weights,
        )  # fmt: skip

    formula = MEAN_POOLING.replace("softmax", "sigmoid") if several else MEAN_POOLING
    return exportable(
        checkpoint, build, config.batches.max_length, labels.names, formula=formula
    )  # fmt: skip


def tagger(config: ClassifierConfig, head: str, checkpoint: Checkpoint) -> Exportable:
    """Return the tagger of a run: logits of BIO tags, or scores of spans."""
    names, flat = Labels.load(checkpoint.file("labels.json")).names, is_flat(head)

    def build(folder: Optional[str]) -> Parts:
        encoder = _encoder(config, checkpoint, folder)
        rate = config.update.learning_rate
        built = tagging.tagger(encoder.model, head, len(names), 0.0, rate)
        output, weights = built.model.output, built.model.weights
        if flat:
            dense = _dense("classifier", built.model.get_layer("Tags"))
            transitions = {"transitions": built.transitions} if head == "crf" else {}
            return Parts(encoder, {"logits": output}, dense, weights, transitions)
        layer, dense = built.model.get_layer("Spans"), {}
        for name in ("dense", "p_dense", "q_dense"):
            if hasattr(layer, name):
                dense.update(_dense(name, getattr(layer, name)))
        return Parts(encoder, {"scores": output}, dense, weights)

    tags = [f"{start}-{name}" for name in names for start in "BI"]
    labels, kind = (("O", *tags), "ForTokenClassification") if flat else (names, None)
    formula = "vectors of all tokens" + LINEAR
    if not flat:
        layer = tagging.POINTERS[head]
        formula = f"bert4keras' {layer}({len(names)}, {tagging.HEAD_SIZE}) of the vectors"
    return exportable(checkpoint, build, config.batches.max_length, labels, kind, formula)


def similarity(config: ClassifierConfig, method: Method, checkpoint: Checkpoint) -> Exportable:
    """Return the model of a run: similarity of two texts, or the vector of a text."""
    scale = Scale.load(checkpoint.file("labels.json"))
    low, high = scale.low, scale.high

    def build(folder: Optional[str]) -> Parts:
        encoder = _encoder(config, checkpoint, folder)
        if not apart(method):
            model = _classifier(encoder.model, 1)
            score = low + (high - low) * tf.sigmoid(model.output[:, 0])
            head = _dense("classifier", model.get_layer("Logits"))
            return Parts(encoder, {"similarity": score}, head, model.weights)
        model = keras.models.Model(encoder.model.inputs, encoders.pooled(encoder.model))
        threshold = threshold_of(method, scale)
        numbers = {} if threshold is None else {"threshold": threshold}
        vectors = {"vectors": unit(model.output)}
        return Parts(encoder, vectors, {}, [*model.weights, *numbers.values()], numbers)

    formula = f"{MEAN}, divided by its length"
    if not apart(method):
        formula = f"{low:g} + {high - low:g} * sigmoid({MEAN}{LINEAR})"
    return exportable(checkpoint, build, config.batches.max_length, formula=formula)


def language_model(
    options: Union[LanguageModelOptions, EncoderOptions], objective: str, checkpoint: Checkpoint
) -> Exportable:
    """Return the language model of a run."""
    vocab_size = Tokenizer.of_folder(str(checkpoint.path)).vocab_size
    length = google.pretrained(str(checkpoint.path)).config["max_position_embeddings"]

    def build(folder: Optional[str]) -> Parts:
        model = dataclasses.replace(options, bert=folder or checkpoint.architecture)
        lm = model.language_model(vocab_size, length, objective, folder is not None)
        encoder = lm.transformer
        # bert4keras' head computes all positions; logits after the vocabulary are padding.
        logits = encoder.model.output[..., :vocab_size]
        return Parts(encoder, {"logits": logits}, {}, encoder.model.weights)

    kind = "ForMaskedLM" if objective == "mlm" else None
    return exportable(checkpoint, build, length, kind=kind)


def _encoder(config: ClassifierConfig, checkpoint: Checkpoint, folder: Optional[str]) -> Any:
    """Build bert4keras' encoder; load the weights in ``folder``, unless that is None."""
    vocab_size = Tokenizer.of_folder(str(checkpoint.path)).vocab_size
    options = dataclasses.replace(config.encoder, bert=folder or config.encoder.bert)
    return options.transformer(vocab_size, config.batches.max_length, weights=folder is not None)


def _classifier(encoder: Any, classes: int) -> Any:
    return encoders.classifier(encoders.pooled(encoder), encoder.inputs, classes, 0.0)


def _dense(name: str, layer: Any) -> Dict[str, Any]:
    return {f"{name}.weight": layer.kernel, f"{name}.bias": layer.bias}
