"""Pretraining: a BERT learns to fill in masked words, or to write on, from raw text.

    make train RECIPE=pretraining

prepares the built-in corpus (docstrings of the installed packages), trains a tiny BERT on it from
scratch, and leaves weights in the run's folder that bert4keras and the other recipes load.
TensorFlow 1.15.5: held-out loss 3.88, seed 1, 8.8 minutes; 2-core Xeon; November 2026.
TensorFlow 2.17.1: held-out loss 3.88, seed 1, 4.8 minutes; 2-core Xeon; November 2026.

    make train RECIPE=classification ARGS="--bert runs/pretraining/latest"

Own text, of any size, is prepared first, on as many processes and machines as there are:

    ./amp-xla prepare 'corpus/*.jsonl.gz' data/mine --vocab vocab.txt --length 512
    make train RECIPE=pretraining ARGS="--data data/mine --model base --steps 20000"

A base or large model is trained as RoBERTa was; ``--preset`` names other published ways.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import sys
from typing import Any, Dict, List, Optional

from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, flat, parse, within
from amp_xla.data.pretraining import cooccurrence, prepare
from amp_xla.data.pretraining.masking import special_ids
from amp_xla.data.pretraining.options import LengthOptions
from amp_xla.data.pretraining.phases import in_turn, read
from amp_xla.data.pretraining.prepared import Manifest, Sequences
from amp_xla.data.text.tokenizer import MASK, Tokenizer
from amp_xla.errors import AmpXlaError
from amp_xla.models import published
from amp_xla.models.options import Filling, LanguageModelOptions
from amp_xla.process.exits import exit_code
from amp_xla.training.checkpoint import Saved
from amp_xla.training.options import Intervals, PrecisionOptions, RunOptions, Seed, UpdateOptions


@dataclasses.dataclass(frozen=True)
class Config:
    """Pretrain a language model."""

    preset: Annotated[
        Optional[Literal["bert", "roberta", "lamb", "wwm", "cramming", "quick"]], MAY_CHANGE
    ] = None
    """a published way to train: other defaults for the flags below; quick is for minutes on a
    laptop; none = roberta for base and large models, else quick"""
    data: Optional[str] = None
    """folder that `amp-xla prepare` wrote; none = prepare the built-in corpus, once, in .cache"""
    objective: Literal["mlm", "lm", "unilm"] = "mlm"
    """masked words (RoBERTa), the next token (GPT), or the second of two segments (UniLM)"""
    mask: Literal["word", "span", "token"] = "word"
    """what is masked together; new masks in every pass over the data"""
    mask_rate: Annotated[float, within(above=0, below=1)] = 0.15
    """share of the tokens to predict: 80% become [MASK], 10% another token, 10% stay"""
    topic: Annotated[float, within(at_least=0)] = 1.0
    """weight, at the end, of a second loss: a text's mean foretells its masked words; 0 = none"""
    optimizer: Literal["adamw", "lamb"] = "adamw"
    """lamb for global batches of thousands"""
    beta2: Annotated[float, within(above=0, below=1)] = 0.999
    """how long the optimizer remembers the size of gradients"""
    adam_epsilon: Annotated[float, within(above=0)] = 1e-6
    """added to the root of that size"""
    decay: Literal["linear", "cosine", "constant"] = "linear"
    """how the learning rate falls after the warm-up"""
    average: Annotated[float, within(at_least=0, below=1)] = 0.0
    """decay of a moving average of the weights, e.g. 0.999, to evaluate and save; 0 = none"""
    heldout: Annotated[int, within(at_least=1)] = 512
    """held-out sequences to evaluate on, at most"""
    seed: Seed = 1
    """decides weights, order, masks and dropout"""
    length: LengthOptions = LengthOptions()
    encoder: LanguageModelOptions = LanguageModelOptions()
    update: UpdateOptions = UpdateOptions(learning_rate=1e-3, warmup=0.06)
    precision_options: PrecisionOptions = PrecisionOptions()
    intervals: Intervals = Intervals(evaluate_every=1000, log_every=100)  # in updates
    run: RunOptions = RunOptions()

    def defaults(self) -> Dict[str, Any]:
        """What ``preset`` and ``model`` put in place of the defaults above."""
        return published.settings(self.preset, self.encoder.model)


def get_data(config: Config) -> Manifest:
    if config.data is not None:
        return Manifest.load(config.data)
    out = os.path.join(".cache", "pretraining", f"docstrings-96-python{platform.python_version()}")
    from amp_xla.training import distributed

    ranks = distributed.current()
    ranks.all_do(lambda: ranks.first and prepare.prepare(prepare.Config(out=out, length=96)))
    return Manifest.load(out)


