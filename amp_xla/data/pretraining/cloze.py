"""Cloze tests: the same masked words for language models with different vocabularies.

Losses per token of two vocabularies cannot be compared. So whole words are masked, with all their
pieces, and only words that every vocabulary can spell.
"""

from __future__ import annotations

import dataclasses
from typing import Iterator, List, NamedTuple, Sequence

import numpy as np

from amp_xla.data.batches.order import generator
from amp_xla.data.text.tokenizer import Tokenizer, WordSplitter
from amp_xla.errors import DataError


class Question(NamedTuple):
    """One row for a model.

    token_ids: ids of L tokens, with [CLS] and [SEP]; positions: positions of the [MASK] tokens;
    labels: the ids they replace; words: number of the word, from 0, that each belongs to.
    """

    token_ids: List[int]
    positions: List[int]
    labels: List[int]
    words: List[int]


@dataclasses.dataclass(frozen=True)
class ClozeBenchmark:
    """Texts as words.

    Attributes:
      texts: the words of each text, up to the last that fits the length in every vocabulary.
      spelled: bool per word of each text: every vocabulary can spell it.
    """

    texts: List[List[str]]
    spelled: List[np.ndarray]

    @classmethod
    def of(
        cls, texts: Sequence[str], tokenizers: Sequence[Tokenizer], length: int
    ) -> ClozeBenchmark:
        """Cut texts for all ``tokenizers``; leave out texts without a word to mask.

        Raises:
          DataError: no text is left.
        """
        split = WordSplitter(lowercase=False)
        words = [split(text) for text in texts]
        spelled = [np.ones(len(text), bool) for text in words]
        for tokenizer in tokenizers:
            for i, text in enumerate(words):
                pieces = list(map(tokenizer.pieces, text))
                fits = int((np.cumsum([len(p) for p in pieces]) <= length - 2).sum())
                known = np.array([bool(p) and tokenizer.unk_id not in p for p in pieces], bool)
                spelled[i] = (spelled[i] & known)[:fits]
                words[i] = text[:fits]
        usable = [i for i, known in enumerate(spelled) if known.any()]
        if not usable:
            raise DataError(
                f"of {len(texts):,} texts none has a word that every vocabulary can spell within "
                f"{length} tokens"
            )
        return cls([words[i] for i in usable], [spelled[i] for i in usable])

    @property
    def unknown(self) -> float:
        """Share of the words that some vocabulary cannot spell."""
        return 1.0 - float(np.concatenate(self.spelled).mean())

    def together(self, tokenizer: Tokenizer, rate: float, seed: int) -> Iterator[Question]:
        """Yield one question per text, with a share of its words masked, at least one.

        The choice of words depends on (seed, text number).
        """
        for number, (text, spelled) in enumerate(zip(self.texts, self.spelled)):
            count = max(1, round(rate * int(spelled.sum())))
            random = generator(seed, number)
            yield _question(tokenizer, text, random.permutation(np.flatnonzero(spelled))[:count])

    def one_by_one(self, tokenizer: Tokenizer, texts: int) -> Iterator[Question]:
        """Yield a question for each word of the first ``texts`` texts; only this word is masked.

        Whole words as in Kauf & Ivanova (arXiv 2305.10588): a piece is easily guessed from the
        others of its word, which makes rare words look likely (Salazar et al., arXiv 1910.14659,
        hide one piece at a time).
        """
        for text, spelled in zip(self.texts[:texts], self.spelled):
            for place in np.flatnonzero(spelled):
                yield _question(tokenizer, text, np.array([place]))


def _question(tokenizer: Tokenizer, text: Sequence[str], hidden: np.ndarray) -> Question:
    numbers = {place: number for number, place in enumerate(sorted(hidden.tolist()))}
    question = Question([tokenizer.cls_id], [], [], [])
    for place, pieces in enumerate(map(tokenizer.pieces, text)):
        if place in numbers:
            begin = len(question.token_ids)
            question.positions.extend(range(begin, begin + len(pieces)))
            question.labels.extend(pieces)
            question.words.extend([numbers[place]] * len(pieces))
            pieces = [tokenizer.mask_id] * len(pieces)
        question.token_ids.extend(pieces)
    question.token_ids.append(tokenizer.sep_id)
    return question
