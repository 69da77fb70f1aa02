"""Export of language models; functions for the exports of all tasks that have an encoder."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Optional, Sequence

from amp_xla.config import flat
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import FIRST, MEAN, Exportable
from amp_xla.models import encoders
from amp_xla.models.weights import google
from amp_xla.models.weights.hugging_face import OWN_HEAD
from amp_xla.training.checkpoint import Checkpoint


def language_model(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the language model of a run of pretraining or of text generation (a UniLM)."""
    objective = flat(config).get("objective", "unilm")
    vocab_size = Tokenizer.of_folder(str(checkpoint.path)).vocab_size
    length = google.pretrained(str(checkpoint.path)).config["max_position_embeddings"]

    def build(folder: Optional[str]) -> Parts:
        model = dataclasses.replace(config.encoder, bert=folder or checkpoint.architecture)
        lm = model.language_model(vocab_size, length, objective, folder is not None)
        encoder = lm.transformer
        # bert4keras' head computes all positions; logits after the vocabulary are padding.
        logits = encoder.model.output[..., :vocab_size]
        return Parts(encoder, {"logits": logits}, {}, encoder.model.weights)

    kind, task = ("ForMaskedLM", "fill-mask") if objective == "mlm" else (None, "text-generation")
    return exportable(checkpoint, build, length, kind=kind, task=task)


def encoder_of(config: Any, checkpoint: Checkpoint, folder: Optional[str], **pooler: bool) -> Any:
    """Build a run's bert4keras encoder; load the weights in ``folder`` if it is given."""
    vocab_size = Tokenizer.of_folder(str(checkpoint.path)).vocab_size
    options = dataclasses.replace(config.encoder, bert=folder or config.encoder.bert)
    return options.transformer(vocab_size, config.batches.max_length, folder is not None, **pooler)


def classifier(
    config: Any, checkpoint: Checkpoint, classes: int, outputs: Callable[[Any], Dict[str, Any]],
    formula: str, labels: Sequence[str] = (), **pooler: Any,
) -> Exportable:  # fmt: skip
    """Return the model of a run: a linear layer on the pooled vectors of an encoder.

    Args:
      outputs: function from the logits to the outputs by name.
      formula: how to compute the answer, with ``{}`` for the logits.
      **pooler: more attributes of ``Exportable``, used only if the run has ``--pooling pooler``.
    """
    shape = google.pretrained(str(checkpoint.path)).config
    family, pooling = shape["model_type"], flat(config).get("pooling", "mean")
    has_pooler = pooling == "pooler"
    name = "classifier.out_proj" if has_pooler and family in OWN_HEAD else "classifier"

    def build(folder: Optional[str]) -> Parts:
        encoder = encoder_of(config, checkpoint, folder, pooler=has_pooler)
        vectors = encoders.pooled(encoder, pooling)
        model = encoders.classifier(vectors, encoder.model.inputs, classes, 0.0)
        head = dense(name, model.get_layer("Logits"))
        return Parts(encoder, outputs(model.output), head, model.weights)

    vector = MEAN if pooling == "mean" else FIRST
    if has_pooler:
        layer = f"{'electra' if family == 'electra' else 'bert'}/pooler/dense"
        activation = encoders.pooler_activation(shape)
        vector = f"{activation}({FIRST} @ {layer}/kernel + {layer}/bias)"
    others = {"kind": "ForSequenceClassification", **pooler} if has_pooler else {}
    return exportable(
        checkpoint, build, config.batches.max_length, labels,
        formula=formula.format(f"{vector} @ {name}.weight.T + {name}.bias"),
        task="text-classification", **others,
    )  # fmt: skip


def dense(name: str, layer: Any) -> Dict[str, Any]:
    """Return the variables of a dense layer by Hugging Face's names."""
    return {f"{name}.weight": layer.kernel, f"{name}.bias": layer.bias}


def pointer(layer: Any, prefix: str = "") -> Dict[str, Any]:
    """Return the variables of a global pointer by name."""
    parts = [part for part in ("dense", "p_dense", "q_dense") if hasattr(layer, part)]
    each = [dense(f"{prefix}{part}", getattr(layer, part)) for part in parts]
    return {name: value for part in each for name, value in part.items()}
