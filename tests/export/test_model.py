"""What an export is compared by, and the files that name its outputs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import AmpXlaError
from amp_xla.export import hugging_face
from amp_xla.export.model import HEAD, Exportable, comparable, compare, random_tokens
from tests.support import google_folder

pytestmark = pytest.mark.once
OUTPUTS = np.array([[2.0, 0.0, -1.0], [-3.0, 300.0, -np.inf]])


@pytest.mark.parametrize("change, dtype, accepted", [
    (0.9e-4, "fp32", True), (1.2e-4, "fp32", False), (1.2e-4, "fp16", True), (2e-2, "fp16", False),
    (np.nan, "fp16", False),
])  # fmt: skip
def test_outputs_may_differ_by_the_tolerance(change, dtype, accepted):
    answers = OUTPUTS + [[0.0, change, 0.0], [0.0, 300.0 * abs(change), 0.0]]
    if accepted:
        assert compare(OUTPUTS, answers, dtype) == pytest.approx(change)
    else:
        with pytest.raises(AmpXlaError, match="nothing was written"):
            compare(OUTPUTS, answers, dtype)


def test_outputs_of_all_kinds_are_compared():
    chances = np.exp(OUTPUTS - OUTPUTS.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    np.testing.assert_allclose(comparable({"logits": OUTPUTS}), chances)
    both = comparable({"probabilities": chances, "logits": OUTPUTS})
    np.testing.assert_array_equal(both, chances)
    np.testing.assert_allclose(comparable({"scores": OUTPUTS}), 1 / (1 + np.exp(-OUTPUTS)))
    np.testing.assert_array_equal(comparable({"vectors": OUTPUTS}), OUTPUTS)
    ids, segments = random_tokens(9, 12, 2)
    counts = (ids > 0).sum(1)
    assert counts.min() == 3 and counts.max() == 12 and ids.max() < 9
    assert all((row[:n] > 0).all() for row, n in zip(ids, counts)) and segments[1::2].any()
    assert not segments[ids == 0].any() and not segments[::2].any()


@pytest.mark.parametrize("kind", ["ForSequenceClassification", None])
def test_a_hugging_face_folder_names_labels_and_has_linear_layers_by_rows(tmp_path, kind):
    config = {**google_folder.CONFIG, "model_type": "bert", "layer_norm_eps": 1e-5}
    draw = np.random.RandomState(0)
    tensors = {
        name: draw.randn(*shape).astype(np.float32)
        for name, shape in google_folder.tensors(config, language_model=False).items()
    }
    head = {"classifier.weight": draw.randn(3, 16).astype(np.float32)}
    model = Exportable(
        config, tensors, comparable, lambda folder: comparable,
        Tokenizer(google_folder.VOCABULARY), head, kind, "a formula", ("no", "yes", "maybe"), 24,
    )  # fmt: skip
    hugging_face.write(model, tmp_path / "hf", "fp32")
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert written["id2label"] == {"0": "no", "1": "yes", "2": "maybe"}
    assert written["label2id"] == {"no": 0, "yes": 1, "maybe": 2}
    assert json.loads((tmp_path / "hf" / "labels.json").read_text()) == ["no", "yes", "maybe"]
    stored = load_file(str(tmp_path / "hf" / "model.safetensors"))
    prefix, heads = ("bert.", stored) if kind else ("", load_file(str(tmp_path / "hf" / HEAD)))
    np.testing.assert_array_equal(heads["classifier.weight"], head["classifier.weight"])
    for part in ("query", "key", "value"):
        name = f"layer_1/attention/self/{part}"
        weight = stored[
            f"{prefix}encoder.{name.replace('layer_', 'layer/').replace('/', '.')}.weight"
        ]
        np.testing.assert_array_equal(weight, tensors[f"bert/encoder/{name}/kernel"].T)
    token = stored[f"{prefix}embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(token, tensors["bert/embeddings/word_embeddings"])
