"""What a prepared folder holds: settings, counts, and its shards with sizes and checksums."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from amp_xla.data.pretraining import records, words
from amp_xla.data.pretraining.sequences import joined
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import fingerprint, warnings
from amp_xla.errors import DataError

FORMAT = 1
MANIFEST, VOCAB, UNITS = "manifest.json", "vocab.txt", "units"
SPLITS = ("train", "heldout")
SUMMED = ("sequences", "documents", "characters", "tokens", "unknown", "padding", "bytes")
LEFT_OUT = {
    "bad_lines": "bad lines",
    "other_lengths": "documents of other lengths",
    "other_languages": "documents in other languages",
}


@dataclasses.dataclass(frozen=True)
class Manifest:
    """``manifest.json`` of ``folder``.

    Attributes:
      settings: what decided the content.
      counts: split -> name -> number, over all shards; what was left out beside the splits.
      shards: split -> file, sequences, bytes, crc32 of each, in order.
    """

    folder: str
    settings: Dict[str, Any]
    counts: Dict[str, Any]
    shards: Dict[str, List[Dict[str, Any]]]

    @classmethod
    def found(cls, folder: str) -> Optional[Manifest]:
        """The manifest of a folder that is prepared; None if it is not, or not yet."""
        path = records.join(folder, MANIFEST)
        if not records.exists(path):
            return None
        values = _read_json(path)
        try:
            if values["settings"]["format"] != FORMAT:
                raise DataError(
                    f"{path} is of format {values['settings']['format']}, this version reads "
                    f"{FORMAT}; prepare the corpus again"
                )
            manifest = cls(folder, values["settings"], values["counts"], values["shards"])
        except KeyError as error:
            raise DataError(f"{path} is damaged: no {error}; delete it and run prepare") from None
        whole = all(
            records.exists(records.join(folder, shard["file"]))
            for split in SPLITS
            for shard in manifest.shards[split]
        )
        return manifest if whole else None

    @staticmethod
    def settings_in(folder: str) -> Dict[str, Any]:
        """Of a folder that is prepared, or partly; none where nothing is in it."""
        path = records.join(folder, MANIFEST)
        if not records.exists(path):
            units = records.matching(records.join(records.join(folder, UNITS), "*.json"))
            if not units:
                return {}
            path = units[0]
        settings = _read_json(path).get("settings")
        return settings if isinstance(settings, dict) else {}

    @classmethod
    def load(cls, folder: str) -> Manifest:
        """Like ``found``; ``DataError`` if the folder is not prepared, or shards are missing."""
        manifest = cls.found(folder)
        if manifest is None:
            what = "lacks shards" if records.exists(records.join(folder, MANIFEST)) else "is not"
            what += " prepared" if what == "is not" else " that its manifest lists"
            raise DataError(f"{folder} {what}; run: amp-xla prepare CORPUS {folder}")
        return manifest

    @classmethod
    def collect(cls, folder: str, names: List[str], settings: Dict[str, Any]) -> Optional[Manifest]:
        """From the notes of all units; None while some are missing.

        Raises:
          DataError: the whole corpus gave no training sequence.
        """
        if not all(cls.unit_done(folder, name, settings) for name in names):
            return None
        entries = [_read_json(_unit_path(folder, name)) for name in names]
        # Notes of before lack some of these.
        counts: Dict[str, Any] = {
            name: sum(entry.get(name, 0) for entry in entries) for name in LEFT_OUT
        }
        shards: Dict[str, List[Dict[str, Any]]] = {}
        for split in SPLITS:
            parts = [entry[split] for entry in entries]
            counts[split] = {name: sum(part[name] for part in parts) for name in SUMMED}
            keys = ("file", "sequences", "bytes", "crc32")
            shards[split] = [{k: part[k] for k in keys} for part in parts if part["file"]]
        if not counts["train"]["sequences"]:
            listed = ", ".join(f"{counts[name]:,} {what}" for name, what in LEFT_OUT.items())
            raise DataError(
                f"the corpus {settings['corpus']} is empty: no document to train on (left out: "
                f"{listed})"
            )
        return cls(folder, settings, counts, shards)

    def write(self) -> None:
        """Saves it in its folder."""
        values = {"settings": self.settings, "counts": self.counts, "shards": self.shards}
        data = json.dumps(values, ensure_ascii=False, indent=1).encode()
        records.write_whole(records.join(self.folder, MANIFEST), data)

    @staticmethod
    def write_unit(folder: str, name: str, entry: Dict[str, Any]) -> None:
        """Notes that the shards of a unit are written."""
        records.make_folder(records.join(folder, UNITS))
        records.write_whole(_unit_path(folder, name), json.dumps(entry).encode())

    @staticmethod
    def unit_done(folder: str, name: str, settings: Dict[str, Any]) -> bool:
        """Whether a unit's shards are there, in full size.

        Raises:
          DataError: they were made with other settings.
        """
        path = _unit_path(folder, name)
        if not records.exists(path):
            return False
        entry = _read_json(path)
        _require(folder, entry["settings"], settings)
        for part in (entry[split] for split in SPLITS):
            file = part["file"] and records.join(folder, part["file"])
            if file and not (records.exists(file) and records.size_of(file) == part["bytes"]):
                return False
        return True

    def require(self, settings: Dict[str, Any]) -> None:
        """``DataError`` unless the folder was prepared with these settings."""
        _require(self.folder, self.settings, settings)

    def tokenizer(self) -> Tokenizer:
        """The vocabulary in the folder.

        Raises:
          DataError: it is not the one that the sequences were made with: their ids would mean
            other tokens.
        """
        path = records.join(self.folder, VOCAB)
        tokenizer = words.load_tokenizer(path, self.settings["lowercase"])
        if fingerprint(tokenizer.tokens) != self.settings["vocab_sha256"]:
            raise DataError(
                f"{path} is not the vocabulary that the sequences beside it were made with "
                f"(vocab_sha256 in {MANIFEST}); put that one back, or delete the folder and "
                f"prepare again"
            )
        return tokenizer

    def warnings(self, tokenizer: Tokenizer) -> str:
        """Return ``vocabulary.warnings`` about the training texts."""
        train = self.counts["train"]
        return warnings(tokenizer.tokens, train["unknown"], train["tokens"])

    def describe(self) -> str:
        """One line: how much, how well packed, what was left out."""
        train, held = self.counts["train"], self.counts["heldout"]
        tokens = train["sequences"] * self.settings["length"]
        unknown = train["unknown"] / max(train["tokens"], 1)
        line = (
            f"{train['sequences']:,} sequences of {self.settings['length']} tokens "
            f"({train['documents']:,} documents, {train['tokens']:,} tokens, {unknown:.2%} unknown)"
            f", {held['sequences']:,} held out; padding {train['padding'] / max(tokens, 1):.2%}"
        )
        for name, what in LEFT_OUT.items():
            count = self.counts.get(name, 0)
            line += f"; {count:,} {what} left out" if count else ""
        return line


class Sequences:
    """The sequences of one split by number, verified as they are read.

    Args:
      manifest: of a prepared folder.
      split: ``train`` or ``heldout``.
    """

    def __init__(self, manifest: Manifest, split: str = "train") -> None:
        self.length: int = manifest.settings["length"]
        self._layout = records.RecordLayout(self.length, manifest.settings["vocab_size"])
        self._shards = manifest.shards[split]
        self._paths = [records.join(manifest.folder, shard["file"]) for shard in self._shards]
        counts = [shard["sequences"] for shard in self._shards]
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._first[-1])

    def read(self, first: int, count: int) -> Tuple[np.ndarray, np.ndarray]:
        """Sequences ``first`` to ``first + count``: int32 [count, L] ids, bool word starts.

        Raises:
          DamagedShard: the file is not what was written; the message names it.
        """
        parts = []
        at, end = first, first + count
        while at < end:
            shard = int(np.searchsorted(self._first, at, side="right")) - 1
            stop = min(end, int(self._first[shard + 1]))
            begin = int(self._first[shard])
            parts.append(self._layout.read(self._paths[shard], at - begin, stop - at))
            at = stop
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([s for _, s in parts])


class Joined:
    """Sequences end to end, several in one: longer ones of the same text, by number.

    Args:
      sequences: what is joined.
      length: tokens a joined sequence; a multiple of theirs. A few are lost to the special tokens
        that stood between.

    Raises:
      DataError: it is no such multiple.
    """

    def __init__(self, sequences: Sequences, length: int) -> None:
        self._each, rest = divmod(length, sequences.length)
        if rest or self._each < 2:
            raise DataError(
                f"the prepared text has sequences of {sequences.length} tokens; longer ones have "
                f"a multiple of that, not {length}"
            )
        self.length, self._sequences = length, sequences

    def __len__(self) -> int:
        return -(-len(self._sequences) // self._each)

    def read(self, first: int, count: int) -> Tuple[np.ndarray, np.ndarray]:
        """As ``Sequences.read``."""
        begin = first * self._each
        end = min((first + count) * self._each, len(self._sequences))
        return joined(*self._sequences.read(begin, end - begin), self._each)


def _unit_path(folder: str, name: str) -> str:
    return records.join(records.join(folder, UNITS), name + ".json")


def _require(folder: str, found: Dict[str, Any], wanted: Dict[str, Any]) -> None:
    # Where the corpus lies may change; what is in it is compared.
    names = {*found, *wanted} - {"corpus"}
    differing = sorted(k for k in names if found.get(k) != wanted.get(k))
    if differing:
        words = "; ".join(f"{k} is {found.get(k)!r}, not {wanted.get(k)!r}" for k in differing)
        raise DataError(
            f"{folder} holds work of other settings ({words}); choose another --out, or delete it"
        )


def _read_json(path: str) -> Dict[str, Any]:
    with records.opened(path) as file:
        data = file.read()
    try:
        values: Dict[str, Any] = json.loads(data.decode("utf-8"))
        return values
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); delete it and run prepare") from None
