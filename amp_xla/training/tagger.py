"""Configuration, data and predictions of taggers, which find entities in texts."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, ClassVar, Dict, List

import numpy as np
from typing_extensions import Literal

from amp_xla.data import spans, tagged
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled
from amp_xla.data.text.entities import Entity
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.options import TaggedFiles
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import SettingsError
from amp_xla.process.progress import note
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.classifier import ClassifierConfig
from amp_xla.training.evaluation import in_order
from amp_xla.training.options import ClassifierOptions

TaggerHead = Literal["softmax", "crf", "global_pointer", "efficient_global_pointer"]


@dataclasses.dataclass(frozen=True)
class TaggerConfig(ClassifierConfig):
    """Train a tagger."""

    monitor: ClassVar[str] = "f1"

    files: TaggedFiles = TaggedFiles()  # type: ignore[assignment]
    training: ClassifierOptions = ClassifierOptions(label_smoothing=0.0, epochs=5)
    head: TaggerHead = "crf"
    """softmax and crf predict BIO tags; the global pointers predict spans, which may be nested"""

    def __post_init__(self) -> None:
        smoothing = self.training.label_smoothing
        if smoothing and self.head != "softmax":
            raise SettingsError(
                f"--label-smoothing {smoothing:g}, --head {self.head}: allowed with softmax only"
            )

    @property
    def reader(self) -> Callable[..., Labelled]:
        """The function that reads the texts."""
        return functools.partial(tagged.read, head=self.head)

    def tagger(self, vocab_size: int, labels: int, weights: bool = True) -> Any:
        """Build the ``Tagger``; ``weights=False`` reads only the configuration of ``--bert``."""
        from amp_xla.models import tagging

        encoder = self.encoder.transformer(vocab_size, self.batches.max_length, weights).model
        rate = self.update.learning_rate
        return tagging.tagger(encoder, self.head, labels, self.encoder.dropout, rate)


class TaggingQuestions:
    """Texts to tag with the vocabulary and labels of a checkpoint."""

    def __init__(self, config: TaggerConfig, checkpoint: Checkpoint, texts: List[str]) -> None:
        self.tokenizer = Tokenizer.from_assets(checkpoint.file)
        self.labels = Labels.load(checkpoint.file("labels.json"))
        self._config, length = config, config.batches.max_length
        self._placed = tagged.Placed.of(texts, self.tokenizer, length)
        cut = sum(len(starts) > length - 2 for starts in self._placed.starts)
        if cut:
            note(
                f"warning: {cut:,} of {len(texts):,} texts have more than --max-length {length} "
                "tokens; entities after them are not found"
            )

    def answers(self, infer: Callable[[Batch], Dict[str, np.ndarray]]) -> List[List[Entity]]:
        """Return the entities of each text, in order; ``infer`` is a forward pass."""
        options, placed, names = self._config.batches, self._placed, self.labels.names
        rows = in_order(
            placed.encoded, options.max_length, options.batch_size,
            lambda batch: spans.decode(self._config.head, infer(batch), batch["token_ids"]),
        )  # fmt: skip
        return [
            sorted(Entity(*placed.characters(text, span), names[span.label]) for span in row)
            for text, row in enumerate(rows)
        ]
