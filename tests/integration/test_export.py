"""Runs written for other programs, loaded by those programs: the probabilities of predict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
from safetensors.numpy import load_file

from amp_xla import backend
from amp_xla.backend import K
from amp_xla.data import spans
from amp_xla.data.tagged import Placed
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export import onnx_model
from amp_xla.export.model import ANSWERS, HEAD
from amp_xla.models import dropout, encoders
from amp_xla.models.weights import google
from scripts.environment.uv import uv
from tests.integration import test_similarity, test_tagging
from tests.integration.commands import PREDICT, RECIPE, Commands, bytes_of
from tests.integration.grammar import prepared
from tests.integration.test_classification import TINY, write_corpus
from tests.running import ROOT, environment, run_python

pytestmark = pytest.mark.slow
EXPORT, FILL = "amp_xla.commands.export", "amp_xla.commands.fill"
TEXTS = ["snow and wind", "salt the soup", "rain\tsoup", "a the with storm pan oven sun"]
CLASSIFIER, MASKED = "runs/classification/one", "runs/pretraining/one"
MASKED_TEXT = "north3 goes [MASK] south3 ."
FLAT = ("--train", "train.bio", "--dev", "train.bio")
NESTED = ("--train", "nested.jsonl", "--dev", "nested.jsonl")
TAGGED = ("recipes.tagging", *test_tagging.TINY, *NESTED, "--epochs", "4", "--head")
PAIRED = ("recipes.similarity", *test_similarity.DATA, "--train", "pairs.tsv", "--dev", "pairs.tsv")
SENTENCES = ["Ann lives in Rome", "the university of Oslo called", "nobody came"]
PAIRS = ["snow and rain\twind with storm", "soup\tfrost", "the storm\tthe storm"]
# Command, texts to answer, and other formats than SavedModel to write.
OTHERS: Dict[str, Any] = {
    "several": (
        (RECIPE, *TINY, "--train", "several.tsv", "--dev", "several.tsv", "--multilabel", "|"),
        TEXTS, ["hf"],
    ),
    "crf": ((*TAGGED, "crf", *FLAT, "--ema", "0.9"), SENTENCES, ["hf"]),
    "global_pointer": ((*TAGGED, "global_pointer"), SENTENCES, ["google"]),
    "cosent": ((*PAIRED, "--method", "cosent"), PAIRS, ["hf"]),
    "cross-encoder": ((*PAIRED, "--method", "cross-encoder"), PAIRS, []),
}  # fmt: skip


class Place(Commands):
    """A folder with a classifier and a language model."""

    def export(self, run: str, kind: str, dtype: str = "fp32", to: str = "") -> str:
        """Written to ``run/kind-dtype``; what it says."""
        to = to or f"{run}/{kind}-{dtype}"
        result = self(EXPORT, "--run", run, "--format", kind, "--dtype", dtype, "--to", to)
        assert result.code == 0, result.out + result.err
        return result.out


@pytest.fixture(scope="module")
def place(server: Any, tmp_path_factory: Any) -> Place:
    folder = tmp_path_factory.mktemp("export")
    write_corpus(folder / "train.tsv", 200, 1)
    (folder / "new.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    prepared(folder)
    here = Place(server, folder, tmp_path_factory.mktemp("scratch"))
    data = ("--train", "train.tsv", "--dev", "train.tsv", *TINY)
    for words in (
        (RECIPE, *data, "--epochs", "2", "--precision", "fp32", "--name", "one"),
        ("recipes.pretraining", "--data", "data", "--precision", "fp32", "--micro-batch", "8",
         "--global-batch", "8", "--heldout", "16", "--steps", "8", "--average", "0.9", "--name",
         "one"),
    ):  # fmt: skip
        result = here(*words)
        assert result.code == 0, result.err
    return here


def chances(place: Place) -> np.ndarray:
    """What predict answers for TEXTS."""
    said = place(PREDICT, "--run", CLASSIFIER, "--file", "new.txt", "--json").out
    rows = [list(json.loads(line)["probabilities"].values()) for line in said.splitlines()]
    return np.array(rows)


def fillings(place: Place) -> Dict[str, float]:
    """What fill answers for MASKED_TEXT: token -> probability."""
    said = place(FILL, "--run", MASKED, "--text", MASKED_TEXT, "--top", "200").out
    rows = [line.split("\t") for line in said.splitlines()]
    return {token: float(chance) for chance, token, _ in rows}


# Loads each format in its own runtime, without this package. Reads folders and ids as JSON.
LOAD = """
import json, os, sys
import numpy as np
os.environ["TF_USE_LEGACY_KERAS"] = os.environ["TF_KERAS"] = "1"
import tensorflow as tf
if hasattr(tf, "compat"):
    tf.compat.v1.enable_eager_execution()
