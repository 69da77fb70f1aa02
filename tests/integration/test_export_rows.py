"""Each row of docs/export.md's table: 200 real texts, answered elsewhere as by predict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

from amp_xla import backend
from amp_xla.backend import K, keras
from amp_xla.data.placed import Placed
from amp_xla.data.text import corpora
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export import onnx_model
from amp_xla.export.model import ANSWERS, HEAD
from amp_xla.tasks.recommendation.data import Columns, batch_of, parse_line, two_packages
from amp_xla.tasks.relations import scores as relations
from amp_xla.tasks.seq2seq.answers import writer
from amp_xla.tasks.tagging import spans
from scripts.environment.uv import uv
from tests.support.commands import CLI, Commands
from tests.support.running import ROOT, shell_environment

pytestmark = [
    pytest.mark.slow, pytest.mark.once, pytest.mark.long, pytest.mark.network,
    pytest.mark.timeout(3600),
]  # fmt: skip
COUNT, LENGTH, TARGET = 200, 64, 8
PROGRAM = ROOT / "tests" / "support" / "answers_elsewhere.py"
ELSEWHERE = "torch transformers>=5 sentence-transformers onnxruntime".split()
SMALL = ("--layers", "2", "--hidden", "64", "--max-length", str(LENGTH), "--precision", "fp32")
SHORT = (*SMALL, "--train-fraction", "0.2", "--epochs", "4")
GRAPHS = ("savedmodel", "onnx")
LIBRARIES = ("documented", "pipeline", "sentence_transformers", "cross_encoder", "transformers")
PAIRED = ("similarity", *SHORT, "--method")
TAGGED = ("tagging", *SMALL, "--epochs", "4", "--head")
# Name -> recipe and flags; what answers; options of bert4keras in the format google
ROWS: Dict[str, Any] = {
    "mean": (("classification", *SHORT), ("documented", *GRAPHS, "google"), {}),
    "cls": (("classification", *SHORT, "--pooling", "cls"),
            ("transformers", *GRAPHS, "google"), {}),
    "pooler": (("classification", *SHORT, "--pooling", "pooler"),
               ("pipeline", *GRAPHS, "google"), {"with_pool": "tanh"}),
    "several": (("classification", *SMALL, "--epochs", "1", "--pooling", "pooler", "--train",
                 "several.tsv", "--dev", "several.tsv", "--multilabel", "|"),
                ("pipeline", *GRAPHS, "google"), {"with_pool": "tanh"}),
    "keras": (("keras_classification", *SHORT[:-6], *SHORT[-4:], "--policy", "float32"),
              ("transformers", *GRAPHS, "google"), {}),
    "keras-pooler": (("keras_classification", *SHORT[:-6], *SHORT[-4:], "--policy", "float32",
                      "--pooling", "pooler"),
                     ("pipeline", *GRAPHS, "google"), {"with_pool": "tanh"}),
    "softmax": ((*TAGGED, "softmax"), ("transformers", *GRAPHS, "google"), {}),
    "crf": ((*TAGGED, "crf"), ("transformers", *GRAPHS, "google"), {}),
    "global_pointer": ((*TAGGED, "global_pointer"), ("transformers", *GRAPHS, "google"), {}),
    "efficient_global_pointer": ((*TAGGED, "efficient_global_pointer"),
                                 ("transformers", *GRAPHS, "google"), {}),
    "relations": (("relations", *SMALL, "--epochs", "6"), ("transformers", *GRAPHS, "google"), {}),
    "cross-encoder": ((*PAIRED, "cross-encoder"), ("transformers", *GRAPHS, "google"), {}),
    "cross-encoder-cls": ((*PAIRED, "cross-encoder", "--pooling", "cls"),
                          ("transformers", *GRAPHS, "google"), {}),
    "cross-encoder-pooler": ((*PAIRED, "cross-encoder", "--pooling", "pooler"),
                             ("cross_encoder", *GRAPHS, "google"), {"with_pool": "tanh"}),
    "cosent": ((*PAIRED, "cosent"), ("sentence_transformers", *GRAPHS, "google"), {}),
    "mlm": (("pretraining", "--precision", "fp32", "--model", "tiny", "--steps", "20",
             "--global-batch", "16", "--micro-batch", "16", "--heldout", "16"),
            ("transformers", *GRAPHS, "google"), {"with_mlm": True}),
    "seq2seq": (("seq2seq", *SHORT, "--max-target", str(TARGET)), (*GRAPHS, "google"),
                {"application": "unilm"}),
}  # fmt: skip


def texts_of(name: str) -> List[str]:
    """Return 200 texts, or pairs that need no cut, of the built-in dev data."""
    task = ROWS[name][0][0]
    if task == "similarity":
        dev = corpora.pydoc_pairs()[1]
        pairs = [f"{a}\t{b}" for a, b in zip(dev.texts, dev.pairs or []) if len(a + b) < 160]
        return pairs[:COUNT]
    dev = {"tagging": corpora.entities, "relations": corpora.relations,
           "seq2seq": corpora.names}.get(task, corpora.pydoc)()[1]  # fmt: skip
    texts = dev.texts[:COUNT]
    if task == "pretraining":
        words = [text.split()[: LENGTH // 4] for text in texts]
        texts = [" ".join([*row[:1], "[MASK]", *row[2:]]) for row in words]
    return texts


class Elsewhere(Commands):
    """A folder of runs and exports, and an environment without this project."""

    def __init__(self, server: Any, folder: Path) -> None:
        super().__init__(server, folder)
        self.python, self.packages = str(folder / "env" / "bin" / "python"), str(folder / "onnx")
        install = [uv(ROOT), "pip", "install", "-q", "--python"]
        beside = "requests urllib3 idna certifi charset-normalizer flatbuffers".split()
        for command in (
            [uv(ROOT), "venv", "-q", "--python", "3.11", str(folder / "env")],
            [*install, self.python, *ELSEWHERE],
            [*install, sys.executable, "--no-deps", "--target", self.packages,
             *onnx_model.PACKAGES.split(), *beside],
        ):  # fmt: skip
            subprocess.run(command, check=True)
        dev = corpora.pydoc()[1]
        labels = [f"{x}|long" if len(y) > 80 else x for x, y in zip(dev.labels or [], dev.texts)]
        lines = (f"{text}\t{label}\n" for text, label in zip(dev.texts, labels))
        (folder / "several.tsv").write_text("".join(lines), encoding="utf-8")

    def command(self, *words: str) -> str:
        code = f"import sys; sys.path.append({self.packages!r})"
        done = self(CLI, *words, code=code)
        assert done.code == 0, done.out + done.err
        return done.out

    def predicted(self, run: str, texts: List[str]) -> List[Any]:
        """Return the answers of predict, or for masked texts the best token with probability."""
        (self.folder / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
        if "pretraining" in run:
            said = self.command("fill", run, "--file", "texts.txt", "--top", "1")
            return [line.split("\t")[:2] for line in said.splitlines() if line]
        said = self.command("predict", run, "texts.txt", "--json")
        return [json.loads(line) for line in said.splitlines()]

    def answered(self, python: str, jobs: List[Dict[str, Any]]) -> None:
        """Run the program in an empty folder, without this project on its path."""
        (self.folder / "empty").mkdir(exist_ok=True)
        (self.folder / "jobs.json").write_text(json.dumps(jobs))
        env = shell_environment(PYTHONNOUSERSITE="1", CUDA_VISIBLE_DEVICES="")
        subprocess.run(
            [python, "-I", str(PROGRAM), str(self.folder / "jobs.json")], check=True,
            cwd=str(self.folder / "empty"), env=env,
        )  # fmt: skip


@pytest.fixture(scope="module")
def place(server: Any, tmp_path_factory: Any) -> Elsewhere:
    return Elsewhere(server, tmp_path_factory.mktemp("elsewhere"))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def pointers(vectors: np.ndarray, head: Dict[str, np.ndarray], name: str, rope: bool) -> Any:
    """Return the scores of bert4keras' layer on an encoder's vectors."""
    parts = sorted({key.split(".")[-2] for key in head if key.startswith(name)})
    weights = [head[f"{name}{part}.{x}"].T for part in parts for x in ("weight", "bias")]
    kind = "EfficientGlobalPointer" if "p_dense" in parts else "GlobalPointer"
    last = weights[-1] if "q_dense" in parts else weights[1]
    heads = len(last) // (2 if "q_dense" in parts else 128)
    K.clear_session()
    layer = getattr(backend.bert4keras("layers"), kind)(heads, 64, RoPE=rope, tril_mask=False)
    inputs = keras.layers.Input((None, vectors.shape[-1]))
    model = keras.models.Model(inputs, layer(inputs))
    layer.set_weights(weights)
    return model.predict(vectors)


def finished(name: str, out: np.ndarray, ids: np.ndarray, head: Dict[str, np.ndarray]) -> Any:
    """Compute what the printed formula says from the encoder's output: scores or logits."""
    if name == "relations":
        return np.concatenate([
            pointers(out, head, f"{part}.", part == "entities")
            for part in ("entities", "heads", "tails")
        ], 1)  # fmt: skip
    if "pointer" in name:
        return pointers(out, head, "", True)
    if name == "cosent":
        real = (ids > 0)[..., None]
        mean = (out * real).sum(1) / real.sum(1)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)
    if "classifier.weight" not in head:
        return out
    if out.ndim == 3 and name not in ("softmax", "crf"):
        real = (ids > 0)[..., None]
        out = out[:, 0] if "cls" in name else (out * real).sum(1) / real.sum(1)
    return out @ head["classifier.weight"].T + head["classifier.bias"]


