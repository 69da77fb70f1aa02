"""How long does a text take by bert4keras' ``AutoRegressiveDecoder`` and with kept keys and values?

    python -m benchmarks.decoding --rounds 3

Random weights, float32, texts of exactly --tokens tokens. The tokens of both must be the same.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Sequence

import numpy as np
from typing_extensions import Annotated

from amp_xla.backend import configuring
from amp_xla.config import parse, within
from amp_xla.data.batches.order import generator
from amp_xla.models.options import EncoderOptions, GenerationOptions
from amp_xla.process.exits import exit_code
from benchmarks import harness

END = 3


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure generation."""

    layers: Annotated[int, within(at_least=1)] = 3
    """transformer layers"""
    hidden: Annotated[int, within(at_least=64)] = 768
    """hidden size"""
    vocab_size: Annotated[int, within(at_least=64)] = 21128
    """tokens of the vocabulary"""
    source: Annotated[int, within(at_least=4)] = 64
    """tokens of a source"""
    tokens: Annotated[int, within(at_least=2)] = 64
    """tokens of a generated text"""
    beams: Annotated[int, within(at_least=1)] = 4
    """beams of the search"""
    texts: Annotated[int, within(at_least=1)] = 8
    """texts of the last row, generated together"""
    rounds: Annotated[int, within(at_least=1)] = 3
    """turns of each contestant"""
    out: str = "runs/decoding"
    """where to write .json and .md"""


@dataclasses.dataclass
class Seconds:
    """Seconds per text, a value per round."""

    seconds: List[float] = dataclasses.field(default_factory=list)


def reference(
    lm: Any, sources: Sequence[List[int]], options: GenerationOptions, end: int, most: int
) -> Iterator[List[int]]:
    """Yield what bert4keras generates with its own model, which computes all tokens each time."""
    from amp_xla import backend
    from amp_xla.backend import K, keras

    base = backend.bert4keras("snippets").AutoRegressiveDecoder
    inputs, size = lm.transformer.model.inputs, lm.vocab_size
    last = keras.layers.Lambda(lambda x: K.softmax(x[:, -1, :size]))
    model = keras.models.Model(inputs, last(lm.transformer.model.output))

    class Decoder(base):  # type: ignore[misc, valid-type]
        @base.wraps(default_rtype="probas")
        def predict(self, inputs: Any, output_ids: Any, states: Any) -> Any:
            ids = np.concatenate([inputs[0], output_ids], 1)
            return model.predict([ids, np.concatenate([inputs[1], np.ones_like(output_ids)], 1)])

    decoder = Decoder(start_id=None, end_id=end, maxlen=most, minlen=options.min_tokens)
    for number, source in enumerate(sources):
        row, temperature = [source, [0] * len(source)], options.temperature
        if options.draws:
            np.random.set_state(generator(options.seed, number).get_state())
            (ids,) = decoder.random_sample(
                row, 1, options.top_k, options.top_p, temperature=temperature
            )
        else:
            ids = decoder.beam_search(row, options.beams, temperature=temperature)
        yield [int(i) for i in (ids[:-1] if ids[-1] == end else ids)]


def main() -> int:
    """Measure, print the table and write the record."""
    config = parse(Config, prog="python -m benchmarks.decoding")
    configuring.resolve(precision="fp32", xla="off")
    from amp_xla.models import dropout
    from amp_xla.models.decoding import CachedDecoder, Generator
    from amp_xla.training.step import initialize_variables

    encoder = EncoderOptions(layers=config.layers, hidden=config.hidden)
    options = GenerationOptions(beams=config.beams, min_tokens=config.tokens)
    with dropout.inference():
        lm = encoder.language_model(config.vocab_size, config.source + config.tokens, "unilm")
        several = CachedDecoder(lm, config.texts, config.beams, config.source, config.tokens)
        alone = CachedDecoder(lm, 1, config.beams, config.source, config.tokens)
    initialize_variables()
    draw = np.random.RandomState(1)
    body = draw.randint(5, config.vocab_size, (config.texts, config.source - 2)).tolist()
    sources = [[2, *ids, END] for ids in body]
    contestants: Dict[str, Callable[[], List[List[int]]]] = {
        "bert4keras": lambda: list(reference(lm, sources[:1], options, END, config.tokens)),
        "kept keys and values": lambda: Generator(alone, END, options)(sources[:1]),
        f"{config.texts} texts together": lambda: Generator(several, END, options)(sources),
    }
    results = {name: Seconds() for name in contestants}
    for number in range(-1, config.rounds):  # the first round warms up
        answers = []
        for name, run in contestants.items():
            harness.say(f"round {number + 1} of {config.rounds}: {name} ...")
            start = time.perf_counter()
            answers.append(run())
            if number >= 0:
                each = (time.perf_counter() - start) / len(answers[-1])
                results[name].seconds.append(each)
        if any(texts[0] != answers[0][0] for texts in answers):
            raise SystemExit(f"error: different tokens: {json.dumps([a[0] for a in answers])}")
    first = results["bert4keras"].seconds
    rows = ["| contestant | seconds per text | times as fast |", "|---|---|---|"]
    rows += [
        f"| {name} | {statistics.median(result.seconds):.3f} | "
        f"{statistics.median(a / b for a, b in zip(first, result.seconds)):.1f}x |"
        for name, result in results.items()
    ]
    harness.write(config.out, "benchmarks.decoding", config, results, "\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
