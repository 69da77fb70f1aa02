"""Evaluation and predictions of the classifiers trained in TensorFlow."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from amp_xla.backend import tf
from amp_xla.data.labelled import Labelled
from amp_xla.models import dropout, losses
from amp_xla.tasks.classification.questions import Questions
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Evaluation, classification, several_labels
from amp_xla.training.step import Inference, restore_weights


def placeholders(model: Any, labels: Optional[int] = None) -> Dict[str, Any]:
    """Return the placeholders by name; ``labels``: their number if a text may have several."""
    texts = [None] * (model.output.shape.ndims - 1)
    classes = [] if labels is None else [labels]
    return {
        **dict(zip(("token_ids", "segment_ids", "position_ids", "slots"), model.inputs)),
        "labels": tf.placeholder(tf.int32, texts + classes, name="labels"),
        "weights": tf.placeholder(tf.float32, texts, name="weights"),
    }


def evaluation(model: Any, inputs: Dict[str, Any], data: Labelled) -> Evaluation:
    """Return the evaluation of a model on dev texts; ``inputs`` are its ``placeholders``."""
    logits = dropout.without(model)
    outputs = {"logits": logits, "loss": losses.cross_entropy(inputs["labels"], logits)}
    several = losses.several(inputs["labels"], logits)
    scores = several_labels if several else classification
    return scores(Inference(inputs, outputs), data.dev_batches, len(data.labels))


def predict(config: Any, checkpoint: Checkpoint, lines: List[str]) -> Answers:
    """Return the probability of each label for each line; precision is already set."""
    questions = Questions(config, checkpoint, lines)
    with dropout.inference():
        model = config.encoder.classifier(
            questions.tokenizer.vocab_size, len(questions.labels), config.batches.max_length,
            weights=False, pooling=config.pooling)  # fmt: skip
    restore_weights(checkpoint, model.weights)
    inputs = {"token_ids": model.inputs[0], "segment_ids": model.inputs[1]}
    probabilities = tf.nn.softmax if config.files.multilabel is None else tf.sigmoid
    infer = Inference(inputs, {"probabilities": probabilities(model.output)})
    return questions.answers(lambda batch: infer(batch)["probabilities"])