def build(config: Config, kept: Optional[Saved] = None) -> Any:
    """Everything up to the first step; ``kept`` is what a resumed run goes on from."""
    config = kept.pinned(config) if kept else config
    resolved = config.precision_options.resolve()
    data = get_data(config)
    from amp_xla.backend import tf
    from amp_xla.graph.flops import ceiling
    from amp_xla.models import dropout, losses
    from amp_xla.optimizers.adamw import AdamW
    from amp_xla.optimizers.average import Average, averaged
    from amp_xla.optimizers.lamb import LAMB
    from amp_xla.process.progress import note
    from amp_xla.training import distributed, job
    from amp_xla.training.evaluation import HeldOut
    from amp_xla.training.step import TrainStep

    job.seed_everything(config.seed)
    tokenizer = data.tokenizer()
    note(f"{data.describe()}{data.warnings(tokenizer)}")
    note(published.described(flat(config), flat(Config())))
    ranks = distributed.current()
    amount = config.length
    size, ranks_count = amount.global_batch, ranks.world.size
    accumulate = amount.accumulation(config.update.accumulate, ranks_count)
    plan = amount.plan(data.settings["length"])
    phases = read(
        data, tokenizer, plan, size, config.heldout, config.objective, config.mask,
        config.mask_rate, config.seed,
    )  # fmt: skip
    batches = ranks.share(in_turn(phases), accumulate)
    step_input = dropout.install(config.seed)
    lm = config.encoder.language_model(
        tokenizer.vocab_size, phases[-1].length, config.objective, not kept, len(phases) > 1
    )
    if config.encoder.from_counts:
        text, width = cooccurrence.sample(Sequences(data)), lm.config["hidden_size"]
        marks = special_ids(tokenizer)
        lm.start_from_vectors(
            *cooccurrence.word_vectors(text, tokenizer.vocab_size, width, marks, config.seed)
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
        progress = tf.cast(step_input // accumulate, tf.float32) / float(amount.steps)
        loss += config.topic * progress * measured["topic_loss"]
    evaluate: Any = HeldOut(lm, inputs, *(ranks.share(p.held) for p in reversed(phases)))
    export: Any = lm.write_checkpoint

    kind: Any = {"adamw": AdamW, "lamb": LAMB}[config.optimizer]
    kind = averaged(kind, config.average) if config.average else kind
    optimizer, rate = config.update.scheduled(
        amount.steps, resolved.loss_scale, decay=config.decay, accumulate=accumulate,
        rule=functools.partial(kind, beta2=config.beta2, epsilon=config.adam_epsilon),
    )  # fmt: skip
    step = TrainStep(inputs, step_input, loss, optimizer, lm.weights, rate, measured)
    if config.average:
        average = Average(optimizer.inner, lm.weights, optimizer.applied_steps, config.average)
        evaluate, export = map(average.used_by, (evaluate, export))
    costs = [lm.flops(phase.length, phase.predicted) for phase in phases]
    reach, _ = ceiling(resolved.half or "float32", seconds=0.5)
    note(
        f"global batch {size} = micro-batch {size / accumulate / ranks_count:g} x accumulation "
        f"{accumulate} x ranks {ranks_count}; "
        f"{', then '.join(phase.describe() for phase in phases)}\n"
        f"{costs[0] * size / 1e9:.1f} GFLOP per update; matrix products here reach "
        f"{reach / 1e9:.0f} GFLOP/s (measured)"
    )
    if "topic_loss" in measured:
        note(
            f"loss = mlm_loss + a weight from 0 to {config.topic:g} x topic_loss: it may rise "
            "while both fall"
        )
    border = phases[0].batches.steps_per_epoch()

    def utilisation(step: int) -> float:
        return costs[step > border] / reach / ranks_count

    return job.Job(
        lm.transformer.model,
        step,
        batches,
        evaluate,
        {**tokenizer.assets, "bert_config.json": lm.write_config},
        resolved,
        {"data": data.settings["corpus_sha256"], "vocabulary": data.settings["vocab_sha256"]},
        export=export,
        rates={"model_flops_utilisation": utilisation},
    )


def main(argv: Optional[List[str]] = None) -> int:
    config = parse(Config, argv, "python -m recipes.pretraining")
    from amp_xla.training.launch import train

    return train(
        "pretraining", config, build, config.intervals.loop(monitor="loss", higher_is_better=False)
    )


def fill(saved: Saved, texts: List[str], top: int) -> List[List[Filling]]:
    """For each text the ``top`` likeliest tokens of each [MASK], taken by itself, likeliest first.

    Raises:
      AmpXlaError: the run does not fill in, or a text is longer than its model reads.
    """
    config = saved.config(Config)
    if config.objective != "mlm":
        raise AmpXlaError(
            f"{saved.run} was trained with --objective {config.objective}: it writes on, and fills "
            f"in no {MASK}"
        )
    dataclasses.replace(config.precision_options, xla="off", loss_scale=None).resolve()
    from amp_xla.models.filling import Fill
    from amp_xla.models.language_model import SIZES
    from amp_xla.process.progress import note
    from amp_xla.training.checkpoint.checkpoints import restore_weights

    if config.average:
        note("the weights themselves answer; their moving average is in bert_model.ckpt")
    tokenizer = Tokenizer.from_assets(saved.asset)
    encoder = config.encoder
    architecture = saved.architecture or encoder.bert
    model = Fill(tokenizer, texts, architecture, SIZES[encoder.model], top)
    restore_weights(saved.path, model.weights)
    return model()


if __name__ == "__main__":
    sys.exit(exit_code(main))
