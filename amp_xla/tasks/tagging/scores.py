"""Scores of entities. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Sequence

import numpy as np

from amp_xla.data.text.entities import Entity, unpack
from amp_xla.data.text.labels import Labels
from amp_xla.report import scores
from amp_xla.tasks.tagging import spans
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.sample_scores import Samples, SampleScores, Scorer


@dataclasses.dataclass(frozen=True)
class EntityScores(SampleScores):
    """Scores of entities; errors are wrong and missed ones, in the order of the texts.

    Attributes:
      names: labels of the run.
      gold, found: true and predicted entities of each text.
    """

    names: Sequence[str]
    gold: List[List[Entity]]
    found: List[List[Entity]]
    columns = ("sample", "label", "predicted", "text")
    metric = "f1"

    def rows(self) -> np.ndarray:
        """Count correct, predicted and true entities per text, int64 [texts, 3]."""
        return np.array([
            spans.counted([found], [gold], self.names).sum(0)
            for found, gold in zip(self.found, self.gold)
        ])  # fmt: skip

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return spans.f1(rows)

    def details(self) -> Dict[str, Any]:
        each = scores.of_counts(spans.counted(self.found, self.gold, self.names))
        return {"unit": "entities", "per_label": scores.rows(self.names, each)}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        errors: List[Dict[str, Any]] = []
        for i, text in enumerate(self.samples.texts):
            gold, found = set(self.gold[i]), set(self.found[i])
            for entity in sorted(gold ^ found):
                shown = entity.shown(text)
                sides = (shown, "") if entity in gold else ("", shown)
                errors.append(dict(zip(self.columns, (i + 1, *sides, text))))
            if len(errors) >= most:
                break
        return errors[:most]


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Check the labels of samples; return the function that scores the answers to them."""
    names = Labels.load(checkpoint.file("labels.json")).names
    gold = [unpack(label) for label in samples.wanted]
    samples.check({entity.label for text in gold for entity in text}, names)
    return lambda answers: EntityScores(
        samples, names, gold, [[Entity(*entity) for entity in a["entities"]] for a in answers]
    )
