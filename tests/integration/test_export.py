"""Exported runs, loaded by other programs, give the answers of predict and fill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K
from amp_xla.data.placed import Placed
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export import onnx_model
from amp_xla.export.model import ANSWERS, HEAD
from amp_xla.export.quantized import REPORT
from amp_xla.models import dropout
from amp_xla.models.weights import google
from amp_xla.tasks.tagging import spans
from scripts.environment.uv import uv
from tests.support.commands import PREDICT, RECIPE, Commands, bytes_of
from tests.support.encoded import ids_of
from tests.support.grammar import prepared
from tests.support.running import ROOT, environment
from tests.tasks.classification.test_recipe import TINY, write_corpus
from tests.tasks.similarity import test_recipe as test_similarity
from tests.tasks.tagging import test_recipe as test_tagging

pytestmark = pytest.mark.slow
EXPORT, FILL = "amp_xla.commands.export", "amp_xla.commands.fill"
TEXTS = ["snow and wind", "salt the soup", "rain soup", "a the with storm pan oven sun"]
SENTENCES = ["Ann lives in Rome", "the university of Oslo called", "nobody came"]
PAIRS = ["snow and rain\twind with storm", "soup\tfrost", "the storm\tthe storm"]
CLASSIFIER, MASKED = "runs/classification/one", "runs/pretraining/masked"
MASKED_TEXT = "north3 goes [MASK] south3 ."
FLAT = ("--train", "train.bio", "--dev", "train.bio")
NESTED = ("--train", "nested.jsonl", "--dev", "nested.jsonl")
TAGGED = ("recipes.tagging", *test_tagging.TINY, *NESTED, "--epochs", "4", "--head")
PAIRED = ("recipes.similarity", *test_similarity.DATA, "--train", "pairs.tsv", "--dev", "pairs.tsv")
# Name of a run -> command, and texts to answer.
RUNS: Dict[str, Any] = {
    "one": ((RECIPE, *TINY, "--train", "train.tsv", "--dev", "train.tsv", "--epochs", "2"), TEXTS),
    "masked": (("recipes.pretraining", "--data", "data", "--micro-batch", "8", "--global-batch",
                "8", "--heldout", "16", "--steps", "8", "--average", "0.9"), [MASKED_TEXT]),
    "several": ((RECIPE, *TINY, "--train", "several.tsv", "--dev", "several.tsv", "--multilabel",
                 "|"), TEXTS),
    "crf": ((*TAGGED, "crf", *FLAT, "--ema", "0.9"), SENTENCES),
    "global_pointer": ((*TAGGED, "global_pointer"), SENTENCES),
    "cosent": ((*PAIRED, "--method", "cosent"), PAIRS),
    "pooled-pairs": ((*PAIRED, "--method", "cross-encoder", "--pooling", "pooler"), PAIRS),
}  # fmt: skip
# Loads exports without this package. Reads a folder, a format and ids per line, as JSON.
LOAD = """
import json, os, sys
import numpy as np
os.environ["TF_USE_LEGACY_KERAS"] = os.environ["TF_KERAS"] = "1"
import tensorflow as tf
if hasattr(tf, "compat"):
    tf.compat.v1.enable_eager_execution()
