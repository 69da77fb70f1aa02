"""Raw text to packed sequences on disk: ``amp-xla prepare``.

The corpus is cut into units; each becomes one shard of training sequences and one of held-out
ones, written by whichever process or machine gets it, whole or not at all. What is there already
is not done again. The manifest is written last, when every unit has its shards.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import sys
import zlib
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
from tqdm import tqdm
from typing_extensions import Annotated, Literal

from amp_xla.config import check, parse, within
from amp_xla.data.pretraining import duplicates, languages, records, words
from amp_xla.data.pretraining.prepared import FORMAT, SPLITS, VOCAB, Manifest
from amp_xla.data.pretraining.sequences import packed
from amp_xla.data.pretraining.units import Reading, Unit, files_of, texts_of, units
from amp_xla.data.text import docstrings
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import fingerprint
from amp_xla.errors import DataError, SettingsError
from amp_xla.process.stopping import Stopped
from amp_xla.process.workers import Workers

BUILT_IN_FILE = "corpus.jsonl"
BUILT_IN_SOURCE_MB = 2  # of Python source a package, whose docstrings are about a tenth
WORTH_SAYING = 2**30  # bytes to read before anything is seen to happen
VOCAB_MULTIPLE = 64  # a height of the embedding matrix that tensor cores like


@dataclasses.dataclass(frozen=True)
class Config:
    """Turn text into sequences to pretrain on."""

    out: str = "data/pretraining"
    """folder to write to; any address TensorFlow knows"""
    corpus: Optional[str] = None
    """files, folders and globs with commas between: text, JSON lines, Wikipedia's .xml, each also
    .bz2, .gz, .zst; none = built-in"""
    field: str = "text"
    """JSON key of the text, or several: title,content; a number is a tab-separated column, counted
    from 0, of a text file"""
    documents: Literal["line", "blank", "file"] = "line"
    """a document of a text file is a line, what stands between blank lines, or the whole file"""
    on_bad_line: Literal["error", "skip"] = "error"
    """what to do with what is not UTF-8, holds a NUL, is not JSON: stop, or count and leave out"""
    dedup: Literal["off", "exact", "near"] = "off"
    """exact leaves out documents that stood in the corpus before, white space aside; near those
    too that differ from one in a few words"""
    shortest: Annotated[int, within(at_least=0)] = 0
    """characters below which a document is left out"""
    longest: Annotated[int, within(at_least=0)] = 0
    """characters above which a document is left out; 0 = none is too long"""
    language: Optional[str] = None
    """codes such as en or zh, with commas between: other documents are left out; none = all stay"""
    vocab: Optional[str] = None
    """vocab.txt to tokenize with; none = train WordPiece on the corpus"""
    vocab_size: Annotated[int, within(at_least=64)] = 8000
    """tokens of a vocabulary that is trained here; a multiple of 64"""
    vocab_mb: Annotated[int, within(at_least=1)] = 32
    """text to train it on, in MB, taken evenly from the corpus"""
    vocab_only: bool = False
    """write vocab.txt and stop: what the machines of a sharded run need first"""
    lowercase: bool = True
    """lower-case the text and strip accents, as uncased BERT does"""
    words: Literal["auto", "pieces", "jieba"] = "auto"
    """whole words are what ## joins, or what jieba cuts; auto = jieba for Chinese vocabularies"""
    length: Annotated[int, within(at_least=16)] = 128
    """tokens a sequence, [CLS] and [SEP] counted; a multiple of 8"""
    heldout: Annotated[float, within(at_least=0, below=1)] = 0.01
    """share of the documents to evaluate on, picked by their content"""
    workers: Annotated[int, within(at_least=0)] = 0
    """processes; 0 = one a core"""
    shard: str = "0/1"
    """i/n, i from 0: do the i-th of n parts of the work; the last to finish writes the manifest"""

    def __post_init__(self) -> None:
        try:
            check(self)
        except SettingsError as error:
            raise DataError(str(error)) from None
        if 0 < self.longest < self.shortest:
            raise DataError(f"--longest {self.longest}: allowed is 0, or --shortest and more")
        if self.length % 8:
            raise DataError(f"--length {self.length}: allowed is 16 or more, in steps of 8")
        _ = self.part

    @property
    def part(self) -> Tuple[int, int]:
        """(i, n) of ``shard``."""
        first, _, second = self.shard.partition("/")
        if first.isdigit() and second.isdigit() and int(first) < int(second):
            return int(first), int(second)
        raise DataError(f"--shard {self.shard}: needed is i/n with i from 0 to n - 1, e.g. 0/4")

    @property
    def reading(self) -> Reading:
        """How documents lie in the corpus' files."""
        return Reading(self.field, self.documents, self.on_bad_line)


