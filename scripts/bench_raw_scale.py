"""Does multiplying the loss help training in float32, where nothing can underflow? Printed.

    .venvs/tf2/bin/python -m scripts.bench_raw_scale

The classification job with bert4keras' Adam at a constant rate, as a bert4keras script has it, no
dropout, in float32: the loss as it is; scaled and unscaled again; multiplied and left so, with
K.set_epsilon(1e-5), which is the form that blogs advise; and the loss as it is with Adam's own
epsilon divided by the factor instead. Each from the same weights, on the same batches.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.data import labelled
from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.text.options import TextFiles, VocabularyOptions
from amp_xla.models.options import EncoderOptions
from amp_xla.process.arguments import parse
from amp_xla.process.exits import exit_code
from amp_xla.process.fields import within
from amp_xla.process.progress import note

EPSILON = 1e-6  # of bert4keras' Adam, which does not ask K.epsilon()
SMALL = (1e-5, 1e-6, 1e-7)


@dataclasses.dataclass(frozen=True)
class Config:
    """Train in float32 with the loss multiplied, and not."""

    scale: Annotated[float, within(above=0)] = 1000.0
    """what the loss is multiplied by"""
    shrink: Annotated[float, within(above=0)] = 1.0
    """initial kernels are multiplied by it; 0.1 makes gradients small, as in very deep models"""
    learning_rate: Annotated[float, within(above=0)] = 3e-4
    """of Adam, constant"""
    epochs: Annotated[int, within(at_least=1)] = 2
    """passes over the training data"""
    seeds: Annotated[int, within(at_least=1)] = 3
    """how many, from 1; each decides weights and order"""
    files: TextFiles = TextFiles()
    vocabulary: VocabularyOptions = VocabularyOptions()
    encoder: EncoderOptions = EncoderOptions(layers=2, hidden=128, dropout=0.0)
    batches: BatchOptions = BatchOptions(max_length=32, shapes=1)


class Result(NamedTuple):
    """Of a run: its losses, its share of right answers, and its first gradients that are small."""

    losses: List[float]
    accuracy: float
    small: Tuple[float, ...]


def main(argv: Optional[List[str]] = None) -> int:
    """Prints a row for each form of the loss, over the seeds."""
    config = parse(Config, argv, "python -m scripts.bench_raw_scale")
    import amp_xla.setup

    amp_xla.setup.configure(precision="fp32", device="cpu")
    from amp_xla.backend import tensorflow

    found: Dict[str, List[Result]] = {name: [] for name in forms(config)}
    for seed in range(1, config.seeds + 1):
        for name, results in found.items():
            results.append(trained(config, name, seed))
    plain = next(iter(found.values()))
    steps = len(plain[0].losses)
    print(f"TensorFlow {tensorflow().__version__}, {steps} steps, {config}")
    for bound, shares in zip(SMALL, zip(*(result.small for result in plain))):
        print(f"first gradients, not 0, below {bound:g}: {statistics.mean(shares):.1%}")
    tenth = max(1, steps // 10)
    print(f"| loss | first {tenth} steps | steps {4 * tenth} to {5 * tenth} | last {tenth} | "
          "dev accuracy | most that a loss is off the first row's |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    for name, results in found.items():
        parts = [slice(tenth), slice(4 * tenth, 5 * tenth), slice(-tenth, None)]
        cells = [listed([statistics.mean(r.losses[part]) for r in results]) for part in parts]
        cells.append(listed([result.accuracy for result in results]))
        apart = max(
            abs(a - b) for r, p in zip(results, plain) for a, b in zip(r.losses, p.losses)
        )  # fmt: skip
        print(f"| {name} | {' | '.join(cells)} | {apart:.2g} |")
    return 0


def listed(values: List[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def forms(config: Config) -> Dict[str, Callable[[Any, Any], Any]]:
    """Name -> what makes the update of a loss, given it and the variables."""
    from amp_xla import backend
    from amp_xla.precision.optimizer import LossScaleOptimizer, scale_loss

    def adam(epsilon: float = EPSILON) -> Any:
        return backend.bert4keras("optimizers").Adam(config.learning_rate, epsilon=epsilon)

    def scaled(loss: Any, variables: Any) -> Any:
        return LossScaleOptimizer(adam(), config.scale).minimize(loss, var_list=variables)

    def raw(loss: Any, variables: Any) -> Any:
        return adam().get_updates(scale_loss(loss, config.scale), variables)

    times = f"{config.scale:g}"
    return {
        "as it is": lambda loss, variables: adam().get_updates(loss, variables),
        f"x {times}, gradients / {times}": scaled,
        f"x {times}, K.set_epsilon(1e-5)": raw,
        f"as it is, Adam's epsilon / {times}": lambda loss, variables: adam(
            EPSILON / config.scale
        ).get_updates(loss, variables),
    }


@functools.lru_cache(maxsize=1)
def data(config: Config, seed: int) -> Tuple[Any, Any, int, int]:
    """Batches to train on and to evaluate on, how many tokens there are, and labels."""
    found = labelled.read(config.files, config.vocabulary, config.batches, None, 0.0, seed)
    return found.batches, found.dev_batches, found.tokenizer.vocab_size, len(found.labels)


def trained(config: Config, name: str, seed: int) -> Result:
    """Trains one form from ``seed`` in a graph of its own."""
    from amp_xla.backend import K, tf
    from amp_xla.models import losses
    from amp_xla.training import job

    batches, dev_batches, tokens, classes = data(config, seed)
    note(f"seed {seed}, loss {name} ...")
    K.clear_session()
    K.set_epsilon(1e-5 if "set_epsilon" in name else 1e-7)
    job.seed_everything(seed)
    model = config.encoder.classifier(tokens, classes, config.batches.max_length)
    wanted, weights = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.float32, [None])
    loss, _ = losses.classification(wanted, model.output, weights, 0.0)
    variables = model.trainable_weights
    grads = [tf.convert_to_tensor(grad) for grad in tf.gradients(loss, variables)]
    update = forms(config)[name](loss, variables)
    session = K.get_session()
    session.run(tf.global_variables_initializer())
    kernels = [w for w in variables if w.name.split("/")[-1].startswith("kernel")]
    K.batch_set_value([(w, K.get_value(w) * config.shrink) for w in kernels])
    inputs = [*model.inputs[:2], wanted, weights]

    def fed(batch: Any) -> Dict[Any, Any]:
        arrays = (batch.token_ids, batch.segment_ids, batch.labels, batch.weights)
        return dict(zip(inputs, arrays))

    seen: List[float] = []
    small: Tuple[float, ...] = ()
    for epoch in range(config.epochs):
        for batch in batches.epoch(epoch):
            if not seen:
                first = np.abs(np.concatenate([g.ravel() for g in session.run(grads, fed(batch))]))
                small = tuple(float(np.mean(first[first > 0] < bound)) for bound in SMALL)
            seen.append(float(session.run([loss, update], fed(batch))[0]))
    right = total = 0.0
    for batch in dev_batches.epoch(0):
        answers = session.run(model.output, fed(batch)).argmax(-1)
        right += float(((answers == batch.labels) * batch.weights).sum())
        total += float(batch.weights.sum())
    return Result(seen, right / total, small)


if __name__ == "__main__":
    sys.exit(exit_code(main))