def check(name: str, folder: Path, found: Dict[str, Any], expected: List[Any], texts: Any) -> str:
    """Compare the answers; return the largest difference, or the number of equal ones."""
    task = ROWS[name][0][0]
    if task == "seq2seq":
        write = writer(Tokenizer.of_folder(str(folder)))
        written = [write(row[: np.argmin(row)] if 0 in row else row) for row in found["generated"]]
        assert written == [answer["generated"] for answer in expected]
        return f"{len(set(written))} different texts"
    if task == "pretraining":
        chances, tokens = softmax(found["logits"]), Tokenizer.of_folder(str(folder)).tokens
        assert [tokens[i] for i in chances.argmax(1)] == [token for _, token in expected]
        difference = np.abs(chances.max(1) - [float(chance) for chance, _ in expected]).max()
        assert difference < 1.5e-4  # fill prints four decimals
        return f"{difference:.1e}"
    if task in ("tagging", "relations"):
        numbers = json.loads((folder / ANSWERS).read_text()) if (folder / ANSWERS).exists() else {}
        labels = json.loads((folder / "labels.json").read_text())
        placed = Placed.of(texts, Tokenizer.of_folder(str(folder)), LENGTH)
        if task == "relations":
            batch = {"sample_ids": np.arange(len(texts))}
            triples = relations.found_in(batch, found, placed, labels)
            answers: Any = [[triple._asdict() for triple in row] for row in triples]
            wanted = [answer["spo_list"] for answer in expected]
        else:
            if "logits" in found:
                found["scores"] = found["logits"]
                zeros = np.zeros([len(labels)] * 2)
                found["transitions"] = np.array(numbers.get("transitions", zeros))
                labels = [tag[2:] for tag in labels[1::2]]
            rows = spans.decode(name, found, found["ids"])
            answers = [list(map(list, placed.entities(i, x, labels))) for i, x in enumerate(rows)]
            wanted = [answer["entities"] for answer in expected]
        assert answers == wanted and any(answers)
        return f"{sum(map(len, answers))} equal"
    if name == "cosent":
        first, second = np.split(found["vectors"], 2)
        found["similarity"] = (first * second).sum(1)
    if task == "similarity":
        difference = np.abs(found["similarity"] - [answer["score"] for answer in expected]).max()
        numbers = json.loads((folder / ANSWERS).read_text()) if (folder / ANSWERS).exists() else {}
        labels = (found["similarity"] >= numbers.get("threshold", 0.5)).astype(int)
        if name != "cosent" or numbers:  # Hugging Face's folder has no threshold
            assert [str(x) for x in labels] == [answer["label"] for answer in expected]
    else:
        found.setdefault("probabilities", softmax(found.get("logits", np.zeros(1))))
        wanted = np.array([list(answer["probabilities"].values()) for answer in expected])
        difference = np.abs(np.array(found["probabilities"]) - wanted).max()
        same = (found["probabilities"] > 0.5) == (wanted > 0.5)
        if name != "several":
            same = found["probabilities"].argmax(1) == wanted.argmax(1)
        assert same.all()
        if "labels" in found:  # of the documented code
            assert list(found["labels"]) == [answer["label"] for answer in expected]
    assert difference < 1e-4
    return f"{difference:.1e}"