for line in sys.stdin:
    folder, kind, inputs, packages = json.loads(line)
    ids, segments = (np.array(x, np.int32) for x in inputs)
    if kind == "savedmodel":
        signature = tf.compat.v2.saved_model.load(folder).signatures["serving_default"]
        out = signature(token_ids=tf.constant(ids), segment_ids=tf.constant(segments))
        out = {name: value.numpy().tolist() for name, value in out.items()}
    else:
        sys.path.insert(0, packages)
        import onnxruntime
        session = onnxruntime.InferenceSession(
            folder + "/model.onnx", providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        found = session.run(names, {"token_ids": ids, "segment_ids": segments})
        out = {name: value.tolist() for name, value in zip(names, found)}
    print(json.dumps(out), flush=True)
"""


class Place(Commands):
    """A folder with data, runs that are trained on demand, and a program that loads exports."""

    def __init__(self, server: Any, folder: Path) -> None:
        super().__init__(server, folder)
        self.answers: Dict[str, Any] = {}
        self.packages = ""
        self.program = subprocess.Popen(
            [sys.executable, "-c", LOAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment({"TF_CPP_MIN_LOG_LEVEL": "3"}),
        )  # fmt: skip

    def export(self, run: str, kind: str, dtype: str = "fp32", to: str = "", **job: Any) -> str:
        """Export to ``run/kind-dtype`` or ``to``; return the output."""
        to = to or f"{run}/{kind}-{dtype}"
        words = ("--run", run, "--format", kind, "--dtype", dtype, "--to", to)
        return self.done(EXPORT, *words, **job).out

    def trained(self, name: str) -> Tuple[str, Any]:
        """Train a run once; return its folder, and predict's (or fill's) answers to its texts."""
        (recipe, *flags), texts = RUNS[name]
        run = f"runs/{recipe.split('.')[1]}/{name}"
        if name not in self.answers:
            self.done(recipe, *flags, "--precision", "fp32", "--name", name)
            (self.folder / "asked.txt").write_text("".join(f"{text}\n" for text in texts))
            if name == "masked":
                out = self(FILL, "--run", run, "--text", MASKED_TEXT, "--top", "200").out
                filled = [line.split("\t") for line in out.splitlines()]
                self.answers[name] = {token: float(chance) for chance, token, _ in filled}
            else:
                out = self(PREDICT, "--run", run, "--file", "asked.txt", "--json").out
                self.answers[name] = [json.loads(line) for line in out.splitlines()]
        return run, self.answers[name]

    def answered(self, folder: Path, kind: str, encoded: Any) -> Dict[str, np.ndarray]:
        """Return the outputs of an export in the other program by name."""
        assert self.program.stdin is not None and self.program.stdout is not None
        line = json.dumps([str(folder), kind, encoded, self.packages])
        self.program.stdin.write(line.encode() + b"\n")
        self.program.stdin.flush()
        answer = json.loads(self.program.stdout.readline())
        return {name: np.array(x) for name, x in answer.items()}

    def check(self, name: str, kind: str, dtype: str = "fp32") -> None:
        """Compare the other program's answers with those of predict."""
        run, expected = self.trained(name)
        folder, texts, most = self.folder / run / f"{kind}-{dtype}", RUNS[name][1], TOLERANCE[dtype]
        if name == "cosent":
            texts = [text for side in zip(*(x.split("\t") for x in texts)) for text in side]
        encoded = rows(folder, texts)
        found = self.answered(folder, kind, encoded)
        numbers = json.loads((folder / ANSWERS).read_text()) if (folder / ANSWERS).exists() else {}
        if name == "masked":
            filled(folder, found["logits"], encoded[0], expected, most)
        elif texts is TEXTS:
            np.testing.assert_allclose(found["probabilities"], chances(expected), atol=most)
        elif texts is SENTENCES:
            assert ("transitions" in numbers) == (name == "crf")
            assert entities(folder, name, found, numbers, encoded[0]) == [
                answer["entities"] for answer in expected
            ]
        elif name == "cosent":
            first, second = np.split(found["vectors"], 2)
            scores = (first * second).sum(1)
            np.testing.assert_allclose(scores, [x["score"] for x in expected], atol=most)
            labels = [str(int(x >= numbers["threshold"])) for x in scores]
            assert labels == [answer["label"] for answer in expected]
        else:
            scores = [answer["score"] for answer in expected]
            np.testing.assert_allclose(found["similarity"], scores, atol=most)


TOLERANCE = {"fp32": 1.5e-4, "fp16": 1e-2}


def rows(folder: Path, texts: List[str]) -> List[List[List[int]]]:
    """Token ids and segment ids of texts, by the tokenizer's files in an export."""
    tokenizer = Tokenizer.of_folder(str(folder))
    if texts == [MASKED_TEXT]:
        ids = tokenizer.encode_masked(MASKED_TEXT)
        return [[ids], [[0] * len(ids)]]
    split = [text.split("\t") for text in texts]
    encoded = tokenizer.encode([x[0] for x in split], [x[1] if x[1:] else None for x in split])
    both = [ids_of(encoded, i) for i in range(len(texts))]
    longest = max(len(ids) for ids, _ in both)
    return [[row[k] + [0] * (longest - len(row[k])) for row in both] for k in (0, 1)]


def chances(answers: Any) -> np.ndarray:
    return np.array([list(answer["probabilities"].values()) for answer in answers])


