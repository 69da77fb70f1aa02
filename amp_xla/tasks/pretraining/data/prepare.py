"""``amp-xla prepare``: turns raw text into packed sequences on disk.

The corpus is cut into units, which several processes and machines can prepare at once. A unit
becomes a file of training text and a file of held-out text, each written atomically. A finished
unit is not prepared again. The manifest is written last, when all units are finished.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from tqdm import tqdm
from typing_extensions import Annotated, Literal

from amp_xla.config import flat, parse, within
from amp_xla.data.text import corpora
from amp_xla.data.text.layout import sample
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.unpacked import plain_name
from amp_xla.data.text.vocabulary import Rules, fingerprint
from amp_xla.errors import DataError
from amp_xla.process import durable, regular
from amp_xla.process.progress import note
from amp_xla.process.stopping import Stopped
from amp_xla.tasks.pretraining.data import prepared
from amp_xla.tasks.pretraining.data.masking import cutter, resolve_words
from amp_xla.tasks.pretraining.data.pool import Map, workers
from amp_xla.tasks.pretraining.data.prepared import FORMAT, MANIFEST, SPLITS, VOCAB, Manifest
from amp_xla.tasks.pretraining.data.units import Reading, Unit, files_of, texts_of, units

BUILT_IN_FILE = "corpus.jsonl"
LARGE = 2**30  # a line announces the reading of a corpus with more bytes
# Options that do not change the content of the folder; the vocabulary is compared by its hash.
SAME_CONTENT = frozenset(["out", "vocab", "workers", "shard"])
VOCAB_TEXT = 32 << 20  # bytes of text for a new vocabulary, sampled evenly from the corpus
VOCAB_MULTIPLE = 64  # for tensor cores, the embedding matrix has a multiple of 64 rows


@dataclasses.dataclass(frozen=True)
class Config:
    """Turn text into sequences for pretraining."""

    out: str = "data/pretraining"
    """folder to write to"""
    corpus: Optional[str] = None
    """files, folders and globs, separated by commas: text, JSON lines (each may be
    compressed: .bz2, .gz, .xz, .zip, .zst), Parquet; none = built-in"""
    reading: Reading = Reading()
    shortest: Annotated[int, within(at_least=0)] = 0
    """minimum characters of a document; shorter ones are left out"""
    longest: Annotated[int, within(at_least=0)] = 0
    """maximum characters of a document; longer ones are left out; 0 = no limit"""
    vocab: Optional[str] = None
    """vocab.txt of the tokenizer; none = train a WordPiece vocabulary on the corpus"""
    vocab_size: Annotated[int, within(at_least=64)] = 8000
    """maximum tokens of a new vocabulary, rounded up to a multiple of 64"""
    lowercase: bool = True
    """lower-case the text and strip accents, as uncased BERT does"""
    words: Literal["auto", "pieces", "jieba"] = "auto"
    """how to find whole words for masking: by ## pieces or by jieba; auto = jieba for Chinese"""
    length: Annotated[int, within(at_least=16)] = 128
    """tokens per sequence, including [CLS] and [SEP]; a multiple of 8"""
    heldout: Annotated[float, within(at_least=0, below=1)] = 0.01
    """share of the documents held out for evaluation; their content decides which"""
    workers: Annotated[int, within(at_least=0)] = 0
    """number of worker processes; 0 = one per CPU core"""
    shard: str = "0/1"
    """i/n, i from 0: prepare only part i of n; the part that ends last writes the manifest"""

    def __post_init__(self) -> None:
        if 0 < self.longest < self.shortest:
            raise DataError(
                f"--longest {self.longest}: allowed: 0 (no limit), or at least --shortest"
            )
        if self.length % 8:
            raise DataError(f"--length {self.length}: allowed are multiples of 8, from 16 on")
        _ = self.part

    @property
    def part(self) -> Tuple[int, int]:
        """``shard`` as two numbers: the part, from 0, and the number of parts."""
        number, _, count = self.shard.partition("/")
        if number.isdecimal() and count.isdecimal() and int(number) < int(count):
            return int(number), int(count)
        raise DataError(f"--shard {self.shard}: allowed is i/n with i from 0 to n - 1, e.g. 0/4")


