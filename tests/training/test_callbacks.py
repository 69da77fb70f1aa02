"""A script of one's own around ``model.fit`` and ``Run``: stopped, resumed, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from amp_xla.training import checkpoint
from amp_xla.training.metrics import CLOCK_FIELDS
from tests.running import run_python

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, signal, sys
import amp_xla.setup
import numpy as np
from amp_xla.backend import keras, tf
from amp_xla.callbacks import Run
from amp_xla.precision.compat.keras import LossScaleOptimizer

class Data(keras.utils.Sequence):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        inputs = np.random.RandomState(index).randn(8, 4).astype("float32")
        return inputs, inputs.sum(1, keepdims=True)

class Stop(keras.callbacks.Callback):
    step = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.step += 1
        if "stop" in sys.argv and self.step == 14:
            os.kill(os.getpid(), signal.SIGTERM)

tf.set_random_seed(1)
model = keras.Sequential([keras.layers.Dense(1, input_shape=(4,), name="only")])
optimizer = getattr(keras.optimizers, "legacy", keras.optimizers).SGD(0.01, momentum=0.9)
if "plain" not in sys.argv:
    optimizer = LossScaleOptimizer(optimizer)
model.compile(optimizer, "mse", metrics=["mae"])
data = (np.ones([80, 4]), np.ones([80, 1])) if "arrays" in sys.argv else (Data(),)
history = model.fit(
    *data, epochs=3, validation_data=Data()[9], verbose=0, workers=0,
    callbacks=[Run("runs/mine", resume="resume" in sys.argv), Stop()])
print(json.dumps({name: [float(v) for v in values] for name, values in history.history.items()}))
"""


def fit(folder: Path, *words: str, code: int = 0) -> Any:
    folder.mkdir(exist_ok=True)
    done = run_python("-c", SCRIPT, *words, cwd=folder, env={"AMP_XLA_PRECISION": "fp32"})
    assert done.code == code, done.out + done.err
    return done


def lines(folder: Path) -> List[Dict[str, Any]]:
    text = (folder / "runs/mine/metrics.jsonl").read_text()
    return [
        {name: value for name, value in json.loads(line).items() if name not in CLOCK_FIELDS}
        for line in text.splitlines()
    ]


def tensors(folder: Path) -> Dict[str, np.ndarray]:
    newest = checkpoint.newest(folder / "runs/mine/checkpoints")
    assert newest is not None and newest.step == 30
    return newest.tensors()


def test_a_stopped_run_continues_to_the_same_bits(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    history = json.loads(fit(whole).out)
    assert history["loss_scale"] == [2.0**15] * 3 and history["skipped_steps"] == [0] * 3
    assert history["val_loss"][2] < history["val_loss"][0]
    assert [line["step"] for line in lines(whole) if line["kind"] == "dev"] == [10, 20, 30]
    assert lines(whole)[-1]["dev_loss"] == pytest.approx(history["val_loss"][2])
    assert (whole / "runs/mine/executed.json").is_file()

    done = fit(stopped, "stop", code=143)
    assert "stopped by SIGTERM after step 14; --resume continues from there" in done.err
    assert "holds a run already" in fit(stopped, code=1).err
    resumed = json.loads(fit(stopped, "resume").out)
    assert len(resumed["loss"]) == 2 and resumed["loss"][1] == history["loss"][2]
    found, expected = tensors(stopped), tensors(whole)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert lines(stopped) == lines(whole)


def test_any_optimizer_and_no_arrays(tmp_path: Path) -> None:
    history = json.loads(fit(tmp_path / "plain", "plain").out)
    assert history["loss_scale"] == [1.0] * 3
    assert lines(tmp_path / "plain")[-1]["dev_loss"] == pytest.approx(history["val_loss"][2])
    done = fit(tmp_path / "arrays", "arrays", code=1)
    assert "a keras.utils.Sequence" in done.err and not (tmp_path / "arrays/runs").exists()
