"""Configuration of the recipes that train on labelled texts."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Dict

from amp_xla.config import flat
from amp_xla.data import labelled
from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text.options import TextFiles, VocabularyOptions
from amp_xla.models import fine_tuning
from amp_xla.models.options import EncoderOptions
from amp_xla.process.progress import note
from amp_xla.training.options import (
    ClassifierOptions,
    Intervals,
    LoopOptions,
    RateOptions,
    RunOptions,
    Seed,
)
from amp_xla.training.run import resumed_settings


@dataclasses.dataclass(frozen=True)
class ClassifierConfig:
    """Train a text classifier."""

    recipe: ClassVar[str]
    """name of the recipe; its runs are in runs/<recipe>"""
    monitor: ClassVar[str] = "accuracy"
    """dev metric that decides which checkpoint is best"""

    seed: Seed = 1
    """seed of weights, order and dropout"""
    files: TextFiles = TextFiles()
    vocabulary: VocabularyOptions = VocabularyOptions()
    encoder: EncoderOptions = EncoderOptions()
    batches: BatchOptions = BatchOptions()
    training: ClassifierOptions = ClassifierOptions()
    update: RateOptions = RateOptions()
    intervals: Intervals = Intervals()
    run: RunOptions = RunOptions()

    def defaults(self) -> Dict[str, Any]:
        """Return the settings of a resumed run; for a new run the defaults of ``--bert``."""
        resumed = resumed_settings(self.recipe, self.run)
        texts = self.files.count() if self.encoder.bert and not resumed else 0
        bert = self.encoder.bert
        return resumed or {
            **fine_tuning.defaults(bert, texts), **self.vocabulary.defaults(bert)
        }  # fmt: skip

    @property
    def loop(self) -> LoopOptions:
        """The loop's options."""
        length = self.training
        return self.intervals.loop(
            monitor=self.monitor, epochs=length.epochs, patience=length.patience
        )

    def data(self, how: Preparation) -> Labelled:
        """Read the texts, and return them with their batches."""
        return labelled.read(self.files, how)

    def read(self, micro_batches: int = 1) -> Labelled:
        """Read the texts and print a description of them."""
        batch_size = self.batches.batch_size * micro_batches
        how = Preparation(
            self.vocabulary, dataclasses.replace(self.batches, batch_size=batch_size),
            self.encoder.bert, self.training.token_dropout, self.seed,
        )  # fmt: skip
        data = self.data(how)
        note(data.description)
        return data

    def steps(self, batches: Any) -> int:
        """Return the number of steps in the whole run; print the defaults that apply to it."""
        steps = self.training.epochs * int(batches.steps_per_epoch())
        note(fine_tuning.describe(flat(self), self.defaults(), steps))
        return steps
