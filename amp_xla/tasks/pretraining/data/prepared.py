"""Prepared folders: streams of tokens in memory-mapped ``.npy`` files with a JSON index.

A file has the documents of one unit of the corpus, with a [SEP] between two documents. A sequence
of L tokens is ``[CLS]``, the next L - 2 tokens of the stream and ``[SEP]``, as in
RoBERTa's FULL-SENTENCES (arXiv 1907.11692, section 4.2); the last one of a file is padded.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import zlib
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import numpy as np

from amp_xla.data.text import vocabulary
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import json_file
from amp_xla.errors import DataError
from amp_xla.process import durable, json_files, regular

FORMAT = 3
SETTINGS, MANIFEST, VOCAB, UNITS = "settings.json", "manifest.json", "vocab.txt", "units"
SPLITS = ("train", "heldout")
# Each memory-mapped file is an open file, and many systems allow 1,024 per process. The sequences
# that are shuffled together (``stream.GROUP``) are 256 blocks, most of which are in one file each.
OPEN_FILES = 256
LEFT_OUT = {
    "bad_lines": "bad lines",
    "other_lengths": "documents of other lengths",
}
_COUNT, _ID = json_files.Whole(0, 2**40), json_files.Whole(0, 2**22)
_UNIT = {**dict.fromkeys(LEFT_OUT, _COUNT), **dict.fromkeys(SPLITS, dict)}
_SHARD = {
    **dict.fromkeys(("documents", "tokens", "unknown"), _COUNT),
    "file": str, "crc32": json_files.Whole(0, 2**32 - 1),
}  # fmt: skip
_SETTINGS = {
    **dict.fromkeys(("cls_id", "sep_id", "vocab_size"), _ID),
    **dict.fromkeys(("corpus", "corpus_sha256", "vocab_sha256"), str),
    "length": json_files.Whole(16, 2**20), "lowercase": bool,
}  # fmt: skip
_LARGEST_HEADER = 1 << 16


def write(path: str, data: bytes) -> None:
    """Write a file atomically; several machines may write the same file at the same time."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    durable.replace(target, data, f"-{os.uname().nodename}-{os.getpid()}")


