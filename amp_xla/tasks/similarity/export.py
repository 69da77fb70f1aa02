"""Export of similarity models, also for sentence-transformers."""

from __future__ import annotations

from typing import Any, Dict, Optional

from amp_xla.backend import keras, tf
from amp_xla.data.text.labels import Scale
from amp_xla.export import text_models
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import MEAN, Exportable
from amp_xla.models import encoders
from amp_xla.models.weights import google
from amp_xla.process import json_files
from amp_xla.tasks.similarity.data import apart
from amp_xla.tasks.similarity.model import threshold_of, unit
from amp_xla.training.checkpoint import Checkpoint

_MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
_LOAD = 'from sentence_transformers import {0}; {0}("{{}}")'
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
# For CrossEncoder, also before version 4; transformers' pipeline takes a sigmoid too.
_CROSS_ENCODER = {
    "problem_type": "multi_label_classification", "id2label": {"0": "similarity"},
    "label2id": {"similarity": 0}, "sentence_transformers": {"activation_fn": _SIGMOID},
    "sbert_ce_default_activation_function": _SIGMOID,
}  # fmt: skip


def similarity(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the model of a run: similarity of two texts, or the vector of a text."""
    method, scale = config.method, Scale.load(checkpoint.file("labels.json"))
    low, high = scale.low, scale.high
    if not apart(method):
        rescaled = "" if scale.binary else f"; label = {low:g} + {high - low:g} * its score"
        return text_models.classifier(
            config, checkpoint, 1,
            lambda logits: {"similarity": scale.labels(tf.sigmoid(logits[:, 0]))},
            f"{low:g} + {high - low:g} * sigmoid({{}})", settings=_CROSS_ENCODER,
            load=_LOAD.format("CrossEncoder") + rescaled,
        )  # fmt: skip

    def build(folder: Optional[str]) -> Parts:
        encoder = text_models.encoder_of(config, checkpoint, folder)
        model = keras.models.Model(encoder.model.inputs, encoders.pooled(encoder))
        threshold = threshold_of(method, scale)
        numbers = {} if threshold is None else {"threshold": threshold}
        vectors = {"vectors": unit(model.output)}
        return Parts(encoder, vectors, {}, [*model.weights, *numbers.values()], numbers)

    length = config.batches.max_length
    width = google.pretrained(str(checkpoint.path)).config["hidden_size"]
    return exportable(
        checkpoint, build, length, formula=f"{MEAN}, divided by its length",
        task="sentence-similarity", files=_files(length, width),
        load=_LOAD.format("SentenceTransformer"),
    )  # fmt: skip


def _files(length: int, width: int) -> Dict[str, bytes]:
    """Return the files by which sentence-transformers computes vectors of length 1."""
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(_MODULES)
    ]
    files: Dict[str, Any] = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": length, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": width, "pooling_mode_mean_tokens": True,
            "pooling_mode_cls_token": False, "pooling_mode_max_tokens": False,
        },
        "2_Normalize/config.json": {},
    }  # fmt: skip
    return {name: json_files.encode(content) for name, content in files.items()}