folder, kind, inputs = json.load(sys.stdin)
ids, segments = (np.array(x, np.int32) for x in inputs)
if kind == "savedmodel":
    signature = tf.compat.v2.saved_model.load(folder).signatures["serving_default"]
    out = signature(token_ids=tf.constant(ids), segment_ids=tf.constant(segments))
    out = {name: value.numpy().tolist() for name, value in out.items()}
else:
    import onnxruntime
    session = onnxruntime.InferenceSession(
        folder + "/model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = session.run(names, {"token_ids": ids, "segment_ids": segments})
    out = {name: value.tolist() for name, value in zip(names, found)}
print(json.dumps(out))
"""


def answers(folder: Path, kind: str, encoded: Any, env: Any) -> Dict[str, np.ndarray]:
    """What another program gets from an export: output -> numbers."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD], input=json.dumps([str(folder), kind, encoded]).encode(),
        stdout=subprocess.PIPE, env=environment({"TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})}),
        check=True,
    )  # fmt: skip
    return {name: np.array(x) for name, x in json.loads(done.stdout.decode()).items()}


def rows(folder: Path, texts: List[str]) -> List[List[List[int]]]:
    """Token ids and segment ids of texts, by the tokenizer's files in an export."""
    tokenizer = Tokenizer.of_folder(str(folder))
    split = [text.split("\t") for text in texts]
    encoded = tokenizer.encode([x[0] for x in split], [x[1] if x[1:] else None for x in split])
    both = [encoded.row(i) for i in range(len(texts))]
    longest = max(len(ids) for ids, _ in both)
    return [[row[k] + [0] * (longest - len(row[k])) for row in both] for k in (0, 1)]


def served_classifier(place: Place, kind: str, dtype: str, env: Any = None) -> None:
    folder = place.folder / CLASSIFIER / f"{kind}-{dtype}"
    assert json.loads((folder / "labels.json").read_text()) == ["kitchen", "weather"]
    found = answers(folder, kind, rows(folder, TEXTS), env)
    expected, most = chances(place), 1e-4 if dtype == "fp32" else 1e-2
    np.testing.assert_allclose(found["probabilities"], expected, atol=most)
    assert (found["logits"].argmax(1) == expected.argmax(1)).all()


def served_language_model(place: Place, kind: str, dtype: str, env: Any = None) -> None:
    folder = place.folder / MASKED / f"{kind}-{dtype}"
    tokenizer = Tokenizer.of_folder(str(folder))
    ids = tokenizer.encode_masked(MASKED_TEXT)
    logits = answers(folder, kind, [[ids], [[0] * len(ids)]], env)["logits"]
    assert logits.shape == (1, len(ids), tokenizer.vocab_size)
    powers = np.exp(logits[0, ids.index(tokenizer.mask_id)])
    expected = fillings(place)
    found = dict(zip(tokenizer.tokens, powers / powers.sum()))
    assert len(expected) == len(found)
    for token, chance in expected.items():
        assert found[token] == pytest.approx(chance, abs=1.5e-4 if dtype == "fp32" else 1e-2)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_saved_models_answer_as_predict_and_fill(place: Place, dtype: str) -> None:
    said = place.export(CLASSIFIER, "savedmodel", dtype)
    assert said.startswith(f"written: {CLASSIFIER}/savedmodel-{dtype}, from step-")
    assert said.count("\n") == 3 and "\nload: " in said
    served_classifier(place, "savedmodel", dtype)
    place.export(MASKED, "savedmodel", dtype)
    served_language_model(place, "savedmodel", dtype)


def other(place: Place, name: str) -> List[Any]:
    """Train a run of OTHERS, unless a test has, and return predict's answers to its texts."""
    (recipe, *flags), texts, _ = OTHERS[name]
    folder, run = place.folder, f"runs/{recipe.split('.')[1]}/{name}"
    if not (folder / run).exists():
        (folder / "train.bio").write_text(test_tagging.columns(test_tagging.samples(400, 1)))
        nested = test_tagging.samples(400, 1, nested=True)
        (folder / "nested.jsonl").write_text(test_tagging.json_lines(nested))
        test_similarity.write(folder / "pairs.tsv", test_similarity.pairs(120, 1))
        lines = ["rain and soup\tkitchen|weather", "soup\tkitchen", "wind\tweather", "the\t"]
        (folder / "several.tsv").write_text("".join(f"{line}\n" for line in lines * 20))
        done = place(recipe, *flags, "--precision", "fp32", "--name", name)
        assert done.code == 0, done.err
    (folder / "asked.txt").write_text("".join(f"{text}\n" for text in texts))
    said = place(PREDICT, "--run", run, "--file", "asked.txt", "--json").out
    return [run, [json.loads(line) for line in said.splitlines()]]


def served_other(
    place: Place, name: str, expected: Any, run: str, kind: str, dtype: str, env: Any = None
) -> None:
    """Compare another program's answers with predict's."""
    folder, texts = place.folder / run / f"{kind}-{dtype}", OTHERS[name][1]
    most = 1e-4 if dtype == "fp32" else 1e-2
    numbers = json.loads((folder / ANSWERS).read_text()) if (folder / ANSWERS).exists() else {}
    if name == "several":
        chances = [list(answer["probabilities"].values()) for answer in expected]
        found = answers(folder, kind, rows(folder, texts), env)
        np.testing.assert_allclose(found["probabilities"], chances, atol=most)
    elif texts is PAIRS:
        scores = [answer["score"] for answer in expected]
        if name == "cosent":
            both = [text for side in zip(*(x.split("\t") for x in texts)) for text in side]
            first, second = np.split(
                answers(folder, kind, rows(folder, both), env)["vectors"], 2
            )  # fmt: skip
            found = (first * second).sum(1)
            labels = [str(int(x >= numbers["threshold"])) for x in found]
            assert labels == [answer["label"] for answer in expected]
        else:
            found = answers(folder, kind, rows(folder, texts), env)["similarity"]
        np.testing.assert_allclose(found, scores, atol=most)
    else:
        encoded, labels = rows(folder, texts), json.loads((folder / "labels.json").read_text())
        found = answers(folder, kind, encoded, env)
        if "logits" in found:
            assert ("transitions" in numbers) == (name == "crf")
            zeros = np.zeros([len(labels)] * 2)
            found = {"scores": found["logits"], "transitions": zeros, **numbers}
            found["transitions"] = np.array(found["transitions"])
            labels = [tag[2:] for tag in labels[1::2]]
        placed = Placed.of(texts, Tokenizer.of_folder(str(folder)), 16)
        decoded = spans.decode(name, found, np.array(encoded[0]))
        entities = [
            sorted([*placed.characters(i, span), labels[span.label]] for span in row)
            for i, row in enumerate(decoded)
        ]
        assert entities == [answer["entities"] for answer in expected] and entities[0]


@pytest.mark.parametrize("name", list(OTHERS))
def test_saved_models_of_other_recipes_answer_as_predict(place: Place, name: str) -> None:
    run, expected = other(place, name)
    for kind in OTHERS[name][2]:
        place.export(run, kind)
    for dtype in ("fp32", "fp16")[: 2 if name == "crf" else 1]:
        place.export(run, "savedmodel", dtype)
        served_other(place, name, expected, run, "savedmodel", dtype)


@pytest.mark.network
@pytest.mark.skipif(
    not os.environ.get("CI"), reason="takes packages from a registry; CI=true runs it"
)
def test_onnx_runtime_answers_as_predict_and_fill(place: Place, tmp_path: Path) -> None:
    """tf2onnx beside this TensorFlow: its dependencies would replace packages that it pins."""
    packages = onnx_model.PACKAGES.split() + "requests urllib3 idna certifi".split()
    packages += "charset-normalizer flatbuffers".split()
    base = [uv(ROOT), "pip", "install", "-q", "--python", sys.executable, "--no-deps"]
    subprocess.run([*base, "--target", str(tmp_path / "onnx"), *packages], check=True)
    env = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, tmp_path / "onnx")))}
    for run, check in ((CLASSIFIER, served_classifier), (MASKED, served_language_model)):
        for dtype in ("fp32", "fp16"):
            words = ["--format", "onnx", "--dtype", dtype, "--to", f"{run}/onnx-{dtype}"]
            done = run_python("-m", "amp_xla", "export", run, *words, env=env, cwd=place.folder)
            assert done.code == 0 and "InferenceSession" in done.out, done.err
            check(place, "onnx", dtype, env)
    pointer = ["global_pointer"] * (backend.kind() == "tf1")  # ONNX lacks an operation of 2.17's
    for name in ["several", "crf", "cosent", "cross-encoder", *pointer]:
        run, expected = other(place, name)
        words = ["--format", "onnx", "--to", f"{run}/onnx-fp32"]
        done = run_python("-m", "amp_xla", "export", run, *words, env=env, cwd=place.folder)
        assert done.code == 0, done.err
        served_other(place, name, expected, run, "onnx", "fp32", env)


