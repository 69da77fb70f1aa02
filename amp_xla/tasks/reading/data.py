"""Questions, passages and answers: files, and the tokens where answers begin and end."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE
from amp_xla.data.alignment import CUT, AlignedTexts
from amp_xla.data.batches import windows
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text import corpora
from amp_xla.data.text.layout import Layout, sample
from amp_xla.data.text.lines import BadLine, Table, json_object
from amp_xla.data.text.options import Files
from amp_xla.data.text.readers import Dataset, collected, one_line, text_value
from amp_xla.data.text.tokenizer import Encoded, Part, Tokenizer
from amp_xla.errors import DataError

# Names of question and passage: the usual ones, those of CMRC 2018, and those of ``evaluate``.
FIELDS = ("question", "query_text", "text"), ("context", "context_text", "pair")
OBJECTS = Layout("json", False, ("question", "context", "answers"), 0, 1, 2)
NO_ANSWER = "[]"  # label of a question without an answer
QUESTION_TOKENS = 64  # of a question, as in BERT's run_squad.py


@dataclasses.dataclass(frozen=True)
class ReadingFiles(Files):
    """Training and dev questions on passages."""

    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: JSON of SQuAD 1.1 or 2.0, CMRC 2018 or DuReader, or JSON lines with question,
    context and answers, also .gz; none = built-in"""

    def built_in(self) -> Tuple[Dataset, Dataset]:
        return corpora.questions()

    def dataset(self, path: str, run: Optional[Layout] = None) -> Dataset:
        """Return questions and passages; a label is a JSON list of [answer, its position]."""
        table = Table.read(path)
        data = collected(path, _flat(table), _sample, table.bad, self.on_bad_line)
        return dataclasses.replace(data, layout=OBJECTS)

    def questions(
        self, path: str, lines: List[str], run: Layout, single: bool = False
    ) -> Tuple[List[str], Optional[Layout]]:
        table = Table.of(path, lines, [])
        if table.format != "json":
            return lines, None  # question<TAB>passage
        records = ((number, {**record, "is_impossible": True}) for number, record in _flat(table))
        data = collected(path, records, _sample, table.bad, "error")
        return ["\t".join(map(one_line, x)) for x in zip(data.texts, data.pairs or [])], OBJECTS


def _flat(table: Table) -> Iterator[Tuple[int, Dict[str, Any]]]:
    """Yield line number and record of each question; questions may be nested as in SQuAD."""
    for number, content in table.rows:
        try:
            record = json_object(content)
            for paragraph in record.get("paragraphs", [record]):
                for question in paragraph.get("qas", [paragraph]):
                    yield number, {**paragraph, **question}
        except (AttributeError, TypeError, ValueError) as error:
            reason = f"{error}; needed: objects with question, context and answers"
            if not isinstance(error, ValueError):
                reason = "paragraphs and qas must be lists of objects, as in SQuAD"
            table.bad.append(BadLine(table.path, number, reason))


def _sample(record: Dict[str, Any]) -> Tuple[str, ...]:
    """Return question, passage and label."""
    given = record.get("answers", record.get("answer"))
    if record.get("is_impossible") is True:
        given = {"text": []}
    columns = given if isinstance(given, dict) else {**record, "text": given}  # Hugging Face's
    texts, starts = columns.get("text"), columns.get("answer_start", -1)
    texts = texts if isinstance(texts, list) else [texts]
    starts = starts if isinstance(starts, list) else [starts] * len(texts)
    answers = []
    for each, start in itertools.zip_longest(texts, starts):
        answer = each if isinstance(each, dict) else {"text": each, "answer_start": start}
        text, start = answer.get("text"), answer.get("answer_start", -1)
        if not (isinstance(text, str) and isinstance(start, int)):
            raise ValueError(
                f"answers: {json.dumps(given, ensure_ascii=False)[:60]}; needed: a list of texts, "
                "or of objects with text and answer_start; an empty list if there is no answer"
            )
        if text.strip():  # in DuReader, "" is no answer
            answers.append((text_value({"answers": text}, "answers"), start))
    names = (next(filter(record.__contains__, each), each[0]) for each in FIELDS)
    pair = [text_value(record, name) for name in names]
    return (*pair, json.dumps(answers, ensure_ascii=False))


