"""Runs of the rows of docs/export.md, and what other programs answer from their exports."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from amp_xla.data.alignment import AlignedTexts
from amp_xla.data.text import corpora
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export import onnx_model
from amp_xla.export.model import ANSWERS, comparable
from amp_xla.tasks.relations import answers as relations
from amp_xla.tasks.seq2seq.answers import writer
from amp_xla.tasks.tagging import spans
from scripts.environment.uv import uv
from tests.support.commands import CLI, Commands
from tests.support.running import ROOT, shell_environment
from tests.tasks.classification.test_recipe import TINY
from tests.tasks.relations import test_recipe as test_relations
from tests.tasks.similarity import test_recipe as test_similarity
from tests.tasks.tagging import test_recipe as test_tagging

COUNT, LENGTH, TARGET = 200, 64, 8
PROGRAM = Path(__file__).with_name("answers_elsewhere.py")
ELSEWHERE = "torch transformers>=5 sentence-transformers onnxruntime".split()
BESIDE_ONNX = "requests urllib3 idna certifi charset-normalizer flatbuffers".split()
SMALL = ("--layers", "2", "--hidden", "64", "--max-length", str(LENGTH), "--precision", "fp32")
SHORT = (*SMALL, "--train-fraction", "0.2", "--epochs", "4")
PAIRED = ("similarity", *SHORT, "--method")
TAGGED = ("tagging", *SMALL, "--epochs", "4", "--head")
POOLER = ("--pooling", "pooler")
# Name -> recipe and flags; the library that answers from the format hf, if it has the whole model.
ROWS = {
    "mean": (("classification", *SHORT), "documented"),
    "cls": (("classification", *SHORT, "--pooling", "cls"), ""),
    "pooler": (("classification", *SHORT, *POOLER), "pipeline"),
    "several": (("classification", *SMALL, "--epochs", "1", *POOLER, "--train", "several.tsv",
                 "--dev", "several.tsv", "--multilabel", "|"), "pipeline"),
    "softmax": ((*TAGGED, "softmax"), "tagger"),
    "crf": ((*TAGGED, "crf"), "tagger"),
    "global_pointer": ((*TAGGED, "global_pointer"), ""),
    "efficient_global_pointer": ((*TAGGED, "efficient_global_pointer"), ""),
    "relations": (("relations", *SMALL, "--epochs", "6"), ""),
    "cross-encoder": ((*PAIRED, "cross-encoder"), ""),
    "cross-encoder-cls": ((*PAIRED, "cross-encoder", "--pooling", "cls"), ""),
    "cross-encoder-pooler": ((*PAIRED, "cross-encoder", *POOLER), "cross_encoder"),
    "cosent": ((*PAIRED, "cosent"), "sentence_transformers"),
    "mlm": (("pretraining", "--precision", "fp32", "--model", "tiny", "--steps", "20",
             "--global-batch", "16", "--micro-batch", "16", "--heldout", "16"), "transformers"),
    "seq2seq": (("seq2seq", *SHORT, "--max-target", str(TARGET)), ""),
}  # fmt: skip
WHOLE = ("--train-fraction", "1")
TEXTS = ["snow and wind", "salt the soup", "rain soup", "a the with storm pan oven sun"]
# Row or recipe -> flags of a small run in CI, and texts to answer.
FEW = {
    "several": (TINY, TEXTS),
    "classification": ((*TINY, *WHOLE, "--train", "train.tsv", "--dev", "train.tsv",
                        "--epochs", "2"), TEXTS),
    "tagging": ((*test_tagging.TINY, "--train", "train.bio", "--dev", "train.bio", "--ema", "0.9"),
                ["Ann lives in Rome", "the university of Oslo called", "nobody came"]),
    "relations": ((*test_relations.DATA, "--epochs", "8"),
                  [record["text"] for record in test_relations.samples(5, 9)]),
    "similarity": ((*test_similarity.DATA, *WHOLE, "--train", "pairs.tsv", "--dev", "pairs.tsv"),
                   ["snow and rain\twind with storm", "soup\tfrost", "the storm\tthe storm"]),
    "pretraining": (("--data", "data", "--steps", "8", "--global-batch", "8", "--micro-batch", "8",
                     "--average", "0.9"), ["north3 goes [MASK] south3 ."]),
}  # fmt: skip


def texts_of(recipe):
    """Return 200 texts, or pairs that need no cut, of the built-in dev data."""
    if recipe == "similarity":
        dev = corpora.pydoc_pairs()[1]
        pairs = [f"{a}\t{b}" for a, b in zip(dev.texts, dev.pairs or []) if len(a + b) < 160]
        return pairs[:COUNT]
    dev = {"tagging": corpora.entities, "relations": corpora.relations,
           "seq2seq": corpora.names}.get(recipe, corpora.pydoc)()[1]  # fmt: skip
    texts = dev.texts[:COUNT]
    if recipe == "pretraining":
        words = [text.split()[: LENGTH // 4] for text in texts]
        texts = [" ".join([*row[:1], "[MASK]", *row[2:]]) for row in words]
    return texts


class Place(Commands):
    """A folder of runs and exports, and programs without this project that answer from these."""

    def __init__(self, server, folder, few):
        super().__init__(server, folder)
        self.few, self.elsewhere = few, str(folder / "env" / "bin" / "python")
        self.packages = str(folder / "onnx")
        self.asked = {}
        self.expected = {}
        self.programs = {}
        (folder / "empty").mkdir()

    def install(self, *words):
        subprocess.run([uv(ROOT), "pip", "install", "-q", "--python", *words], check=True)

    def install_onnx(self):
        """tf2onnx beside this TensorFlow: its dependencies would replace packages that it pins."""
        words = (sys.executable, "--no-deps", "--target", self.packages)
        self.install(*words, *onnx_model.PACKAGES.split(), *BESIDE_ONNX)

    def command(self, *words):
        code = f"import sys; sys.path.append({self.packages!r})"
        return self.done(CLI, *words, code=code).out

    def trained(self, name):
        """Train a run once, and let predict or fill answer; return its folder."""
        recipe, *flags = ROWS[name][0]
        run = f"runs/{recipe}/{name}"
        if name in self.expected:
            return run
        few = FEW.get(name) or FEW.get(recipe)
        more, texts = few if self.few else ((), texts_of(recipe))
        self.command("train", recipe, *flags, *more, "--name", name)
        (self.folder / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
        if recipe == "pretraining":
            said = self.command("fill", run, "--file", "texts.txt", "--top", "1")
            answers = [line.split("\t")[:2] for line in said.splitlines() if line]
        else:
            said = self.command("predict", run, "texts.txt", "--json")
            answers = [json.loads(line) for line in said.splitlines()]
        self.asked[name], self.expected[name] = texts, answers
        return run

    def exported(self, name, kind, dtype="fp32"):
        run = self.trained(name)
        end = "" if dtype == "fp32" else f"-{dtype}"
        said = self.command("export", run, "--format", kind, "--dtype", dtype)
        assert said.startswith(f"written: {run}/export-{kind}{end}, from step-")
        return self.folder / run / f"export-{kind}{end}"

    def answered(self, job):
        """Let a program answer that runs in an empty folder, without this project on its path."""
        here = job["call"] == "savedmodel" or self.few
        job = {"length": LENGTH, **job, "out": f"{job['folder']}.npz"}
        if here:
            job["packages"] = self.packages
        if here not in self.programs:
            self.programs[here] = subprocess.Popen(
                [sys.executable if here else self.elsewhere, "-I", str(PROGRAM)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=str(self.folder / "empty"),
                env=shell_environment(PYTHONNOUSERSITE="1", CUDA_VISIBLE_DEVICES=""),
            )  # fmt: skip
        program = self.programs[here]
        program.stdin.write(json.dumps(job).encode() + b"\n")
        program.stdin.flush()
        assert any(
            line.decode().rstrip() == job["out"] for line in iter(program.stdout.readline, b"")
        )
        return dict(np.load(job["out"]).items())

    def check(self, name, call, dtype="fp32"):
        """Export a run and compare another program's answers with those of predict or fill."""
        (recipe, *_), library = ROWS[name]
        folder = self.exported(name, "hf" if call == library else call, dtype)
        texts = self.asked[name]
        job = {"call": call, "folder": str(folder), "texts": texts}
        if call == "documented":
            page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
            job["code"] = page.split("<!-- run: transformers -->\n```python\n")[1].split("```")[0]
        if recipe == "seq2seq":
            job.update(target=TARGET, length=LENGTH - TARGET)
        if name == "cosent" and call != library:
            job["texts"] = [text for side in zip(*(x.split("\t") for x in texts)) for text in side]
        most = {"fp32": 1e-4, "fp16": 1e-2}[dtype]
        return compared(name, folder, self.answered(job), self.expected[name], texts, most)


