"""Relations: triples (subject, predicate, object) in a text, by GPLinker on a BERT encoder.

    make train RECIPE=relations

trains a small BERT from scratch: what does a class extend and define, what does a function take?
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Dict, List, Optional

from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, parse, within
from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.errors import SettingsError
from amp_xla.models.options import EncoderOptions
from amp_xla.process.exits import exit_code
from amp_xla.tasks.relations import scores
from amp_xla.tasks.relations.data import RelationFiles, read
from amp_xla.training import options
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.context import RunContext, loop_options, text_defaults


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a model that finds triples (subject, predicate, object)."""

    seed: options.Seed = 1
    """seed of weights, order and dropout"""
    files: RelationFiles = RelationFiles()
    vocabulary: VocabularyOptions = VocabularyOptions(lowercase=False)
    encoder: EncoderOptions = EncoderOptions()
    batches: BatchOptions = BatchOptions()
    training: options.ClassifierOptions = options.ClassifierOptions(label_smoothing=0.0, epochs=8)
    update: options.UpdateOptions = options.UpdateOptions()
    memory: options.MemoryOptions = options.MemoryOptions()
    intervals: options.Intervals = options.Intervals()
    run: options.RunOptions = options.RunOptions()
    accumulate: Annotated[int, within(at_least=1), MAY_CHANGE] = 1
    """micro-batches per update; each has --batch-size samples"""
    tricks: options.TrickOptions = options.TrickOptions()
    precision_options: options.PrecisionOptions = options.PrecisionOptions()

    def __post_init__(self) -> None:
        if self.training.label_smoothing or self.tricks.r_drop:
            raise SettingsError("relations has neither --label-smoothing nor --r-drop; allowed: 0")

    def defaults(self) -> Dict[str, Any]:
        """Return the settings of a resumed run, or the defaults of ``--bert``."""
        return text_defaults("relations", self)


def build(config: Config, context: RunContext) -> Any:
    """Build the job up to the first step."""
    from amp_xla.models import dropout, losses
    from amp_xla.tasks.relations import answers, model
    from amp_xla.training.step import Inference

    # texts -> batches
    data = context.shared(read(config.files, context.preparation()))

    # batches -> scores
    size, length = data.tokenizer.vocab_size, config.batches.max_length
    encoder = config.encoder.transformer(size, length, context.reads_weights).model
    linker = model.linker(encoder, len(data.labels), config.encoder.dropout)
    inputs = model.inputs_of(linker)

    # scores -> loss -> update
    def objective(output: Any) -> Any:
        return losses.weighted_mean(model.loss(inputs, output), inputs["weights"]), {}

    tricks = context.tricks(linker)
    optimizer = context.optimizer(context.steps(data.batches), tricks.rule)
    loss, metrics = tricks.loss(objective, inputs["weights"], optimizer.loss_scale)
    loss += sum(linker.losses)
    step = context.step(inputs, loss, optimizer, tricks.variables, metrics)

    # evaluation
    with dropout.inference():
        output = linker(linker.inputs)
    infer = Inference(inputs, {"scores": output, "loss": model.loss(inputs, output)})
    evaluate = answers.evaluation(infer, data.dev_batches, data)
    return context.text_job(linker, step, data, tricks.evaluation(evaluate, optimizer))


def main(argv: Optional[List[str]] = None) -> int:
    """Train."""
    config = parse(Config, argv, "amp-xla train relations")
    from amp_xla.training.launch import train

    return train("relations", config, build, loop_options(config, "f1"))


def predict(checkpoint: Checkpoint, lines: List[str]) -> Answers:
    """Return the triples of each line; a line is a text."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision()
    from amp_xla.tasks.relations import answers

    return answers.predict(config, checkpoint, lines)


scored = scores.scored  # by `amp-xla evaluate --file`


def exportable(checkpoint: Checkpoint) -> Any:
    """Return the model for ``amp-xla export``."""
    config = checkpoint.config(Config)
    checkpoint.apply_precision(float32=True)
    from amp_xla.tasks.relations import answers

    return answers.exported(config, checkpoint)


if __name__ == "__main__":
    sys.exit(exit_code(main))
