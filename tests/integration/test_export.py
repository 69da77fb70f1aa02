"""Exported runs, answered by other programs as by predict and fill: the rows of docs/export.md.

In CI some rows, by small runs: few texts, in SavedModels and ONNX Runtime. ``-m long``: all rows,
200 real texts, also in the libraries that docs/export.md names.
"""

import json
import os
import subprocess

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.commands import export
from amp_xla.data.text import corpora
from amp_xla.errors import AmpXlaError
from amp_xla.export.model import HEAD
from amp_xla.export.quantized import REPORT
from amp_xla.models.weights import google
from scripts.environment.uv import uv
from tests.integration.exports import COUNT, ELSEWHERE, ROWS, Place
from tests.support.commands import CLI, bytes_of
from tests.support.running import ROOT
from tests.tasks.classification.test_recipe import write_corpus
from tests.tasks.pretraining.test_recipe import prepared
from tests.tasks.relations import test_recipe as test_relations
from tests.tasks.similarity import test_recipe as test_similarity
from tests.tasks.tagging import test_recipe as test_tagging

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(server, tmp_path_factory):
    """Small data."""
    here = Place(server, tmp_path_factory.mktemp("few"), few=True)
    write_corpus(here.folder / "train.tsv", 200, 1)
    prepared(here.folder)
    (here.folder / "train.bio").write_text(test_tagging.columns(test_tagging.samples(400, 1)))
    test_relations.write(here.folder)
    test_similarity.write(here.folder / "pairs.tsv", test_similarity.pairs(120, 1))
    lines = ["rain and soup\tkitchen|weather", "soup\tkitchen", "wind\tweather", "the\t"]
    (here.folder / "several.tsv").write_text("".join(f"{line}\n" for line in lines * 20))
    yield here
    for program in here.programs.values():
        program.kill()


ONCE = "mlm mean global_pointer relations cosent several cross-encoder-pooler".split()


@pytest.mark.parametrize(
    "name", ["crf", *(pytest.param(name, marks=pytest.mark.once) for name in ONCE)]
)
def test_saved_models_answer_as_predict_and_fill(place, name):
    for dtype in ("fp32", "fp16")[: 2 if name in ("mean", "crf") else 1]:
        place.check(name, "savedmodel", dtype)


@pytest.mark.network
@pytest.mark.skipif(
    not os.environ.get("CI"), reason="takes packages from a registry; CI=true runs it"
)
def test_onnx_runtime_answers_as_predict_and_fill(place):
    place.install_onnx()
    place.check("crf", "onnx")
    for name in ("mean", "mlm", "global_pointer") if backend.kind() == "tf2" else ():
        place.check(name, "onnx", "fp16" if name == "mean" else "fp32")
    for name in ("crf", "cosent") if backend.kind() == "tf2" else ("crf",):
        folder = place.exported(name, "onnx", "int8")
        assert json.loads((folder / REPORT).read_text())["agreement"] >= 0.98
        assert len(list(folder.glob("*.onnx"))) == 1


@pytest.mark.once
def test_folders_for_sentence_transformers(place):
    wanted = {
        "cross-encoder-pooler": ("text-classification", "BertForSequenceClassification"),
        "cosent": ("sentence-similarity", "BertModel"),
    }
    for name, (task, kind) in wanted.items():
        folder = place.exported(name, "hf")
        config = json.loads((folder / "config.json").read_text())
        assert config["architectures"] == [kind] and not (folder / HEAD).exists()
        card = (folder / "README.md").read_text()
        assert 'library_name: "sentence-transformers"\n' in card
        assert f'pipeline_tag: "{task}"\n' in card and f"# {name}\n" in card
        dev = [x["dev_spearman"] for x in place.metrics("similarity", name) if x["kind"] == "dev"]
        assert any(str(value) in card for value in dev)
    modules = json.loads((folder / "modules.json").read_text())
    assert [x["path"] for x in modules] == ["", "1_Pooling", "2_Normalize"]