def compared(name, folder, found, expected, texts, most):
    """Compare labels and numbers with those of predict or fill; return how much they differ."""
    task = ROWS[name][0][0]
    numbers = json.loads((folder / ANSWERS).read_text()) if (folder / ANSWERS).exists() else {}
    labels, wanted, values, truth = [], [], [], []
    if task == "seq2seq":
        write = writer(Tokenizer.of_folder(str(folder)))
        labels = [write(row[: np.argmin(row)] if 0 in row else row) for row in found["generated"]]
        wanted = [answer["generated"] for answer in expected]
    elif task == "pretraining":
        chances, most = comparable({"logits": found["logits"]}), 1.5e-4  # fill prints four decimals
        tokens = Tokenizer.of_folder(str(folder)).tokens
        labels, values = [tokens[i] for i in chances.argmax(1)], chances.max(1)
        wanted, truth = zip(*((token, float(chance)) for chance, token in expected))
    elif task in ("tagging", "relations"):
        labels = aligned(name, folder, found, numbers, texts)
        wanted = [x["spo_list" if task == "relations" else "entities"] for x in expected]
        assert any(labels)
    elif task == "similarity":
        if name == "cosent":
            first, second = np.split(found["vectors"], 2)
            found["similarity"] = (first * second).sum(1)
        values, truth = found["similarity"], [answer["score"] for answer in expected]
        if name != "cosent" or numbers:  # Hugging Face's folder has no threshold
            labels = [str(int(x)) for x in values >= numbers.get("threshold", 0.5)]
            wanted = [answer["label"] for answer in expected]
    else:
        names = json.loads((folder / "labels.json").read_text())
        logits = {"logits": found.get("logits", np.zeros(1))}
        values = np.array(found.get("probabilities", comparable(logits)))
        truth = np.array([[x["probabilities"][label] for label in names] for x in expected])
        one = name != "several"
        labels, wanted = ((x.argmax(1) if one else x > 0.5).tolist() for x in (values, truth))
        if "labels" in found:  # of the documented code
            assert list(found["labels"]) == [answer["label"] for answer in expected]
    assert list(labels) == list(wanted)
    difference = np.abs(np.subtract(values, truth)).max(initial=0.0)
    assert difference < most
    return f"{len(labels)} labels, {difference:.1e}"


def aligned(name, folder, found, numbers, texts):
    """Decode entities or triples as docs/export.md says, unless they are decoded."""
    if "entities" in found:
        return json.loads(str(found["entities"]))
    labels = json.loads((folder / "labels.json").read_text())
    places = AlignedTexts.of(texts, Tokenizer.of_folder(str(folder)), LENGTH)
    if name == "relations":
        batch = {"sample_ids": np.arange(len(texts))}
        triples = relations.found_in(batch, found, places, labels)
        return [[triple._asdict() for triple in row] for row in triples]
    assert ("transitions" in numbers) == (name == "crf")
    if "logits" in found:
        zeros = np.zeros([len(labels)] * 2)
        found.update(
            scores=found["logits"], transitions=np.array(numbers.get("transitions", zeros))
        )
        assert labels[0] == "O" and all(tag.startswith("B-") for tag in labels[1::2])
        labels = [tag[2:] for tag in labels[1::2]]
    rows = spans.decode(name, found, found["ids"])
    return [list(map(list, places.entities(i, x, labels))) for i, x in enumerate(rows)]