def prepare(config: Config, show: bool = True) -> Optional[Manifest]:
    """Does this machine's share; returns the manifest if the whole corpus is done.

    Raises:
      DataError: nothing to read, bad text, no room, or ``out`` holds other settings' work.
    """
    done = Manifest.found(config.out)
    note = _note if show else (lambda text: None)
    if config.language is not None:
        languages.wanted(config.language)  # an error now rather than in a worker
    records.make_folder(config.out)
    with _pool(config, note) as pool:
        corpus = config.corpus
        files = [_built_in(config, pool, note)] if corpus is None else files_of(corpus)
        tokenizer = _vocabulary(config, files, note)
        if config.vocab_only:
            return None
        settings = _settings(config, _corpus_sha256(config, files, pool, note), tokenizer)
        if done is not None:
            done.require(settings)
            note(f"{config.out} is prepared already: {done.describe()}")
            return done
        copies = _copies(config, files, pool, note)
        names = _run(config, files, settings, copies, pool, show)
    manifest = Manifest.collect(config.out, names, settings)
    if manifest is None:
        note(f"shard {config.shard} is done; the manifest comes with the last of the shards")
        return None
    manifest.write()
    note(f"prepared {config.out}: {manifest.describe()}")
    return manifest


def _note(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


# -- the vocabulary and the settings that shards must share ----------------------------------


def _vocabulary(config: Config, files: List[str], note: Callable[[str], None]) -> Tokenizer:
    path = records.join(config.out, VOCAB)
    if config.vocab is None and not records.exists(path):
        if config.part[1] > 1:
            raise DataError(
                f"{config.out} has no {VOCAB} yet, and the machines of a sharded run must share "
                f"one: run prepare once with --vocab-only, or give --vocab"
            )
        note(f"training a vocabulary of {config.vocab_size} tokens ...")
        sample = _sample(config, files)
        trained = Tokenizer.train(sample, config.vocab_size, config.lowercase)
        tokens = trained.tokens
        room = -len(tokens) % VOCAB_MULTIPLE
        tokens = tokens + [f"[unused{i}]" for i in range(1, room + 1)]
        records.write_whole(path, "".join(token + "\n" for token in tokens).encode())
    if config.vocab is not None and not records.exists(path):
        with records.opened(config.vocab) as file:
            records.write_whole(path, file.read())
    tokenizer = words.load_tokenizer(path, config.lowercase)
    if config.vocab is not None:
        given = words.load_tokenizer(config.vocab, config.lowercase)
        if given.tokens != tokenizer.tokens:
            raise DataError(f"{path} is not {config.vocab}; choose another --out, or delete it")
    _ = tokenizer.mask_id  # an error now rather than when training starts
    return tokenizer


def _sample(config: Config, files: List[str]) -> List[str]:
    """Documents of evenly spaced units, ``vocab_mb`` MB in all."""
    total = sum(records.size_of(path) for path in files)
    every = max(1, int(total / (config.vocab_mb * 2**20)))
    texts: List[str] = []
    size = 0
    for number, unit in enumerate(units(files, config.reading)):
        if number % every == 0 and size < config.vocab_mb * 2**20:
            texts += _wanted(texts_of(unit, config.reading)[0], config)[0]
            size += unit.size
    if not texts:
        raise DataError(
            f"the corpus {config.corpus} has no text of the lengths and languages asked for"
        )
    return texts


def _corpus_sha256(config: Config, files: List[str], pool: Any, note: Callable[[str], None]) -> str:
    """SHA-256 of the files' own, in order: content alone, wherever the files lie.

    Folders of before have one of paths and sizes, and keep it as long as those are the same.
    """
    sizes = [records.size_of(path) for path in files]
    listed = json.dumps([list(pair) for pair in zip(files, sizes)])
    by_path = hashlib.sha256(listed.encode()).hexdigest()
    if Manifest.settings_in(config.out).get("corpus_sha256") == by_path:
        return by_path
    if sum(sizes) > WORTH_SAYING:
        note(f"reading the corpus ({sum(sizes) / 2**30:.1f} GiB) once, for its fingerprint ...")
    return hashlib.sha256("".join(pool.map(records.sha256, files)).encode()).hexdigest()


def _settings(config: Config, corpus_sha256: str, tokenizer: Tokenizer) -> Dict[str, Any]:
    """What decides the shards' content; two runs may share a folder if these agree."""
    cut = words.resolve(config.words, tokenizer)
    return {
        "format": FORMAT,
        "vocab_size": tokenizer.vocab_size,
        "vocab_sha256": fingerprint(tokenizer.tokens),
        "lowercase": config.lowercase,
        "words": cut,
        "length": config.length,
        "heldout": config.heldout,
        "corpus": "built-in" if config.corpus is None else config.corpus,
        "corpus_sha256": corpus_sha256,
        **dataclasses.asdict(config.reading),
        # Folders of before have no such lines, and are as if each were off.
        **({} if config.dedup == "off" else {"dedup": config.dedup}),
        **({"shortest": config.shortest} if config.shortest else {}),
        **({"longest": config.longest} if config.longest else {}),
        **({"language": config.language} if config.language else {}),
    }


def _copies(
    config: Config, files: List[str], pool: Any, note: Callable[[str], None]
) -> Dict[str, np.ndarray]:
    """Name of a unit -> numbers of its documents to leave out."""
    if config.dedup == "off":
        return {}
    note("looking for documents that stand there twice ...")
    at_once = 4 * (config.workers or 4)
    every, near = units(files, config.reading), config.dedup == "near"
    found, total = duplicates.copies(every, config.reading, pool, at_once, near)
    note(f"{sum(map(len, found.values())):,} of {total:,} documents are copies and are left out")
    return found


def _built_in(config: Config, pool: Any, note: Callable[[str], None]) -> str:
    path = records.join(config.out, BUILT_IN_FILE)
    if not records.exists(path):
        note("collecting the docstrings of the installed packages ...")
        groups = docstrings.sources(BUILT_IN_SOURCE_MB * 10**6)
        texts = docstrings.distinct(pool.map(docstrings.documents, groups))
        if not texts:
            raise DataError("no docstrings found: this Python comes without .py files; --corpus")
        lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts)
        records.write_whole(path, "".join(line + "\n" for line in lines).encode())
    return path


