"""Named entities: a BERT encoder with a softmax, a CRF or an (efficient) GlobalPointer.

    make train RECIPE=tagging

trains a small BERT from scratch: which words of a docstring name a parameter, a class, a function
or a constant?
TensorFlow 1.15.5: dev F1 0.6616, seed 1, 3.9 minutes; AMD EPYC with AVX-512 BF16, 2 cores, load 3;
2026-11-26.
TensorFlow 2.17.1: dev F1 0.662, seed 1, 2.4 minutes; AMD EPYC with AVX-512 BF16, 2 cores, load 3;
2026-11-26.

    make train RECIPE=tagging ARGS="--train a.bio --dev b.bio --bert chinese_L-12_H-768_A-12"
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Dict, List, Optional

from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, parse, within
from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.text.options import TaggedFiles, VocabularyOptions
from amp_xla.errors import SettingsError
from amp_xla.models.options import EncoderOptions
from amp_xla.process.exits import exit_code
from amp_xla.tasks.tagging import scores
from amp_xla.tasks.tagging.data import read
from amp_xla.tasks.tagging.spans import is_flat
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.context import RunContext, loop_options, text_defaults
from amp_xla.training.options import (
    ClassifierOptions,
    Intervals,
    MemoryOptions,
    PrecisionOptions,
    RunOptions,
    Seed,
    TrickOptions,
    UpdateOptions,
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a model that finds named entities."""

    seed: Seed = 1
    """seed of weights, order and dropout"""
    files: TaggedFiles = TaggedFiles()
    vocabulary: VocabularyOptions = VocabularyOptions(lowercase=False)
    encoder: EncoderOptions = EncoderOptions()
    batches: BatchOptions = BatchOptions()
    training: ClassifierOptions = ClassifierOptions(label_smoothing=0.0, epochs=5)
    update: UpdateOptions = UpdateOptions()
    memory: MemoryOptions = MemoryOptions()
    intervals: Intervals = Intervals()
    run: RunOptions = RunOptions()
    head: Literal["softmax", "crf", "global_pointer", "efficient_global_pointer"] = "crf"
    """softmax and crf predict BIO tags; the global pointers predict spans, which may be nested"""
    accumulate: Annotated[int, within(at_least=1), MAY_CHANGE] = 1
    """micro-batches per update; each has --batch-size samples"""
    tricks: TrickOptions = TrickOptions()
    precision_options: PrecisionOptions = PrecisionOptions()

    def __post_init__(self) -> None:
        smoothing = self.training.label_smoothing
        if smoothing and self.head != "softmax":
            raise SettingsError(
                f"--label-smoothing {smoothing:g}, --head {self.head}: allowed with softmax only"
            )

    def defaults(self) -> Dict[str, Any]:
        """Return the settings of a resumed run, or the defaults of ``--bert``."""
        return text_defaults("tagging", self, nested=not is_flat(self.head))

    def tagger(self, vocab_size: int, labels: int, weights: bool) -> Any:
        """Build the ``Tagger``; ``weights=False`` reads only the configuration of ``--bert``."""
        from amp_xla.tasks.tagging import model

        encoder = self.encoder.transformer(vocab_size, self.batches.max_length, weights).model
        rate = self.update.learning_rate
        return model.tagger(encoder, self.head, labels, self.encoder.dropout, rate)


def build(config: Config, context: RunContext) -> Any:
    """Build the job up to the first step."""
    from amp_xla.models import dropout
    from amp_xla.tasks.tagging import answers
    from amp_xla.training.step import Inference

    # texts -> batches
    data = context.shared(read(config.files, context.preparation(), config.head))

    # batches -> scores of tags or spans
    if config.tricks.r_drop and not is_flat(config.head):
        raise SettingsError(f"--r-drop excludes --head {config.head}; allowed: softmax, crf")
    vocab_size = data.tokenizer.vocab_size
    tagger = config.tagger(vocab_size, len(data.labels), context.reads_weights)
    inputs = tagger.inputs()

    # scores -> loss -> update
    def objective(scores: Any) -> Any:
        return tagger.loss_and_metrics(inputs, scores, config.training.label_smoothing)

    tricks = context.tricks(tagger.model)
    optimizer = context.optimizer(context.steps(data.batches), tricks.rule)
    loss, metrics = tricks.loss(objective, inputs["weights"], optimizer.loss_scale)
    loss += sum(tagger.model.losses)
    step = context.step(inputs, loss, optimizer, tricks.variables, metrics)

    # evaluation
    with dropout.inference():
        scores = tagger.model(tagger.model.inputs)
    outputs = {**tagger.outputs(scores), "loss": tagger.total_loss(inputs, scores)}
    evaluate = answers.evaluation(Inference(inputs, outputs), data.dev_batches, data, config.head)
    return context.text_job(tagger.model, step, data, tricks.evaluation(evaluate, optimizer))


def main(argv: Optional[List[str]] = None) -> int:
    """Train."""
    config = parse(Config, argv, "amp-xla train tagging")
    from amp_xla.training.launch import train

    return train("tagging", config, build, loop_options(config, "f1"))


def predict(checkpoint: Checkpoint, lines: List[str]) -> Answers:
    """Return the entities of each line; a line is a text."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision()
    from amp_xla.tasks.tagging import answers

    return answers.predict(config, checkpoint, lines)


scored = scores.scored  # by `amp-xla evaluate --file`


def exportable(checkpoint: Checkpoint) -> Any:
    """Return the model for ``amp-xla export``."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision(float32=True)
    from amp_xla.tasks.tagging.export import tagger

    return tagger(config, checkpoint)


if __name__ == "__main__":
    sys.exit(exit_code(main))
