"""Each trick of fine-tuning against its definition, on a small BERT; skipped steps."""

import re

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, tf
from amp_xla.errors import SettingsError
from amp_xla.models import dropout, losses
from amp_xla.models.options import EncoderOptions
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.training.options import TrickOptions
from amp_xla.training.step import TrainStep, initialize_variables
from amp_xla.training.tricks import EMBEDDING, Tricks

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("cleared")]
# No token occurs twice: a step on what is looked up is then one on the rows of the table.
TOKENS = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0], [0, 0, 0, 0, 0]])
BATCH = {"token_ids": TOKENS, "segment_ids": TOKENS * 0, "labels": [0, 2, 0], "weights": [1, 1, 0]}
EPSILON, ALPHA, CLASSES = 0.7, 4.0, 3


class Built:
    """A model under tricks, and what its objective was called with."""

    def __init__(
        self, tricks, rate=0.0, scale=8.0, pretrained=True, slots=1, accumulate=1, layers=1
    ):
        K.clear_session()
        dropping = dropout.install(3)
        encoder = EncoderOptions(layers=layers, hidden=16, dropout=rate)
        self.model = encoder.classifier(12, CLASSES, 8, slots)
        each = [None] * (self.model.output.shape.ndims - 1)
        names = ("token_ids", "segment_ids", "position_ids", "slots")
        self.inputs = dict(zip(names, self.model.inputs))
        self.inputs["labels"] = labels = tf.placeholder(tf.int32, each)
        self.inputs["weights"] = weights = tf.placeholder(tf.float32, each)
        self.outputs = []

        def objective(output):
            self.outputs.append(output)
            return losses.classification(labels, output, weights)

        self.tricks = Tricks(tricks, self.model, pretrained, recompute=False)
        self.optimizer = LossScaleOptimizer(
            self.tricks.rule(0.01, weight_decay=0.0), scale, warn_after=0, accumulate=accumulate
        )
        self.plain, _ = losses.classification(labels, self.model.output, weights)
        self.loss, accuracy = self.tricks.loss(objective, weights, self.optimizer.loss_scale)
        self.step = TrainStep(
            self.inputs, self.loss, self.optimizer, self.tricks.variables,
            {"accuracy": accuracy},
        )  # fmt: skip
        self.feeds = {**{self.inputs[k]: v for k, v in BATCH.items() if k in self.inputs}}
        self.feeds[dropping] = 0
        initialize_variables()
        random = np.random.RandomState(0)
        values = [
            random.normal(1.0 if "gamma" in v.name else 0.0, 0.2, v.shape.as_list())
            for v in self.model.weights
        ]
        self.model.set_weights(values)

    def run(self, fetches):
        return backend.session().run(fetches, self.feeds)

    def gradients(self, loss):
        return self.run([tf.convert_to_tensor(g) for g in tf.gradients(loss, self.step.variables)])

    def train(self, times=1, **changed):
        for number in range(times):
            result = self.step({**{k: np.array(v) for k, v in BATCH.items()}, **changed}, number)
        return result


def test_fgm_is_the_loss_with_the_embeddings_moved_along_their_gradient():
    built = Built(TrickOptions(fgm=EPSILON), scale=2.0**15)
    loss, seen = built.run([built.loss, [g for g, _ in built.step.gradients]])
    table = built.model.get_layer(EMBEDDING).embeddings
    (slope,) = tf.gradients(built.plain, [table])
    slope = built.run(tf.convert_to_tensor(slope)).astype(np.float64)
    moved = K.get_value(table).astype(np.float64)
    for text in TOKENS[:2]:
        rows = text[text > 0]
        moved[rows] += EPSILON * slope[rows] / np.linalg.norm(slope[rows])
    assert abs(loss - built.run(built.plain)) > 0.01  # the step does something
    K.set_value(table, moved)
    assert loss == pytest.approx(built.run(built.plain), rel=1e-5)
    slopes = built.gradients(built.plain)
    largest = max(np.abs(slope).max() for slope in slopes)  # that of a key's bias is 0 on paper
    for found, expected in zip(seen, slopes):
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-4 * largest)


