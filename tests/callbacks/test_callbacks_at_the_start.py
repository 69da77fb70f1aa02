"""What callbacks set when training or an epoch begins."""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
from typing import Any, ClassVar, List

import numpy as np
import pytest

from amp_xla.backend import K, keras
from tests.support import small_fit
from tests.support.small_fit import Batches, Shuffled, X, Y, build, fit, once, resumed, states

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


class Fresh(keras.callbacks.Callback):
    """A flag that is back at its first value in an epoch."""

    fresh = False

    def on_epoch_begin(self, epoch, logs=None):
        self.fresh = True

    def on_train_batch_end(self, batch, logs=None):
        if self.fresh:
            self.model.set_weights([weight * 0.9 for weight in self.model.get_weights()])
        self.fresh = False


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


def compiles(hook, *given):
    """Return a maker of a callback that compiles the model again, as after freezing layers."""
    again = {hook: lambda *_: head.model.compile(head.model.optimizer, *given)}
    return lambda folder: Hooks(**again)


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
    """State in all places that this callback can reach, and of all kinds."""

    listed: ClassVar[List[int]] = []
    latest: ClassVar[Any] = collections.deque()

    def __init__(self):
        super().__init__()
        Places.listed, Places.latest = [], collections.deque(maxlen=2)  # as in a new process
        self.counted, self.lists = collections.Counter(), collections.defaultdict(list)
        self.pairs, self.seen, self.by_step, self.long = [], set(), {}, []
        self.inner, self.pair = Holder(Holder(Holder(Slotted()))), (Slotted(), [Slotted()])
        self.frozen, self.named, self.mixed = Holder([]), Named(), {"a": Slotted(), "steps": 0}
        self.partial, self.closure = functools.partial(called, []), closure()
        self.history, self.nested = [], {}
        self.last = self.before = np.zeros(1)  # one array now, two later
        self.random, self.drawn = np.random.RandomState(7), np.random.default_rng(7)
        # Not in C order: one is changed in place, the others are replaced.
        self.columns = self.turned = np.arange(6.0).reshape(2, 3).T
        self.rows = np.broadcast_to(self.turned[1], (3, 2))

    def on_epoch_begin(self, epoch, logs=None):
        self.renewed = random.Random(epoch)

    def kinds(self, batch):
        """Return numbers that differ if a container is another kind after a resume."""
        step = len(self.pairs)
        self.long += range(1000)
        self.pairs.append((step, None))
        self.by_step[step] = float(batch)
        self.counted[step] += batch
        self.lists[step].append(batch)
        for some in (self.listed, self.latest):
            some.append(step)
        self.seen.add(batch)
        values = [
            len(self.long),
            len(set(self.pairs)),
            sum(self.by_step),
            sum(self.by_step.values()),
        ]
        values += [sum(self.counted), sum(map(len, self.lists.values())), len(self.seen)]
        return [*values, len(self.listed), sum(self.latest), *getattr(self, "later", ())]

    def on_epoch_end(self, epoch, logs=None):
        self.later = (epoch, np.float32(logs["loss"]))  # an attribute that appears in training

    def on_train_batch_end(self, batch, logs=None):
        self.before, self.last = self.last, self.last * 0.5 + batch
        self.nested = {0: self.nested}
        self.frozen.held.append(batch)
        self.named.steps = self.mixed["steps"] = self.mixed["steps"] + batch
        self.history.append(batch)
        layouts = self.columns[0, 1], self.turned[0, 1], self.rows[0, 1]
        self.turned, self.rows = self.turned + batch, np.broadcast_to(self.turned[1], (3, 2))
        self.columns *= 1.1
        depth, inner = 0, self.nested
        while inner:
            depth, inner = depth + 1, inner[0]
        numbers = [
            self.inner.held.held.held.next, self.pair[0].next, self.pair[1][0].next,
            sum(self.frozen.held), self.named.steps, self.mixed["a"].next, self.partial(batch),
            len(self.history), depth, self.closure(), (self.last - self.before)[0], total(batch),
            self.random.rand(), self.drawn.random(), DRAWS.random(), self.renewed.random(),
            *self.kinds(batch), *layouts,
        ]  # fmt: skip
        K.set_value(self.model.optimizer.inner.lr, 0.01 * np.log1p(np.abs(numbers)).mean())


HOOKS = {
    "places": lambda folder: Places(),
    "loads": loads, "head": head, "restarts": restarts, "base": lambda folder: Base(),
    "fresh": lambda folder: Fresh(), "inside": lambda folder: Inside(),
    "schedule": lambda folder: keras.callbacks.LearningRateScheduler(Slotted().rate),
    "attributes": lambda folder: Attributes(),
    "compiles": compiles("on_epoch_begin", "mse", ["accuracy"]),
    "other loss": compiles("on_epoch_end", "mae"),
    "other metrics": compiles("on_train_batch_end", "mse", ["mae"]),
    "early": lambda folder: keras.callbacks.EarlyStopping("loss", 10.0, 2, 0, "auto", None, True),
}  # fmt: skip


# What functions assign depends on Python, the others on Keras.
BOTH = ("places", "restarts", "early")


@pytest.mark.parametrize("name", [*BOTH, *once(*(name for name in HOOKS if name not in BOTH))])
def test_what_callbacks_set_at_the_start_is_as_in_the_whole_run(name, tmp_path, capfd):
    def trained(run, *more):
        global STEPS
        folder = run.folder.path.parent
        folder.mkdir(exist_ok=True)
        head.model = build()
        STEPS = Inside.epochs = Base.level = 0
        Attributes.rate, Bank.total, small_fit.total = None, 0, 0
        called.sum, called.__defaults__ = 0, ([0],)
        DRAWS.seed(7)
        fit(head.model, HOOKS[name](folder), run, *more)
        return states(head.model)

    whole, *again = resumed(trained, tmp_path)
    assert again == [whole, whole]
    printed = capfd.readouterr().err
    said = "in on_train_begin; the checkpoint's values replace them"
    assert printed.count(said) == 2 * (name in ("loads", "restarts"))
    assert "not exact" not in printed


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


@pytest.mark.parametrize(
    "name", ["adversarial", "generator", *once("arrays", "sequence", "counted", "own")]
)
def test_random_numbers_of_callbacks_and_data_continue_after_a_kill(name, tmp_path, capfd):
    makers = {"generator": augmented, "counted": lambda: Counted(4), "own": Own, "arrays": None}

    seeds = iter((3, 3, 4, 3, 4))  # another one on resume

    def trained(run, *more):
        model, make = build(), makers.get(name, Augmented)
        if name == "adversarial":
            perturbed(model)
        given = {"x": make(), "y": None, "batch_size": None, "steps_per_epoch": 7} if make else {}
        random.seed(next(seeds))
        fit(model, run, Draws(), *more, validation_data=(X[:4], Y[:4]), **given)
        return states(model), np.random.rand(), random.random()

    whole, *again = resumed(trained, tmp_path)
    said = "is not the same as before the checkpoint: a resume is exact only if"
    assert capfd.readouterr().err.count(said) == 2 * (name == "counted")
    assert again == [whole, whole] or name == "counted"
