"""Scores of taggers on texts with entities, for ``amp-xla evaluate RUN --file``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from amp_xla.data import spans
from amp_xla.data.text.entities import unpack
from amp_xla.errors import AmpXlaError
from amp_xla.report import scores

Found = Tuple[int, int, int]  # start, end, number of the label


class Tagged(NamedTuple):
    """A run's predictions.

    Attributes:
      names: labels of the run.
      gold, found: true and predicted entities of each text.
    """

    run: Path
    checkpoint: str
    texts: List[str]
    names: Tuple[str, ...]
    gold: List[List[Found]]
    found: List[List[Found]]

    @classmethod
    def of(
        cls, run: Path, checkpoint: str, texts: List[str], names: Tuple[str, ...],
        wanted: Sequence[str], answers: Sequence[Dict[str, Any]],
    ) -> Tagged:  # fmt: skip
        """Return the predictions for texts; ``wanted`` are the true entities, packed as JSON."""
        number = {name: i for i, name in enumerate(names)}
        gold = [[(e.start, e.end, number[e.label]) for e in unpack(label)] for label in wanted]
        found = [[(s, e, number[label]) for s, e, label in a["entities"]] for a in answers]
        return cls(run, checkpoint, texts, names, gold, found)

    @property
    def columns(self) -> Tuple[str, ...]:
        """Return the column names of ``errors.tsv``."""
        return ("sample", "label", "predicted", "text")

    def result(self, seed: int) -> Dict[str, Any]:
        """Return the scores for ``result.json``."""
        each = scores.per_entity(spans.counted(self.found, self.gold, len(self.names)))
        metrics = scores.entity_metrics(self._counts(), seed)
        return {
            "unit": "entities",
            "metrics": {name: value._asdict() for name, value in metrics.items()},
            "per_label": scores.rows(self.names, each),
            "confusion": [], "mistakes": [], "calibration": [],
        }  # fmt: skip

    def errors(self, most: int) -> List[Dict[str, Any]]:
        """Return entities that are wrong or missed, in the order of the texts."""
        errors: List[Dict[str, Any]] = []
        for i, text in enumerate(self.texts):
            sides = [set(side[i]) for side in (self.gold, self.found)]
            for entity in sorted(sides[0] ^ sides[1]):
                start, end, label = entity
                shown = f"{start}:{end} {self.names[label]} {text[start:end]}"
                missed = entity in sides[0]
                errors.append({
                    "sample": i + 1, "label": shown if missed else "",
                    "predicted": "" if missed else shown, "text": text,
                })  # fmt: skip
            if len(errors) >= most:
                break
        return errors[:most]

    def against(self, other: Tagged, seed: int) -> Dict[str, Any]:
        """Return the comparison with another run on the same texts."""
        if self.texts != other.texts or [len(g) for g in self.gold] != [len(g) for g in other.gold]:
            raise AmpXlaError(f"{self.run} and {other.run} read different entities from the file")
        difference = scores.compare_entities(self._counts(), other._counts(), seed)
        return {"run": str(other.run), "f1": difference._asdict()}

    def _counts(self) -> np.ndarray:
        """Count correct, predicted and true entities per text, int64 [texts, 3]."""
        return np.array([
            spans.counted([found], [gold], len(self.names)).sum(0)
            for found, gold in zip(self.found, self.gold)
        ])  # fmt: skip
