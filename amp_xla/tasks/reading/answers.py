"""Answers to questions: evaluation, prediction, export. TensorFlow is imported in functions."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from amp_xla.data.batches import windows
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled
from amp_xla.data.text import readers
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.process import output
from amp_xla.process.progress import note
from amp_xla.tasks.reading import scores
from amp_xla.tasks.reading.data import NO_ANSWER, encode
from amp_xla.training.answers import Answers, Row
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Infer, in_order, per_sample

N_BEST = 5


def evaluate(infer: Infer, data: Labelled, threshold: Any, most: int) -> Dict[str, float]:
    """Return F1, exact match, loss; if a question has no answer, set ``threshold`` for the best F1.

    ``infer`` returns ``scores`` [B, L, 2] and ``loss`` [B]; ``most``: maximum tokens of an answer.
    """
    from amp_xla.backend import K

    labels, aligned = data.dev.labels or [], data.aligned

    def best(batch: Batch) -> Dict[str, Any]:
        out = infer(batch)
        first, last, _, odds, _ = scores.decode(out["scores"], batch, most)
        loss = windows.means(out["loss"], batch)
        return {"first": first[:, 0], "last": last[:, 0], "odds": odds, "loss": loss}

    *spans, odds, loss = per_sample(
        best, data.dev_batches, len(labels), ("first", "last", "odds", "loss")
    )
    places = enumerate(zip(*np.array(spans, int).tolist()))
    rows = scores.compared([aligned.words(i, *span) for i, span in places], labels)
    others = {}
    if NO_ANSWER in labels:
        empty = scores.compared([""] * len(labels), labels)
        others["threshold"] = limit = scores.best_threshold(odds, rows[:, 1], empty[:, 1])
        K.set_value(threshold, limit)
        rows = np.where(odds[:, None] < limit, rows, empty)
    exact, f1 = rows.mean(0).tolist()
    return {"f1": f1, "exact_match": exact, "loss": float(loss.mean()), **others}


def predict(config: Any, checkpoint: Checkpoint, lines: Sequence[str]) -> Answers:
    """Return answer, score and question of each line; a line is ``question<TAB>passage``."""
    from amp_xla.backend import K
    from amp_xla.models import dropout, encoders
    from amp_xla.tasks.reading import model
    from amp_xla.training.step import Inference, restore_weights

    questions, texts = readers.split_pairs(lines)
    tokenizer = Tokenizer.of_folder(str(checkpoint.path))
    length = config.batches.max_length
    aligned = encode(questions, texts, tokenizer, length, config.batches.stride)
    if aligned.cut():
        note(
            f"warning: {aligned.cut():,} of {len(lines):,} passages are cut off by --max-length "
            f"{length}; answers after the cut are not found"
        )
    with dropout.inference():
        reader = model.reader(config.encoder.transformer(tokenizer.vocab_size, length, False))
    threshold = model.threshold()
    restore_weights(checkpoint, [*reader.weights, threshold])
    limit = float(K.get_value(threshold))
    infer = Inference(encoders.named_inputs(reader), {"scores": reader.output})

    def best(batch: Batch) -> List[Any]:
        found = scores.decode(infer(batch)["scores"], batch, config.max_answer, N_BEST)
        return list(zip(*(column.tolist() for column in found)))

    rows: List[Row] = []
    found = in_order(aligned.encoded, length, config.batches.batch_size, best)
    for i, (firsts, lasts, chances, odds, empty) in enumerate(found):
        n_best = [
            _fields(texts[i], chance, aligned.starts[i][first - 1], aligned.ends[i][last - 1])
            for first, last, chance in zip(firsts, lasts, chances)
            if chance
        ]
        fields = {**n_best[0], "null_odds": odds, "n_best": n_best}
        if odds >= limit:
            fields.update(_fields("", empty, 0, 0))
        columns = [output.printable(fields["answer"]), f"{fields['score']:.4f}", questions[i]]
        rows.append((columns, fields))
    return Answers(rows, {"answer": None})


def _fields(text: str, chance: float, start: int, end: int) -> Dict[str, Any]:
    return {"answer": text[start:end], "score": float(f"{chance:.7g}"), "start": start, "end": end}


def exportable(config: Any, checkpoint: Checkpoint) -> Any:
    """Return the model to export; it scores each token as first and as last token of the answer."""
    from amp_xla.export import graph, text_models
    from amp_xla.tasks.reading import model

    def build(folder: Optional[str]) -> graph.Parts:
        encoder = text_models.encoder_of(config, checkpoint, folder)
        reader, threshold = model.reader(encoder), model.threshold()
        head = text_models.dense("qa_outputs", reader.get_layer("Answer"))
        weights, numbers = [*reader.weights, threshold], {"threshold": threshold}
        return graph.Parts(encoder, {"scores": reader.output}, head, weights, numbers)

    length = config.batches.max_length
    return graph.exportable(
        checkpoint, build, length, kind="ForQuestionAnswering", task="question-answering",
        formula="vectors of all tokens @ qa_outputs.weight.T + qa_outputs.bias",
        load='AutoModelForQuestionAnswering.from_pretrained("{0}"), AutoTokenizer.from_pretrained('
        '"{0}"); in transformers 4 also pipeline("question-answering", "{0}", max_answer_len='
        f"{config.max_answer}, max_seq_len={length})",
    )  # fmt: skip