# -- the work, spread over processes ---------------------------------------------------------


def _pool(config: Config, note: Callable[[str], None]) -> concurrent.futures.Executor:
    count = config.workers or len(os.sched_getaffinity(0))
    if count == 1:
        return _Here()
    return Workers(count, note)


class _Here(concurrent.futures.Executor):
    """Does everything at once, in this process."""

    def submit(self, function: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        future: concurrent.futures.Future = concurrent.futures.Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _run(
    config: Config,
    files: List[str],
    settings: Dict[str, Any],
    copies: Dict[str, np.ndarray],
    pool: Any,
    show: bool,
) -> List[str]:
    """Does this shard's units that are not done; returns the names of all units of the corpus."""
    number, count = config.part
    names: List[str] = []
    waiting: Dict[Any, Unit] = {}
    total = sum(records.size_of(path) for path in files) // count
    bar = tqdm(
        total=total, unit="B", unit_scale=True, disable=not (show and sys.stderr.isatty()),
        desc="preparing",
    )  # fmt: skip
    try:
        for unit in units(files, config.reading):
            names.append(unit.name)
            if (len(names) - 1) % count != number:
                continue
            if Manifest.unit_done(config.out, unit.name, settings):
                bar.update(unit.size)
                continue
            if len(waiting) >= 4 * (config.workers or 4):
                _collect(waiting, bar, concurrent.futures.FIRST_COMPLETED)
            waiting[pool.submit(make_shards, unit, config, settings, copies.get(unit.name))] = unit
        _collect(waiting, bar, concurrent.futures.ALL_COMPLETED)
    except BaseException:
        for future in waiting:
            future.cancel()
        raise
    finally:
        bar.close()
    return names


def _collect(waiting: Dict[Any, Unit], bar: Any, until: str) -> None:
    done, _ = concurrent.futures.wait(waiting, return_when=until)
    for future in done:
        unit = waiting.pop(future)
        future.result()
        bar.update(unit.size)


def make_shards(
    unit: Unit, config: Config, settings: Dict[str, Any], copies: Optional[np.ndarray] = None
) -> None:
    """Writes the shards of one unit and, last, the note that they are done.

    Args:
      unit, config, settings: what to do.
      copies: int64, numbers of the unit's documents to leave out.
    """
    cutter = words.cutter(records.join(config.out, VOCAB), config.lowercase, settings["words"])
    texts, bad = texts_of(unit, config.reading)
    if copies is not None:
        left_out = set(copies.tolist())
        texts = [text for number, text in enumerate(texts) if number not in left_out]
    texts, left_out_as = _wanted(texts, config)
    layout = records.RecordLayout(config.length, settings["vocab_size"])
    tokenizer = cutter.tokenizer
    entry: Dict[str, Any] = {"settings": settings, "bad_lines": bad, **left_out_as}
    for split, part in zip(SPLITS, _split(texts, config.heldout)):
        counts = dict.fromkeys(("sequences", "tokens", "unknown", "padding"), 0)
        stretches: List[bytes] = []
        for rows, begins, token_ids in packed(part, cutter, config.length):
            stretches.append(layout.encode(rows, begins))
            counts["sequences"] += len(rows)
            counts["tokens"] += len(token_ids)
            counts["unknown"] += int((token_ids == tokenizer.unk_id).sum())
            counts["padding"] += int((rows == tokenizer.pad_id).sum())
        data = b"".join(stretches)
        entry[split] = {
            "file": f"{split}-{unit.name}.tfrecord" if data else None,
            "documents": len(part),
            "characters": sum(map(len, part)),
            **counts,
            "bytes": len(data),
            "crc32": zlib.crc32(data),
        }
        if data:
            records.write_whole(records.join(config.out, entry[split]["file"]), data)
    Manifest.write_unit(config.out, unit.name, entry)


def _wanted(texts: List[str], config: Config) -> Tuple[List[str], Dict[str, int]]:
    """Those of the lengths and languages asked for, and how many others there are of each kind."""
    fitting = [t for t in texts if config.shortest <= len(t) <= (config.longest or len(t))]
    found = fitting
    if config.language is not None:
        kept = languages.wanted(config.language)
        found = [text for text in fitting if languages.of(text) in kept]
    others = len(texts) - len(fitting), len(fitting) - len(found)
    return found, dict(zip(("other_lengths", "other_languages"), others))


def _split(texts: List[str], heldout: float) -> Tuple[List[str], List[str]]:
    """Training and held-out documents; copies of a text always fall on the same side."""
    keys = np.array([zlib.crc32(text.encode()) for text in texts], np.float64) / 2**32
    out = keys < heldout
    return (
        [text for text, held in zip(texts, out) if not held],
        [text for text, held in zip(texts, out) if held],
    )


def main(argv: Optional[List[str]] = None) -> int:
    """``amp-xla prepare``."""
    config = parse(Config, argv, "amp-xla prepare CORPUS OUT")
    try:
        prepare(config)
    except Stopped as stopped:
        raise Stopped(
            f"{stopped}; what is finished stays, and the same command continues", stopped.exit_code
        ) from None
    return 0
