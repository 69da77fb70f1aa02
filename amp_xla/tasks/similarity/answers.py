"""Similarity: evaluation, prediction, export, scores. TensorFlow is imported in functions."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.labelled import Labelled
from amp_xla.data.text import readers
from amp_xla.data.text.labels import Scale
from amp_xla.export.model import MEAN, Exportable
from amp_xla.process import json_files
from amp_xla.report.scores import best_threshold, correlations, spearman
from amp_xla.tasks.similarity.data import apart
from amp_xla.training.answers import Answers, Row, label_answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Infer, of_lines, per_sample
from amp_xla.training.sample_scores import LabelScores, NumberScores, Samples, SampleScores, Scorer

_MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
_LOAD = 'from sentence_transformers import {0}; {0}("{{}}")'
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
# For CrossEncoder, also before version 4; transformers' pipeline takes a sigmoid too.
_CROSS_ENCODER = {
    "problem_type": "multi_label_classification", "id2label": {"0": "similarity"},
    "label2id": {"similarity": 0}, "sentence_transformers": {"activation_fn": _SIGMOID},
    "sbert_ce_default_activation_function": _SIGMOID,
}  # fmt: skip


def evaluate(infer: Infer, data: Labelled, threshold: Optional[Any]) -> Dict[str, float]:
    """Return Spearman's correlation over all pairs, and the accuracy if labels are 0 and 1.

    ``infer`` outputs ``scores`` [B]. If ``threshold`` is None, 0.5 is used. If it is a variable,
    it is set to the value with the highest accuracy, which is also in the result.
    """
    from amp_xla.backend import K

    labels = data.labels.values(data.dev.labels)
    (scores,) = per_sample(infer, data.dev_batches, len(labels), ("scores",))
    result = {"spearman": spearman(labels, scores)}
    if not data.labels.binary:
        return result
    alike = labels > 0.5
    if threshold is None:
        return {**result, "accuracy": float(np.mean((scores >= 0.5) == alike))}
    best, accuracy = best_threshold(alike, scores)
    K.set_value(threshold, best)
    return {**result, "accuracy": accuracy, "threshold": best}


def predict(
    config: Any, checkpoint: Checkpoint, lines: Sequence[str], query: Optional[str] = None
) -> Answers:
    """Return the score of ``query`` and each line; without ``query``, of each line's two texts."""
    pairs = lines
    if query is not None:
        query, *others = map(readers.one_line, [query, *lines])
        pairs = [f"{query}\t{line}" for line in others]
    scores, similar = _scores(config, checkpoint, pairs)
    labels: List[Row] = [([], {}) for _ in lines]
    if similar is not None:
        labels = label_answers(lines, ("0", "1"), np.stack([1.0 - similar, similar], 1)).rows
    return Answers([
        ([*cells[:1], f"{score:.4f}", line], {**fields, "score": float(f"{score:.7g}")})
        for (cells, fields), score, line in zip(labels, scores, lines)
    ])  # fmt: skip


def _scores(
    config: Any, checkpoint: Checkpoint, lines: Sequence[str]
) -> Tuple[np.ndarray, Optional[np.ndarray]]:
    """Return the score of each pair, and the probability of the label 1 if labels are 0 and 1.

    A bi-encoder's score is the cosine c; its probability is sigmoid(20 (c - threshold)). A
    cross-encoder's probability is its output, from 0 to 1; its score is this output, scaled to the
    range of the labels.
    """
    from amp_xla.backend import K
    from amp_xla.tasks.similarity import model
    from amp_xla.training.step import restore_weights

    (texts, others), method = readers.split_pairs(lines), config.method
    scale = Scale.load(checkpoint.file("labels.json"))
    if not apart(method):
        values = of_lines(config, checkpoint, lines, 1, lambda x: model.scores(method, x))
        values = values.astype(np.float64)
        return scale.labels(values), values if scale.binary else None
    different = list(dict.fromkeys([*texts, *others]))
    embedded = of_lines(config, checkpoint, different, 0, model.unit)
    place = {text: i for i, text in enumerate(different)}
    first, second = (embedded[[place[text] for text in side]] for side in (texts, others))
    cosines = (first * second).sum(1, dtype=np.float64)
    threshold = model.threshold_of(method, scale)
    if threshold is None:
        return cosines, None
    restore_weights(checkpoint, [threshold])
    excess = model.SCALE * (cosines - float(K.get_value(threshold)))
    return cosines, 1.0 / (1.0 + np.exp(-excess))


def exportable(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the model to export: similarity of two texts, or the vector of a text."""
    from amp_xla.backend import keras, tf
    from amp_xla.export import graph, text_models
    from amp_xla.models import encoders
    from amp_xla.models.weights import google
    from amp_xla.tasks.similarity.model import threshold_of, unit

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

    def build(folder: Optional[str]) -> graph.Parts:
        encoder = text_models.encoder_of(config, checkpoint, folder)
        model = keras.models.Model(encoder.model.inputs, encoders.pooled(encoder))
        threshold = threshold_of(method, scale)
        numbers = {} if threshold is None else {"threshold": threshold}
        vectors = {"vectors": unit(model.output)}
        return graph.Parts(encoder, vectors, {}, [*model.weights, *numbers.values()], numbers)

    length = config.batches.max_length
    width = google.pretrained(str(checkpoint.path)).config["hidden_size"]
    return graph.exportable(
        checkpoint, build, length, formula=f"{MEAN}, divided by its length",
        task="sentence-similarity", files=_files(length, width),
        load=_LOAD.format("SentenceTransformer"),
    )  # fmt: skip


def _files(length: int, width: int) -> Dict[str, bytes]:
    """Return, by name, the files that make sentence-transformers compute vectors of length 1."""
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


@dataclasses.dataclass(frozen=True)
class BinaryPairScores(LabelScores):
    """Scores of predicted labels, 0 or 1, and of predicted similarities ``values``, float64 [N]."""

    values: np.ndarray

    def rows(self) -> np.ndarray:
        return np.concatenate([super().rows(), self.values[:, None]], 1)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return {**super().score(rows), **correlations(rows[:, 0], rows[:, 2])}


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Return a scorer of answers; for a run with labels 0 and 1, check the labels of samples."""
    binary = Scale.load(checkpoint.file("labels.json")).binary
    if binary:
        samples.check(samples.wanted, ("0", "1"))

    def score(answers: List[Dict[str, Any]]) -> SampleScores:
        values = np.array([answer["score"] for answer in answers], np.float64)
        if binary:
            return BinaryPairScores.of(samples, ("0", "1"), answers, values)
        return NumberScores(samples, values)

    return score