def prepare(config: Config) -> Optional[Manifest]:
    """Prepare this machine's part; return the manifest if the whole corpus is done, else None.

    Raises:
      DataError: there is no text or bad text, or ``out`` was prepared with other settings.
    """
    if not os.path.exists(os.path.join(config.out, MANIFEST)):
        regular.refuse_unwritable(Path(config.out))
    with workers(config.workers) as parallel:
        files = [_built_in(config, parallel)] if config.corpus is None else files_of(config.corpus)
        _refuse_inside(config, files)
        tokenizer = _tokenizer(config, files)
        size = sum(map(os.path.getsize, files))
        if size > LARGE:
            note(f"reading the corpus ({size / 2**30:.1f} GiB) once for its fingerprint ...")
        # The names of the files do not matter.
        hashes = "".join(parallel(durable.sha256, map(Path, files)))
        corpus_sha256 = hashlib.sha256(hashes.encode()).hexdigest()
        settings = _settings(config, corpus_sha256, tokenizer)
        prepared.claim(config.out, settings)
        if os.path.exists(os.path.join(config.out, MANIFEST)):
            done = Manifest.load(config.out)
            if done.complete():
                note(f"nothing to do: all parts of {config.out} are finished")
                return done
        prepared.write(os.path.join(config.out, VOCAB), tokenizer.assets[VOCAB])
        for unit in itertools.islice(units(files, config.reading), 1):
            note(sample(text="".join(texts_of(unit, config.reading)[0][:1])))
        names = _write_units(config, files, settings["words"], parallel)
    manifest = Manifest.collect(config.out, names)
    if manifest is None:
        note(f"shard {config.shard} is done; the last shard to finish writes the manifest")
    return manifest


def _refuse_inside(config: Config, files: List[str]) -> None:
    """Raise DataError if the corpus contains ``out``: files in ``out`` would be read as text."""
    out = os.path.join(os.path.realpath(config.out), "")
    folders = filter(os.path.isdir, map(str.strip, (config.corpus or "").split(",")))
    if config.corpus is not None and (
        any(os.path.realpath(file).startswith(out) for file in files)
        or any(out.startswith(os.path.join(os.path.realpath(folder), "")) for folder in folders)
    ):
        raise DataError(
            f"--out {config.out}: inside the corpus {config.corpus}, so the files in it would be "
            "read as text; choose another folder"
        )


def _tokenizer(config: Config, files: List[str]) -> Tokenizer:
    """Return the tokenizer of ``--vocab`` or of ``--out``; without a vocabulary, train one.

    Training gives the same vocabulary on all machines. It also replaces a vocabulary in ``--out``
    if no unit is finished, because settings may have changed since.
    """
    vocab = os.path.join(config.out, VOCAB)
    if config.vocab is not None or (os.path.exists(vocab) and prepared.begun(config.out)):
        tokenizer = Tokenizer.load(config.vocab or vocab, config.lowercase)
    else:
        note(f"training a vocabulary of {config.vocab_size} tokens ...")
        tokens = Tokenizer.train(_sample(config, files), config.vocab_size, config.lowercase).tokens
        unused = [f"[unused{i}]" for i in range(1, -len(tokens) % VOCAB_MULTIPLE + 1)]
        tokenizer = Tokenizer([*tokens, *unused], Rules(config.lowercase))
    _ = tokenizer.mask_id  # raises before any work
    return tokenizer


