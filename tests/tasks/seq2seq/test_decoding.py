"""Generation with cached keys and values equals bert4keras' ``AutoRegressiveDecoder``."""

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.data.batches.order import generator
from amp_xla.models import dropout
from amp_xla.models.language_model import LanguageModel
from amp_xla.models.options import GenerationOptions, bert_config
from amp_xla.tasks.seq2seq.decoding import CachedDecoder, _beams, _draw, generate
from amp_xla.training.step import initialize_variables

VOCAB, END, SOURCE, TARGET = 50, 3, 12, 9
OPTIONS = [
    dict(beams=1, min_tokens=4),
    dict(beams=3, min_tokens=5, temperature=1.5),
    dict(top_p=0.7, temperature=2.0),
    dict(top_k=9, top_p=0.9, min_tokens=3, seed=5),
]


def reference(lm, sources, options, end, most):
    """Yield what bert4keras generates with its own model, which computes all tokens each time."""
    base = backend.bert4keras("snippets").AutoRegressiveDecoder
    inputs, size = lm.transformer.model.inputs, lm.vocab_size
    last = keras.layers.Lambda(lambda x: K.softmax(x[:, -1, :size]))
    model = keras.models.Model(inputs, last(lm.transformer.model.output))

    class Decoder(base):
        @base.wraps(default_rtype="probas")
        def predict(self, inputs, output_ids, states):
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


@pytest.fixture(scope="module")
def model():
    """Return a UniLM whose probabilities are uneven, and sources of several lengths."""
    K.clear_session()
    tf.set_random_seed(1)
    with dropout.inference():
        config = {**bert_config(VOCAB, 2, 64, 2, 64, 0.0), "initializer_range": 0.3}
        lm = LanguageModel(config, 64, "unilm")
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


@pytest.mark.parametrize(
    "chosen", [*OPTIONS[1:3], *(pytest.param(x, marks=pytest.mark.once) for x in OPTIONS[::3])],
    ids=str,
)  # fmt: skip
def test_texts_are_those_of_bert4keras(model, chosen):
    lm, sources = model
    options = GenerationOptions(**chosen)
    with dropout.inference():
        decoder = CachedDecoder(lm, 3, options.beams, SOURCE, TARGET)  # 5 texts: a row is empty
    found = generate(decoder, END, options, sources)
    assert found == list(reference(lm, sources, options, END, TARGET))
    assert len(set(map(tuple, found))) > 1


@pytest.mark.parametrize("how", [dict(beams=2), dict(beams=64), dict(top_k=5), dict(top_p=0.5)])
@pytest.mark.parametrize("temperature", [0.02, 1e-300, 0.5])
def test_low_temperatures_choose_the_most_probable_tokens(how, temperature):
    options = GenerationOptions(temperature=temperature, **how)
    search = (_draw if options.draws else _beams)(options, END, 3, 0)
    probabilities = np.float32([[0.1 if token == 7 else 1e-3 for token in range(VOCAB)]] * 64)
    next(search)
    with pytest.raises(StopIteration, match=r"\[7, 7, 7\]"):
        for rows in (1, 64, 64):
            search.send(probabilities[:rows])
