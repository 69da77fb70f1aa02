"""What recipes say to models, and models to commands, before TensorFlow is there."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Dict, NamedTuple, Optional

from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, within
from amp_xla.errors import SettingsError

HEAD = 64  # the size of an attention head, in units of the hidden size


class Filling(NamedTuple):
    """An answer of a masked language model: ``token`` for a text's ``mask``-th [MASK], from 0."""

    mask: int
    token: str
    probability: float


@dataclasses.dataclass(frozen=True)
class EncoderOptions:
    """The encoder."""

    # Its weights are part of every checkpoint: where they came from does not matter to a resume.
    bert: Annotated[Optional[str], MAY_CHANGE] = None
    """folder with bert_config.json, vocab.txt and a checkpoint in Google's format"""
    layers: Annotated[int, within(at_least=1)] = 3
    """transformer layers, without --bert"""
    hidden: Annotated[int, within(at_least=8)] = 192
    """hidden size, without --bert; a multiple of 8 for tensor cores, and of 64 (a head's size)"""
    dropout: Annotated[float, within(at_least=0, below=1)] = 0.1
    """share of activations and attention weights dropped in training"""

    def __post_init__(self) -> None:
        if self.hidden > HEAD and self.hidden % self.heads:
            lower = self.hidden // HEAD * HEAD
            raise SettingsError(
                f"--hidden {self.hidden}: cannot be shared by {self.heads} attention heads; "
                f"allowed is a multiple of {HEAD}, such as {lower} or {lower + HEAD}"
            )

    @property
    def heads(self) -> int:
        """Attention heads, without ``bert``."""
        return max(1, self.hidden // HEAD)

    def classifier(
        self,
        vocab_size: int,
        classes: int,
        max_length: int,
        slots: int = 1,
        weights: bool = True,
    ) -> Any:
        """Token ids and segment ids, int [B, L] -> logits, float32 [B, classes].

        Args:
          vocab_size: tokens.
          classes: number of labels.
          max_length: most tokens of a sample.
          slots: most texts of a row; with more than one, packed rows, the model has two inputs more
            and logits are [B, slots, classes].
          weights: False where they come later, from a run's checkpoint: ``bert`` then needs none.

        Raises:
          AmpXlaError: the folder ``bert`` lacks a file.
        """
        from amp_xla.models import encoders, packed

        shape = dict(length=max_length, weights=weights, **self._shape(vocab_size, max_length))
        if slots > 1:
            encoder = packed.encoder(self.bert, **shape)
            return packed.classifier(encoder, classes, self.dropout, slots)
        encoder = encoders.encoder(self.bert, **shape)
        return encoders.classifier(encoder, classes, self.dropout)

    def architecture(self, vocab_size: int, max_length: int) -> Callable[[str], None]:
        """What writes the ``bert_config.json`` of the encoder in ``classifier``, given a path."""
        from amp_xla.models import encoders

        shape = self._shape(vocab_size, max_length)
        return functools.partial(encoders.write_config, self.bert, **shape)

    def _shape(self, vocab_size: int, max_length: int) -> Dict[str, Any]:
        return dict(
            vocab_size=vocab_size, hidden_size=self.hidden, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, intermediate_size=4 * self.hidden,
            max_position=max(512, max_length), dropout_rate=self.dropout,
            attention_dropout_rate=self.dropout,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LanguageModelOptions:
    """The encoder."""

    model: Literal["tiny", "small", "base", "large"] = "tiny"
    """layers x hidden size: 3x192, 4x512, 12x768, 24x1024; heads of 64, in tiny of 32"""
    bert: Annotated[Optional[str], MAY_CHANGE] = None
    """folder with bert_config.json and a checkpoint in Google's format to go on from"""
    embeddings: Literal["counts", "random"] = "counts"
    """where a new model's tokens start: from counts of their neighbours in the text, or anywhere"""
    positions: Literal["sinusoids", "random"] = "sinusoids"
    """where a new model's position embeddings start; they are learned on from there"""
    attention: Literal["neighbours", "random"] = "neighbours"
    """where the heads of a new model's first two layers start: each on a neighbour, or anywhere"""
    init_range: Annotated[Optional[float], within(above=0)] = None
    """spread of a new model's weights; none = 0.02 for 768 wide, more for narrower models"""
    dropout: Annotated[float, within(at_least=0, below=1)] = 0.0
    """share of activations and attention weights dropped; 0.1 for many passes over little text"""

    @property
    def from_counts(self) -> bool:
        """Whether its token embeddings are to start from counts: a new model's alone can."""
        return self.embeddings == "counts" and self.bert is None

    def language_model(
        self,
        vocab_size: int,
        length: int,
        objective: str = "mlm",
        weights: bool = True,
        several: bool = False,
    ) -> Any:
        """A ``LanguageModel``, whose class says what the arguments are and what is raised."""
        from amp_xla.models.language_model import SIZES, LanguageModel

        return LanguageModel(
            vocab_size, length, *SIZES[self.model], objective=objective, bert=self.bert,
            dropout_rate=self.dropout, weights=weights, positions=self.positions,
            attention=self.attention, init_range=self.init_range, several=several,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TowerOptions:
    """The table, and what is above it."""

    tower: Literal["dlrm", "deepfm"] = "dlrm"
    """what is above the table: pairs of vectors in dot products, or a factorization machine"""
    rows: Annotated[int, within(1, 2**40)] = 100_000
    """rows of the table, over all ranks; values of slots are hashed into them"""
    width: Annotated[int, within(at_least=1)] = 16
    """numbers of a row"""
    hidden: Annotated[int, within(at_least=1)] = 128
    """width of a tower's first layer; each further one is half as wide"""
    layers: Annotated[int, within(1, 32)] = 2
    """layers of a tower"""
    combiner: Literal["mean", "sum"] = "mean"
    """what becomes of a slot's vectors where it has several values"""

    @property
    def table_width(self) -> int:
        """Numbers of a row in the table; DeepFM's first order is one more."""
        return self.width + (self.tower == "deepfm")
