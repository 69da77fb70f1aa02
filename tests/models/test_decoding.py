"""Generation with kept keys and values: the results of bert4keras' ``AutoRegressiveDecoder``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amp_xla.backend import K, tf
from amp_xla.models import dropout
from amp_xla.models.decoding import CachedDecoder, Generator
from amp_xla.models.language_model import LanguageModel
from amp_xla.models.options import GenerationOptions
from amp_xla.training.step import initialize_variables
from benchmarks.decoding import reference

VOCAB, END, SOURCE, TARGET = 50, 3, 12, 9
OPTIONS = [
    dict(beams=1, min_tokens=4),
    dict(beams=3, min_tokens=5, temperature=1.5),
    dict(top_p=0.7, temperature=2.0),
    dict(top_k=9, top_p=0.9, min_tokens=3, seed=5),
]


@pytest.fixture(scope="module")
def model() -> Any:
    """A UniLM with weights that make probabilities uneven, and sources of several lengths."""
    K.clear_session()
    tf.set_random_seed(1)
    with dropout.inference():
        lm = LanguageModel(
            VOCAB, 64, 2, 64, 2, "unilm", init_range=0.3, attention="random", several=True
        )
    initialize_variables()
    (bias,) = lm.transformer.layers["MLM-Bias"].weights
    values = K.get_value(bias)
    values[END] = 2.0  # else hardly any text ends
    values[0] = -50.0  # as in a trained model: bert4keras hides a [PAD] that it has generated
    K.set_value(bias, values)
    draw = np.random.RandomState(1)
    sources = [[2, *draw.randint(4, VOCAB, n), END] for n in (10, 3, 7, 1, 5)]
    yield lm, sources
    K.clear_session()


@pytest.mark.parametrize("chosen", OPTIONS, ids=str)
def test_answers_are_those_of_bert4keras(model: Any, chosen: Any) -> None:
    lm, sources = model
    options = GenerationOptions(**chosen)
    with dropout.inference():
        decoder = CachedDecoder(lm, 3, options.beams, SOURCE, TARGET)  # 5 texts: a row is empty
    found = Generator(decoder, END, options)(sources)
    assert found == list(reference(lm, sources, options, END, TARGET))
    assert len(set(map(tuple, found))) > 1