def encode(
    questions: Sequence[str],
    passages: Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    stride: int = 0,
) -> AlignedTexts:
    """Encode [CLS] question [SEP] passage [SEP]; record where the tokens are in the passages.

    Very long questions are cut. Passages that do not fit are cut too or, if ``stride`` is above 0,
    divided into windows; see ``Encoded.fitting``. A token's position is that of its whole word.
    """
    continues = [token.startswith("##") for token in tokenizer.tokens]
    known = {}
    for passage in dict.fromkeys(passages):
        ids, starts, ends = tokenizer.aligned_pieces(passage)
        for i in range(1, len(ids)):
            starts[i] = starts[i - 1] if continues[ids[i]] else starts[i]
        for i in range(len(ids) - 1, 0, -1):
            ends[i - 1] = ends[i] if continues[ids[i]] else ends[i - 1]
        known[passage] = (ids, starts, ends) if ids else ([tokenizer.unk_id], [0], [len(passage)])
    parts = []
    for question, passage in zip(questions, passages):
        pieces = tokenizer.pieces(question)[: min(QUESTION_TOKENS, (length - 3) // 2)]
        before = [tokenizer.cls_id, *pieces, tokenizer.sep_id]
        parts.append(Part(before, known[passage][0], [tokenizer.sep_id], first=False))
    starts_of, ends_of = ([known[passage][i] for passage in passages] for i in (1, 2))
    return AlignedTexts(passages, Encoded.fitting(parts, length, stride), starts_of, ends_of)


def targets(
    data: Dataset, aligned: AlignedTexts, most: int, problems: Dict[str, Any]
) -> np.ndarray:
    """Return the first and last token, counted from 1, of the first answer found, int32 [N, 2].

    Both are 0 if the question has no answer, and -1 if no answer is in the tokens. Answers with a
    problem are added to ``problems``: description -> answers. Such answers are, for example, not in
    their passage, or longer than ``most`` tokens.
    """
    tokens = np.zeros((len(data), 2), np.int32)
    for i, label in enumerate(data.labels or []):
        tokens[i] = 0 if label == NO_ANSWER else -1
        for text, given in reversed(json.loads(label)):
            starts = (x.start() for x in re.finditer(f"(?={re.escape(text)})", aligned.texts[i]))
            start = min(starts, key=lambda start: abs(start - given), default=None)
            if start is None:
                problems.setdefault("not in their passage", []).append(text)
                continue
            if given not in (start, -1):
                problems.setdefault("not at their answer_start, but near it", []).append(text)
            first, last, reason = aligned.span(i, start, start + len(text))
            if reason == CUT:
                problems.setdefault(CUT, []).append(text)
            elif first <= last:
                tokens[i] = first, last
            if last - first >= most:
                problems.setdefault(f"longer than --max-answer {most} tokens", []).append(text)
    return tokens


def with_labels(batch: Batch, spans: np.ndarray) -> Batch:
    """Add labels to a batch, int32 [R, 2], and weights of rows, float32 [R].

    Labels are the answer's first and last token, counted from 0 in the row. They are 0, which is
    [CLS], if the row has no answer, and -1 where ``spans``, the result of ``targets``, are -1.
    """
    texts, begins = windows.owners(batch)
    size = batch["segment_ids"].sum(1) - 1
    before = (batch["token_ids"] != 0).sum(1) - size - 1
    moved = spans[texts] - begins[:, None]
    inside = (moved[:, 0] > 0) & (moved[:, 1] <= size)
    labels = np.where(inside[:, None], moved + before[:, None] - 1, 0)
    labels = np.where(spans[texts] > 0, labels, spans[texts]).astype(np.int32)
    return {**batch, "labels": labels, "weights": (texts >= 0).astype(np.float32)}


def read(files: ReadingFiles, preparation: Preparation, most: int) -> Labelled:
    """Read the files, or the built-in questions; ``most`` is the maximum tokens of an answer."""
    parts = train, dev = files.read(preparation.seed)
    tokenizer = preparation.vocabulary.tokenizer(train.all_texts, preparation.bert)
    tokens, spans, warnings = [], [], ""
    for kind, part in zip(("training", "dev"), parts):
        problems: Dict[str, List[str]] = {}
        limits = preparation.options.max_length, preparation.options.stride
        tokens.append(encode(part.texts, part.pairs or [], tokenizer, *limits))
        spans.append(targets(part, tokens[-1], most, problems))
        for why, texts in problems.items():
            warnings += f"\nwarning: {kind} answers {why}: {len(texts):,}, such as {texts[0]!r}"
        if kind == "training" and not (spans[0] > 0).any():
            reasons = warnings.replace("\nwarning: ", "; ")
            raise DataError(f"training data: no answer is found in its passage{reasons}")
    answer = next(iter(json.loads((train.labels or [NO_ANSWER])[0])), [""])[0]
    shown = sample(text=train.texts[0], pair=(train.pairs or [""])[0], label=answer)
    empty = ((part.labels or []).count(NO_ANSWER) for part in parts)
    return preparation.labelled(
        parts, None, tokenizer, [each.encoded for each in tokens], aligned=tokens[1],
        changes=[lambda batch, *_, spans=part: with_labels(batch, spans) for part in spans],
        warnings=warnings, shown=shown,
        counts="{:,} training and {:,} dev questions, {:,} and {:,} of them without an "
        "answer".format(len(train), len(dev), *empty),
    )  # fmt: skip
