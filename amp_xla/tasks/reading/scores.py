"""Spans from scores; exact match and F1 as in SQuAD's and CMRC 2018's scripts; the threshold.

Imports no TensorFlow.
"""

from __future__ import annotations

import collections
import difflib
import functools
import json
import re
import string
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from amp_xla.data.batches import windows
from amp_xla.data.text.unpacked import extra
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.sample_scores import Samples, Scorer, TextScores

_ARTICLES, _PUNCTUATION = re.compile(r"\b(a|an|the)\b"), str.maketrans("", "", string.punctuation)
_CHINESE = re.compile("[\u4e00-\u9fa5]")
# CMRC's script lists "……" too, but compares it with single characters.
_DROPPED = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")


def squad_words(text: str) -> List[str]:
    """Return the words that SQuAD's scripts compare: lower-case, no punctuation, no articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def squad(answer: str, right: str) -> Tuple[float, float]:
    """Return exact match and F1 of words, as SQuAD's scripts do; ``right`` is a right answer."""
    found, wanted = squad_words(answer), squad_words(right)
    same = sum((collections.Counter(found) & collections.Counter(wanted)).values())
    return float(found == wanted), 2.0 * same / max(len(found) + len(wanted), 1)


def cmrc(answer: str, right: str, tokenizer: Any) -> Tuple[float, float]:
    """Return exact match without punctuation, and F1 of the longest common run of words.

    Each Chinese character is a word. ``tokenizer`` splits all other text into words.
    """
    plain = [text.lower().strip().translate(_DROPPED) for text in (answer, right)]
    found, wanted = (
        [word for part in re.split(f"({_CHINESE.pattern})", text) for word in
         ([part] if _CHINESE.match(part) else tokenizer.tokenize(part))]
        for text in plain
    )  # fmt: skip
    pair = difflib.SequenceMatcher(None, found, wanted, autojunk=False)
    longest = pair.find_longest_match(0, len(found), 0, len(wanted)).size
    return float(plain[0] == plain[1]), 2.0 * longest / max(len(found) + len(wanted), 1)


def compared(answers: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """Return exact match and F1 of each answer, the best over its right answers, float64 [N, 2].

    The scores are CMRC's if most right answers are Chinese, SQuAD 2.0's if a question has no
    answer, else SQuAD 1.1's.
    """
    each, score = [list(dict(json.loads(label))) for label in labels], squad
    texts = [text for right in each for text in right]
    if 2 * sum(bool(_CHINESE.search(text)) for text in texts) > len(texts):
        library = extra("nltk.tokenize.destructive", "F1 of Chinese answers")
        score = functools.partial(cmrc, tokenizer=library.NLTKWordTokenizer())
    elif not all(each):
        each = [list(filter(squad_words, right)) for right in each]

    def best(answer: str, right: Sequence[str]) -> Any:
        if not right:
            return [not squad_words(answer)] * 2
        return np.max([score(answer, text) for text in right], 0)

    return np.array(list(map(best, answers, each)), np.float64)


def decode(
    scores: np.ndarray, batch: Mapping[str, np.ndarray], most: int, count: int = 1
) -> Tuple[np.ndarray, ...]:
    """Return the ``count`` best spans of each passage, with at most ``most`` tokens each.

    If a passage has several windows, the row of the first window has the best spans of all windows
    and the lowest score of "no answer", as in BERT's run_squad.py. ``scores`` are float [B, L, 2]:
    each token's score as first token of the answer, and as last token.

    Returns:
      Three arrays [B, count]: first tokens, last tokens (both counted from 1 in the passage) and
      probabilities of the spans. Two arrays [B]: the score of "no answer" minus that of the best
      span; the probability of "no answer". For one window, probabilities are as in transformers.
    """
    scores, passage = scores.astype(np.float64), batch["segment_ids"] > 0
    rows, length = passage.shape
    passage[np.arange(rows), (batch["token_ids"] != 0).sum(1) - 1] = False  # [SEP]
    inside = np.where(passage[..., None], scores, -np.inf)
    null = scores[:, 0].sum(1)
    spans = np.full((rows, length, min(most, length)), -np.inf)
    for size in range(spans.shape[2]):
        spans[:, : length - size, size] = inside[:, : length - size, 0] + inside[:, size:, 1]
    offsets = windows.owners(batch)[1] + 1 - passage.argmax(1)
    firsts, lasts = np.zeros((2, rows, count), np.int64)
    chances, (odds, empty) = np.zeros((rows, count)), np.zeros((2, rows))
    for row, each in windows.rows_of_texts(batch):
        flat = spans[each].reshape(-1)
        order = np.argsort(-flat, kind="stable")[: count * len(each)]
        window, first, more = np.unravel_index(order, spans[each].shape)
        places = first + offsets[each][window], more
        kept = np.sort(np.unique(places, axis=1, return_index=True)[1])[:count]  # windows overlap
        lowest = each[null[each].argmin()]
        sums = np.logaddexp.reduce(inside[each].reshape(-1, 2), 0)
        total = np.logaddexp(sums, scores[lowest, 0]).sum()
        firsts[row, : len(kept)] = places[0][kept]
        lasts[row, : len(kept)] = (places[0] + more)[kept]
        chances[row, : len(kept)] = np.exp(flat[order][kept] - total)
        odds[row], empty[row] = null[lowest] - flat[order[0]], np.exp(null[lowest] - total)
    return firsts, lasts, chances, odds, empty


def best_threshold(odds: np.ndarray, answered: np.ndarray, empty: np.ndarray) -> float:
    """Return the threshold for "no answer" that gives the highest mean score.

    A question gets the score ``answered`` if its ``odds`` are below the threshold, else the score
    ``empty``. Odds are the score of "no answer" minus that of the best span. All are float [N].
    """
    order = np.argsort(odds, kind="stable")
    edges = np.concatenate([odds[order][:1] - 1.0, odds[order], odds[order][-1:] + 1.0])
    total = np.append(0.0, np.cumsum((answered - empty)[order]))
    best = int(np.where(edges[:-1] < edges[1:], total, -np.inf).argmax())
    return float(edges[best] + edges[best + 1]) / 2.0


class ReadingScores(TextScores):
    """Scores of answers."""

    columns = ("sample", "label", "predicted", "f1", "text")
    metric, names = "f1", ("exact_match", "f1")


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Return a function that computes the scores of answers to ``samples``."""
    right = [" | ".join(dict(json.loads(label))) for label in samples.wanted]

    def score(answers: List[Dict[str, Any]]) -> TextScores:
        found = [each["answer"] for each in answers]
        return ReadingScores(samples._replace(wanted=right), found, compared(found, samples.wanted))

    return score