class Row(NamedTuple):
    """A run: its texts, the answers of predict, and what answers elsewhere from its exports."""

    texts: List[str]
    expected: List[Any]
    jobs: List[Dict[str, Any]]


def exported(place: Elsewhere, name: str) -> Row:
    """Train a run, export it in each format, and predict."""
    (recipe, *flags), calls, options = ROWS[name]
    run, texts = f"runs/{recipe}/{name}", texts_of(name)
    assert len(texts) == COUNT
    place.command("train", recipe, *flags, "--name", name)
    jobs: List[Dict[str, Any]] = []
    for call in calls:
        kind = "hf" if call in LIBRARIES else call
        place.command("export", run, "--format", kind)
        folder = place.folder / run / f"export-{kind}"
        job = {"call": call, "folder": str(folder), "length": LENGTH, "options": options,
               "texts": texts, "out": str(folder / "found.npz")}  # fmt: skip
        if call == "documented":
            page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
            job["code"] = page.split("<!-- run: transformers -->\n```python\n")[1].split("```")[0]
        if recipe == "seq2seq":
            job.update(target=TARGET, length=LENGTH - TARGET)
        if name == "cosent" and call != "sentence_transformers":
            job["texts"] = [text for side in zip(*(x.split("\t") for x in texts)) for text in side]
        jobs.append(job)
    return Row(texts, place.predicted(run, texts), jobs)


