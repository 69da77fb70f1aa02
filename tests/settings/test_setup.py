"""``amp_xla.setup`` in fresh processes: what reaches TensorFlow, and what is refused in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_xla import backend
from tests.support.running import ROOT, run_python

TF1 = backend.kind() == "tf1"

# Trains a small BERT in Keras' own session, and other models in sessions that a script makes.
SESSIONS = """
'''A script of somebody.'''
from __future__ import annotations
import amp_xla.setup
import os, threading
children = open(f"/proc/self/task/{os.getpid()}/children").read()
files = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) > 2
         and os.path.exists(f"/proc/self/fd/{n}")]
assert threading.active_count() == 1 and not children and not files, (children, files)
import amp_xla.callbacks
import numpy as np
import tensorflow as tf
from bert4keras.backend import K, keras
from bert4keras.models import build_transformer_model

model = build_transformer_model(
    model="bert", vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=1,
    intermediate_size=128, hidden_act="gelu", max_position=16)
attention = model.get_layer("Transformer-0-MultiHeadSelfAttention")
query, _, key, _, value = attention.get_weights()[:5]
assert min(abs(query - key).max(), abs(query - value).max()) > 0.01  # they start out different
model.compile(keras.optimizers.Adam(1e-3), "mse")
batch = [np.ones((4, 16)), np.zeros((4, 16))]
run = amp_xla.callbacks.Run("runs/bert")
model.fit(batch, np.zeros((4, 16, 64)), epochs=2, verbose=0, callbacks=[run])
first, second = model.history.history["loss"]
assert second < first

tf, x = tf.compat.v1, np.ones([32, 64])
config = tf.ConfigProto(allow_soft_placement=True)
config.gpu_options.allow_growth = True
for number, make in enumerate([
    tf.Session, lambda: tf.Session(config=config), lambda: tf.InteractiveSession(config=config),
]):
    K.clear_session()
    K.set_session(make())
    model = keras.models.Sequential([
        keras.layers.Dense(64, input_shape=(64,)), keras.layers.Dense(64)])
    model.compile("sgd", "mse")
    model.fit(x, x, verbose=0, callbacks=[amp_xla.callbacks.Run(f"runs/{number}")])
    mine = K.get_session()._config
    assert number == 0 or mine.gpu_options.allow_growth and mine.allow_soft_placement
if not tf.__version__.startswith("1."):
    rewrite = config.graph_options.rewrite_options
    assert not rewrite.auto_mixed_precision_onednn_bfloat16  # the user's object is unchanged
    rewrite.auto_mixed_precision_onednn_bfloat16 = 2  # off
    assert tf.Session(config=config)._config.graph_options.rewrite_options == rewrite
for _ in range(2):
    with tf.GradientTape() as tape:
        loss = tf.constant(1.0)
print(K.epsilon(), getattr(K, "infinity", lambda: None)())
"""


def test_amp_reaches_all_sessions_and_nothing_is_left_running(tmp_path):
    result = run_python("-c", SESSIONS, cwd=tmp_path)
    assert result.out.splitlines()[-1] == f"1e-05 {10000.0 if TF1 else None}"
    half, reason = backend.half_dtype()
    start, *lines = result.err.splitlines()
    expected = f"amp_xla: precision amp ({half or 'float32'}: {reason}), XLA off, "
    expected += "infinity 1e4, " if backend.bert4keras_version() < backend.SAFE_MASKS else ""
    assert start == expected + "epsilon 1e-5"
    words = f"executed nodes are {half}" if half else "none of"
    steps = [line for line in lines if line.startswith("first step ran")]
    assert len(steps) == 4 and all(words in line for line in steps)
    assert result.err.count("an eager loop trains nothing") == 1
    ours = ("run folder: ", "building ", "first step ran: ", "step ", "done: ", "report: ")
    ours += ("<string>:", "-c:")
    assert [line for line in lines if not line.startswith(ours)] == []  # none of TensorFlow's


@pytest.mark.once
@pytest.mark.parametrize("missing, code, words", [
    ("tensorflow-", 0, "XLA on, "),  # the package is tensorflow-cpu, tf-nightly, ...
    ("tensorflow", 1, "UnsupportedError: TensorFlow cannot be imported (No module named"),
])  # fmt: skip
def test_xla_with_another_package_of_tensorflow_and_without_any(tmp_path, missing, code, words):
    for entry in Path(backend.tensorflow().__file__).parents[1].iterdir():
        if not entry.name.startswith(missing):
            (tmp_path / entry.name).symlink_to(entry)
    env = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "AMP_XLA_XLA": "on", "XDG_CACHE_HOME": str(tmp_path)}
    # Python 3.12 has no distutils; TensorFlow 1.15 needs the user's site-packages, which -S unsets.
    program = "import site, setuptools; site.getusersitepackages(); import amp_xla.setup"
    assert words in run_python("-S", "-c", program, env=env, code=code).err


# Without the shim bert4keras cannot be imported at all beside TensorFlow 2.17.
LATE = "from bert4keras.models import Transformer" if TF1 else "from tf_keras import layers"


def test_bad_settings_and_a_late_import_stop_before_training(tmp_path):
    env, words = {"TF_FORCE_GPU_ALLOW_GROWTH": "1"}, ["ALLOW_GROWTH=1", "true, false"]
    if backend.kind() == "tf1" and not backend.is_fork():
        env, words = {"AMP_XLA_XLA": "lite"}, ["UnsupportedError", "fusible", "off, on, no_lazy"]
    result = run_python("-c", "import amp_xla.setup", env=env, code=1)
    assert all(word in result.err.splitlines()[-1] for word in words)
    script, first = tmp_path / "script.py", LATE
    script.write_text(f"import os\nos.environ['TF_KERAS'] = '1'\n{first}\nimport amp_xla.setup\n")
    result = run_python(str(script), code=1)
    last = result.err.splitlines()[-1]
    assert "SetupOrderError" in last and f"line 3 of script.py: `{first}`" in last


CONFIGURE = """
from amp_xla import setup
setup.configure(precision="fp32", xla="on")
import os, pytest
assert "--tf_xla_auto_jit=1" in os.environ["TF_XLA_FLAGS"]
assert "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE" not in os.environ
from bert4keras.backend import K
assert K.epsilon() == 1e-7
setup.configure(precision="amp")  # still in time; xla is off again
assert "TF_XLA_FLAGS" not in os.environ and K.epsilon() == 1e-5
before = dict(os.environ), setup.current()
with pytest.raises(ValueError, match="xla=auto is for recipes.*: off, on, no_lazy"):
    setup.configure(xla="auto", precision="fp32")