def vectors(folder: Path, kind: str, masked: bool) -> Any:
    """The model in a folder: by the reader of --bert, or by bert4keras itself."""
    K.clear_session()
    with dropout.inference():
        if kind == "hf":
            return encoders.transformer(str(folder)).model
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


@pytest.mark.parametrize(("kind", "dtype"), [("hf", "fp32"), ("google", "fp32"), ("hf", "fp16")])
def test_a_folders_encoder_and_head_are_predicts(place: Place, kind: str, dtype: str) -> None:
    said = place.export(CLASSIFIER, kind, dtype)
    assert "classifier.weight" in said and "head.safetensors" in said
    folder = place.folder / CLASSIFIER / f"{kind}-{dtype}"
    ids, segments = (np.array(x) for x in rows(folder, TEXTS))
    hidden = vectors(folder, kind, False).predict([ids, segments])
    head = {n: x.astype(np.float32) for n, x in load_file(str(folder / HEAD)).items()}
    mask = (ids > 0)[..., None]
    logits = (hidden * mask).sum(1) / mask.sum(1) @ head["classifier.weight"].T
    powers = np.exp(logits + head["classifier.bias"])
    np.testing.assert_allclose(
        powers / powers.sum(1, keepdims=True),
        chances(place),
        atol=1e-4 if dtype == "fp32" else 1e-2,
    )
    if kind == "hf":
        config = json.loads((folder / "config.json").read_text())
        assert config["architectures"] == ["BertModel"]
        assert config["id2label"] == {"0": "kitchen", "1": "weather"}
        stored = load_file(str(folder / "model.safetensors"))
        assert {str(x.dtype) for x in stored.values()} == {f"float{dtype[2:]}"}