@pytest.mark.once
def test_a_language_models_folders_have_the_bits_of_the_run(place):
    """They equal the bert_model.ckpt that training writes, as ``--bert`` reads both."""
    run = google.pretrained(str(place.folder / place.trained("mlm")))
    names = {name: x.shape for name, x in run.stored().items()}
    trained = run.take(names)
    for kind in ("hf", "google"):
        exported = google.pretrained(str(place.exported("mlm", kind))).take(names)
        for name, value in trained.items():
            np.testing.assert_array_equal(exported[name], value, name)


SMALL_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))"


@pytest.mark.once
@pytest.mark.parametrize("kind", ["savedmodel", "hf"])
def test_what_cannot_be_written_is_one_line_and_leaves_nothing(place, kind):
    run = place.trained("mean")
    before = bytes_of(place.folder / run)
    words = ["export", run, "--format", kind, "--to"]
    result = place(CLI, *words, f"{run}/full", code=SMALL_FILES)
    assert result.code == 2 and result.error.endswith("/full: File too large"), result.err
    assert bytes_of(place.folder / run) == before
    assert "exists already" in place(CLI, *words, run).error
    missing = "import sys; sys.modules['tf2onnx'] = None"
    said = place(CLI, "export", run, "--format", "onnx", "--to", "no", code=missing).error
    assert "pip install tf2onnx==1.1" in said
    assert not (place.folder / "no").exists()
    said = place(CLI, "predict", run, "texts.txt", "--query", "snow").error
    assert "--query needs a similarity run" in said


@pytest.mark.once
def test_of_two_exports_into_one_folder_one_is_refused(tmp_path):
    def write(folder):
        folder.mkdir()
        (folder / "model").touch()

    def late(folder):
        write(folder)
        export.all_or_nothing(tmp_path / "out", write)

    with pytest.raises(AmpXlaError, match="out exists: another command wrote it meanwhile"):
        export.all_or_nothing(tmp_path / "out", late)
    assert sorted(bytes_of(tmp_path)) == ["out", "out/model"]


@pytest.mark.once
def test_an_export_that_is_ended_leaves_nothing(place):
    for name, code in (("SIGKILL", -9), ("SIGTERM", 143)):  # the second one deletes both folders
        ending = f"""
import os, signal
from amp_xla.export import hugging_face
def write(model, folder, dtype, written=hugging_face.write):
    written(model, folder, dtype)
    os.kill(os.getpid(), signal.{name})
hugging_face.write = write
"""
        done = place(
            CLI, "export", place.trained("mean"), "--format", "hf", "--to", "ended", code=ending
        )
        assert done.code == code, done.err
        left = [path.name for path in place.folder.glob(".tmp-ended-*")]
        assert len(left) == (name == "SIGKILL"), left


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """The built-in data, and an environment of other libraries."""
    here = Place(server, tmp_path_factory.mktemp("whole"), few=False)
    venv = [uv(ROOT), "venv", "-q", "--python", "3.11", str(here.folder / "env")]
    subprocess.run(venv, check=True)
    here.install(here.elsewhere, *ELSEWHERE)
    here.install_onnx()
    dev = corpora.pydoc()[1]
    labels = [f"{x}|long" if len(y) > 80 else x for x, y in zip(dev.labels or [], dev.texts)]
    lines = (f"{text}\t{label}\n" for text, label in zip(dev.texts, labels))
    (here.folder / "several.tsv").write_text("".join(lines), encoding="utf-8")
    yield here
    for program in here.programs.values():
        program.kill()


@pytest.mark.once
@pytest.mark.long
@pytest.mark.network
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ROWS)
def test_a_row(whole, name):
    library = ROWS[name][1]
    for call in [*[library] * bool(library), "savedmodel", "onnx"]:
        print(f"{name}: {call}: {whole.check(name, call)}")
        assert len(whole.asked[name]) == COUNT
