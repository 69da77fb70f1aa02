"""Labelled texts and their batches; the settings that turn texts into batches."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, within
from amp_xla.data.batches.buckets import Batches, PackedBatches, choose_lengths
from amp_xla.data.batches.order import generator
from amp_xla.data.batches.protocol import Batch, MappedBatches
from amp_xla.data.batches.windows import WindowBatches
from amp_xla.data.text.layout import LAYOUT, sample
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.data.text.readers import Dataset
from amp_xla.data.text.tokenizer import Encoded, Tokenizer
from amp_xla.errors import DataError, SettingsError
from amp_xla.settings import auto

_STREAM = 1  # last part of the random seed, so that order and dropout draw different numbers


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    """Rows and tokens of a batch."""

    batch_size: Annotated[int, within(1, 2**16), MAY_CHANGE] = 16
    """samples per micro-batch (with --bert: 32, or 16 for few texts); on a GPU use 32 to 256"""
    max_length: Annotated[int, within(3, 2**16)] = 96
    """maximum tokens per sample; longer ones are cut; activation memory grows with its square"""
    shapes: Annotated[int, within(1, 2**10)] = 4
    """maximum number of batch lengths; each is one XLA compilation; 1 = fixed length"""

    stride = 0  # a field of ``WindowOptions``


@dataclasses.dataclass(frozen=True)
class WindowOptions(BatchOptions):
    """Rows and tokens of a batch, and windows over long texts."""

    stride: Annotated[int, within(0, 2**16)] = 0
    """sliding windows over texts of more than max_length tokens: tokens from the beginning of a
    window to that of the next; 0 = such texts are cut"""

    def __post_init__(self) -> None:
        most = self.max_length - 2
        if self.stride and (self.stride > most or self.max_length < 8):
            raise SettingsError(
                f"--stride {self.stride}: allowed is 0 (no windows), or 1 to {most} "
                f"(--max-length minus 2); with windows, --max-length must be at least 8"
            )


class Labelled(NamedTuple):
    """Training and dev texts, and their batches.

    Attributes:
      labels: ``Labels``, or a ``Scale`` if labels are numbers to predict; None without labels.
      batches, dev_batches: both in the same shapes; only ``batches`` have token dropout.
      description: text to print when a run starts, with warnings.
      ids: ``label_ids`` of the training texts, see ``Batches``; None if the task needs none.
      aligned: the dev texts as ``AlignedTexts``; None if the task needs no positions.
    """

    train: Dataset
    dev: Dataset
    labels: Any
    tokenizer: Tokenizer
    batches: Any
    dev_batches: Any
    description: str
    ids: Any = None
    aligned: Any = None

    @property
    def assets(self) -> Dict[str, bytes]:
        """File name -> content of the files needed for prediction."""
        files = {} if self.labels is None else {"labels.json": self.labels.encoded()}
        # Training of unsupervised SimCSE reads single texts, but its dev file has pairs.
        layout = max((self.train.columns, self.dev.columns), key=lambda each: len(each.places))
        return {**self.tokenizer.assets, **files, LAYOUT: layout.encoded()}

    @property
    def fingerprints(self) -> Dict[str, str]:
        """Hashes of the data, which must be the same when a run is resumed."""
        return {"train": self.train.fingerprint(), "dev": self.dev.fingerprint()}


class Preparation(NamedTuple):
    """The settings that turn texts into batches.

    Attributes:
      bert: folder whose vocabulary is used; None = use ``vocabulary``.
      token_dropout: share of the tokens hidden in training.
      seed: decides the order, the hidden tokens, and which texts ``train_fraction`` takes.
      micro_batch: rows of a micro-batch, and so the maximum number of windows of a text.
      windows: (rows of a batch, rows of a group of windows), the sizes with which a resumed run
        began; None = a new run.
      few_lengths: function that gets batches of at most ``auto.LENGTHS`` lengths, and returns True
        to use them (auto chose XLA). False or None = use up to ``options.shapes`` lengths.
    """

    vocabulary: VocabularyOptions
    options: BatchOptions
    bert: Optional[str]
    token_dropout: float
    seed: int
    packed: bool = False
    micro_batch: int = 2**16
    windows: Optional[Tuple[int, int]] = None
    few_lengths: Optional[Callable[[Any], bool]] = None

    def labelled(
        self,
        parts: Tuple[Dataset, Dataset],
        labels: Any,
        tokenizer: Tokenizer,
        encoded: Sequence[Encoded],
        answers: Sequence[Any] = (None, None),
        changes: Sequence[Callable[..., Batch]] = (),
        shown: Optional[str] = None,
        counts: str = "",
        warnings: str = "",
        **others: Any,
    ) -> Labelled:
        """Return texts with their batches.

        ``parts``, ``encoded``, ``answers`` and ``changes`` each have two elements: for the training
        texts and for the dev texts. Each of ``answers`` is the ``label_ids`` of ``Batches``.
        ``changes`` are functions (batch, epoch, step) -> batch, applied to every batch. The text
        ``Labelled.description`` has ``shown`` (about the first training sample; None = its text,
        second text and label), ``counts``, ``warnings``. ``others``: attributes of ``Labelled``.
        """
        train, dev = parts
        most = self._most_windows(encoded, parts)
        batches, dev_batches = self._batches(encoded, answers, most)
        if changes:
            batches, dev_batches = map(MappedBatches, (batches, dev_batches), changes)
        batches = token_dropout(batches, self.token_dropout, tokenizer, self.seed)
        shown = shown or sample(**{name: values[0] for name, values in train.fields.items()})
        description = (
            f"{_columns(train, dev)}{shown}\n{counts}; vocabulary of {tokenizer.vocab_size:,} "
            f"tokens; {batches.describe()}{f' (allowed: {self.micro_batch})' * bool(most)}"
            f"{train.warnings()}{dev.warnings()}"
            f"{self._lost(encoded[0])}{tokenizer.warnings(encoded[0])}{warnings}"
            f"{_repeated(train, dev)}"
        )
        return Labelled(*parts, labels, tokenizer, batches, dev_batches, description, **others)

    def _most_windows(self, encoded: Sequence[Encoded], parts: Sequence[Dataset]) -> int:
        """Return the largest number of windows of a text; raise if a micro-batch is too small."""
        most, limit = 0, self.micro_batch
        group = self.windows[1] if self.windows else 0
        if group > limit:
            raise SettingsError(
                f"--batch-size {limit}: since its start this run puts texts with all their windows "
                f"in groups of {group} rows; allowed: {group} or more"
            )
        for part, data in zip(encoded, parts):
            counts = np.zeros(1, np.int64) if part.windows is None else part.windows.counts
            most, longest = max(most, int(counts.max())), data.texts[int(counts.argmax())]
            if most > limit:
                raise DataError(
                    f"{(counts > limit).sum():,} of {len(data):,} texts have more windows than "
                    f"--batch-size {limit}, such as {longest[:40]!r} with {most:,}; allowed: a "
                    "higher --batch-size, --stride or --max-length, or shorter texts"
                )
        return most

    def _batches(
        self, encoded: Sequence[Encoded], answers: Sequence[Any], most: int
    ) -> Tuple[Any, Any]:
        length, size = self.options.max_length, self.options.batch_size

        def grouped(rows: Batches) -> Batches:
            parts = -(-size // self.micro_batch)
            how: Any = {"most": most, "parts": parts, "shape": self.windows}
            return WindowBatches(rows, answers[0], self.seed, **how) if most else rows

        of_rows = None if most else answers[0]
        if self.packed:
            batches = grouped(PackedBatches(encoded[0], of_rows, [length], size, self.seed))
        else:
            # A dev text may be longer than every training text.
            sizes = np.concatenate([part.lengths for part in encoded])

            def of(shapes: int) -> Batches:
                lengths = choose_lengths(sizes, shapes, length) if shapes else [length]
                return grouped(Batches(encoded[0], of_rows, lengths, size, self.seed))

            shapes = self.options.shapes
            batches = of(min(shapes, auto.LENGTHS) if self.few_lengths else shapes)
            if self.few_lengths is not None and not self.few_lengths(batches):
                batches = of(shapes)
        return batches, batches.like(encoded[1], answers[1])

    def _lost(self, encoded: Encoded) -> str:
        """Return a line about training texts that are cut; empty if none is."""
        lost = np.zeros(1, np.int64) if encoded.lost is None else encoded.lost
        cut, length = np.count_nonzero(lost), self.options.max_length
        if not cut:
            return ""
        if self.options.stride:
            return f"\n{cut:,} of {len(lost):,} training pairs: shorter texts are cut to half a row"
        way = ""
        if isinstance(self.options, WindowOptions):
            way = f"; --stride {max(1, length // 2)} reads all of them, in windows"
        share = lost.sum() / (lost.sum() + len(encoded.token_ids))
        return (
            f"\n{cut:,} of {len(lost):,} training texts are cut to --max-length {length}, which "
            f"loses {share:.0%} of all tokens{way}"
        )


def _columns(train: Dataset, dev: Dataset) -> str:
    """Return lines about the columns of the training file, and of the dev file if they differ."""
    lines = dict.fromkeys(str(part.layout) for part in (train, dev) if part.layout is not None)
    return "".join(f"{name}{line}\n" for name, line in zip(("", "dev "), lines))


def _repeated(train: Dataset, dev: Dataset) -> str:
    """Return a warning if some dev texts are also training texts; empty if none is."""

    def samples(data: Dataset) -> Iterator[Tuple[Any, str]]:
        *texts, answers = data.fields.values()  # without labels, the second texts are targets
        return zip(zip(*texts), answers)

    if (train.labels is None) != (dev.labels is None):
        return ""
    known: Dict[Any, Set[str]] = {}
    for text, answer in samples(train):
        known.setdefault(text, set()).add(answer)
    repeated = [answer not in known[text] for text, answer in samples(dev) if text in known]
    if not repeated:
        return ""
    kind = "target" if train.labels is None else "label"
    answer = f", {sum(repeated):,} of them with another {kind}" if any(repeated) else ""
    return f"\nwarning: {len(repeated):,} of {len(dev):,} dev texts are training texts{answer}"


def token_dropout(batches: Any, rate: float, tokenizer: Tokenizer, seed: int = 0) -> Any:
    """Replace a share of the ordinary tokens by [MASK], or [UNK] if there is no [MASK].

    A classifier trained on few texts relies on single words, unless some are hidden (word
    dropout: Iyyer et al., "Deep Unordered Composition Rivals Syntactic Methods", ACL 2015). The
    choice of tokens depends on (seed, epoch, step).

    Args:
      rate: share of the tokens, 0 <= rate < 1.
      tokenizer: the tokenizer of ``batches``; its [PAD], [CLS] and [SEP] are never hidden.
    """
    special = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id]

    def hide(batch: Batch, epoch: int, step: int) -> Batch:
        token_ids = batch["token_ids"]
        source = generator(seed, epoch, step, _STREAM)
        hidden = source.random_sample(token_ids.shape) < rate
        hidden &= ~np.isin(token_ids, special)
        masked = np.where(hidden, tokenizer.hidden_id, token_ids).astype(np.int32)
        return {**batch, "token_ids": masked}

    return MappedBatches(batches, hide) if rate else batches
