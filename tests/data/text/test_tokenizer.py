"""Ids are bert4keras' ids, on real text and on every kind of character.

Vocabularies are read as bert4keras reads them, and learned identically in every process.
"""

import collections
import json
import random
import re
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from amp_xla import backend
from amp_xla.data.text import corpora
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import Rules, fingerprint, load_vocab
from amp_xla.errors import DataError
from tests.support.encoded import ids_of
from tests.support.running import run_python

# First and last code point + 1 of ASCII, Chinese characters, accents, combining marks, control
# characters, Latin-1 symbols, spaces and joiners, kana, Hangul (falls apart in NFD), private use,
# compatibility ideographs, full width, emoji (some not yet assigned in 3.7), half surrogate pairs.
BLOCKS = [
    (32, 127), (0x4E00, 0x9FFF), (0xC0, 0x250), (0x300, 0x370), (0, 32), (0x7F, 0xC0),
    (0x2000, 0x2070), (0x3000, 0x3100), (0xAC00, 0xD7A4), (0xE000, 0xE010), (0xF900, 0xFB00),
    (0xFF00, 0x10000), (0x1F300, 0x1FB00), (0x20000, 0x2A700), (0xD800, 0xE000), (0, 0x110000),
]  # fmt: skip
WORDS = ["[CLS]", "[SEP]", "[PAD]", "[MASK]", "##ing", "ΣΑΣ", "İI", "ﬁ", "ß"]


def strange_texts(count):
    """Characters of every kind that tokenizers have disagreed on, with each other's neighbours."""
    rng = random.Random(5)
    kinds = [
        *(lambda block=block: chr(rng.randrange(*block)) for block in BLOCKS),
        lambda: rng.choice("abcdefghijklmnop ") * rng.choice([1, 1, 2]),
        lambda: rng.choice(WORDS),
        lambda: "a" * rng.choice([99, 100, 101, 199, 200, 201]),
    ]
    return ["".join(rng.choice(kinds)() for _ in range(rng.randrange(24))) for _ in range(count)]


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    """Learned from the built-in corpus and from the strange texts, half of it at least."""
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    texts = corpora.pydoc()[0].texts + [
        text.encode("utf-8", "ignore").decode() for text in strange_texts(2000)[:1000]
    ]
    path.write_bytes(Tokenizer.train(texts, 6000).assets["vocab.txt"])
    return path


def texts_of(kind):
    """Return texts and second texts."""
    if kind == "documents":
        train, dev = corpora.pydoc()
        return dev.texts, train.texts[: len(dev)]
    if kind == "strange":
        return strange_texts(1500), strange_texts(1500)[::-1]
    rng = random.Random(3)
    words = ["the", "of", "return", "class", "method", "第", "二", "unknown-ish"]
    short = [" ".join(rng.choices(words, k=rng.randrange(0, 12))) for _ in range(400)]
    return short[:200], short[200:]


@pytest.mark.parametrize("kind, lower, paired, cuts", [
    ("strange", True, False, [None, 12]),
    pytest.param("strange", False, True, [None, 12], marks=pytest.mark.once),
    pytest.param("documents", True, True, [96], marks=pytest.mark.once),
    pytest.param("short", True, True, [3, 4, 5, 6, 7, 8, 15, 16], marks=pytest.mark.once),
])  # fmt: skip
def test_ids_equal_bert4keras(vocab, kind, lower, paired, cuts):
    texts, pairs = texts_of(kind)
    tokenizer = Tokenizer.load(str(vocab), lowercase=lower)
    theirs = backend.bert4keras("tokenizers").Tokenizer(str(vocab), do_lower_case=lower)
    for maxlen in cuts:
        encoded = tokenizer.encode(texts, pairs if paired else None, max_length=maxlen)
        assert len(encoded) == len(texts)
        for i, pair in enumerate(zip(texts, pairs if paired else [None] * len(texts))):
            expected = theirs.encode(*pair, maxlen=maxlen)
            assert list(ids_of(encoded, i)) == list(expected), (maxlen, pair)


SETTINGS = [
    {},
    {"do_lower_case": False},
    {"do_lower_case": False, "strip_accents": True},
    {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False},
    {"do_lower_case": True, "model_max_length": int(1e30)},  # transformers: no limit is known
    {"do_lower_case": False, "model_max_length": int(1e20), "truncation": {"max_length": 10**300}},
]


