"""Inference over batches: metrics of held-out samples, and predictions in the order of samples.

Evaluations return metrics by name. ``infer`` maps a batch to arrays by name. TensorFlow is imported
by functions only.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from amp_xla.config import flat
from amp_xla.data.batches.buckets import Batches, choose_lengths
from amp_xla.data.batches.protocol import Batch, micro_batches
from amp_xla.data.batches.windows import WindowBatches
from amp_xla.data.labelled import BatchOptions
from amp_xla.data.text.tokenizer import Encoded, Tokenizer
from amp_xla.process.progress import Progress
from amp_xla.report import scores
from amp_xla.training import distributed
from amp_xla.training.checkpoint import Checkpoint

_ROWS = 4096  # a batch has at most the number of samples, rounded up to a multiple of this
Infer = Callable[[Batch], Mapping[str, Any]]
Evaluation = Callable[[], Dict[str, float]]


def shards(batches: Any) -> Iterator[Any]:
    """Yield the micro-batches of ``batches`` that this rank evaluates."""
    for batch in batches.epoch(0):
        distributed.current().ask()
        yield from micro_batches(batch)


def summed(infer: Infer, batches: Any, count: Callable[[Batch, Mapping[str, Any]], Any]) -> Any:
    """Return the sums, over all batches and ranks, of the numbers that ``count`` returns."""
    parts = (np.array(count(batch, infer(batch)), np.float64) for batch in shards(batches))
    return distributed.current().total(functools.reduce(np.add, parts))


def per_sample(infer: Infer, batches: Any, samples: int, names: Sequence[str]) -> np.ndarray:
    """Return values of each sample, float64 [names, samples].

    Each of ``names`` is the name of an array of the batch or of an output of ``infer``, with a row
    per sample.
    """
    values = np.zeros((len(names), samples), np.float64)
    for batch in shards(batches):
        arrays, real = {**batch, **infer(batch)}, batch["sample_ids"] >= 0
        values[:, batch["sample_ids"][real]] = [arrays[name][real] for name in names]
    # Each sample is evaluated by one rank; the others have 0 for it.
    result: np.ndarray = distributed.current().total(values)
    return result


def in_order(encoded: Encoded, length: int, rows: int, infer: Callable[[Batch], Any]) -> List[Any]:
    """Run ``infer`` on batches of ``rows`` samples; return its results in the order of samples.

    Samples have at most ``length`` tokens; the batches have a few lengths, with little padding.
    """
    rows = min(rows, -(-len(encoded) // _ROWS) * _ROWS)
    lengths = choose_lengths(encoded.lengths, BatchOptions.shapes, length)
    batches, samples = Batches(encoded, None, lengths, rows, shuffle=False), len(encoded)
    if encoded.windows is not None:
        counts = encoded.windows.counts
        batches, samples = WindowBatches(batches, most=counts.max(), shuffle=False), len(counts)
    results: List[Any] = [None] * samples
    progress, done = Progress(samples, 0), 0
    for batch in batches.epoch(0):
        progress.alive(f"{done:,} of {samples:,} texts")
        for sample, result in zip(batch["sample_ids"].tolist(), infer(batch)):
            if sample >= 0:
                results[sample] = result
                done += 1
    return results


def vectors(config: Any, checkpoint: Checkpoint, lines: Sequence[str]) -> np.ndarray:
    """Return the encoder's vector of each line, float32 [lines, hidden].

    A line is a text, or two texts with a tab between them. The vectors of a line's tokens are
    pooled as the run's ``--pooling`` says, or by their mean if the recipe has no such flag.
    """
    return of_lines(config, checkpoint, lines, 0, lambda pooled: pooled)


def of_lines(
    config: Any, checkpoint: Checkpoint, lines: Sequence[str], classes: int,
    output: Callable[[Any], Any],
) -> np.ndarray:  # fmt: skip
    """Return an output of a run's classifier for each line.

    A line is a text, or two texts with a tab between them. ``output`` is a function from the
    logits, float32 [B, classes], to a tensor [B, ...]. If ``classes`` is 0, the function gets the
    encoder's vectors, float32 [B, hidden], in place of logits.
    """
    from amp_xla.backend import keras
    from amp_xla.models import dropout, encoders, packed
    from amp_xla.training.step import Inference, restore_weights

    tokenizer, batches = Tokenizer.of_folder(str(checkpoint.path)), config.batches
    size, length = tokenizer.vocab_size, batches.max_length
    pooling = flat(config).get("pooling", "mean")
    with dropout.inference():
        if classes:
            model = config.encoder.classifier(size, classes, length, weights=False, pooling=pooling)
        else:
            encoder = config.encoder.transformer(size, length, False, pooler=pooling == "pooler")
            pooled = encoders.pooled(encoder, pooling)
            model = keras.models.Model(encoder.model.inputs, pooled)
        if batches.stride:
            model = packed.over_windows(model)
    restore_weights(checkpoint, model.weights)
    infer = Inference(encoders.named_inputs(model), {"output": output(model.output)})
    encoded = tokenizer.encode_lines(lines, length, batches.stride)
    outputs = in_order(encoded, length, batches.batch_size, lambda batch: infer(batch)["output"])
    return np.stack(outputs)


def classification(infer: Infer, batches: Any, classes: int) -> Dict[str, float]:
    """Return accuracy, macro-F1 and mean loss.

    ``infer`` outputs ``logits`` [B, classes] and ``loss`` [B], or for packed rows
    [B, S, classes] and [B, S].
    """

    def count(batch: Batch, out: Mapping[str, Any]) -> Any:
        real = batch["weights"] > 0
        predicted = out["logits"].argmax(-1)[real]
        matrix = scores.confusion(batch["labels"][real], predicted, classes)
        return np.append(matrix, [out["loss"][real].sum(), real.sum()])

    sums = summed(infer, batches, count)
    matrix, (loss, weight) = sums[:-2].reshape(classes, classes), sums[-2:].tolist()
    return {**scores.classification(matrix), "loss": loss / max(weight, 1.0)}


def several_labels(infer: Infer, batches: Any) -> Dict[str, float]:
    """Return micro-F1, accuracy (the share of texts whose labels are all right) and mean loss."""

    def count(batch: Batch, out: Mapping[str, Any]) -> Any:
        real = batch["weights"] > 0
        labels, answers = batch["labels"][real] > 0, out["logits"][real] > 0
        right = (labels == answers).all(-1)
        parts = (labels & answers, labels, answers, right, out["loss"][real], real)
        return [part.sum() for part in parts]

    both, present, predicted, right, loss, texts = summed(infer, batches, count).tolist()
    return {
        "micro_f1": 2.0 * both / max(present + predicted, 1.0),
        "accuracy": right / max(texts, 1.0),
        "loss": loss / max(texts, 1.0),
    }


def ranking(infer: Infer, batches: Any, samples: int) -> Dict[str, float]:
    """Return AUC, accuracy and mean loss of a click model.

    Args:
      infer: outputs ``logits`` and ``loss``, both [B].
      batches: ``SlotBatches``, not shuffled.
    """
    logits, loss, labels = per_sample(infer, batches, samples, ("logits", "loss", "labels"))
    return {
        "auc": scores.auc(labels > 0.5, logits),
        "accuracy": float(np.mean((logits > 0) == (labels > 0.5))),
        "loss": float(loss.mean()),
    }


def held_out(
    language_model: Any, inputs: Dict[str, Any], stream: Any, shorter: Optional[Any] = None
) -> Evaluation:
    """Return the function that evaluates a ``LanguageModel`` on held-out sequences.

    It returns loss, perplexity and accuracy. ``inputs``: placeholders of the training step;
    ``stream``: batches in fixed order with fixed masks; ``shorter``: None, or batches of the same
    text in shorter sequences, whose loss is named ``loss_<length>``.
    """
    from amp_xla.models import dropout
    from amp_xla.training.step import Inference

    vectors = dropout.without(language_model.model)
    infer = Inference(inputs, language_model.head(inputs, vectors))

    def count(batch: Batch, out: Mapping[str, Any]) -> Any:
        return [out["loss"].sum(), out["hits"].sum(), batch["weights"].sum()]

    def over(batches: Any) -> Dict[str, float]:
        loss, hits, tokens = summed(infer, batches, count).tolist()
        mean = loss / max(tokens, 1.0)
        return {
            "loss": mean,
            "perplexity": math.exp(min(mean, 50.0)),
            "accuracy": hits / max(tokens, 1.0),
        }

    def evaluate() -> Dict[str, float]:
        values = over(stream)
        if shorter is not None:
            values[f"loss_{shorter.shapes[0][1]}"] = over(shorter)["loss"]
        return values

    return evaluate
