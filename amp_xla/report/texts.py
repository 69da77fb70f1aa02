"""Scores of generated texts: ROUGE, BLEU."""

from __future__ import annotations

import re
from typing import Any, List, Sequence

import numpy as np

from amp_xla.data.extras import extra

ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}  # rouge_score's names
# Chinese and Japanese characters one by one, and words of other letters and digits.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")


def words(text: str) -> List[str]:
    """Return the words of a text in lower case, without punctuation; Chinese by character."""
    return _WORD.findall(text.lower())


def rouge_l(found: Sequence[str], wanted: Sequence[str]) -> float:
    """Return F1 of the longest common subsequence (Lin, "ROUGE", 2004); 0 if there is none.

    For evaluations in training, which need no package for it.
    """
    row = [0] * (len(wanted) + 1)
    for word in found:
        before = 0
        for i, other in enumerate(wanted, 1):
            before, row[i] = row[i], before + 1 if word == other else max(row[i], row[i - 1])
    return 2.0 * row[-1] / max(len(found) + len(wanted), 1)


def rouge(found: Sequence[str], wanted: Sequence[str]) -> np.ndarray:
    """Return F1 of ROUGE-1, -2 and -L of each text, float64 [N, 3], over ``words``.

    Raises:
      DataError: the package rouge_score is missing.
    """
    scorer = extra("rouge_score.rouge_scorer", "ROUGE").RougeScorer(
        list(ROUGE.values()), tokenizer=_Words()
    )
    each = (scorer.score(right, text) for right, text in zip(wanted, found))
    return np.array([[score[name].fmeasure for name in ROUGE.values()] for score in each])


def bleu(found: Sequence[str], wanted: Sequence[str]) -> float:
    """Return BLEU-4 of all texts together over ``words``, by NLTK with its smoothing 1.

    Raises:
      DataError: the package nltk is missing.
    """
    library: Any = extra("nltk.translate.bleu_score", "BLEU")
    value: float = library.corpus_bleu(
        [[words(text)] for text in wanted], [words(text) for text in found],
        smoothing_function=library.SmoothingFunction().method1,
    )  # fmt: skip
    return float(value)


class _Words:
    """``words`` for rouge_score."""

    tokenize = staticmethod(words)
