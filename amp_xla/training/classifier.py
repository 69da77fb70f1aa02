"""Configuration, data and predictions of the text classifiers in TensorFlow, Keras and JAX."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, ClassVar, Dict, List, Optional

import numpy as np

from amp_xla.config import flat
from amp_xla.data import labelled
from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.options import TextFiles, VocabularyOptions
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.models import fine_tuning
from amp_xla.models.options import EncoderOptions
from amp_xla.process.progress import note
from amp_xla.training.answers import LabelAnswers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import in_order
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


class Questions:
    """Texts to classify with a checkpoint's vocabulary and labels; a tab separates pairs."""

    def __init__(self, config: ClassifierConfig, checkpoint: Checkpoint, lines: List[str]) -> None:
        self.tokenizer = Tokenizer.of_folder(str(checkpoint.path))
        self.labels = Labels.load(checkpoint.file("labels.json"))
        self._batch_size, self._length = config.batches.batch_size, config.batches.max_length
        self._separator: Optional[str] = config.files.separator
        warning = labelled.warning(lines, self.labels)
        if warning:
            note(warning)
        self._encoded = labelled.questions(lines, self.tokenizer, self._length)

    def answers(
        self, chances: Callable[[Batch], np.ndarray], batch_size: Optional[int] = None
    ) -> LabelAnswers:
        """Return the probability of each label for each line.

        Args:
          chances: batch -> probability of each label, float [B, labels].
          batch_size: texts per batch; None = ``--batch-size`` of the run.
        """
        rows = in_order(self._encoded, self._length, batch_size or self._batch_size, chances)
        return LabelAnswers(self.labels.names, np.stack(rows), self._separator)