@pytest.mark.once
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("whole", [True, False], ids=["tokenizer.json", "vocab.txt"])
def test_a_folder_of_hugging_face_has_the_ids_of_its_library(settings, whole, vocab, tmp_path):
    lower = settings.get("do_lower_case", True)
    library = HFTokenizer(WordPiece.from_file(str(vocab), unk_token="[UNK]"))
    library.normalizer = BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True), lowercase=lower,
        strip_accents=settings.get("strip_accents"),
    )  # fmt: skip
    library.pre_tokenizer = BertPreTokenizer()
    if whole:
        library.save(str(tmp_path / "tokenizer.json"))
        settings = {}
    else:
        shutil.copy(str(vocab), str(tmp_path / "vocab.txt"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    texts = [text.encode("utf-8", "ignore").decode() for text in strange_texts(1500)]
    expected = [library.encode(text, add_special_tokens=False).ids for text in texts]
    tokenizer = Tokenizer.of_folder(str(tmp_path))
    run = tmp_path / "run"
    run.mkdir()
    for name, content in tokenizer.assets.items():
        (run / name).write_bytes(content)
    for again in (tokenizer, Tokenizer.of_folder(str(run))):
        encoded = again.encode(texts)
        assert [ids_of(encoded, i)[0][1:-1] for i in range(len(texts))] == expected
    assert Tokenizer.of_folder(str(tmp_path), lowercase=not lower).rules.lowercase is not lower


@pytest.mark.parametrize("rules", [
    Rules(True), Rules(False, hugging_face=True),
    Rules(False, True, strip_accents=True, chinese=False),
])  # fmt: skip
def test_the_place_of_a_token_has_its_characters(rules):
    source = np.random.RandomState(0)
    blocks = [(32, 127), (0xA0, 0x250), (0x300, 0x370), (0x390, 0x530), (0x2000, 0x2070),
              (0x3040, 0x30FF), (0x4E00, 0x4E40), (0xAC00, 0xAC40), (0x1F600, 0x1F640)]  # fmt: skip
    characters = [chr(i) for block in blocks for i in range(*block)]
    texts = ["".join(source.choice(characters, 20)) + " ΑΣ ÉE\u0301 İ" for _ in range(300)]
    split = rules.splitter()
    pieces = {char for text in texts for word in split(text) for char in word}
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted(pieces | {f"##{char}" for char in pieces})]
    tokenizer = Tokenizer(vocab, rules=rules)
    for text in texts:
        ids, starts, ends = tokenizer.aligned_pieces(text)
        assert len(ids) == len(starts) == len(ends) and ids == tokenizer.pieces(text)
        assert starts == sorted(starts) and all(s < e for s, e in zip(starts, ends))
        for token, start, end in zip(ids, starts, ends):
            piece = re.sub("^##", "", vocab[token])
            # Σ at the end of a word, and a character that becomes two
            assert piece in "".join(split(text[start:end])).replace("σ", "ςσ"), (text, start, end)


@pytest.mark.once
def test_other_kinds_of_tokenizers_are_refused(tmp_path):
    def refused(words, **parts):
        (tmp_path / "tokenizer.json").write_text(json.dumps(parts))
        with pytest.raises(DataError, match=words):
            Tokenizer.of_folder(str(tmp_path))

    refused("its model is Unigram; only BERT's WordPiece", model={"type": "Unigram"})
    refused("its normalizer is None; only BERT's", model={"type": "WordPiece"})
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"cannot use .*tokenizer.json"):
        Tokenizer.of_folder(str(tmp_path))


@pytest.mark.once
def test_a_vocabulary_without_special_tokens_is_refused():
    with pytest.raises(DataError, match=r"v.txt: 3 tokens without \[CLS\], \[SEP\]"):
        Tokenizer(["[PAD]", "[UNK]", "a"], source="v.txt")
    with pytest.raises(DataError, match=r"\[PAD\] has id 1; it must have id 0"):
        Tokenizer(["[UNK]", "[PAD]", "[CLS]", "[SEP]"])
    with pytest.raises(DataError, match="masked language"):
        _ = Tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"]).mask_id


SCRIPT = """
from amp_xla.data.text import corpora
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import fingerprint
train, dev = corpora.pydoc()
tokens = Tokenizer.train(train.texts[::-1], 3000).tokens
print(train.fingerprint(), dev.fingerprint(), fingerprint(tokens))
"""


def test_another_process_has_the_same_texts_and_learns_the_same_in_another_order():
    train, dev = corpora.pydoc()
    tokens = Tokenizer.train(train.texts, 3000).tokens
    assert len(tokens) == 3000
    done = run_python("-c", SCRIPT, env={"PYTHONHASHSEED": "1"})
    assert done.out.split() == [train.fingerprint(), dev.fingerprint(), fingerprint(tokens)]


@pytest.mark.once
def test_ids_are_line_numbers(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(
        "\ufeff\ufeff[PAD]\r\n[UNK]\r\n\r\n[CLS] 17\r\n[SEP]\r\n\u2028\r\na\r\na".encode()
    )
    assert load_vocab(str(path)) == ["[PAD]", "[UNK]", "", "[CLS]", "[SEP]", "", "a", "a"]
    tokenizer = Tokenizer.load(str(path))
    assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.vocab_size) == (3, 4, 8)
    # Of equal tokens the last counts, as in Google's tokenizer.
    assert ids_of(tokenizer.encode(["a b"]), 0)[0] == [3, 7, 1, 4]


@pytest.mark.once
def test_a_warning_about_jieba_is_printed_once(tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    settings = '{"tokenizer_class": "RoFormerTokenizer", "do_lower_case": true}'
    (tmp_path / "tokenizer_config.json").write_text(settings)
    options = VocabularyOptions()
    for _ in range(2):
        assert options.defaults(str(tmp_path)) == {"lowercase": True}
    options.tokenizer([], str(tmp_path))
    assert capsys.readouterr().err.count("with jieba") == 1


def test_texts_are_distinct_and_without_the_name_of_their_package():
    train, dev = corpora.pydoc()
    counts = collections.Counter(train.labels)
    assert len(counts) == 12 == len(set(dev.labels)) and set(dev.labels) == set(counts)
    assert 2000 < len(train) < 6000
    assert 0.10 < len(dev) / (len(train) + len(dev)) < 0.20
    assert min(counts.values()) >= 40
    assert len({*train.texts, *dev.texts}) == len(train) + len(dev)  # no copies, none across
    for side in (train, dev):
        for text, label in zip(side.texts, side.labels):
            assert label.lower() not in text.lower()
            assert text == " ".join(text.split()) and len(text.split()) >= corpora.MIN_WORDS
