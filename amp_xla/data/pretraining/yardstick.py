"""The same questions for every masked language model, whatever its vocabulary.

Losses a token of two vocabularies cannot be compared. So what is asked for are words: cut before
any vocabulary looks, hidden with all their pieces, and only such as every model at hand can spell.
"""

from __future__ import annotations

import dataclasses
from typing import Iterator, List, NamedTuple, Sequence

import numpy as np

from amp_xla.data.batches.order import uniform
from amp_xla.data.text.tokenizer import Tokenizer, WordSplitter
from amp_xla.errors import DataError


class Question(NamedTuple):
    """One row for a model.

    token_ids: of L tokens, [CLS] and [SEP] counted; positions: where [MASK] stands in place of a
    piece; labels: the ids that stood there; words: number of the word, from 0, each belongs to.
    """

    token_ids: List[int]
    positions: List[int]
    labels: List[int]
    words: List[int]


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """Texts as words.

    Attributes:
      texts: words of each text, as many as fit the length in every vocabulary.
      askable: bool, as long as ``texts`` each: every vocabulary spells the word.
    """

    texts: List[List[str]]
    askable: List[np.ndarray]

    @classmethod
    def of(cls, texts: Sequence[str], tokenizers: Sequence[Tokenizer], length: int) -> Yardstick:
        """Cuts texts for all of ``tokenizers`` at once; those with no word to ask for are left out.

        Raises:
          DataError: nothing is left.
        """
        split = WordSplitter(lowercase=False)
        words = [split(text) for text in texts]
        known = [np.ones(len(text), bool) for text in words]
        for tokenizer in tokenizers:
            for i, text in enumerate(words):
                pieces = _pieces(tokenizer, text)
                fits = np.cumsum([len(p) for p in pieces]) <= length - 2
                spelled = np.array([bool(p) and tokenizer.unk_id not in p for p in pieces], bool)
                known[i] = (known[i] & spelled)[: int(fits.sum())]
                words[i] = text[: int(fits.sum())]
        kept = [i for i, some in enumerate(known) if some.any()]
        if not kept:
            raise DataError(
                f"of {len(texts):,} texts none has a word that every vocabulary can spell within "
                f"{length} tokens"
            )
        return cls([words[i] for i in kept], [known[i] for i in kept])

    @property
    def unknown(self) -> float:
        """Share of the words that some vocabulary cannot spell."""
        return 1.0 - float(np.concatenate(self.askable).mean())

    def together(self, tokenizer: Tokenizer, rate: float, seed: int) -> Iterator[Question]:
        """One question a text: a share of its words, at least one, hidden at once.

        All pieces of them become [MASK]. Which words is a function of (seed, text number).
        """
        for number, (text, askable) in enumerate(zip(self.texts, self.askable)):
            count = max(1, round(rate * int(askable.sum())))
            chances = uniform([number], len(text), seed)[0]
            chosen = np.argsort(np.where(askable, chances, 2.0), kind="stable")[:count]
            yield _question(tokenizer, text, chosen.tolist())

    def one_by_one(self, tokenizer: Tokenizer, texts: int) -> Iterator[Question]:
        """For each word of the first ``texts`` texts a question that hides it alone, as a whole.

        Whole words as in Kauf & Ivanova (arXiv 2305.10588): a piece is easily guessed from the
        others of its word, which makes rare words look likely (Salazar et al., arXiv 1910.14659,
        hide one piece at a time).
        """
        for text, askable in zip(self.texts[:texts], self.askable):
            for place in np.flatnonzero(askable).tolist():
                yield _question(tokenizer, text, [place])


def _pieces(tokenizer: Tokenizer, words: Sequence[str]) -> List[List[int]]:
    encoded = tokenizer.encode(words)
    return [encoded.row(i)[0][1:-1] for i in range(len(words))]


def _question(tokenizer: Tokenizer, text: Sequence[str], hidden: Sequence[int]) -> Question:
    number = {place: i for i, place in enumerate(sorted(hidden))}
    made = Question([tokenizer.cls_id], [], [], [])
    for place, pieces in enumerate(_pieces(tokenizer, text)):
        if place in number:
            made.positions.extend(range(len(made.token_ids), len(made.token_ids) + len(pieces)))
            made.labels.extend(pieces)
            made.words.extend([number[place]] * len(pieces))
            pieces = [tokenizer.mask_id] * len(pieces)
        made.token_ids.extend(pieces)
    made.token_ids.append(tokenizer.sep_id)
    return made