def write_stream(
    path: str, documents: Sequence[np.ndarray], tokenizer: Tokenizer
) -> Dict[str, Any]:
    """Write the tokens of documents as one file, int16 or int32 [tokens]; return its index entry.

    ``documents`` are int32 [tokens] each; a negative id continues the word before it.
    """
    parts = [part for tokens in documents if len(tokens) for part in ([tokenizer.sep_id], tokens)]
    stream = np.concatenate(parts[1:] or [np.zeros(0)]).astype(_dtype(tokenizer.vocab_size))
    file = io.BytesIO()
    np.save(file, stream)
    write(path, file.getvalue())
    return {
        "file": os.path.basename(path),
        "documents": len(documents),
        "tokens": len(stream),
        "unknown": int((np.abs(stream) == tokenizer.unk_id).sum()),
        "crc32": zlib.crc32(stream.data),
    }


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The index of a prepared folder: the settings that decide the content, and its units.

    Units are in the order of the corpus; each has its files, and counts of what was left out.
    """

    folder: str
    settings: Dict[str, Any]
    units: List[Dict[str, Any]]

    @classmethod
    def load(cls, folder: str) -> Manifest:
        """Return the manifest of a prepared folder."""
        path = Path(folder, MANIFEST)
        if not path.exists():
            raise DataError(f"{folder} is not prepared; run: amp-xla prepare CORPUS {folder}")
        units = json_files.read(path, {"units": [dict]}, links=True)["units"]
        for unit in units:
            _check(unit, path)
        return cls(folder, _settings(folder), units)

    @classmethod
    def collect(cls, folder: str, names: List[str]) -> Optional[Manifest]:
        """Write and return the manifest; return None if a unit of ``names`` is not finished."""
        units = [unit for unit in (finished(folder, name) for name in names) if unit]
        if len(units) < len(names):
            return None
        manifest = cls(folder, _settings(folder), units)
        if not manifest.total("tokens", "train"):
            listed = ", ".join(f"{manifest.total(name)} {what}" for name, what in LEFT_OUT.items())
            raise DataError(
                f"corpus {manifest.settings['corpus']}: no document to train on "
                f"({manifest.total('documents', 'heldout')} held out; skipped: {listed})"
            )
        write(os.path.join(folder, MANIFEST), json_files.encode({"units": units}))
        return manifest

    def total(self, name: str, split: Optional[str] = None) -> int:
        """Return the sum over all units of the count ``name``, e.g. ``tokens`` of a split."""
        return sum((unit[split] if split else unit)[name] for unit in self.units)

    def complete(self) -> bool:
        """Return whether the files of all units exist."""
        return all(_has_files(self.folder, unit) for unit in self.units)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the folder's vocabulary.

        Raises:
          DataError: the text was tokenized with another vocabulary.
        """
        path = os.path.join(self.folder, VOCAB)
        tokenizer = Tokenizer.load(path, self.settings["lowercase"])
        known = vocabulary.fingerprint(tokenizer.tokens), tokenizer.vocab_size
        if known != (self.settings["vocab_sha256"], self.settings["vocab_size"]):
            raise DataError(
                f"{path} is not the vocabulary that the text in this folder was tokenized with: "
                f"vocab_sha256 or vocab_size in {SETTINGS} differs; restore that vocabulary, or "
                "delete the folder and prepare again"
            )
        return tokenizer

    def warnings(self, tokenizer: Tokenizer) -> str:
        """Return warnings: duplicate tokens in the vocabulary, or too many [UNK] in the text."""
        unknown, tokens = (self.total(name, "train") for name in ("unknown", "tokens"))
        return vocabulary.warnings(tokenizer.tokens, unknown, tokens)

    def describe(self) -> str:
        """Describe in one line how much text there is and what was left out."""
        tokens, unknown = (self.total(name, "train") for name in ("tokens", "unknown"))
        train, held = (len(Sequences(self, split)) for split in SPLITS)
        line = (
            f"{train:,} sequences of {self.settings['length']} tokens "
            f"({self.total('documents', 'train'):,} documents, {tokens:,} tokens, "
            f"{unknown / max(tokens, 1):.2%} unknown), {held:,} held out"
        )
        counts = {what: self.total(name) for name, what in LEFT_OUT.items()}
        return line + "".join(f"; {n:,} {what} left out" for what, n in counts.items() if n)


