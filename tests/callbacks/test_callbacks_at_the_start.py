"""What callbacks set when training or an epoch begins, and optimizers of Keras' own wrappers."""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import Any

import numpy as np
import pytest

from amp_xla.backend import K, keras, tf
from amp_xla.callbacks import Run
from tests.support import small_fit
from tests.support.small_fit import (
    Batches,
    Killed,
    KilledAfter,
    Shuffled,
    X,
    Y,
    as_in_a_new_process,
    build,
    fit,
    states,
)

pytestmark = pytest.mark.slow
Hooks = keras.callbacks.LambdaCallback


class Base(keras.callbacks.Callback):
    """A warm-up from the rate at the start, and weights that return to those of the start."""

    def on_train_begin(self, logs=None):
        self.rate = float(K.get_value(self.model.optimizer.inner.lr))
        self.first = self.model.get_weights()

    def on_train_batch_begin(self, batch, logs=None):
        self.step = getattr(self, "step", 0) + 1
        K.set_value(self.model.optimizer.inner.lr, self.rate * min(1.0, self.step / 20))

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            self.model.set_weights([weight * 0.5 for weight in self.first])


class Counts(keras.callbacks.Callback):
    """A variable outside the model, and a flag that is back at its first value in an epoch."""

    def __init__(self):
        super().__init__()
        self.epochs, self.fresh = K.variable(0), False

    def on_epoch_begin(self, epoch, logs=None):
        K.set_value(self.epochs, K.get_value(self.epochs) + 1)
        self.fresh = True

    def on_train_batch_end(self, batch, logs=None):
        if self.fresh:
            self.model.set_weights([weight * 0.9 for weight in self.model.get_weights()])
        self.fresh = False

    def on_epoch_end(self, epoch, logs=None):
        scale = K.get_value(self.epochs)
        self.model.set_weights([weight + 0.01 * scale for weight in self.model.get_weights()])


class Draws(keras.callbacks.Callback):
    """Noise of both modules, in each hook."""

    def noise(self, number, logs=None):
        scale = 0.01 * random.random()
        noisy = [w + scale * np.random.randn(*w.shape) for w in self.model.get_weights()]
        self.model.set_weights(noisy)

    on_epoch_begin = on_train_batch_begin = on_train_batch_end = on_epoch_end = noise


class Augmented(Shuffled):
    """Batches that draw random numbers themselves."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + np.random.randn(*x.shape) * random.random(), y


def augmented():
    """Yield batches whose random numbers continue from one epoch to the next."""
    while True:
        yield Augmented()[random.randrange(7)]


class Own(Augmented):
    """Batches with a generator of their own, in an object, and one of this module."""

    def __init__(self):
        super().__init__()
        self.noise = Holder(np.random.RandomState(7))
        DRAWS.seed(7)

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + self.noise.held.randn(*x.shape) * DRAWS.random(), y

    def on_epoch_end(self):
        self.noise.held.shuffle(self.order)


class Counted(Batches):
    """Batches that depend on how many were read before."""

    read = 0

    def __getitem__(self, index):
        self.read += 1
        x, y = super().__getitem__(index)
        return x * self.read, y


def loads(folder):
    """Return a callback that loads the newest weights, as scripts without a resume do."""
    file = str(folder / "last.h5")

    class Loads(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            if (folder / "last.h5").exists():
                self.model.load_weights(file)

        def on_epoch_end(self, epoch, logs=None):
            self.model.save_weights(file)

    return Loads()


def head(folder):
    def begin(epoch, logs):
        if epoch == 2:
            layer = head.model.layers[-1]
            layer.set_weights([weight * 0 for weight in layer.get_weights()])

    return Hooks(on_epoch_begin=begin)


def restarts(folder):
    return keras.callbacks.ModelCheckpoint(
        str(folder / "{epoch}.h5"), save_weights_only=True, load_weights_on_restart=True
    )


class Inside(keras.callbacks.Callback):
    """Calls one of Keras' callbacks, and counts in its class."""

    epochs = 0

    def __init__(self):
        super().__init__()
        self.plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.5, 1, min_delta=9.0)

    def on_train_begin(self, logs=None):
        self.plateau.set_model(self.model)
        self.plateau.on_train_begin()

    def on_epoch_end(self, epoch, logs=None):
        type(self).epochs += 1
        self.plateau.on_epoch_end(epoch, {**logs, "loss": logs["loss"] + self.epochs})


class Attributes(keras.callbacks.Callback):
    """State on a layer, the model, the optimizer and another class of the script."""

    rate = None

    def on_train_batch_end(self, batch, logs=None):
        model, optimizer = self.model, self.model.optimizer
        model.layers[1].count = getattr(model.layers[1], "count", 0) + 1
        model.seen = [*getattr(model, "seen", ()), batch]
        optimizer.sums = {"batch": getattr(optimizer, "sums", {"batch": 0})["batch"] + batch}
        Base.level = getattr(Base, "level", 0) + 1
        total = model.layers[1].count + len(model.seen) + optimizer.sums["batch"] + Base.level
        Attributes.rate = (Attributes.rate or 0.05) * total / (total + 1)
        K.set_value(optimizer.inner.lr, Attributes.rate)