@pytest.fixture(scope="module")
def rows(place: Elsewhere, request: Any) -> Dict[str, Row]:
    """The chosen rows, answered by three processes."""
    items = [item for item in request.session.items if item.name.startswith("test_a_row")]
    found = {item.callspec.params["name"]: Row([], [], []) for item in items}
    found = {name: exported(place, name) for name in found}
    jobs = [job for row in found.values() for job in row.jobs]
    here = ("savedmodel", "google")
    place.answered(place.python, [job for job in jobs if job["call"] not in here])
    for call in here:
        place.answered(sys.executable, [job for job in jobs if job["call"] == call])
    return found


@pytest.mark.parametrize("name", ROWS)
def test_a_row(rows: Dict[str, Row], name: str) -> None:
    texts, expected, jobs = rows[name]
    recipe = ROWS[name][0][0]
    for job in jobs:
        folder = Path(job["folder"])
        found = dict(np.load(job["out"]).items())
        if "out" in found:
            head = load_file(str(folder / HEAD)) if (folder / HEAD).exists() else {}
            value = finished(name, found["out"], found["ids"], head)
            key = {"similarity": "similarity", "tagging": "logits"}.get(recipe, "probabilities")
            key = "scores" if recipe == "relations" or "pointer" in name else key
            if name == "cosent":
                key = "vectors"
            elif recipe == "pretraining":
                key, value = "logits", np.log(value) if job["call"] == "google" else value
            elif key == "similarity":
                value = sigmoid(value[:, 0])
            elif key == "probabilities":
                value = (sigmoid if name == "several" else softmax)(value)
            found[key] = value
        print(f"{name}: {job['call']}: {check(name, folder, found, expected, texts)}")


def test_jax(place: Elsewhere) -> None:
    """Trained in JAX's environment: the encoder in transformers, the head by its formula."""
    python = ROOT / ".venvs" / "jax" / "bin" / "python"
    if not python.exists():
        pytest.skip("needs .venvs/jax")
    texts, run = corpora.pydoc()[1].texts[:COUNT], "runs/jax_classification/jax"
    (place.folder / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    sizes = ("--layers", "2", "--hidden", "64", "--max-length", str(LENGTH))
    said = ""
    for words in (
        ("train", "jax_classification", *sizes, "--epochs", "1", "--name", "jax"),
        ("export", run, "--format", "hf"), ("predict", run, "texts.txt", "--json"),
    ):  # fmt: skip
        done = subprocess.run(
            [str(python), "-m", "amp_xla", *words], cwd=str(place.folder), check=True,
            env=shell_environment(PYTHONPATH=str(ROOT)), stdout=subprocess.PIPE,
        )  # fmt: skip
        said = done.stdout.decode()
    expected, folder = list(map(json.loads, said.splitlines())), place.folder / run / "export-hf"
    out = str(folder / "found.npz")
    job = {"call": "transformers", "folder": str(folder), "length": LENGTH, "texts": texts}
    place.answered(place.python, [{**job, "out": out}])
    found: Any = np.load(out)
    logits = finished("mean", found["out"], found["ids"], load_file(str(folder / HEAD)))
    wanted = np.array([list(answer["probabilities"].values()) for answer in expected])
    np.testing.assert_allclose(softmax(logits), wanted, atol=1e-4)
    print(f"jax: transformers: {np.abs(softmax(logits) - wanted).max():.1e}")


def test_recommendation(place: Elsewhere) -> None:
    lines = two_packages()[1].decode().splitlines()[:COUNT]
    place.command("train", "recommendation", "--epochs", "1", "--precision", "fp32", "--name", "it")
    run, folder = "runs/recommendation/it", place.folder / "runs/recommendation/it/export"
    expected = place.predicted(run, lines)
    place.command("export", run)
    parsed = [parse_line(line.encode(), Columns(0, 2), 64) for line in lines]
    batch = batch_of(parsed, Columns(0, 2), 100_000, 64, np.arange(COUNT), COUNT)
    arrays, out = str(folder / "arrays.npz"), str(folder / "found.npz")
    np.savez(arrays, numbers=batch["numbers"], ids=batch["ids"])
    job = {"call": "savedmodel", "folder": str(folder), "arrays": arrays, "out": out}
    place.answered(sys.executable, [job])
    wanted = [answer["probabilities"]["1"] for answer in expected]
    chances = np.load(out)["probability"]
    np.testing.assert_allclose(chances, wanted, atol=1e-4)
    print(f"recommendation: savedmodel: {np.abs(chances - wanted).max():.1e}")
