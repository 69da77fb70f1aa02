"""Weights that a language model starts from."""

import numpy as np
import pytest

from amp_xla.backend import K
from amp_xla.models.language_model import LanguageModel
from amp_xla.models.weights import google
from amp_xla.training.step import initialize_variables
from tests.support import google_folder

pytestmark = pytest.mark.usefixtures("cleared")


def test_an_encoder_gets_a_new_head(tmp_path, capfd):
    shapes = google_folder.tensors(google_folder.CONFIG, language_model=True)
    head = {name: None for name in shapes if name.startswith("cls/")}
    folder = google_folder.write(tmp_path / "encoder", head)
    lm = LanguageModel(google_folder.CONFIG, 16, "unilm", str(folder))
    assert "has no head that predicts tokens: a new one is trained" in capfd.readouterr().err
    initialize_variables()
    name = "bert/embeddings/word_embeddings"
    stored = google.pretrained(str(folder)).take({name: shapes[name]})[name]
    table = K.get_value(lm.transformer.layers["Embedding-Token"].embeddings)
    np.testing.assert_array_equal(table[:20], stored)


def test_weights_may_have_more_rows_than_the_vocabulary_has_tokens(tmp_path):
    """As ERNIE 3.0: 40,000 rows, 39,979 tokens."""
    folder = google_folder.write(tmp_path / "ernie")
    lm = LanguageModel({**google_folder.CONFIG, "vocab_size": 18}, 16, "unilm", str(folder))
    initialize_variables()
    name = "bert/embeddings/word_embeddings"
    stored = google.pretrained(str(folder)).take({name: (20, 16)})[name]
    table = K.get_value(lm.transformer.layers["Embedding-Token"].embeddings)
    np.testing.assert_array_equal(table[:18], stored[:18])
    assert not table[18:].any() and lm.config["vocab_size"] == 18