def test_a_language_models_folders_have_the_bits_of_the_run(place: Place) -> None:
    """As read for --bert: those of the bert_model.ckpt that training leaves."""
    for kind in ("hf", "google"):
        said = place.export(MASKED, kind)
        folder = place.folder / MASKED / f"{kind}-fp32"
        assert ("AutoModelForMaskedLM" if kind == "hf" else "with_mlm=True") in said
        read = [google.pretrained(str(x)) for x in (place.folder / MASKED, folder)]
        names = {name: x.shape for name, x in read[0].stored().items()}
        trained, exported = (opened.take(names) for opened in read)
        for name, value in trained.items():
            np.testing.assert_array_equal(exported[name], value, name)
    tokenizer, expected = Tokenizer.of_folder(str(folder)), fillings(place)
    ids = np.array([tokenizer.encode_masked(MASKED_TEXT)])
    out = vectors(folder, "google", True).predict([ids, 0 * ids])[0]
    powers = np.exp(out[ids[0].tolist().index(tokenizer.mask_id)])
    for token, chance in zip(tokenizer.tokens, powers / powers.sum()):
        assert chance == pytest.approx(expected[token], abs=1.5e-4)
    config = json.loads((place.folder / MASKED / "hf-fp32" / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]


SMALL_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))"