assert (dict(os.environ), setup.current()) == before and K.epsilon() == 1e-5
from amp_xla.backend import session
session()
assert setup.configure(precision="amp") == setup.current()  # says nothing new: allowed
try:
    setup.configure(precision="amp", xla="on")
except setup.SetupOrderError as error:
    print(error)
"""


@pytest.mark.once
def test_configure_from_python_until_a_session_exists():
    result = run_python("-c", CONFIGURE)
    lines = [line for line in result.err.splitlines() if line.startswith("amp_xla: ")]
    assert lines[0].startswith("amp_xla: precision amp"), lines
    assert all(line.startswith("amp_xla: now precision ") for line in lines[1:]), lines
    assert len(set(lines)) == len(lines), "nothing is printed that has not changed"
    assert "already made a session" in result.out and "--tf_xla_auto_jit=1" in result.out


ON_GPU = """
import pathlib, pytest, sys
from unittest import mock
from amp_xla.backend import nvidia
nvidia.ROOT = pathlib.Path(sys.argv[1])
import amp_xla.setup
from amp_xla import backend
from amp_xla.backend import tf
with mock.patch.object(backend.tensorflow().config, "experimental") as config:
    config.get_visible_devices.return_value = [mock.Mock()]
    assert not backend.used() and backend.gpus()
    backend.use_gpu(0)
    assert backend.used() == (backend.kind() == "tf2")  # which has then read its flags
for session in tf.Session(), tf.InteractiveSession():
    options = session._config.graph_options
    assert options.rewrite_options.auto_mixed_precision == 1 and not options.place_pruned_graph
policies = amp_xla.backend.tensorflow().keras.mixed_precision
policies = policies if hasattr(policies, "set_global_policy") else policies.experimental
with pytest.raises(ValueError, match="graph rewrite has already been enabled"):
    getattr(policies, "set_global_policy", getattr(policies, "set_policy", None))("mixed_float16")
from bert4keras.layers import ConditionalRandomField, MaximumEntropyMarkovModel
from bert4keras.backend import K
for layer in ConditionalRandomField, MaximumEntropyMarkovModel:
    try:
        layer()
        print("built", K.infinity() if hasattr(K, "infinity") else None)
    except RuntimeError as error:
        print(error)
"""


def test_with_a_gpu_all_sessions_have_the_pass_and_an_old_crf_is_refused(tmp_path):
    old = backend.bert4keras_version() < backend.SAFE_MASKS
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    on_gpu = run_python("-c", ON_GPU, str(tmp_path)).out
    words = ("0.11.3", "-1e6", "AMP_XLA_PRECISION=tf32", "0.11.5", "CRF.sparse_accuracy(y_true")
    words = words if old else ("built None",)
    assert len(on_gpu.splitlines()) == 2
    assert all(word in line for line in on_gpu.splitlines() for word in words)
