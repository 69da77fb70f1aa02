"""Spans from scores; exact match and F1 as in SQuAD's and CMRC 2018's scripts; the threshold.

Imports no TensorFlow.
"""

from __future__ import annotations

import collections
import dataclasses
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
_DROPPED = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")


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


def cmrc(answer: str, right: str, tokenizer: Any) -> Tuple[float, float]:
    """Return exact match without punctuation, and F1 of the longest common run of words.

    Words are Chinese characters, and those that ``tokenizer`` finds between them.
    """
    plain = [text.lower().strip().translate(_DROPPED) for text in (answer, right)]
    found, wanted = (
        [word for part in re.split(f"({_CHINESE.pattern})", text) for word in
         ([part] if _CHINESE.match(part) else tokenizer.tokenize(part))]
        for text in plain
    )  # fmt: skip
    row, longest = [0] * (len(wanted) + 1), 0
    for word in found:
        row = [0, *(row[i] + 1 if word == other else 0 for i, other in enumerate(wanted))]
        longest = max(longest, *row)
    return float(plain[0] == plain[1]), 2.0 * longest / max(len(found) + len(wanted), 1)


class Metric:
    """Exact match and F1: CMRC's if most answers in ``labels`` are Chinese, else SQuAD's.

    They are SQuAD 2.0's if a question has no answer.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.right = [[text for text, _ in json.loads(label)] for label in labels]
        texts = [text for answers in self.right for text in answers]
        self._version_2, self._nltk = not all(self.right), None
        if 2 * sum(bool(_CHINESE.search(text)) for text in texts) > len(texts):
            library = extra("nltk.tokenize.destructive", "F1 of Chinese answers")
            self._nltk = library.NLTKWordTokenizer()

    def rows(self, answers: Sequence[str]) -> np.ndarray:
        """Return both for each answer, the best over the right ones, float64 [N, 2]."""
        return np.array([np.max(self._each(*pair), 0) for pair in zip(answers, self.right)])

    def _each(self, answer: str, right: List[str]) -> List[Tuple[float, float]]:
        if self._nltk is not None and right:
            return [cmrc(answer, text, self._nltk) for text in right]
        if self._version_2:
            right = list(filter(squad_words, right)) or [""]
        return [squad(answer, text, self._version_2) for text in right]


def decode(
    scores: np.ndarray, batch: Mapping[str, np.ndarray], most: int, count: int = 1
) -> Tuple[np.ndarray, ...]:
    """Return the ``count`` best spans of at most ``most`` tokens in each passage.

    ``scores`` are of first and last tokens, float [B, L, 2]. The result is first and last tokens,
    from 1 in the passage, and probabilities, as transformers has them, [B, count]; by how much the
    score of no answer is higher than the best span's, and its probability, [B].
    """
    scores, passage = scores.astype(np.float64), batch["segment_ids"] > 0
    rows, length = passage.shape
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
    first, more = np.divmod(order, spans.shape[2])
    first += 1 - passage.argmax(1)[:, None]
    chances = np.exp(best - total[:, None])
    return first, first + more, chances, null - best[:, 0], np.exp(null - total)


def best_threshold(odds: np.ndarray, answered: np.ndarray, empty: np.ndarray) -> float:
    """Return the threshold with the highest mean score, between two ``odds``.

    Questions with lower ``odds`` get the score ``answered``, others ``empty``; float [N].
    """
    order = np.argsort(odds, kind="stable")
    edges = np.concatenate([odds[order][:1] - 1.0, odds[order], odds[order][-1:] + 1.0])
    total = np.append(0.0, np.cumsum((answered - empty)[order]))
    best = int(np.where(edges[:-1] < edges[1:], total, -np.inf).argmax())
    return float(edges[best] + edges[best + 1]) / 2.0


@dataclasses.dataclass(frozen=True)
class ReadingScores(SampleScores):
    """Scores of the answers ``found``; errors are sorted by F1."""

    found: Sequence[str]
    columns = ("sample", "label", "predicted", "f1", "text")
    metric = "f1"

    def rows(self) -> np.ndarray:
        return Metric(self.samples.wanted).rows(self.found)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return dict(zip(("exact_match", "f1"), rows.mean(0).tolist()))

    def errors(self, most: int) -> List[Dict[str, Any]]:
        f1 = self.rows()[:, 1]
        order = [i for i in np.argsort(f1, kind="stable").tolist() if f1[i] < 1.0][:most]
        labels = [" | ".join(dict.fromkeys(each)) for each in Metric(self.samples.wanted).right]
        return self._listed(order, labels, self.found, f1.tolist())


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Return the function that scores the answers to samples."""
    return lambda answers: ReadingScores(samples, [each["answer"] for each in answers])
