"""Export of language models, and the parts of models on an encoder that tasks export."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Union

from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import Exportable
from amp_xla.models import encoders
from amp_xla.models.options import EncoderOptions, LanguageModelOptions
from amp_xla.models.weights import google
from amp_xla.training.checkpoint import Checkpoint


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


def encoder_of(config: Any, checkpoint: Checkpoint, folder: Optional[str]) -> Any:
    """Build bert4keras' encoder of a run; load the weights in ``folder``, unless that is None."""
    vocab_size = Tokenizer.of_folder(str(checkpoint.path)).vocab_size
    options = dataclasses.replace(config.encoder, bert=folder or config.encoder.bert)
    return options.transformer(vocab_size, config.batches.max_length, weights=folder is not None)


def classifier_of(encoder: Any, classes: int) -> Any:
    """Build the classifier on a Keras encoder, without dropout."""
    return encoders.classifier(encoders.pooled(encoder), encoder.inputs, classes, 0.0)


def dense(name: str, layer: Any) -> Dict[str, Any]:
    """Return the variables of a dense layer by Hugging Face's names."""
    return {f"{name}.weight": layer.kernel, f"{name}.bias": layer.bias}


def pointer(layer: Any, prefix: str = "") -> Dict[str, Any]:
    """Return the variables of a global pointer by name."""
    parts = [part for part in ("dense", "p_dense", "q_dense") if hasattr(layer, part)]
    each = [dense(f"{prefix}{part}", getattr(layer, part)) for part in parts]
    return {name: value for part in each for name, value in part.items()}
