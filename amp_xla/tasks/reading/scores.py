"""Spans from scores; exact match and F1 as SQuAD's and CMRC 2018's scripts; the threshold.

Imports no TensorFlow.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import re
import string
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from amp_xla.data.text.unpacked import extra
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.sample_scores import Samples, SampleScores, Scorer

_ARTICLES, _PUNCTUATION = re.compile(r"\b(a|an|the)\b"), str.maketrans("", "", string.punctuation)
_CHINESE = re.compile("[\u4e00-\u9fa5]")
# CMRC's script lists "……" too, but compares it with single characters.
_DROPPED = set("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")


def squad_words(text: str) -> List[str]:
    """Return the words that SQuAD's scripts compare: no case, punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def squad(answer: str, right: str, version_2: bool) -> Tuple[float, float]:
    """Return exact match and F1 of words; in version 2, two answers without words are equal."""
    found, wanted = squad_words(answer), squad_words(right)
    exact = float(found == wanted)
    if version_2 and not (found and wanted):
        return exact, exact
    same = sum((collections.Counter(found) & collections.Counter(wanted)).values())
    return exact, 2.0 * same / max(len(found) + len(wanted), 1)


@functools.lru_cache(maxsize=None)
def _tokenizer() -> Any:
    """Return the tokenizer of words that CMRC's script applies between Chinese characters."""
    return extra("nltk.tokenize.destructive", "F1 of Chinese answers").NLTKWordTokenizer()


def cmrc_words(text: str) -> List[str]:
    """Return the parts that CMRC's script compares: Chinese characters, and words between them."""
    words: List[str] = []
    plain = "".join(char for char in text.lower().strip() if char not in _DROPPED)
    for part in re.split(f"({_CHINESE.pattern})", plain):
        words += [part] if _CHINESE.match(part) else _tokenizer().tokenize(part)
    return words


def cmrc(answer: str, right: str) -> Tuple[float, float]:
    """Return exact match without punctuation, and F1 of the longest common run of parts."""
    plain = [[c for c in text.lower().strip() if c not in _DROPPED] for text in (answer, right)]
    found, wanted = cmrc_words(answer), cmrc_words(right)
    row, longest = [0] * (len(wanted) + 1), 0
    for word in found:
        row = [0, *(row[i] + 1 if word == other else 0 for i, other in enumerate(wanted))]
        longest = max(longest, *row)
    return float(plain[0] == plain[1]), 2.0 * longest / max(len(found) + len(wanted), 1)


def texts_of(label: str) -> List[str]:
    """Return the answers in a label."""
    return [text for text, _ in json.loads(label)]


class Metric:
    """Exact match and F1: CMRC's if most right answers are Chinese, else SQuAD's.

    They are SQuAD 2.0's if a question has no answer.

    Args:
      right: the right answers of each question.
    """

    def __init__(self, right: Sequence[Sequence[str]]) -> None:
        texts = [text for answers in right for text in answers]
        self._chinese = 2 * sum(bool(_CHINESE.search(text)) for text in texts) > len(texts)
        self._right, self._version_2 = right, not all(right)
        if self._chinese:
            _tokenizer()  # an error if the package is missing, before training

    def rows(self, answers: Sequence[str]) -> np.ndarray:
        """Return both for each answer, the best over the right ones, float64 [N, 2]."""
        return np.array([np.max(list(self._each(*pair)), 0) for pair in zip(answers, self._right)])

    def _each(self, answer: str, right: Sequence[str]) -> Any:
        if self._chinese and right:
            return (cmrc(answer, text) for text in right)
        if self._version_2:
            right = list(filter(squad_words, right)) or [""]
        return (squad(answer, text, self._version_2) for text in right)


def decode(
    scores: np.ndarray, batch: Mapping[str, np.ndarray], most: int, count: int = 1
) -> Tuple[np.ndarray, ...]:
    """Return the best spans of at most ``most`` tokens in each passage.

    Args:
      scores: of the first and the last token, float [B, L, 2].
      batch: has ``token_ids`` and ``segment_ids``.

    Returns:
      First and last tokens, numbered from 1 in the passage, and probabilities, [B, count], best
      first; by how much the score of no answer is higher, and its probability, [B]. Probabilities
      are over [CLS] and the passage, as in transformers.
    """
    scores = scores.astype(np.float64)
    rows, length = scores.shape[:2]
    passage = batch["segment_ids"] > 0
    passage[np.arange(rows), (batch["token_ids"] != 0).sum(1) - 1] = False  # [SEP]
    inside = np.where(passage[..., None], scores, -np.inf)
    null = scores[:, 0].sum(1)
    total = np.logaddexp(np.logaddexp.reduce(inside, 1), scores[:, 0]).sum(1)
    spans = np.full((rows, length, min(most, length)), -np.inf)
    for size in range(spans.shape[2]):
        spans[:, : length - size, size] = inside[:, : length - size, 0] + inside[:, size:, 1]
    flat = spans.reshape(rows, -1)
    order = np.argsort(-flat, 1, kind="stable")[:, :count]
    best = np.take_along_axis(flat, order, 1)
    first, size = np.divmod(order, spans.shape[2])
    first += 1 - passage.argmax(1)[:, None]
    chances = np.exp(best - total[:, None])
    return first, first + size, chances, null - best[:, 0], np.exp(null - total)


def best_threshold(odds: np.ndarray, answered: np.ndarray, empty: np.ndarray) -> float:
    """Return the threshold with the highest mean score; it is between two ``odds``.

    Args:
      odds: score of no answer minus that of the best span, float [N]; below the threshold, a
        question is answered.
      answered, empty: scores of the best span and of no answer, float [N].
    """
    order = np.argsort(odds, kind="stable")
    edges = np.concatenate([odds[order][:1] - 1.0, odds[order], odds[order][-1:] + 1.0])
    total = np.append(0.0, np.cumsum((answered - empty)[order]))
    best = int(np.where(edges[:-1] < edges[1:], total, -np.inf).argmax())
    return float(edges[best] + edges[best + 1]) / 2.0


@dataclasses.dataclass(frozen=True)
class ReadingScores(SampleScores):
    """Scores of answers; errors are sorted by F1.

    Attributes:
      found: the answers.
    """

    found: Sequence[str]
    columns = ("sample", "label", "predicted", "f1", "text")
    metric = "f1"

    def rows(self) -> np.ndarray:
        return Metric(list(map(texts_of, self.samples.wanted))).rows(self.found)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        exact, f1 = rows.mean(0).tolist()
        return {"f1": f1, "exact_match": exact}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        f1 = self.rows()[:, 1]
        order = [i for i in np.argsort(f1, kind="stable").tolist() if f1[i] < 1.0][:most]
        labels = [" | ".join(dict.fromkeys(texts_of(label))) for label in self.samples.wanted]
        return self._listed(order, labels, self.found, f1.tolist())


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Return the function that scores the answers to samples."""
    return lambda answers: ReadingScores(samples, [each["answer"] for each in answers])