class Sequences:
    """The sequences of a ``split``, train or heldout; ``read`` returns those with given numbers.

    ``length`` is L, the number of tokens of a sequence; None = the length in the folder's settings.
    """

    def __init__(
        self, manifest: Manifest, split: str = "train", length: Optional[int] = None
    ) -> None:
        self.length: int = length or manifest.settings["length"]
        self._folder, self._settings = manifest.folder, manifest.settings
        self._files = [unit[split] for unit in manifest.units]
        for file in self._files:  # before arrays of these sizes are made
            self._begin(file)
        counts = [-(-file["tokens"] // (self.length - 2)) for file in self._files]
        self._ends = np.cumsum([0, *counts])
        self._verified: Set[int] = set()
        self._stream = functools.lru_cache(maxsize=OPEN_FILES)(self._open)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, numbers: Iterable[int]) -> Tuple[np.ndarray, np.ndarray]:
        """Return token ids, int32 [count, L], and bool [count, L], True where a word starts.

        Special tokens and padding count as word starts, and so does the token after [CLS].
        """
        numbers = np.asarray(numbers, np.int64)
        files = np.searchsorted(self._ends, numbers, side="right") - 1
        begins = (numbers - self._ends[files]) * (self.length - 2)
        ids = np.zeros((len(numbers), self.length), np.int32)
        for row, file, begin in zip(ids, files.tolist(), begins.tolist()):
            tokens = self._stream(file)[begin : begin + self.length - 2]
            row[0], row[len(tokens) + 1] = self._settings["cls_id"], self._settings["sep_id"]
            row[1 : len(tokens) + 1] = tokens
        starts = ids >= 0
        starts[:, 1] = True
        return np.abs(ids), starts

    def _begin(self, file: Dict[str, Any]) -> int:
        """Return the tokens' byte offset in a file; raise DataError if the file's size is wrong."""
        path = Path(self._folder, file["file"])
        try:
            with regular.opened(path, links=True) as opened:
                size = os.fstat(opened.fileno()).st_size
        except (FileNotFoundError, regular.NotAFile) as error:
            raise _damaged(path, str(error.strerror)) from None
        begin = size - file["tokens"] * _dtype(self._settings["vocab_size"]).itemsize
        if not 0 < begin < _LARGEST_HEADER:
            raise _damaged(path, f"{size:,} bytes, which are not {file['tokens']:,} tokens")
        return begin

    def _open(self, number: int) -> Any:
        """Return the memory-mapped tokens of a file; verify its content at the first call."""
        file, size = self._files[number], self._settings["vocab_size"]
        path, begin = Path(self._folder, file["file"]), self._begin(file)
        # NumPy's own reader evaluates the header, which may come from others.
        stream: Any = np.memmap(str(path), _dtype(size), "r", begin, (file["tokens"],))
        if number not in self._verified:
            if zlib.crc32(stream) != file["crc32"]:
                raise _damaged(path, "checksum")
            if not -size < int(stream.min()) <= int(stream.max()) < size:
                raise _damaged(path, f"an id that is not below vocab_size {size:,}")
        self._verified.add(number)
        return stream


def _dtype(vocab_size: int) -> np.dtype:
    return np.dtype(np.int16 if vocab_size <= 1 << 15 else np.int32)


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(
        f"{path}: damaged ({problem}); delete this file and run amp-xla prepare again with the "
        "same settings: it writes only missing files"
    )


def _settings(folder: str) -> Dict[str, Any]:
    path = Path(folder, SETTINGS)
    settings: Dict[str, Any] = json_files.read(path, _SETTINGS, links=True)
    if max(settings["cls_id"], settings["sep_id"]) >= settings["vocab_size"]:
        raise DataError(f"cannot use {path}: cls_id and sep_id must be below vocab_size")
    return settings


def _check(unit: Dict[str, Any], source: Path) -> None:
    """Raise DataError if the record of a unit in the file ``source`` cannot be used."""
    try:
        json_files.require(unit, _UNIT)
        for split in SPLITS:
            json_files.require(unit[split], _SHARD, f"{split}.")
            name = unit[split]["file"]
            if "/" in name or "\0" in name or not name.endswith(".npy"):
                raise ValueError(f"{split}.file is {name!r:.40}, not the name of an .npy file")
    except ValueError as error:
        raise DataError(f"cannot use {source}: {error}") from None


def claim(folder: str, settings: Dict[str, Any]) -> None:
    """Record the settings of a folder before any unit is written.

    Later commands may name the corpus by another path. They may also change ``--on-bad-line``, e.g.
    from error to skip after a bad line has stopped the preparation; finished units do not change.

    Raises:
      DataError: the folder has other settings.
    """
    path = os.path.join(folder, SETTINGS)
    if not os.path.exists(path) or not begun(folder):
        write(path, json_files.encode(settings))
    saved = json_file(path)
    names = {*saved, *settings} - {"corpus", "on_bad_line"}
    differing = sorted(name for name in names if saved.get(name) != settings.get(name))
    if differing:
        pairs = "; ".join(f"{k} is {saved.get(k)!r}, not {settings.get(k)!r}" for k in differing)
        raise DataError(
            f"{folder} was prepared with other settings ({pairs}); choose another --out, or delete "
            "the folder"
        )


def begun(folder: str) -> bool:
    """Return whether any unit is finished; after that, settings and vocabulary must not change."""
    return any(Path(folder, UNITS).glob("*.json"))


def finish(folder: str, name: str, unit: Dict[str, Any]) -> None:
    """Record that the files of a unit are written."""
    write(os.path.join(folder, UNITS, name + ".json"), json_files.encode(unit))


def finished(folder: str, name: str) -> Optional[Dict[str, Any]]:
    """Return the record of a unit; None if it is not finished or a file is missing."""
    path = Path(folder, UNITS, name + ".json")
    unit = json_file(str(path))
    if unit:
        _check(unit, path)
    return unit if unit and _has_files(folder, unit) else None


def _has_files(folder: str, unit: Dict[str, Any]) -> bool:
    return all(os.path.isfile(os.path.join(folder, unit[split]["file"])) for split in SPLITS)