def filled(folder: Path, logits: np.ndarray, ids: Any, expected: Any, most: float) -> None:
    """Compare the probabilities of the masked word's tokens with those of fill."""
    tokenizer = Tokenizer.of_folder(str(folder))
    powers = np.exp(logits[0, list(ids[0]).index(tokenizer.mask_id)])
    assert len(tokenizer.tokens) == len(expected)
    for token, chance in zip(tokenizer.tokens, powers / powers.sum()):
        assert chance == pytest.approx(expected[token], abs=most)


def entities(folder: Path, head: str, found: Any, numbers: Any, ids: Any) -> List[Any]:
    """Decode the answers of an exported tagger."""
    labels = json.loads((folder / "labels.json").read_text())
    if "logits" in found:
        zeros = np.zeros([len(labels)] * 2)
        found = {"scores": found["logits"], "transitions": zeros, **numbers}
        found["transitions"] = np.array(found["transitions"])
        labels = [tag[2:] for tag in labels[1::2]]
    placed = Placed.of(SENTENCES, Tokenizer.of_folder(str(folder)), 16)
    return [
        list(map(list, placed.entities(i, row, labels)))
        for i, row in enumerate(spans.decode(head, found, np.array(ids)))
    ]


@pytest.fixture(scope="module")
def place(server: Any, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("export")
    write_corpus(folder / "train.tsv", 200, 1)
    prepared(folder)
    (folder / "train.bio").write_text(test_tagging.columns(test_tagging.samples(400, 1)))
    nested = test_tagging.samples(400, 1, nested=True)
    (folder / "nested.jsonl").write_text(test_tagging.json_lines(nested))
    test_similarity.write(folder / "pairs.tsv", test_similarity.pairs(120, 1))
    lines = ["rain and soup\tkitchen|weather", "soup\tkitchen", "wind\tweather", "the\t"]
    (folder / "several.tsv").write_text("".join(f"{line}\n" for line in lines * 20))
    here = Place(server, folder)
    yield here
    here.program.kill()


ONCE = ("masked", "one", "global_pointer", "cosent", "several", "pooled-pairs")


@pytest.mark.parametrize(
    "name", ["crf", *(pytest.param(name, marks=pytest.mark.once) for name in ONCE)]
)
def test_saved_models_answer_as_predict_and_fill(place: Place, name: str) -> None:
    run, _ = place.trained(name)
    for dtype in ("fp32", "fp16")[: 2 if name in ("one", "crf") else 1]:
        said = place.export(run, "savedmodel", dtype)
        assert said.startswith(f"written: {run}/savedmodel-{dtype}, from step-")
        assert said.count("\n") == 3 and "\nload: " in said
        place.check(name, "savedmodel", dtype)
    if name == "one":
        folder = place.folder / run / "savedmodel-fp32"
        assert json.loads((folder / "labels.json").read_text()) == ["kitchen", "weather"]


@pytest.mark.network
@pytest.mark.skipif(
    not os.environ.get("CI"), reason="takes packages from a registry; CI=true runs it"
)
def test_onnx_runtime_answers_as_predict_and_fill(place: Place, tmp_path: Path) -> None:
    """tf2onnx beside this TensorFlow: its dependencies would replace packages that it pins."""
    packages = onnx_model.PACKAGES.split() + "requests urllib3 idna certifi".split()
    packages += "charset-normalizer flatbuffers".split()
    place.packages = str(tmp_path / "onnx")
    base = [uv(ROOT), "pip", "install", "-q", "--python", sys.executable, "--no-deps"]
    subprocess.run([*base, "--target", place.packages, *packages], check=True)
    several = ["crf", "one", "masked", "cosent", "global_pointer"]
    for name in several if backend.kind() == "tf2" else several[:1]:
        run, _ = place.trained(name)
        dtype = "fp16" if name == "masked" else "fp32"
        code = f"import sys; sys.path.insert(0, {place.packages!r})"
        assert "InferenceSession" in place.export(run, "onnx", dtype, code=code)
        place.check(name, "onnx", dtype)
        if name != "masked":
            said = place.export(run, "onnx", "int8", to=f"{name}-int8", code=code)
            compared = json.loads((place.folder / f"{name}-int8" / REPORT).read_text())
            assert compared["agreement"] >= 0.98 and f"{compared['agreement']:.2%}" in said
            assert len(list((place.folder / f"{name}-int8").glob("*.onnx"))) == 1


def by_bert4keras(folder: Path, masked: bool) -> Any:
    """Return a model in Google's format, as the command says to load it."""
    K.clear_session()
    with dropout.inference():
        config = json.loads((folder / "bert_config.json").read_text())
        models, epsilon = backend.bert4keras("models"), K.epsilon()
        K.set_epsilon(config["layer_norm_eps"])
        try:
            return models.build_transformer_model(
                str(folder / "bert_config.json"), str(folder / "bert_model.ckpt"),
                config["model_type"], with_mlm="linear" if masked else False,
            )  # fmt: skip
        finally:
            K.set_epsilon(epsilon)


@pytest.mark.once
def test_folders_for_sentence_transformers(place: Place) -> None:
    wanted = {
        "pooled-pairs": ("text-classification", "BertForSequenceClassification", "CrossEncoder"),
        "cosent": ("sentence-similarity", "BertModel", "SentenceTransformer"),
    }
    for name, (task, kind, call) in wanted.items():
        run, _ = place.trained(name)
        assert call in place.export(run, "hf")
        folder = place.folder / run / "hf-fp32"
        config = json.loads((folder / "config.json").read_text())
        assert config["architectures"] == [kind] and not (folder / HEAD).exists()
        card = (folder / "README.md").read_text()
        assert 'library_name: "sentence-transformers"\n' in card
        assert f'pipeline_tag: "{task}"\n' in card and f"# {name}\n" in card
        log = [json.loads(x) for x in (place.folder / run / "metrics.jsonl").open()]
        dev = [line["dev_spearman"] for line in log if line["kind"] == "dev"]
        assert any(str(value) in card for value in dev)
    modules = json.loads((folder / "modules.json").read_text())
    assert [x["path"] for x in modules] == ["", "1_Pooling", "2_Normalize"]


@pytest.mark.once
def test_a_language_models_folders_have_the_bits_of_the_run(place: Place) -> None:
    """They equal the bert_model.ckpt that training writes, as ``--bert`` reads both."""
    _, expected = place.trained("masked")
    for kind in ("hf", "google"):
        said = place.export(MASKED, kind)
        folder = place.folder / MASKED / f"{kind}-fp32"
        assert ("AutoModelForMaskedLM" if kind == "hf" else "with_mlm=True") in said
        read = [google.pretrained(str(x)) for x in (place.folder / MASKED, folder)]
        names = {name: x.shape for name, x in read[0].stored().items()}
        trained, exported = (opened.take(names) for opened in read)
        for name, value in trained.items():
            np.testing.assert_array_equal(exported[name], value, name)
    ids, segments = (np.array(x) for x in rows(folder, [MASKED_TEXT]))
    logits = by_bert4keras(folder, True).predict([ids, segments])
    filled(folder, logits, ids, expected, TOLERANCE["fp32"])


SMALL_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))"


