"""Pretraining: a BERT learns to fill in masked words, or to write on, from raw text.

    make train RECIPE=pretraining

prepares the built-in corpus (docstrings of the installed packages), trains a tiny BERT on it from
scratch, and leaves weights in the run's folder that bert4keras and the other recipes load:

    make train RECIPE=classification ARGS="--bert runs/pretraining/latest"

Own text, of any size, is prepared first, on as many processes and machines as there are:

    make prepare CORPUS='corpus/*.jsonl.gz' OUT=data/mine ARGS="--vocab vocab.txt --length 512"
    make train RECIPE=pretraining ARGS="--data data/mine --model base --global-batch 1024"
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from typing import Any, Dict, List, Optional

from typing_extensions import Literal

from amp_xla.config import exit_code, parse
from amp_xla.data import cooccurrence, prepare
from amp_xla.data.errors import DataError
from amp_xla.data.manifest import VOCAB, Manifest, Sequences
from amp_xla.data.masking import Masking
from amp_xla.data.records import join
from amp_xla.data.stream import Stream
from amp_xla.data.words import load_tokenizer
from amp_xla.training.options import RunOptions


@dataclasses.dataclass(frozen=True)
class Config:
    """Pretrain a language model."""

    data: Optional[str] = None
    """folder that `make prepare` wrote; none = prepare the built-in corpus, once, in .cache"""
    objective: Literal["mlm", "lm", "unilm"] = "mlm"
    """masked words (RoBERTa), the next token (GPT), or the second of two segments (UniLM)"""
    mask: Literal["word", "span", "token"] = "word"
    """what is masked together; new masks in every pass over the data"""
    mask_rate: float = 0.15
    """share of the tokens to predict: 80% become [MASK], 10% another token, 10% stay"""
    topic: float = 1.0
    """weight, at the end, of a second loss: a text's mean foretells its masked words; 0 = none"""

    model: Literal["tiny", "small", "base", "large"] = "tiny"
    """layers x hidden size: 3x192, 4x512, 12x768, 24x1024; heads of 64, in tiny of 32"""
    bert: Optional[str] = None
    """folder with bert_config.json and a checkpoint in Google's format to go on from"""
    embeddings: Literal["counts", "random"] = "counts"
    """where a new model's tokens start: from counts of their neighbours in the text, or anywhere"""
    dropout: float = 0.0
    """share of activations and attention weights dropped; 0.1 for many passes over little text"""

    steps: int = 2000
    """updates of the whole run"""
    global_batch: int = 16
    """sequences an update, all ranks together; micro_batch and ranks do not change it"""
    micro_batch: int = 16
    """sequences a rank holds in memory at once; global_batch is made of whole ones"""
    optimizer: Literal["adamw", "lamb"] = "adamw"
    """lamb for global batches of thousands"""
    learning_rate: float = 1e-3
    """peak of the schedule; base models like 1e-4 to 4e-4 with adamw"""
    decay: Literal["linear", "cosine", "constant"] = "linear"
    """how the learning rate falls after the warm-up"""
    warmup: float = 0.06
    """share of the updates until the peak"""
    weight_decay: float = 0.01
    """decoupled, not on norms and biases"""
    clip_norm: float = 1.0
    """global gradient norm to clip to, after unscaling; 0 = no clipping"""
    average: float = 0.0
    """decay of a moving average of the weights, e.g. 0.999, to evaluate and save; 0 = none"""

    precision: Optional[Literal["fp32", "tf32", "amp"]] = None
    """none = AMP_XLA_PRECISION, else amp"""
    xla: Optional[Literal["off", "on", "no_lazy", "lite"]] = None
    """none = AMP_XLA_XLA, else off; every shape is fixed, so each graph is compiled once"""
    loss_scale: Optional[str] = None
    """1, a number, or dynamic; none = AMP_XLA_LOSS_SCALE, else 1000 in float16 and 1 elsewhere"""

    evaluate_every: int = 1000
    """micro-batches between evaluations on the held-out text"""
    heldout: int = 512
    """held-out sequences to evaluate on, at most"""
    log_every: int = 100
    """micro-batches between two lines of metrics.jsonl"""
    seed: int = 1
    """decides weights, order, masks and dropout"""
    run: RunOptions = RunOptions()
    """name, checkpoints, resuming"""


def get_data(config: Config) -> Manifest:
    if config.data is not None:
        return Manifest.load(config.data)
    out = os.path.join(".cache", "pretraining", f"docstrings-96-python{platform.python_version()}")
    found = prepare.prepare(prepare.Config(out=out, length=96))
    assert found is not None  # one machine does it all
    return found


def accumulation(config: Config, ranks: int) -> int:
    """Micro-batches an update."""
    together = config.micro_batch * ranks
    if config.global_batch % together:
        raise DataError(
            f"--global-batch {config.global_batch} is not made of whole micro-batches: "
            f"{config.micro_batch} sequences x {ranks} ranks = {together}"
        )
    return config.global_batch // together


