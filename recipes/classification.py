"""Text classification: a BERT encoder, mean pooling, one softmax.

    make train RECIPE=classification

trains a small BERT from scratch on the built-in corpus: which of 12 packages of Python's library
a docstring is from (dev accuracy 0.88, 3 minutes on 2 CPU cores, no GPU). Own data, own weights:

    make train RECIPE=classification ARGS="--train a.tsv --dev b.tsv --bert chinese_L-12_H-768_A-12"
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
from typing_extensions import Literal

from amp_xla.config import exit_code, load, parse
from amp_xla.data import corpora, readers
from amp_xla.data.batching import Batches, choose_lengths
from amp_xla.data.errors import DataError
from amp_xla.data.labels import Labels
from amp_xla.data.noise import HiddenTokens
from amp_xla.data.packing import PackedBatches
from amp_xla.data.tokenizer import Tokenizer
from amp_xla.training.options import RunOptions


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a text classifier."""

    train: Optional[str] = None
    """training file: text<TAB>label, TSV with a header, or JSON lines, also .gz; none = built-in"""
    dev: Optional[str] = None
    """file to evaluate on, same format; needed with --train"""
    text_field: Optional[str] = None
    """name of the text column or JSON field; none = guess"""
    pair_field: Optional[str] = None
    """name of the second text's column or field, for text pairs"""
    label_field: Optional[str] = None
    """name of the label's column or field; none = guess"""
    on_bad_line: Literal["error", "skip"] = "error"
    """what to do with a line that cannot be read: stop, or count and leave out"""
    train_fraction: float = 1.0
    """share of the training data to use, from 0 to 1; picked by the seed"""

    bert: Optional[str] = None
    """folder with bert_config.json, vocab.txt and a checkpoint in Google's format"""
    vocab: Optional[str] = None
    """vocab.txt to tokenize with; none = train a WordPiece vocabulary on the training texts"""
    vocab_size: int = 8000
    """tokens of a vocabulary that is trained here"""
    lowercase: bool = True
    """lower-case the text and strip accents, as uncased BERT does"""
    layers: int = 3
    """transformer layers, without --bert"""
    hidden: int = 192
    """hidden size, without --bert; a multiple of 8 for tensor cores, and of 64 (a head's size)"""
    dropout: float = 0.1
    """share of activations and attention weights dropped in training"""
    token_dropout: float = 0.1
    """share of tokens hidden in training, other ones each epoch; helps where texts are few"""
    label_smoothing: float = 0.1
    """share of each label's weight that is spread over all labels in training"""

    epochs: int = 8
    """passes over the training data"""
    batch_size: int = 16
    """samples a step; on a GPU, and with more texts, 32 to 256"""
    max_length: int = 96
    """tokens a sample, longer ones are cut; activation memory grows with its square"""
    shapes: int = 4
    """how many different lengths batches may have; each is one XLA compilation; 1 = fixed length"""
    packed: bool = False
    """several texts end to end in rows of max_length tokens: one shape, hardly any padding"""
    learning_rate: float = 5e-4
    """peak of the schedule; with --bert try 2e-5"""
    warmup: float = 0.1
    """share of all steps until the peak"""
    weight_decay: float = 0.01
    """decoupled, not on norms and biases"""
    clip_norm: float = 1.0
    """global gradient norm to clip to, after unscaling; 0 = no clipping"""

    precision: Optional[Literal["fp32", "tf32", "amp"]] = None
    """none = AMP_XLA_PRECISION, else amp"""
    xla: Optional[Literal["off", "on", "no_lazy", "lite"]] = None
    """none = AMP_XLA_XLA, else off"""
    loss_scale: Optional[str] = None
    """1, a number, or dynamic; none = AMP_XLA_LOSS_SCALE, else 1000 in float16 and 1 elsewhere"""

    evaluate_every: int = 0
    """steps between evaluations; 0 = each epoch"""
    patience: int = 0
    """evaluations without improvement until the run stops early; 0 = never"""
    log_every: int = 20
    """steps between two lines of metrics.jsonl"""
    seed: int = 1
    """decides weights, order and dropout"""
    run: RunOptions = RunOptions()
    """name, checkpoints, resuming"""


def read_data(config: Config) -> Tuple[readers.Dataset, readers.Dataset]:
    if (config.train is None) != (config.dev is None):
        raise DataError("--train and --dev belong together: give both, or neither")
    if config.train is None or config.dev is None:
        train, dev = corpora.pydoc()
    else:
        options: Dict[str, Any] = dict(
            text_field=config.text_field, pair_field=config.pair_field,
            label_field=config.label_field, on_bad_line=config.on_bad_line,
        )  # fmt: skip
        train, dev = (readers.read(path, **options) for path in (config.train, config.dev))
    if config.train_fraction < 1.0:
        chosen = np.random.RandomState(config.seed).permutation(len(train))
        train = train.take(np.sort(chosen[: max(1, int(len(train) * config.train_fraction))]))
    return train, dev


def get_tokenizer(config: Config, train: readers.Dataset) -> Tokenizer:
    vocab = os.path.join(config.bert, "vocab.txt") if config.bert else config.vocab
    if vocab:
        return Tokenizer.load(vocab, lowercase=config.lowercase)
    return Tokenizer.train(train.texts, config.vocab_size, lowercase=config.lowercase)


