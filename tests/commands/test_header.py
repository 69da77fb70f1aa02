"""A bert4keras script with the printed header pasted on top trains."""

import pytest

from amp_xla import backend
from amp_xla.commands import header
from amp_xla.config import parse
from amp_xla.errors import AmpXlaError
from tests.support.running import run_python

VERSION = {"tf1": "1.15", "tf2": "2.x"}[backend.kind()]
OTHER = {"tf1": "tf2", "tf2": "tf1"}[backend.kind()]

# A script as users write it: no import of amp_xla, plain compile and fit.
SCRIPT = """
import numpy as np
from bert4keras.backend import keras
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam

bert = build_transformer_model(
    model="bert", vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=1,
    intermediate_size=128, hidden_act="gelu", max_position=16, return_keras_model=False)
output = keras.layers.Lambda(lambda x: x[:, 0])(bert.model.output)
output = keras.layers.Dense(2, activation="softmax")(output)
model = keras.models.Model(bert.model.inputs, output)
model.compile(loss=LOSS, optimizer=Adam(1e-3))
rng = np.random.RandomState(0)
tokens = rng.randint(1, 64, (256, 16))
labels = (tokens[:, 1] > 32).astype("float32")
history = model.fit([tokens, tokens * 0], labels, batch_size=32, epochs=6, verbose=0)
losses = history.history["loss"]
print(losses[0], losses[-1])
from bert4keras.layers import ConditionalRandomField
try:
    ConditionalRandomField()
    print("built")
except NotImplementedError as error:
    print(error)
"""


def block(*flags):
    return header.block(parse(header.Config, flags, "amp-xla header"))


def test_a_pasted_header_trains(tmp_path):
    text = block()
    assert text.startswith(f"# ---- amp_xla header for TensorFlow {VERSION}: precision ")
    assert "amp_xla" not in text.partition("\n")[2], "the block does not need this package"
    scaled = "LOSS_SCALE" in text
    name = "'sparse_categorical_crossentropy'"
    script = SCRIPT.replace("LOSS", f"scale_loss({name})" if scaled else name)
    (tmp_path / "train.py").write_text(text + script)
    result = run_python("train.py", cwd=tmp_path, env={"PYTHONPATH": ""})
    *_, losses, crf = result.out.splitlines()
    first, last = map(float, losses.split())
    assert last < 0.9 * first
    assert (first > 100) == scaled, "the printed loss is the scaled one"
    # CRF is refused if it would not mask padding.
    safe = backend.bert4keras_version() >= backend.SAFE_MASKS
    assert crf == "built" if safe else "CRF and MEMM need bert4keras 0.11.5" in crf


@pytest.mark.once
def test_a_header_for_another_tensorflow_stops_in_one_sentence(command):
    path = command.folder / "train.py"
    path.write_text(block("--runtime", OTHER) + "print('trained')")
    result = command.job({"script": str(path)})
    assert result.code == 1 and result.out == ""
    assert result.err.splitlines()[-1].startswith("this header is for TensorFlow ")
    assert "Traceback" not in result.err
    text = block("--precision", "fp32")
    compile(text, "header", "exec")
    assert "LOSS_SCALE" not in text


@pytest.mark.once
@pytest.mark.parametrize(
    "flags, word",
    [(("--loss-scale", "dynamic"), "LossScaleOptimizer"), (("--infinity", "1e9"), "at most 32752")],
)
def test_settings_that_a_header_cannot_have_are_refused(flags, word):
    with pytest.raises(AmpXlaError, match=word):
        block(*flags)