def test_fgm_of_packed_rows_is_that_of_each_text_alone():
    """The two texts in one row; the other slots are empty."""
    alone = Built(TrickOptions(fgm=EPSILON))
    expected, values = alone.run(alone.loss), alone.model.get_weights()
    rows = Built(TrickOptions(fgm=EPSILON), slots=3)
    rows.model.set_weights(values)
    arrays = {
        "token_ids": [[1, 2, 3, 4, 5, 6, 7, 8, 0]], "segment_ids": [[0] * 9],
        "position_ids": [[0, 1, 2, 3, 4, 0, 1, 2, 0]], "slots": [[0] * 5 + [1] * 3 + [-1]],
        "labels": [[0, 2, 0]], "weights": [[1, 1, 0]],
    }  # fmt: skip
    rows.feeds.update({rows.inputs[name]: value for name, value in arrays.items()})
    assert rows.run(rows.loss) == pytest.approx(expected, rel=1e-4)


def test_r_drop_is_the_papers_loss_of_two_masks():
    built = Built(TrickOptions(r_drop=ALPHA), rate=0.3)
    loss, halves = built.run([built.loss, built.outputs])
    chances = [np.exp(h) / np.exp(h).sum(-1, keepdims=True) for h in map(np.float64, halves)]
    assert len(chances) == 2 and np.abs(chances[0] - chances[1]).max() > 1e-3
    p, q = (c[:2] for c in chances)
    entropy = sum(-np.log(c[[0, 1], [0, 2]]) for c in (p, q))
    apart = 0.5 * ((p * np.log(p / q)).sum(1) + (q * np.log(q / p)).sum(1))
    assert loss == pytest.approx((entropy + ALPHA * apart).mean() / 2, rel=1e-5)


def test_layer_decay_lowers_the_rate_from_layer_to_layer():
    """Adam's first update has the length of the rate, whatever the gradient."""
    built = Built(TrickOptions(layer_decay=0.5), layers=2)
    before = built.model.get_weights()
    built.train()
    depth = {"Embedding-": 3, "Transformer-0-": 2, "Transformer-1-": 1, "Logits": 0}
    for variable, new, old in zip(built.model.weights, built.model.get_weights(), before):
        if re.search("SelfAttention.*bias", variable.name):  # a key's has no gradient
            continue
        power = next(n for start, n in depth.items() if variable.name.startswith(start))
        moved = np.abs(new.astype(np.float64) - old).max()
        assert moved == pytest.approx(0.01 * 0.5**power, rel=2e-2), variable.name


def test_frozen_layers_stay():
    built = Built(TrickOptions(freeze=1, fgm=EPSILON, ema=0.9), accumulate=2, layers=2)
    before = built.model.get_weights()
    built.train(2, share=np.float32(0.5))
    moved = [(a != b).any() for a, b in zip(before, built.model.get_weights())]
    stay = [v.name.startswith(("Embedding", "Transformer-0")) for v in built.model.weights]
    assert any(stay) and not any(m for m, s in zip(moved, stay) if s)
    assert all(
        m for m, s, v in zip(moved, stay, built.model.weights) if not s and "key" not in v.name
    )


WRONG = [
    (dict(freeze=3), dict(layers=2), "--freeze 3: the model has 2 layers; allowed is 0 .*to 2"),
    (dict(freeze=0), dict(pretrained=False), "--freeze 0: .*needs --bert or --warm-start"),
    (dict(r_drop=1.0), {}, "--r-drop needs dropout, and --dropout is 0"),
]


@pytest.mark.parametrize("options, more, message", WRONG)
def test_a_trick_that_makes_no_sense_is_one_line(options, more, message):
    with pytest.raises(SettingsError, match=message):
        Built(TrickOptions(**options), **more)