def build_model(config: Config, vocab_size: int, classes: int, layout: Any = None) -> Any:
    """token ids and segment ids, int [B, L] -> logits, float32 [B, classes]; layout: packed rows"""
    from amp_xla.training import model, packed

    kind: Any = packed.Packed(layout) if layout else model
    encoder = kind.encoder(
        config.bert, vocab_size=vocab_size, hidden_size=config.hidden,
        num_hidden_layers=config.layers, num_attention_heads=max(1, config.hidden // 64),
        intermediate_size=4 * config.hidden, max_position=max(512, config.max_length),
        dropout_rate=config.dropout, attention_dropout_rate=config.dropout,
    )  # fmt: skip
    return kind.classifier(encoder, classes, config.dropout)


def build(config: Config) -> Any:
    """Everything up to the first step; the switches come before TensorFlow."""
    from amp_xla import setup

    setup.configure(precision=config.precision, xla=config.xla, loss_scale=config.loss_scale)
    from amp_xla.backend import tf
    from amp_xla.training import dropout, job, losses
    from amp_xla.training.evaluation import Classification
    from amp_xla.training.optimizing import scheduled
    from amp_xla.training.progress import note
    from amp_xla.training.step import Inference, TrainStep

    job.seed_everything(config.seed)
    train, dev = read_data(config)
    labels = Labels.fit(train.labels or [])
    tokenizer = get_tokenizer(config, train)
    encoded = tokenizer.encode(train.texts, train.pairs, config.max_length)
    encoded_dev = tokenizer.encode(dev.texts, dev.pairs, config.max_length)
    ids, dev_ids = labels.ids(train.labels or []), labels.ids(dev.labels or [])
    batches: Any
    if config.packed:
        batches = PackedBatches(encoded, ids, config.max_length, config.batch_size, config.seed)
    else:  # lengths of both: a dev text may be longer than every training text
        sizes = np.concatenate([encoded.lengths, encoded_dev.lengths])
        lengths = choose_lengths(sizes, config.shapes, max_length=config.max_length)
        batches = Batches(encoded, ids, lengths, config.batch_size, seed=config.seed)
    dev_batches = batches.like(encoded_dev, dev_ids)
    batches = HiddenTokens(batches, config.token_dropout, tokenizer, config.seed)
    note(
        f"{len(train)} training and {len(dev)} dev texts, {len(labels)} labels, "
        f"{tokenizer.vocab_size} tokens; {batches.describe()}"
    )

    step_input = dropout.install(config.seed)
    model = build_model(config, tokenizer.vocab_size, len(labels), getattr(batches, "layout", None))
    inputs = {
        **dict(zip(("token_ids", "segment_ids", "position_ids", "slots"), model.inputs)),
        "labels": tf.placeholder(tf.int32, [None], name="labels"),
        "weights": tf.placeholder(tf.float32, [None], name="weights"),
    }
    loss, accuracy = losses.classification(
        inputs["labels"], model.output, inputs["weights"], config.label_smoothing
    )
    with dropout.inference():
        logits = model(model.inputs)
    outputs = {"logits": logits, "loss": losses.cross_entropy(inputs["labels"], logits)}
    evaluate = Classification(Inference(inputs, outputs), dev_batches, len(labels))

    optimizer, rate = scheduled(
        config.learning_rate, config.epochs * batches.steps_per_epoch(), config.warmup,
        weight_decay=config.weight_decay, clip_norm=config.clip_norm,
    )  # fmt: skip
    step = TrainStep(
        inputs, step_input, loss + sum(model.losses), optimizer, model.trainable_weights, rate,
        {"accuracy": accuracy},
    )  # fmt: skip
    return job.Job(
        model, step, batches, evaluate, {"vocab.txt": tokenizer.save, "labels.json": labels.save},
        identity={"train": train.fingerprint(), "dev": dev.fingerprint()},
    )  # fmt: skip


def main(argv: Optional[List[str]] = None) -> int:
    config = parse(Config, argv, "python -m recipes.classification")
    from amp_xla.training.launch import LoopOptions, train

    options = LoopOptions(
        epochs=config.epochs, log_every=config.log_every, evaluate_every=config.evaluate_every,
        patience=config.patience, monitor="accuracy",
    )  # fmt: skip
    return train("classification", config, build, options)


def predict(run: Path, lines: List[str], checkpoint: Optional[str]) -> List[Tuple[str, float]]:
    """Label and probability for each line: a text, or two texts with a tab between them."""
    config = load(Config, run / "config.json")
    from amp_xla import setup

    setup.configure(precision=config.precision, xla="off")
    from amp_xla.backend import tf
    from amp_xla.training import dropout
    from amp_xla.training.checkpoint import find, restore_weights
    from amp_xla.training.step import Inference

    tokenizer = Tokenizer.load(str(run / "vocab.txt"), lowercase=config.lowercase)
    labels = Labels.load(str(run / "labels.json"))
    texts, pairs = map(list, zip(*(line.partition("\t")[::2] for line in lines)))
    encoded = tokenizer.encode(texts, pairs if any(pairs) else None, max_length=config.max_length)
    with dropout.inference():
        model = build_model(config, tokenizer.vocab_size, len(labels))
    restore_weights(find(run, checkpoint), model.weights)
    inputs = {"token_ids": model.inputs[0], "segment_ids": model.inputs[1]}
    infer = Inference(inputs, {"chances": tf.nn.softmax(model.output)})
    found: Dict[int, Tuple[str, float]] = {}
    batches = Batches(encoded, None, [config.max_length], config.batch_size, shuffle=False)
    for batch in batches.epoch(0):
        for sample, row in zip(batch.sample_ids, infer(vars(batch))["chances"]):
            found[int(sample)] = (labels.names[int(row.argmax())], float(row.max()))
    return [found[i] for i in range(len(lines))]


if __name__ == "__main__":
    sys.exit(exit_code(main))