def build(config: Config) -> Any:
    """Everything up to the first step; data and switches come before TensorFlow."""
    data = get_data(config)
    from amp_xla import setup

    setup.configure(precision=config.precision, xla=config.xla, loss_scale=config.loss_scale)
    from amp_xla.backend import tf
    from amp_xla.optimizers.adamw import AdamW
    from amp_xla.optimizers.average import Average, averaged
    from amp_xla.optimizers.lamb import LAMB
    from amp_xla.training import dropout, job, losses
    from amp_xla.training.flops import matmul_ceiling
    from amp_xla.training.language_model import PRESETS, HeldOut, LanguageModel
    from amp_xla.training.optimizing import scheduled
    from amp_xla.training.step import TrainStep

    job.seed_everything(config.seed)
    vocab, lowercase = join(data.folder, VOCAB), data.settings["lowercase"]
    tokenizer = load_tokenizer(vocab, lowercase)
    length, size = data.settings["length"], config.micro_batch
    masking = Masking.of(tokenizer, length, config.mask_rate, config.mask, config.seed)
    accumulate = accumulation(config, ranks=1)
    options: Dict[str, Any] = dict(objective=config.objective, sep_id=tokenizer.sep_id)
    batches = Stream(
        Sequences(data), masking, size, config.steps * accumulate, seed=config.seed, **options
    )
    held = Sequences(data, "heldout")
    # The held-out masks have a seed of their own: runs with different seeds are comparable.
    fixed = dataclasses.replace(masking, seed=0)
    held_batches = Stream(
        held, fixed, size, min(config.heldout, len(held)) // size or None,
        seed=0, shuffle=False, **options,
    )  # fmt: skip

    step_input = dropout.install(config.seed)
    layers, hidden, heads = PRESETS[config.model]
    lm = LanguageModel(
        tokenizer.vocab_size, length, layers, hidden, heads, config.objective, config.bert,
        config.dropout,
    )  # fmt: skip
    if config.embeddings == "counts" and config.bert is None:
        text = cooccurrence.sample(Sequences(data))
        lm.start_from_vectors(
            *cooccurrence.word_vectors(
                text, tokenizer.vocab_size, hidden, masking.special_ids, config.seed
            )
        )
    inputs = {
        "token_ids": lm.model.inputs[0],
        "segment_ids": lm.model.inputs[1],
        "positions": tf.placeholder(tf.int32, [None, None], name="positions"),
        "labels": tf.placeholder(tf.int32, [None, None], name="labels"),
        "weights": tf.placeholder(tf.float32, [None, None], name="weights"),
    }
    out = lm.head(inputs, lm.model.output)
    weights = tf.reshape(inputs["weights"], [-1])
    loss = losses.weighted_mean(out["loss"], weights)
    accuracy = losses.weighted_mean(out["hits"], weights)
    measured = {"accuracy": accuracy}
    if config.topic and config.objective == "mlm":  # the others' input shows what is to be foretold
        measured["mlm_loss"] = loss  # the sum grows with the topic's weight, while both parts fall
        measured["topic_loss"] = lm.topic_loss(inputs, lm.model.output)
        progress = tf.cast(step_input // accumulate, tf.float32) / float(config.steps)
        loss += config.topic * progress * measured["topic_loss"]
    evaluate: Any = HeldOut(lm, inputs, held_batches)
    export: Any = lm.write_checkpoint

    kind: Any = {"adamw": AdamW, "lamb": LAMB}[config.optimizer]
    optimizer, rate = scheduled(
        config.learning_rate, config.steps, config.warmup, config.decay,
        averaged(kind, config.average) if config.average else kind,
        config.weight_decay, config.clip_norm, accumulate,
    )  # fmt: skip
    step = TrainStep(inputs, step_input, loss, optimizer, lm.weights, rate, measured)
    if config.average:
        average = Average(optimizer.inner, lm.weights, optimizer.applied_steps, config.average)
        evaluate, export = map(average.used_by, (evaluate, export))
    predicted = masking.positions if config.objective == "mlm" else length - 1
    flops, ceiling = lm.flops(size, predicted), matmul_ceiling()
    print(
        f"{data.describe()}\nglobal batch {config.global_batch} = micro-batch {size} x "
        f"accumulation {accumulate} x ranks 1; {config.steps} updates = "
        f"{config.steps * config.global_batch / len(Sequences(data)):.1f} passes; "
        f"{predicted} of {length} positions predicted\n"
        f"{flops / 1e9:.1f} GFLOP a micro-batch; matrix products here reach "
        f"{ceiling / 1e9:.0f} GFLOP/s (measured)",
        file=sys.stderr,
    )
    if "topic_loss" in measured:
        print(
            f"loss = mlm_loss + a weight from 0 to {config.topic:g} x topic_loss: it may rise "
            "while both fall",
            file=sys.stderr,
        )
    return job.Job(
        lm.transformer.model,
        step,
        batches,
        evaluate,
        {VOCAB: tokenizer.save, "bert_config.json": lm.write_config},
        {"data": data.settings["corpus_sha256"], "vocabulary": data.settings["vocab_sha256"]},
        export=export,
        rates={"model_flops_utilisation": flops / size / ceiling},
    )


def main(argv: Optional[List[str]] = None) -> int:
    config = parse(Config, argv, "python -m recipes.pretraining")
    from amp_xla.training.launch import LoopOptions, train

    options = LoopOptions(
        log_every=config.log_every,
        evaluate_every=config.evaluate_every,
        monitor="loss",
        higher_is_better=False,
    )
    return train("pretraining", config, build, options)


if __name__ == "__main__":
    sys.exit(exit_code(main))
