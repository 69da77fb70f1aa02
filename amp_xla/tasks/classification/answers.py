"""Evaluation and predictions of the classifiers trained in TensorFlow."""

from __future__ import annotations

from typing import Any, Dict, List

from amp_xla.backend import tf
from amp_xla.data.labelled import Labelled
from amp_xla.models import dropout, losses
from amp_xla.tasks.classification.lines import LinesToClassify
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Evaluation, classification, several_labels
from amp_xla.training.step import Inference, restore_weights


def evaluation(model: Any, inputs: Dict[str, Any], data: Labelled) -> Evaluation:
    """Return the evaluation of a model on dev texts; ``inputs``: see ``inputs_of``."""
    logits = dropout.without(model)
    outputs = {"logits": logits, "loss": losses.cross_entropy(inputs["labels"], logits)}
    several = losses.several(inputs["labels"], logits)
    scores = several_labels if several else classification
    return scores(Inference(inputs, outputs), data.dev_batches, len(data.labels))


def predict(config: Any, checkpoint: Checkpoint, lines: List[str]) -> Answers:
    """Return the probability of each label for each line; precision is already set."""
    to_classify = LinesToClassify(config, checkpoint, lines)
    with dropout.inference():
        model = config.encoder.classifier(
            to_classify.tokenizer.vocab_size, len(to_classify.labels), config.batches.max_length,
            weights=False, pooling=config.pooling)  # fmt: skip
    restore_weights(checkpoint, model.weights)
    inputs = {"token_ids": model.inputs[0], "segment_ids": model.inputs[1]}
    probabilities = tf.nn.softmax if config.files.multilabel is None else tf.sigmoid
    infer = Inference(inputs, {"probabilities": probabilities(model.output)})
    return to_classify.answers(lambda batch: infer(batch)["probabilities"])