STEPS = 0
DRAWS = random.Random()


class Bank:
    total = 0


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    @property
    def next(self):
        self.count += 1
        return self.count

    def rate(self, epoch):
        return 0.05 / self.next


@dataclasses.dataclass(frozen=True)
class Holder:
    held: Any


class Named(dict):
    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__


def total(number):
    Bank.total += number
    small_fit.total += number  # another file of the script
    return Bank.total + small_fit.total + next_step()


def next_step():
    global STEPS
    STEPS += 1
    return STEPS


def called(calls, batch, seen=[0]):  # noqa: B006
    calls.append(batch)
    seen[0] += 1
    called.sum = getattr(called, "sum", 0) + seen[0]
    return len(calls) + called.sum


def closure():
    """Return a function whose state is variables of this one."""
    count, seen, sums = 0, [], np.zeros(2)

    def step():
        nonlocal count
        count, sums[0] = count + 1, sums[0] + count
        seen.append(count)
        return count + len(seen) + sums[0]

    return step


class Places(keras.callbacks.Callback):
    """State in all places that this callback can reach."""

    def __init__(self):
        super().__init__()
        self.inner, self.pair = Holder(Holder(Holder(Slotted()))), (Slotted(), [Slotted()])
        self.frozen, self.named, self.mixed = Holder([]), Named(), {"a": Slotted(), "steps": 0}
        self.partial, self.closure = functools.partial(called, []), closure()
        self.history, self.nested = [], {}
        self.last = self.before = np.zeros(1)  # one array now, two later
        self.random, self.drawn = np.random.RandomState(7), np.random.default_rng(7)

    def on_epoch_begin(self, epoch, logs=None):
        self.renewed = random.Random(epoch)

    def on_train_batch_end(self, batch, logs=None):
        self.before, self.last = self.last, self.last * 0.5 + batch
        self.nested = {0: self.nested}
        self.frozen.held.append(batch)
        self.named.steps = self.mixed["steps"] = self.mixed["steps"] + batch
        self.history.append(batch)
        depth, inner = 0, self.nested
        while inner:
            depth, inner = depth + 1, inner[0]
        numbers = [
            self.inner.held.held.held.next, self.pair[0].next, self.pair[1][0].next,
            sum(self.frozen.held), self.named.steps, self.mixed["a"].next, self.partial(batch),
            len(self.history), depth, self.closure(), (self.last - self.before)[0], total(batch),
            self.random.rand(), self.drawn.random(), DRAWS.random(), self.renewed.random(),
        ]  # fmt: skip
        K.set_value(self.model.optimizer.inner.lr, 0.01 * np.log1p(np.abs(numbers)).mean())


HOOKS = {
    "places": lambda folder: Places(),
    "loads": loads, "head": head, "restarts": restarts, "base": lambda folder: Base(),
    "counts": lambda folder: Counts(), "inside": lambda folder: Inside(),
    "schedule": lambda folder: keras.callbacks.LearningRateScheduler(Slotted().rate),
    "attributes": lambda folder: Attributes(),
    "early": lambda folder: keras.callbacks.EarlyStopping("loss", 10.0, 2, 0, "auto", None, True),
}  # fmt: skip


KILLS = {"within": {"batches": 17}, "between": {"epoch": 2}}


def killed(names, *on_both):
    """Return a mark for each name killed within and between epochs, most of them ``once``."""
    cases = [(name, kill) for name in names for kill in KILLS]
    marks = [[pytest.mark.once] * (case not in on_both) for case in cases]
    return pytest.mark.parametrize(
        "name, kill", [pytest.param(*case, marks=mark) for case, mark in zip(cases, marks)]
    )


# What functions assign depends on Python, the others on Keras.
@killed(HOOKS, ("places", "within"), ("restarts", "between"), ("early", "within"))
def test_what_callbacks_set_at_the_start_is_as_in_the_whole_run(name, kill, tmp_path, capfd):
    def trained(folder, *more, **options):
        global STEPS
        (tmp_path / folder).mkdir(exist_ok=True)
        head.model = build()
        STEPS = Inside.epochs = Base.level = 0
        Attributes.rate, Bank.total, small_fit.total = None, 0, 0
        called.sum, called.__defaults__ = 0, ([0],)
        DRAWS.seed(7)
        callback = HOOKS[name](tmp_path / folder)
        run = Run(tmp_path / folder / "run", checkpoint_every=1, **options)
        fit(head.model, callback, run, *more)
        return states(head.model)

    whole = trained("whole")
    capfd.readouterr()
    with pytest.raises(Killed):
        trained("killed", KilledAfter(**KILLS[kill]))
    assert trained("killed", resume=True) == whole
    said = "in on_train_begin; the checkpoint's values replace them"
    assert capfd.readouterr().err.count(said) == (name in ("loads", "restarts"))


