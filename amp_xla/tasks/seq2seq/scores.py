"""Scores of generated texts: ROUGE and BLEU. Imports no TensorFlow."""

from __future__ import annotations

import re
import types
from typing import Any, Dict, List, Sequence

import numpy as np

from amp_xla.data.text.unpacked import extra
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.sample_scores import Samples, SampleScores, Scorer, TextScores

# Name here -> name in rouge_score.
ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
# Single Chinese and Japanese characters, or words of other letters and digits.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")


def words(text: str) -> List[str]:
    """Split a text into lower-case words without punctuation; each Chinese character is a word."""
    return _WORD.findall(text.lower())


def rouge_l(found: Sequence[str], wanted: Sequence[str]) -> float:
    """Return F1 of the longest common subsequence of two lists of words (Lin, "ROUGE", 2004).

    Used during training, where the package rouge_score may be missing.
    """
    row = [0] * (len(wanted) + 1)
    for word in found:
        before = 0
        for i, other in enumerate(wanted, 1):
            before, row[i] = row[i], before + 1 if word == other else max(row[i], row[i - 1])
    return 2.0 * row[-1] / max(len(found) + len(wanted), 1)


def rouge(found: Sequence[str], wanted: Sequence[str]) -> np.ndarray:
    """Return F1 of ROUGE-1, -2 and -L of each text, split by ``words``, float64 [N, 3].

    Raises:
      DataError: the package rouge_score is missing.
    """
    scorer = extra("rouge_score.rouge_scorer", "ROUGE").RougeScorer(
        list(ROUGE.values()), tokenizer=types.SimpleNamespace(tokenize=words)
    )
    each = (scorer.score(right, text) for right, text in zip(wanted, found))
    return np.array([[score[name].fmeasure for name in ROUGE.values()] for score in each])


def bleu(found: Sequence[str], wanted: Sequence[str]) -> float:
    """Return the corpus BLEU-4 of NLTK with smoothing method 1; ``words`` splits the texts.

    Raises:
      DataError: the package nltk is missing.
    """
    library: Any = extra("nltk.translate.bleu_score", "BLEU")
    value: float = library.corpus_bleu(
        [[words(text)] for text in wanted], [words(text) for text in found],
        smoothing_function=library.SmoothingFunction().method1,
    )  # fmt: skip
    return float(value)


class GeneratedScores(TextScores):
    """Scores of generated texts: F1 of ROUGE-1, -2 and -L, and BLEU."""

    columns = ("sample", "label", "predicted", "rouge_l", "text")
    metric, names = "rouge_l", tuple(ROUGE)

    def details(self) -> Dict[str, Any]:
        return {"metrics": {"bleu": bleu(self.found, self.samples.wanted)}}


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Return a function that computes the scores of answers to ``samples``."""

    def score(answers: List[Dict[str, Any]]) -> SampleScores:
        found = [answer["generated"] for answer in answers]
        return GeneratedScores(samples, found, rouge(found, samples.wanted))

    return score