def _sample(config: Config, files: List[str]) -> List[str]:
    """Return about ``VOCAB_TEXT`` bytes of documents, from units spread over the corpus."""
    every = max(1, sum(map(os.path.getsize, files)) // VOCAB_TEXT)
    texts: List[str] = []
    size = 0
    for unit in itertools.islice(units(files, config.reading), 0, None, every):
        if size >= VOCAB_TEXT:
            break
        texts += _fitting(texts_of(unit, config.reading)[0], config)
        size += unit.size
    if not texts:
        raise DataError(
            f"corpus {config.corpus or 'built-in'}: empty, or no document has a length from "
            "--shortest to --longest"
        )
    return texts


def _settings(config: Config, corpus_sha256: str, tokenizer: Tokenizer) -> Dict[str, Any]:
    values = {name: value for name, value in flat(config).items() if name not in SAME_CONTENT}
    return {
        **values,
        "format": FORMAT,
        "dedup": "off",  # folders of earlier versions may lack the copies of documents
        "vocab_size": tokenizer.vocab_size,
        "vocab_sha256": fingerprint(tokenizer.tokens),
        "words": resolve_words(config.words, tokenizer),
        "corpus": config.corpus or "built-in",
        "corpus_sha256": corpus_sha256,
        "cls_id": tokenizer.cls_id,
        "sep_id": tokenizer.sep_id,
    }


def _built_in(config: Config, parallel: Map) -> str:
    path = os.path.join(config.out, BUILT_IN_FILE)
    if not os.path.exists(path):
        note("collecting the docstrings of the installed packages ...")
        groups = corpora.package_files()
        texts: Dict[str, None] = {}
        for number, some in enumerate(parallel(corpora.docstrings, groups), 1):
            texts.update(dict.fromkeys(some))
            if number % 10 == 0:
                note(f"read {number * corpora.GROUP:,} of {len(groups) * corpora.GROUP:,} files")
        if not texts:
            raise DataError("this Python has no .py files with docstrings; give --corpus")
        lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts)
        prepared.write(path, "".join(line + "\n" for line in lines).encode())
    return path


def _write_units(config: Config, files: List[str], cut: str, parallel: Map) -> List[str]:
    """Prepare the unfinished units of this ``--shard``; return the names of all units."""
    part, parts = config.part
    names: List[str] = []

    def mine() -> Iterator[Unit]:
        for number, unit in enumerate(units(files, config.reading)):
            names.append(unit.name)
            if number % parts == part:
                yield unit

    # Units count decompressed bytes, and the size of a decompressed file is unknown.
    packed = any(plain_name(file) != file or file.lower().endswith(".parquet") for file in files)
    total = None if packed else sum(map(os.path.getsize, files)) // parts
    hidden = not sys.stderr.isatty()
    with tqdm(total=total, unit="B", unit_scale=True, disable=hidden, desc="preparing") as bar:
        for size in parallel(functools.partial(write_unit, config=config, cut=cut), mine()):
            bar.update(size)
    return names


def write_unit(unit: Unit, config: Config, cut: str) -> int:
    """Write the files of one unit, then its record; return the unit's size in bytes.

    If the unit is finished, nothing is written. ``cut``: the ``Cutter``'s kind, pieces or jieba.
    """
    if prepared.finished(config.out, unit.name):
        return unit.size
    cut_words = cutter(os.path.join(config.out, VOCAB), config.lowercase, cut)
    texts, bad = texts_of(unit, config.reading)
    fitting = _fitting(texts, config)
    record: Dict[str, Any] = {"bad_lines": bad, "other_lengths": len(texts) - len(fitting)}
    for split, documents in zip(SPLITS, _split(fitting, config.heldout)):
        path = os.path.join(config.out, f"{split}-{unit.name}.npy")
        record[split] = prepared.write_stream(
            path, list(map(cut_words, documents)), cut_words.tokenizer
        )
    prepared.finish(config.out, unit.name, record)
    return unit.size


def _fitting(texts: List[str], config: Config) -> List[str]:
    return [t for t in texts if config.shortest <= len(t) <= (config.longest or len(t))]


def _split(texts: List[str], heldout: float) -> List[List[str]]:
    """Split documents into training and held-out ones; equal documents are in the same part."""
    held = [zlib.crc32(text.encode()) / 2**32 < heldout for text in texts]
    return [[t for t, is_held in zip(texts, held) if is_held == side] for side in (False, True)]


def main(argv: Optional[List[str]] = None) -> int:
    """Run ``amp-xla prepare``."""
    config = parse(Config, argv, "amp-xla prepare CORPUS OUT")
    try:
        manifest = prepare(config)
    except Stopped as stopped:
        raise Stopped(
            f"{stopped}; finished parts are saved, and the same command continues",
            stopped.exit_code,
        ) from None
    if manifest is not None:
        note(f"prepared {config.out}: {manifest.describe()}")
    return 0
