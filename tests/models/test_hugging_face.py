"""Hugging Face folders of every family have the hidden states of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amp_xla.backend import K
from amp_xla.models import dropout, encoders, packed

# Written by transformers 5.23.0, of NEZHA and RoFormerV2 by 4.30.2 with roformer 0.4.3: the program
# is tests/models/transformers_folders.py of revision 3ca9700.
FOLDERS = Path(__file__).resolve().parent / "hugging_face"
FAMILIES = sorted(path.name for path in FOLDERS.iterdir())
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 30))]


def hidden(folder):
    """Hidden states of real tokens from this project, and from transformers."""
    wanted = np.load(str(folder / "hidden.npz"))
    K.clear_session()
    with dropout.inference():
        model = encoders.transformer(str(folder)).model
    states = model.predict([wanted["tokens"], wanted["segments"]])
    assert np.isfinite(model.predict([np.zeros([2, 5])] * 2)).all()  # rows of padding alone
    return states, wanted


# Other forms of the same tensors, or layers that a family before has.
FORMS = ("bert_old", "bert_zip", "electra", "ernie", "macbert", "roformer_v2")


@pytest.mark.parametrize(
    "family", [pytest.param(x, marks=[pytest.mark.once] * (x in FORMS)) for x in FAMILIES]
)
def test_hidden_states_are_those_of_transformers(family, capfd):
    states, wanted = hidden(FOLDERS / family)
    real = wanted["tokens"] > 0
    assert np.abs(wanted["hidden"][real]).max() > 0.5
    np.testing.assert_allclose(states[real], wanted["hidden"][real], rtol=0, atol=1e-5)
    assert np.isfinite(states).all()
    said = capfd.readouterr().err
    unused = {"bert": "cls.predictions (5)", "bert_old": "cls.seq_relationship (2)"}
    assert unused.get(family, "") in said and said.count("\n") <= 1


@pytest.mark.parametrize("family", ["nezha", pytest.param("roformer_v2", marks=pytest.mark.once)])
def test_packed_rows_are_the_texts_alone(family):
    alone, wanted = hidden(FOLDERS / family)
    counts = (wanted["tokens"] > 0).sum(1)[:2]
    K.clear_session()
    with dropout.inference():
        model = encoders.transformer(str(FOLDERS / family), extend=packed.extended).model
    row = {name: [wanted[name][i, :n] for i, n in enumerate(counts)] for name in wanted.files}
    positions = np.concatenate([np.arange(n) for n in counts])
    slots = np.repeat([0, 1], counts)
    inputs = [np.concatenate(row["tokens"]), np.concatenate(row["segments"]), positions, slots]
    states = model.predict(
        [np.append(x, [fill] * 2)[None] for x, fill in zip(inputs, (0, 0, 0, -1))]
    )
    np.testing.assert_allclose(
        states[0, :-2], np.concatenate([alone[i, :n] for i, n in enumerate(counts)]), atol=1e-4
    )
