"""Answers to questions: evaluation on dev questions, answers to new ones, export."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from amp_xla.backend import K, tf
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled
from amp_xla.data.text import readers
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import Exportable
from amp_xla.export.text_models import dense, encoder_of
from amp_xla.models import dropout
from amp_xla.process import output
from amp_xla.process.progress import note
from amp_xla.tasks.reading import model, scores
from amp_xla.tasks.reading.data import NO_ANSWER, encode
from amp_xla.training.answers import Answers, Row
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Evaluation, Infer, in_order, per_sample
from amp_xla.training.step import Inference, restore_weights

N_BEST = 5
NEVER = 1e30  # threshold if all training questions have an answer


def threshold_of(labels: Sequence[str] = (NO_ANSWER,)) -> Any:
    """Return the threshold, a variable: the answer is empty if that scores higher by so much.

    Its value is chosen on dev and saved in checkpoints; training ``labels`` decide its start.
    """
    start = 0.0 if NO_ANSWER in labels else NEVER
    return tf.get_variable(
        "threshold", (), tf.float32, trainable=False, initializer=tf.constant_initializer(start)
    )


def evaluation(infer: Infer, data: Labelled, threshold: Any, most: int) -> Evaluation:
    """Return F1, exact match and mean loss; set the threshold to the one with the highest F1.

    ``infer`` returns ``scores`` [B, L, 2] and ``loss`` [B]; ``most``: maximum tokens of an answer.
    """
    labels, aligned = data.dev.labels or [], data.aligned
    metric = scores.Metric(labels)
    empty = metric.rows([""] * len(labels))

    def best(batch: Batch) -> Dict[str, Any]:
        out = infer(batch)
        first, last, _, odds, _ = scores.decode(out["scores"], batch, most)
        return {"first": first[:, 0], "last": last[:, 0], "odds": odds, "loss": out["loss"]}

    def evaluate() -> Dict[str, float]:
        *spans, odds, loss = per_sample(
            best, data.dev_batches, len(labels), ("first", "last", "odds", "loss")
        )
        places = enumerate(zip(*np.array(spans, int).tolist()))
        answered = metric.rows([aligned.words(i, first, last) for i, (first, last) in places])
        limit, others = float(K.get_value(threshold)), {}
        if limit < NEVER:
            limit = scores.best_threshold(odds, answered[:, 1], empty[:, 1])
            K.set_value(threshold, limit)
            others = {"threshold": limit}
        exact, f1 = np.where(odds[:, None] < limit, answered, empty).mean(0).tolist()
        return {"f1": f1, "exact_match": exact, "loss": float(loss.mean()), **others}

    return evaluate


def predict(config: Any, checkpoint: Checkpoint, lines: Sequence[str]) -> Answers:
    """Return answer, score and question; each line is a question and its passage, a tab between."""
    questions, texts = readers.split_pairs(lines)
    tokenizer = Tokenizer.of_folder(str(checkpoint.path))
    length = config.batches.max_length
    encoded, aligned = encode(questions, texts, tokenizer, length)
    if aligned.cut():
        note(
            f"warning: {aligned.cut():,} of {len(lines):,} passages are cut off by --max-length "
            f"{length}; answers after it are not found"
        )
    with dropout.inference():
        reader = model.of_config(config, tokenizer.vocab_size, weights=False)
    threshold = threshold_of()
    restore_weights(checkpoint, [*reader.weights, threshold])
    limit = float(K.get_value(threshold))
    inputs = dict(zip(("token_ids", "segment_ids"), reader.inputs))
    infer = Inference(inputs, {"scores": reader.output})

    def best(batch: Batch) -> List[Any]:
        found = scores.decode(infer(batch)["scores"], batch, config.max_answer, N_BEST)
        return list(zip(*(column.tolist() for column in found)))

    rows: List[Row] = []
    found = in_order(encoded, length, config.batches.batch_size, best)
    for i, (firsts, lasts, chances, odds, empty) in enumerate(found):
        n_best = [
            _fields(texts[i], chance, aligned.starts[i][first - 1], aligned.ends[i][last - 1])
            for first, last, chance in zip(firsts, lasts, chances)
            if chance
        ]
        fields = {**n_best[0], "n_best": n_best}
        if limit < NEVER:
            fields["null_odds"] = odds
        if odds >= limit:
            fields.update(_fields("", empty, 0, 0))
        shown = output.printable(fields["answer"].replace("\t", " "))
        rows.append(([shown, f"{fields['score']:.4f}", questions[i]], fields))
    return Answers(rows, {"answer": None})


def _fields(passage: str, chance: float, start: int, end: int) -> Dict[str, Any]:
    number = float(f"{chance:.7g}")
    return {"answer": passage[start:end], "score": number, "start": start, "end": end}


def export(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the reader of a run, whose outputs are the scores of first and last tokens."""

    def build(folder: Optional[str]) -> Parts:
        encoder = encoder_of(config, checkpoint, folder)
        built = model.reader(encoder.model, 0.0)
        head = dense("qa_outputs", built.get_layer("Answer"))
        threshold = threshold_of()
        weights, numbers = [*built.weights, threshold], {"threshold": threshold}
        return Parts(encoder, {"scores": built.output}, head, weights, numbers)

    length = config.batches.max_length
    return exportable(
        checkpoint, build, length, kind="ForQuestionAnswering", task="question-answering",
        formula="vectors of all tokens @ qa_outputs.weight.T + qa_outputs.bias",
        load='AutoModelForQuestionAnswering.from_pretrained("{0}"), AutoTokenizer.from_pretrained('
        '"{0}"); in transformers 4 also pipeline("question-answering", "{0}", max_answer_len='
        f"{config.max_answer}, max_seq_len={length})",
    )  # fmt: skip
