"""Each family of encoders in each format: the vectors of the model that was exported."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest

from amp_xla.backend import K
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export import google, graph, hugging_face, saved_model
from amp_xla.export.model import Exportable
from amp_xla.models import encoders
from amp_xla.models.weights import google as weights
from tests.models.test_hugging_face import FAMILIES, FOLDERS

TOLERANCE = {"fp32": 1e-4, "fp16": 3e-2}  # of vectors, some of which are above 3
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 30))]


def encoder(family: str, folder: Path) -> Exportable:
    """Return the encoder of a family; its outputs are its vectors."""
    K.clear_session()
    shutil.copytree(str(FOLDERS / family), str(folder))
    for name, content in Tokenizer(VOCABULARY).assets.items():
        (folder / name).write_bytes(content)

    def build(bert: Optional[str]) -> graph.Parts:
        transformer = encoders.transformer(bert or str(folder))
        return graph.Parts(transformer, {"probabilities": transformer.model.output}, {})

    checkpoint: Any = SimpleNamespace(path=folder, file=lambda name: str(folder / name))
    return graph.exportable(checkpoint, build, 20, formula="the vectors themselves")


ONCE = [
    pytest.param(family, marks=pytest.mark.once)
    for family in sorted(set(FAMILIES) - {"albert", "bert", "bert_zip", "bert_old", "macbert"})
]


@pytest.mark.parametrize("family", ["albert", "bert", *ONCE])
def test_each_format_has_the_same_vectors(family: str, tmp_path: Path) -> None:
    model = encoder(family, tmp_path / "run")
    samples = model.samples()
    expected = model.run(*samples)
    assert np.abs(expected).max() > 0.5
    # Folders come last: reading one clears the graph. A SavedModel is any family's graph.
    saved = [saved_model] if family in ("bert", "roformer") else []
    for writer in (*saved, hugging_face, google):
        for dtype in ("fp32", "fp16") if family == "bert" else ("fp32",):
            folder = tmp_path / f"{writer.__name__}-{dtype}"
            writer.write(model, folder, dtype)
            answers = getattr(writer, "load", model.reload)(folder)(*samples)
            np.testing.assert_allclose(
                answers, expected, atol=TOLERANCE[dtype], err_msg=folder.name
            )
    for writer in (hugging_face, google):
        opened = weights.pretrained(str(tmp_path / f"{writer.__name__}-fp32"))
        values = opened.take({name: value.shape for name, value in model.tensors.items()})
        for name, value in model.tensors.items():
            np.testing.assert_array_equal(values[name], value, name)


@pytest.mark.once
@pytest.mark.long
@pytest.mark.network
@pytest.mark.timeout(3600)
def test_transformers_has_the_same_vectors(peers: str, tmp_path: Path) -> None:
    expected, folders = {}, []
    for family in ("albert", "bert", "electra", "ernie", "macbert", "roformer"):
        model = encoder(family, tmp_path / "runs" / family)
        ids, segments = model.samples()
        folders.append(tmp_path / family)
        expected[folders[-1]] = model.run(ids, segments)[ids > 0]
        hugging_face.write(model, folders[-1], "fp32")
        np.savez(folders[-1] / "asked.npz", ids=ids, segments=segments)
    command = [peers, "-m", "tests.support.transformers_exports", *map(str, folders)]
    subprocess.run(command, check=True)
    for folder, vectors in expected.items():
        out = np.load(folder / "found.npz")["out"]
        np.testing.assert_allclose(out[ids > 0], vectors, atol=1e-4, err_msg=folder.name)
