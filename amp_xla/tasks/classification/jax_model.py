"""The classifier in JAX: precision, architecture, weights and predictions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

import jax
import numpy as np

from amp_xla.errors import SettingsError
from amp_xla.jax import bert, processes, step
from amp_xla.jax.engine import restored
from amp_xla.jax.weights import load, pretrained
from amp_xla.precision.policy import get_policy
from amp_xla.settings import Settings, default_loss_scale
from amp_xla.tasks.classification.questions import Questions
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint


def precision(config: Any) -> Tuple[Any, Any]:
    """Return the policy and the loss scale."""
    here = {"gpu": "p=f32,c=f16,o=f32", "tpu": "p=f32,c=bf16,o=f32"}
    try:
        policy = get_policy(config.policy or here.get(jax.default_backend(), "float32"))
    except ValueError as error:
        raise SettingsError(f"--policy {config.policy}: {error}") from error
    scale = Settings(loss_scale=config.loss_scale).loss_scale
    return policy, scale or default_loss_scale(policy.names[1])


def architecture(config: Any, vocab_size: int) -> Dict[str, Any]:
    """Return the content of ``bert_config.json``, from ``--bert`` or from the options."""
    folder, length = config.encoder.bert, config.batches.max_length
    if folder is None:
        shape: Dict[str, Any] = config.encoder.config(vocab_size, length)
        return shape
    stored = pretrained(folder)
    stored.check_sizes(vocab_size, length)
    return stored.config


def new_model(config: Any, shape: Dict[str, Any], classes: int, weights: bool) -> Any:
    """Return the classifier, with the weights of ``--bert`` if ``weights`` is true."""
    model = bert.new_classifier(bert.Shape.of(shape), classes, config.seed)
    if weights and config.encoder.bert is not None:
        model = dataclasses.replace(model, bert=load(model.bert, config.encoder.bert))
    return model


def predict(config: Any, checkpoint: Checkpoint, lines: List[str]) -> Answers:
    """Return the probability of each label for each line."""
    questions = Questions(config, checkpoint, lines)
    shape = bert.Shape.of(json.loads(Path(checkpoint.file("bert_config.json")).read_text()))
    policy, _ = precision(config)
    like = bert.new_classifier(shape, len(questions.labels), config.seed)
    model = restored(checkpoint, policy.cast_to_param(like), ".model")
    infer = step.inference(policy)

    def probabilities(batch: Any) -> Any:
        texts = processes.share({name: batch[name] for name in ("token_ids", "segment_ids")})
        return np.asarray(jax.nn.softmax(infer(model, texts)))

    devices = jax.device_count()
    return questions.answers(probabilities, -(-config.batches.batch_size // devices) * devices)