@pytest.mark.parametrize("kind", ["savedmodel", "hf", "google"])
def test_a_full_disk_leaves_nothing_and_a_folder_is_not_replaced(place: Place, kind: str) -> None:
    before = bytes_of(place.folder / CLASSIFIER)
    words = ["--run", CLASSIFIER, "--format", kind]
    result = place(EXPORT, *words, "--to", f"{CLASSIFIER}/full", code=SMALL_FILES)
    assert result.code == 2 and result.error.endswith("/full: File too large"), result.err
    assert bytes_of(place.folder / CLASSIFIER) == before
    assert "exists already" in place(EXPORT, *words, "--to", CLASSIFIER).error


@pytest.mark.once
def test_what_cannot_be_exported_is_one_line(place: Place) -> None:
    missing = "import sys; sys.modules['tf2onnx'] = None"
    words = ("--run", CLASSIFIER, "--format", "onnx", "--to", "no")
    said = place(EXPORT, *words, code=missing).error
    assert "pip install tf2onnx==1.1" in said and not (place.folder / "no").exists()
    words = ("--run", CLASSIFIER, "--file", "new.txt", "--query", "snow")
    assert "--query needs a run of similarity" in place(PREDICT, *words).error


@pytest.mark.once
@pytest.mark.long
@pytest.mark.network
@pytest.mark.timeout(3600)
def test_transformers_answers_as_predict_and_fill(place: Place, peers: str) -> None:
    """By the code of docs/export.md."""
    folders = [place.folder / name for name in ("classifier", "masked")]
    for folder, run, texts in zip(folders, (CLASSIFIER, MASKED), (TEXTS[:2], [MASKED_TEXT])):
        place.export(run, "hf", to=folder.name)
        (folder / "texts.json").write_text(json.dumps(texts))
    run, _ = other(place, "crf")
    folders.append(place.folder / "tagger")
    place.export(run, "hf", to="tagger")
    place.export(run, "savedmodel", to="served")
    ids, segments = rows(folders[-1], SENTENCES)
    np.savez(folders[-1] / "asked.npz", ids=ids, segments=segments)
    served = answers(place.folder / "served", "savedmodel", [ids, segments], None)["logits"]
    subprocess.run(
        [peers, "-m", "tests.models.transformers_exports", *map(str, folders)], check=True
    )
    out = np.load(folders.pop() / "found.npz")["out"]
    words = np.array(ids) > 0
    np.testing.assert_allclose(out[words], served[words], atol=1e-4)
    found = [np.load(folder / "found.npz") for folder in folders]
    powers = np.exp(found[0]["logits"])
    probabilities = powers / powers.sum(1, keepdims=True)
    np.testing.assert_allclose(probabilities, chances(place)[:2], atol=1e-4)
    assert found[0]["labels"].tolist() == ["weather", "kitchen"]
    tokenizer, expected = Tokenizer.of_folder(str(folders[1])), fillings(place)
    ids = found[1]["ids"][0].tolist()
    assert ids == tokenizer.encode_masked(MASKED_TEXT)
    powers = np.exp(found[1]["out"][0, ids.index(tokenizer.mask_id)])
    for token, chance in zip(tokenizer.tokens, powers / powers.sum()):
        assert chance == pytest.approx(expected[token], abs=1.5e-4)
