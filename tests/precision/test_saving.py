"""A model with the README's optimizer, saved and loaded in each of Keras' ways in graph mode."""

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.precision import DynamicLossScale
from amp_xla.precision.compat import keras as keras_names
from amp_xla.precision.compat.keras import CUSTOM_OBJECTS
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.support import heads
from tests.support.precision_training import BERT4KERAS

pytestmark = [
    pytest.mark.usefixtures("cleared"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5"),
]

RNG = np.random.RandomState(0)
X = RNG.randn(8, 4).astype("float32")
Y = X.sum(1, keepdims=True)


OPTIMIZERS = {
    "Keras' Adam": lambda: keras.optimizers.Adam(0.01),
    **BERT4KERAS,
}
WRAPPERS = {
    "Keras' Adam": lambda inner: keras_names.LossScaleOptimizer(inner, initial_scale=4.0),
    "rates": lambda inner: LossScaleOptimizer(
        inner, DynamicLossScale(4.0, growth_interval=3, minimum=0.5)
    ),
}


def compiled(name):
    wrap = WRAPPERS.get(name, lambda inner: LossScaleOptimizer(inner, 1000))
    layers = backend.bert4keras("layers")
    model = keras.models.Sequential([
        keras.layers.Dense(8, kernel_initializer="ones", input_shape=(4,), name="First"),
        layers.LayerNormalization(name="Norm"),
        keras.layers.Dense(1, kernel_initializer="ones", name="Classes"),
    ])  # fmt: skip
    model.compile(wrap(OPTIMIZERS[name]()), "mse")
    return model


def train(model):
    return [model.train_on_batch(X, Y) for _ in range(3)]


@pytest.mark.parametrize("name", [
    *WRAPPERS, *(pytest.param(x, marks=pytest.mark.once) for x in OPTIMIZERS if x not in WRAPPERS)
])  # fmt: skip
def test_every_way_back(tmp_path, name):
    model = compiled(name)
    train(model)
    ways = ["model.h5", "checkpoint", *(["folder", "weights.h5"] if name in WRAPPERS else [])]
    paths = {way: str(tmp_path / way) for way in ways}
    model.save(paths["model.h5"])
    if name in WRAPPERS:
        model.save(paths["folder"], save_format="tf")
        model.save_weights(paths["weights.h5"])
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    paths["checkpoint"] = checkpoint.save(paths["checkpoint"], session=K.get_session())
    weights, config = model.get_weights(), model.optimizer.get_config()
    state = model.optimizer.get_weights()
    after = train(model)
    for way, path in paths.items():
        K.clear_session()
        if way in ("model.h5", "folder"):
            with keras.utils.custom_object_scope(CUSTOM_OBJECTS):
                loaded = keras.models.load_model(path)
            assert loaded.optimizer.get_config() == config
        else:
            loaded = compiled(name)
        if way == "weights.h5":
            loaded.load_weights(path)
        elif way == "checkpoint":
            train(loaded)  # the optimizer's variables exist
            reader = tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer)
            status = reader.restore(path)
            status.assert_existing_objects_matched()
            status.run_restore_ops(K.get_session())
        if way == "folder":  # no get_weights: 1.15 cannot train what has run before
            assert train(loaded)[0] == pytest.approx(after[0], rel=1e-6)
            continue
        for a, b in zip(loaded.get_weights(), weights):
            np.testing.assert_array_equal(a, b, way)
        if way in ("model.h5", "checkpoint"):  # Keras writes no state of the optimizer to others
            for a, b in zip(loaded.optimizer.get_weights(), state):
                np.testing.assert_array_equal(a, b, way)
            np.testing.assert_allclose(train(loaded), after, rtol=1e-6, err_msg=way)
        else:
            assert train(loaded)[0] == pytest.approx(after[0], rel=1e-6)


@pytest.mark.parametrize("way", ["model.h5", pytest.param("folder", marks=pytest.mark.once)])
def test_a_bert_comes_back(tmp_path, way):
    """With gelu, and with attention dropout, for which bert4keras creates a layer at each call."""
    model = heads.encoder(with_mlm=True, dropout_rate=0.1, attention_dropout_rate=0.1)
    model.compile(LossScaleOptimizer(keras.optimizers.Adam(0.01), 1000), "mse")
    batch = [np.ones([2, 8]), np.zeros([2, 8])]
    before = model.predict(batch)
    model.save(str(tmp_path / way), save_format="h5" if way == "model.h5" else "tf")
    K.clear_session()
    with keras.utils.custom_object_scope(CUSTOM_OBJECTS):
        loaded = keras.models.load_model(str(tmp_path / way))
    np.testing.assert_allclose(loaded.predict(batch), before, rtol=1e-5)
