"""WordPiece vocabularies: reading, checking and training."""

from __future__ import annotations

import collections
import hashlib
import os
from typing import Iterable, List, Sequence

from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from amp_xla.data.text.lines import read_bytes
from amp_xla.errors import DataError
from amp_xla.process import regular

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORD_MAX_CHARS = 200  # bert4keras' word_maxlen: a longer word is not cut
# The trainer takes words without counts, so each word is repeated, at most this often.
MAX_REPEATS = 100_000
UNKNOWN_WARNED, UNKNOWN_REFUSED = 0.1, 0.5  # above these shares of [UNK]: a warning, an error


def load_vocab(path: str) -> List[str]:
    """Return the tokens of a file in the order of their ids; a blank line is a token, too."""
    try:
        text = read_bytes(path, regular.LARGEST).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a UTF-8 vocabulary: {error}") from None
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    # Only the first word of a line, as in bert4keras: some files have counts after the token.
    return [line.split()[0] if line.split() else line.strip() for line in lines]


def fingerprint(tokens: Sequence[str]) -> str:
    """Return the SHA-256 (hex) of the tokens in order."""
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()


def warnings(tokens: Sequence[str], unknown: int, total: int) -> str:
    """Return warnings, each after a line break, if the vocabulary may be wrong for the texts.

    Duplicate tokens are no error: some published vocabularies have them, and removing one would
    change all ids after it.

    Args:
      tokens: the vocabulary.
      unknown: number of [UNK] among the tokens of the training texts.
      total: number of tokens of the training texts.

    Raises:
      DataError: most tokens are [UNK].
    """
    lines = ""
    counts = collections.Counter(filter(None, tokens))
    twice = [token for token, count in counts.items() if count > 1]
    if twice:
        places = [i for i, token in enumerate(tokens, start=1) if token == twice[0]]
        lines += (
            f"\nwarning: {len(twice):,} tokens occur more than once in the vocabulary, e.g. "
            f"{twice[0]!r} in lines {', '.join(map(str, places[:5]))}; the last one counts"
        )
    share = unknown / max(total, 1)
    if share > UNKNOWN_WARNED:
        message = (
            f"{share:.0%} of the tokens of the training texts are [UNK]: does the vocabulary fit "
            "their language, and does it need --lowercase or --no-lowercase?"
        )
        if share > UNKNOWN_REFUSED:
            raise DataError(message)
        lines += f"\nwarning: {message}"
    return lines


def train_vocab(words_of_texts: Iterable[Sequence[str]], vocab_size: int) -> List[str]:
    """Return at most ``vocab_size`` tokens: special ones, frequent characters, learned pieces.

    The package tokenizers repeatedly merges the most frequent pair of pieces, as long as a pair
    occurs twice. The result does not depend on the order of the texts.
    """
    counts: collections.Counter = collections.Counter()
    for words in words_of_texts:
        counts.update(words)
    room = vocab_size - len(SPECIAL_TOKENS)
    if not counts or room < 1:
        raise DataError(
            f"cannot train a vocabulary of {vocab_size} tokens on {len(counts):,} distinct words; "
            f"needed: more than {len(SPECIAL_TOKENS)} tokens, and at least one word"
        )
    characters: collections.Counter = collections.Counter()
    for word, count in counts.items():
        characters[word[0]] += count
        for char in word[1:]:
            characters["##" + char] += count
    # At most half of the tokens are single characters.
    commonest = sorted(characters, key=lambda piece: (-characters[piece], piece))
    alphabet = sorted(commonest[: max(1, room // 2)], key=lambda piece: (len(piece), piece))
    allowed = set(alphabet)
    # A word with a character outside the alphabet cannot be spelled, so its pairs do not count.
    spellable = sorted(
        word
        for word in counts
        if len(word) <= WORD_MAX_CHARS
        and word[0] in allowed
        and all("##" + char in allowed for char in word[1:])
    )
    # The trainer numbers characters in random order, and ids decide ties between pairs, so two
    # runs would learn different vocabularies. Declaring the alphabet fixes the ids.
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS) + alphabet,
        continuing_subword_prefix="##",
        limit_alphabet=len(set("".join(spellable))),
        show_progress=False,
    )
    # Without this, each fork after the use of threads would print a warning.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    scale = max(1, max(counts.values()) // MAX_REPEATS)
    hf = HFTokenizer(WordPiece(unk_token="[UNK]"))
    hf.pre_tokenizer = WhitespaceSplit()
    hf.train_from_iterator(
        (" ".join([word] * -(-counts[word] // scale)) for word in spellable), trainer=trainer
    )
    vocab = hf.get_vocab()
    return sorted(vocab, key=lambda token: vocab[token])
