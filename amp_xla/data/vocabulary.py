"""WordPiece vocabularies: read, write, learn."""

from __future__ import annotations

import collections
from typing import Iterable, List, Sequence

from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from amp_xla.data.errors import DataError
from amp_xla.data.lines import read_bytes

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def load_vocab(path: str) -> List[str]:
    """Tokens in id order. The id is the line number, also after lines that are blank."""
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("{}: not a UTF-8 vocabulary: {}".format(path, error)) from None
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    # The first word of the line, as bert4keras reads it: some lists carry counts behind it.
    return [line.split()[0] if line.split() else line.strip() for line in lines]


def save_vocab(path: str, tokens: Sequence[str]) -> None:
    """One token a line."""
    with open(path, "w", encoding="utf-8", newline="\n") as handle:
        handle.write("".join(token + "\n" for token in tokens))


def train_vocab(words_of_texts: Iterable[Sequence[str]], vocab_size: int) -> List[str]:
    """At most `vocab_size` tokens: the special ones, the commonest characters, learned pieces."""
    counts: collections.Counter = collections.Counter()
    for words in words_of_texts:
        counts.update(words)
    characters: collections.Counter = collections.Counter()
    for word, count in counts.items():
        for char in word:
            characters[char] += count
    room = vocab_size - len(SPECIAL_TOKENS)
    if not counts or room < 1:
        raise DataError("a vocabulary of {} from {:,} distinct words; both must be more".format(
            vocab_size, len(counts)))
    # Sorted by hand, ties by code point: the trainer would cut a tie by chance. A character costs
    # two tokens ("x" and "##x"), so they may take at most half the vocabulary.
    commonest = sorted(characters, key=lambda char: (-characters[char], char))
    alphabet = set(commonest[: max(1, room // 2)])
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="##",
        show_progress=False,
    )
    hf = HFTokenizer(WordPiece(unk_token="[UNK]"))
    hf.pre_tokenizer = WhitespaceSplit()
    spellable = sorted(word for word in counts if set(word) <= alphabet)
    hf.train_from_iterator(
        (" ".join([word] * counts[word]) for word in spellable), trainer=trainer
    )
    vocab = hf.get_vocab()
    return sorted(vocab, key=lambda token: vocab[token])