def perturbed(model):
    """Add noise to a weight for a step, as adversarial training does."""
    model._make_train_function()
    function, weight, calls = model.train_function, model.weights[0], []

    def step(inputs):
        calls.append(0.001)
        before = K.get_value(weight)
        K.set_value(weight, before + 0.1 * np.random.randn(*before.shape))
        outputs = function(inputs)
        K.set_value(weight, K.get_value(weight) - sum(calls) * random.random())
        return outputs

    model.train_function = step


@killed(["arrays", "sequence", "generator", "adversarial", "counted", "own"],
        ("adversarial", "within"), ("generator", "between"))  # fmt: skip
def test_random_numbers_of_callbacks_and_data_continue_after_a_kill(name, kill, tmp_path, capfd):
    makers = {"generator": augmented, "counted": lambda: Counted(4), "own": Own, "arrays": None}

    def trained(folder, *more, seed=3, **options):
        model, make = build(), makers.get(name, Augmented)
        if name == "adversarial":
            perturbed(model)
        given = {"x": make(), "y": None, "batch_size": None, "steps_per_epoch": 7} if make else {}
        random.seed(seed)
        run = Run(tmp_path / folder, checkpoint_every=1, **options)
        fit(model, run, Draws(), *more, validation_data=(X[:4], Y[:4]), **given)
        return states(model), np.random.rand(), random.random()

    whole = trained("whole")
    with pytest.raises(Killed):
        trained("killed", KilledAfter(**KILLS[kill]))
    capfd.readouterr()
    again = trained("killed", seed=4, resume=True)
    said = "differs from the one before the checkpoint: a resume is exact only if"
    assert capfd.readouterr().err.count(said) == (name == "counted")
    assert again == whole or name == "counted"


class Limit(keras.callbacks.Callback):
    """Stops within an epoch, as for a time limit, at the first start only."""

    def __init__(self, step):
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        self.model.stop_training |= self.left == 0


@pytest.mark.parametrize(
    "step", [9, *(pytest.param(step, marks=pytest.mark.once) for step in (14, 15))]
)
def test_a_run_that_was_stopped_within_an_epoch_continues(step, tmp_path, capfd):
    whole = build()
    fit(whole, Limit(99), Run(tmp_path / "whole"))
    expected = states(whole)
    for limit in (step, 99):
        as_in_a_new_process()
        model = build()
        fit(model, Limit(limit), Run(tmp_path / "run", resume=True))
    assert states(model) == expected
    said = f"resume=True continues it after step {step}"
    assert capfd.readouterr().err.count(said) == 1


def wrapped(optimizer, scale="dynamic"):
    """Return Keras' own wrapper, on either TensorFlow."""
    kind = getattr(keras.mixed_precision, "LossScaleOptimizer", None)
    if kind is None:
        return keras.mixed_precision.experimental.LossScaleOptimizer(optimizer, scale)
    return kind(optimizer) if scale == "dynamic" else kind(optimizer, False, scale)


def adam(rate: Any = 0.01) -> Any:
    return keras.optimizers.Adam(rate)


def rewriting() -> Any:
    """Return the module that turns the graph rewrite on and off."""
    module = getattr(tf, "mixed_precision", None)
    is_new = hasattr(module, "enable_mixed_precision_graph_rewrite")
    return module if is_new else tf.train.experimental  # TensorFlow 1.15


def rewritten(optimizer):
    return rewriting().enable_mixed_precision_graph_rewrite(optimizer)


@pytest.fixture
def rewrite_off_at_the_end():
    yield
    rewriting().disable_mixed_precision_graph_rewrite()


OPTIMIZERS = {
    "dynamic": lambda: wrapped(adam()),
    "fixed": lambda: wrapped(adam(), 128.0),
    "schedule": lambda: wrapped(adam(keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.5))),
    "rewrite": lambda: rewritten(adam()),
    "train": lambda: rewritten(tf.train.AdamOptimizer(0.01)),
}


@pytest.mark.parametrize("name", [
    "dynamic", "rewrite", "train",
    *(pytest.param(name, marks=pytest.mark.once) for name in ("fixed", "schedule")),
])  # fmt: skip
def test_keras_own_loss_scaling_trains_and_resumes(name, tmp_path, rewrite_off_at_the_end):
    rows = np.array(np.random.RandomState(0).randn(26, 4))
    rows[0] = 1e9 if name == "fixed" else np.nan  # one batch in each epoch of 7 is skipped

    def trained(folder, *more, **options):
        model, seen = build(dropout=0.0), []
        model.compile(OPTIMIZERS[name](), "mse")
        log = Hooks(on_epoch_end=lambda epoch, logs: seen.append(logs))
        fit(model, Run(tmp_path / folder, checkpoint_every=1, **options), log, *more, x=rows)
        state = K.batch_get_value(sorted(tf.global_variables(), key=lambda v: v.name))
        return [array.tobytes() for array in model.get_weights() + state], seen[-1]

    whole, logs = trained("whole")
    scale, skipped = (128.0, 0) if name == "fixed" else (2.0**15 / 2**4, 4)
    assert (logs["loss_scale"], logs["skipped_steps"]) in [(scale, skipped), (2 * scale, skipped)]
    with pytest.raises(Killed):
        trained("killed", KilledAfter(17))
    assert trained("killed", resume=True)[0] == whole