@pytest.mark.once
@pytest.mark.parametrize("kind", ["savedmodel", "hf"])
def test_a_full_disk_leaves_nothing_and_a_folder_is_not_replaced(place: Place, kind: str) -> None:
    place.trained("one")
    before = bytes_of(place.folder / CLASSIFIER)
    words = ["--run", CLASSIFIER, "--format", kind]
    result = place(EXPORT, *words, "--to", f"{CLASSIFIER}/full", code=SMALL_FILES)
    assert result.code == 2 and result.error.endswith("/full: File too large"), result.err
    assert bytes_of(place.folder / CLASSIFIER) == before
    assert "exists already" in place(EXPORT, *words, "--to", CLASSIFIER).error


@pytest.mark.once
def test_what_cannot_be_exported_is_one_line(place: Place) -> None:
    place.trained("one")
    missing = "import sys; sys.modules['tf2onnx'] = None"
    words = ("--run", CLASSIFIER, "--format", "onnx", "--to", "no")
    said = place(EXPORT, *words, code=missing).error
    assert "pip install tf2onnx==1.1" in said
    assert not (place.folder / "no").exists()
    words = ("--run", CLASSIFIER, "--file", "asked.txt", "--query", "snow")
    assert "--query needs a similarity run" in place(PREDICT, *words).error
