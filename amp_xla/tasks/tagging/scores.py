"""Scores of entities. Imports no TensorFlow."""

from __future__ import annotations

from typing import Any

from amp_xla.data.text.entities import Entity, unpack
from amp_xla.data.text.labels import Labels
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.extraction import ExtractionScores
from amp_xla.training.sample_scores import Samples, Scorer


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Check the labels of samples; return the function that scores the answers to them."""
    names = Labels.load(checkpoint.file("labels.json")).names
    gold = [unpack(label) for label in samples.wanted]
    samples.check({entity.label for text in gold for entity in text}, names)

    def scores(answers: Any) -> ExtractionScores:
        found = [[Entity(*entity) for entity in answer["entities"]] for answer in answers]
        return ExtractionScores(samples, names, gold, found, "entities")

    return scores
