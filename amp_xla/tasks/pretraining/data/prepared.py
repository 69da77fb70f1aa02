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
from amp_xla.process import durable, json_files

FORMAT = 3
SETTINGS, MANIFEST, VOCAB, UNITS = "settings.json", "manifest.json", "vocab.txt", "units"
SPLITS = ("train", "heldout")
# Each memory-mapped file is an open file, and many systems allow 1,024 per process. The sequences
# that are shuffled together (``stream.GROUP``) are in at most 256 files.
OPEN_FILES = 256
LEFT_OUT = {
    "bad_lines": "bad lines",
    "other_lengths": "documents of other lengths",
}


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
    kind = np.int16 if tokenizer.vocab_size <= 1 << 15 else np.int32
    stream = np.concatenate(parts[1:] or [np.zeros(0)]).astype(kind)
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
    """The index of a prepared folder.

    Attributes:
      settings: the settings that decide the content.
      units: for each unit of the corpus, in order: its files, and counts of what was left out.
    """

    folder: str
    settings: Dict[str, Any]
    units: List[Dict[str, Any]]

    @classmethod
    def load(cls, folder: str) -> Manifest:
        """Return the manifest of a prepared folder."""
        manifest = json_file(os.path.join(folder, MANIFEST))
        if not manifest:
            raise DataError(f"{folder} is not prepared; run: amp-xla prepare CORPUS {folder}")
        return cls(folder, json_file(os.path.join(folder, SETTINGS)), manifest["units"])

    @classmethod
    def collect(cls, folder: str, names: List[str]) -> Optional[Manifest]:
        """Write and return the manifest of all units; None while some are missing."""
        units = [unit for unit in (finished(folder, name) for name in names) if unit]
        if len(units) < len(names):
            return None
        manifest = cls(folder, json_file(os.path.join(folder, SETTINGS)), units)
        if not manifest.total("tokens", "train"):
            listed = ", ".join(f"{manifest.total(name)} {what}" for name, what in LEFT_OUT.items())
            raise DataError(
                f"the corpus {manifest.settings['corpus']} is empty: no document to train on (left "
                f"out: {listed})"
            )
        write(os.path.join(folder, MANIFEST), json_files.encode({"units": units}))
        return manifest

    def total(self, name: str, split: Optional[str] = None) -> int:
        """Return the sum of a count over all units, or over one split of all units."""
        return sum((unit[split] if split else unit)[name] for unit in self.units)

    def complete(self) -> bool:
        """Return whether all files exist."""
        return all(_has_files(self.folder, unit) for unit in self.units)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the folder's vocabulary.

        Raises:
          DataError: the text was tokenized with another vocabulary.
        """
        path = os.path.join(self.folder, VOCAB)
        tokenizer = Tokenizer.load(path, self.settings["lowercase"])
        if vocabulary.fingerprint(tokenizer.tokens) != self.settings["vocab_sha256"]:
            raise DataError(
                f"{path} is not the vocabulary that the text in this folder was tokenized with "
                f"(vocab_sha256 in {SETTINGS}); restore it, or delete the folder and prepare again"
            )
        return tokenizer

    def warnings(self, tokenizer: Tokenizer) -> str:
        """Return warnings about duplicate and unknown tokens of the vocabulary."""
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
    """The sequences of one split, by number.

    Args:
      manifest: manifest of a prepared folder.
      split: ``train`` or ``heldout``.
      length: L, tokens per sequence; None = the folder's length.
    """

    def __init__(
        self, manifest: Manifest, split: str = "train", length: Optional[int] = None
    ) -> None:
        self.length: int = length or manifest.settings["length"]
        self._folder, self._settings = manifest.folder, manifest.settings
        self._files = [unit[split] for unit in manifest.units]
        counts = [-(-file["tokens"] // (self.length - 2)) for file in self._files]
        self._ends = np.cumsum([0, *counts])
        self._verified: Set[int] = set()
        self._stream = functools.lru_cache(maxsize=OPEN_FILES)(self._open)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, numbers: Iterable[int]) -> Tuple[np.ndarray, np.ndarray]:
        """Return sequences by number: their ids, int32 [count, L], and True at word starts.

        Special tokens and padding count as word starts, and so does the first token of the text.
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

    def _open(self, number: int) -> Any:
        """Return the memory-mapped tokens of a file; verify its checksum at the first call."""
        path = os.path.join(self._folder, self._files[number]["file"])
        problem = ""
        try:
            stream: Any = np.load(path, mmap_mode="r")
            if number not in self._verified and zlib.crc32(stream) != self._files[number]["crc32"]:
                problem = "checksum"
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem:
            raise DataError(
                f"{path}: damaged ({problem}); delete this file and run amp-xla prepare again "
                "with the same settings, which writes only missing files"
            )
        self._verified.add(number)
        return stream


def claim(folder: str, settings: Dict[str, Any]) -> None:
    """Record the settings of a folder before any unit is written.

    Later commands may name the corpus by another path, and may change ``--on-bad-line``: with
    ``error``, a unit with a bad line was never finished.

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
    """Return whether a unit is finished, so that settings and vocabulary must not change."""
    return any(Path(folder, UNITS).glob("*.json"))


def finish(folder: str, name: str, unit: Dict[str, Any]) -> None:
    """Record that the files of a unit are written."""
    write(os.path.join(folder, UNITS, name + ".json"), json_files.encode(unit))


def finished(folder: str, name: str) -> Optional[Dict[str, Any]]:
    """Return the record of a unit; None if it is not finished or a file is missing."""
    unit = json_file(os.path.join(folder, UNITS, name + ".json"))
    return unit if unit and _has_files(folder, unit) else None


def _has_files(folder: str, unit: Dict[str, Any]) -> bool:
    return all(os.path.isfile(os.path.join(folder, unit[split]["file"])) for split in SPLITS)
