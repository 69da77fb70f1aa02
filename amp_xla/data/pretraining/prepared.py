"""Prepared folders: packed sequences in memory-mapped ``.npy`` files with a JSON index."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import zlib
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from amp_xla.data.text import vocabulary
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError
from amp_xla.process import durable

FORMAT = 2
MANIFEST, VOCAB, UNITS = "manifest.json", "vocab.txt", "units"
SPLITS = ("train", "heldout")
SUMMED = ("sequences", "documents", "tokens", "unknown", "padding")
LEFT_OUT = {
    "bad_lines": "bad lines",
    "other_lengths": "documents of other lengths",
    "other_languages": "documents in other languages",
}


def row_type(length: int, vocab_size: int) -> np.dtype:
    """Return the dtype of a sequence of ``length`` tokens.

    ``token_ids`` is uint16 for vocabularies below 65,536 and else int32; ``starts`` has a bit per
    token, 1 at word starts (``np.packbits``); ``crc32`` is the checksum of both.
    """
    ids = "<u2" if vocab_size <= 1 << 16 else "<i4"
    return np.dtype(
        [("token_ids", ids, (length,)), ("starts", "u1", (-(-length // 8),)), ("crc32", "<u4")]
    )


def write(path: str, data: bytes) -> None:
    """Write a file; it has its name only when all of it is on the disk.

    Raises:
      DataError: no space or no permission.
    """
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        durable.replace(Path(path), data)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error


def write_rows(path: str, token_ids: np.ndarray, starts: np.ndarray, vocab_size: int) -> int:
    """Write int [N, L] token ids and bool [N, L] word starts as a shard; return its bytes."""
    rows = np.zeros(len(token_ids), row_type(token_ids.shape[1], vocab_size))
    rows["token_ids"] = token_ids
    rows["starts"] = np.packbits(starts, axis=1)
    rows["crc32"] = _checksums(rows)
    file = io.BytesIO()
    np.save(file, rows)
    write(path, file.getvalue())
    return file.tell()


def _checksums(rows: np.ndarray) -> np.ndarray:
    raw = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)[:, :-4]
    return np.array([zlib.crc32(row) for row in raw], np.uint32)


def to_sequences(
    token_ids: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    length: int,
    cls_id: int,
    sep_id: int,
    pad_id: int = 0,
) -> Tuple[np.ndarray, np.ndarray]:
    """Return ``[CLS] ... [SEP]`` rows with a [SEP] between two documents of a row.

    A document that does not fit continues in the next row, as in RoBERTa's FULL-SENTENCES
    (arXiv 1907.11692, section 4.2).

    Args:
      token_ids: int [tokens], all documents without special tokens.
      starts: bool [tokens], True at word starts.
      counts: int [documents], tokens of each; empty documents are ignored.
      length: L, tokens per row.
      cls_id, sep_id, pad_id: special tokens.

    Returns:
      (int32 [rows, L], bool [rows, L] word starts; special tokens count as words).
    """
    counts = np.asarray(counts, np.int64)
    counts = counts[counts > 0]
    if not counts.size:
        return np.zeros((0, length), np.int32), np.zeros((0, length), bool)
    body = length - 2
    size = int((counts + 1).sum()) - 1  # a [SEP] after each document but the last
    rows = -(-size // body)
    stream = np.full(rows * body, pad_id, np.int32)
    words = np.ones(rows * body, bool)
    inside = np.ones(size, bool)
    inside[np.cumsum(counts[:-1] + 1) - 1] = False
    stream[:size] = sep_id
    stream[:size][inside], words[:size][inside] = token_ids, starts
    out = np.full((rows, length), sep_id, np.int32)
    out[:, 0] = cls_id
    out[:, 1:-1] = stream.reshape(rows, body)
    begins = np.ones((rows, length), bool)
    begins[:, 1:-1] = words.reshape(rows, body)
    begins[:, 1] = True  # the visible part of a word that began in the previous row
    last = 1 + size - (rows - 1) * body
    out[-1, last], out[-1, last + 1 :] = sep_id, pad_id
    return out, begins


def joined(token_ids: np.ndarray, starts: np.ndarray, each: int) -> Tuple[np.ndarray, np.ndarray]:
    """Join each ``each`` rows of ``to_sequences`` to one ``[CLS] ... [SEP]`` row.

    Args:
      token_ids: int32 [rows, L].
      starts: bool [rows, L].
      each: rows per joined row; the last may have fewer.

    Returns:
      (int32 [ceil(rows / each), each * L], bool of that shape), padded at the end. The [CLS] and
      [SEP] between rows are removed, except a [SEP] before padding, which ends a document.
    """
    rows, length = token_ids.shape
    joined_rows = -(-rows // each)
    out = np.zeros((joined_rows, each * length), np.int32)
    begins = np.ones((joined_rows, each * length), bool)
    copied = token_ids != 0
    copied[:, 0] = copied[:, -1] = False
    copied[::each, 0] = True
    lasts = np.minimum(np.arange(1, joined_rows + 1) * each, rows) - 1
    copied[lasts, -1] |= token_ids[lasts, -1] != 0
    for row in range(joined_rows):
        part = slice(row * each, min((row + 1) * each, rows))
        count = int(copied[part].sum())
        out[row, :count] = token_ids[part][copied[part]]
        begins[row, :count] = starts[part][copied[part]]
    return out, begins


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The index of a prepared folder.

    Attributes:
      settings: the settings that decide the content.
      counts: split -> name -> number over all shards, and what was left out.
      shards: split -> file, sequences and bytes of each shard, in order.
    """

    folder: str
    settings: Dict[str, Any]
    counts: Dict[str, Any]
    shards: Dict[str, List[Dict[str, Any]]]

    @classmethod
    def found(cls, folder: str) -> Optional[Manifest]:
        """Return the manifest of a completely prepared folder, else None."""
        path = os.path.join(folder, MANIFEST)
        if not os.path.exists(path):
            return None
        values = _read_json(path)
        try:
            manifest = cls(folder, values["settings"], values["counts"], values["shards"])
            shards = [shard for split in SPLITS for shard in manifest.shards[split]]
            complete = all(_has_size(folder, shard["file"], shard["bytes"]) for shard in shards)
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: damaged ({error!r}); delete it and run prepare") from None
        return manifest if complete else None

    @classmethod
    def load(cls, folder: str) -> Manifest:
        """Return the manifest of a prepared folder.

        Raises:
          DataError: the folder is not prepared, or shards are missing.
        """
        manifest = cls.found(folder)
        if manifest is None:
            problem = "is not prepared"
            if os.path.exists(os.path.join(folder, MANIFEST)):
                problem = "lacks shards that its manifest lists"
            raise DataError(f"{folder} {problem}; run: amp-xla prepare CORPUS {folder}")
        return manifest

    @classmethod
    def collect(cls, folder: str, names: List[str], settings: Dict[str, Any]) -> Optional[Manifest]:
        """Write and return the manifest of all units; None while some are missing.

        Raises:
          DataError: the corpus gave no training sequence.
        """
        if not all(unit_done(folder, name, settings) for name in names):
            return None
        notes = [_read_json(_note_path(folder, name)) for name in names]
        counts: Dict[str, Any] = {name: sum(note[name] for note in notes) for name in LEFT_OUT}
        shards: Dict[str, List[Dict[str, Any]]] = {}
        for split in SPLITS:
            parts = [note[split] for note in notes]
            counts[split] = {name: sum(part[name] for part in parts) for name in SUMMED}
            keys = ("file", "sequences", "bytes")
            shards[split] = [{k: part[k] for k in keys} for part in parts if part["sequences"]]
        if not counts["train"]["sequences"]:
            listed = ", ".join(f"{counts[name]:,} {what}" for name, what in LEFT_OUT.items())
            raise DataError(
                f"the corpus {settings['corpus']} is empty: no document to train on (left out: "
                f"{listed})"
            )
        values = {"settings": settings, "counts": counts, "shards": shards}
        data = json.dumps(values, ensure_ascii=False, indent=1).encode()
        write(os.path.join(folder, MANIFEST), data)
        return cls(folder, settings, counts, shards)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the folder's vocabulary.

        Raises:
          DataError: it is not the vocabulary that the sequences were made with.
        """
        path = os.path.join(self.folder, VOCAB)
        tokenizer = Tokenizer.load(path, self.settings["lowercase"])
        if vocabulary.fingerprint(tokenizer.tokens) != self.settings["vocab_sha256"]:
            raise DataError(
                f"{path} is not the vocabulary of the sequences in this folder (vocab_sha256 in "
                f"{MANIFEST}); restore it, or delete the folder and prepare again"
            )
        return tokenizer

    def warnings(self, tokenizer: Tokenizer) -> str:
        """Return warnings about duplicate and unknown tokens of the vocabulary."""
        train = self.counts["train"]
        return vocabulary.warnings(tokenizer.tokens, train["unknown"], train["tokens"])

    def describe(self) -> str:
        """Return one line: amount, padding, and documents left out."""
        train, held = self.counts["train"], self.counts["heldout"]
        tokens = train["sequences"] * self.settings["length"]
        unknown = train["unknown"] / max(train["tokens"], 1)
        line = (
            f"{train['sequences']:,} sequences of {self.settings['length']} tokens "
            f"({train['documents']:,} documents, {train['tokens']:,} tokens, {unknown:.2%} unknown)"
            f", {held['sequences']:,} held out; padding {train['padding'] / max(tokens, 1):.2%}"
        )
        for name, what in LEFT_OUT.items():
            line += f"; {self.counts[name]:,} {what} left out" if self.counts[name] else ""
        return line


class Sequences:
    """The sequences of one split, by number.

    Args:
      manifest: of a prepared folder.
      split: ``train`` or ``heldout``.
      length: tokens per sequence, a multiple of the prepared length; None = that length.
    """

    def __init__(
        self, manifest: Manifest, split: str = "train", length: Optional[int] = None
    ) -> None:
        self._row_length: int = manifest.settings["length"]
        self.length = length or self._row_length
        self._type = row_type(self._row_length, manifest.settings["vocab_size"])
        shards = manifest.shards[split]
        self._paths = [os.path.join(manifest.folder, shard["file"]) for shard in shards]
        self._ends = np.cumsum([0, *(shard["sequences"] for shard in shards)])

    def __len__(self) -> int:
        return -(-int(self._ends[-1]) // (self.length // self._row_length))

    def read(self, first: int, count: int) -> Tuple[np.ndarray, np.ndarray]:
        """Return sequences ``first`` to ``first + count``: int32 [count, L] ids, bool word starts.

        Raises:
          DataError: a file is damaged; the message names it.
        """
        each = self.length // self._row_length
        begin, end = first * each, min((first + count) * each, int(self._ends[-1]))
        parts = [np.zeros(0, self._type)]
        while begin < end:
            shard = int(np.searchsorted(self._ends, begin, side="right")) - 1
            base, stop = int(self._ends[shard]), min(end, int(self._ends[shard + 1]))
            parts.append(self._rows(self._paths[shard], begin - base, stop - base))
            begin = stop
        rows = np.concatenate(parts)
        starts = np.unpackbits(rows["starts"], axis=1)[:, : self._row_length].astype(bool)
        token_ids = rows["token_ids"].astype(np.int32)
        return (token_ids, starts) if each == 1 else joined(token_ids, starts, each)

    def _rows(self, path: str, begin: int, end: int) -> np.ndarray:
        try:
            shard = np.load(path, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise _damaged(path, error) from None
        rows = shard[begin:end]
        if shard.dtype != self._type or len(rows) != end - begin:
            raise _damaged(path, "other rows than the manifest lists")
        wrong = np.flatnonzero(_checksums(rows) != rows["crc32"])
        if wrong.size:
            raise _damaged(path, f"the checksum of row {begin + wrong[0]} does not match")
        return np.asarray(rows)


def write_note(folder: str, name: str, note: Dict[str, Any]) -> None:
    """Record that the shards of a unit are written."""
    write(_note_path(folder, name), json.dumps(note).encode())


def unit_done(folder: str, name: str, settings: Dict[str, Any]) -> bool:
    """Return whether the shards of a unit are complete.

    Raises:
      DataError: they were written with other settings.
    """
    path = _note_path(folder, name)
    if not os.path.exists(path):
        return False
    note = _read_json(path)
    require(folder, note["settings"], settings)
    parts = [note[split] for split in SPLITS if note[split]["sequences"]]
    return all(_has_size(folder, part["file"], part["bytes"]) for part in parts)


def require(folder: str, found: Dict[str, Any], needed: Dict[str, Any]) -> None:
    """Raise ``DataError`` if a folder's settings differ; the corpus may have moved."""
    names = {*found, *needed} - {"corpus"}
    differing = sorted(name for name in names if found.get(name) != needed.get(name))
    if differing:
        pairs = "; ".join(f"{k} is {found.get(k)!r}, not {needed.get(k)!r}" for k in differing)
        raise DataError(
            f"{folder} was prepared with other settings ({pairs}); choose another --out, or delete "
            "the folder"
        )


def _note_path(folder: str, name: str) -> str:
    return os.path.join(folder, UNITS, name + ".json")


def _has_size(folder: str, file: str, size: int) -> bool:
    path = os.path.join(folder, file)
    return os.path.isfile(path) and os.path.getsize(path) == size


def _damaged(path: str, problem: Any) -> DataError:
    return DataError(
        f"{path}: damaged ({problem}); delete this file and run amp-xla prepare again with the "
        "same settings: it writes only missing files"
    )


def _read_json(path: str) -> Dict[str, Any]:
    try:
        values: Dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        return values
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it and run prepare") from None
