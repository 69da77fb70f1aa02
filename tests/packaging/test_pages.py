"""The commands in the blocks of README and the pages, typed in their order, on small data.

A line is typed as it stands, and flags that make its job small follow it; all lines take minutes:
`make test-all ARGS="-m long tests/packaging/test_pages.py"`. The Python blocks marked ``script``
run as programs. What needs another machine is named with its reason.
"""

import gzip
import json
import re
import shlex
import shutil

import pytest

from amp_xla import backend
from tests.support import google_folder
from tests.support.commands import CLI, Commands
from tests.support.killing import Server
from tests.support.running import ROOT, run_python
from tests.support.snippets import PAGES, blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ELSEWHERE = {
    "Docker": r"docker|CONTAINER=",
    "Slurm": r"srun|sbatch",
    "several GPUs or hosts: tests of ranks": r"\bNP=|horovod|mpirun",
    "a GPU": r"RUNTIME=nvtf1|AMP_XLA_DEVICE=gpu",
    "JAX: its own runtime": r"jax|JAX",
    "the tests themselves": r"make test",
    "an own recipe: test_own_recipe.py": r"stars",
    "an environment: test_program.py, test_installed.py": r"^pip |amp-xla (python|pip)|make env",
}
LINE = re.compile(r"^ {4}(\S.*)$", re.MULTILINE)
COMMAND = re.compile(
    r"^([A-Z_]+=\S+ )*(make|\./amp-xla|amp-xla|pip|srun|sbatch|docker|kubectl)\b|^scripts/"
)
BERT = "chinese_L-12_H-768_A-12"
SHAPE = "--layers 1 --hidden 64 --vocab-size 40"
TEXTS = "--max-length 24 --shapes 1 --epochs 1"
SMALL = {
    "classification": f"--train train.tsv --dev train.tsv {TEXTS}",
    **dict.fromkeys(("tagging", "similarity", "relations", "reading"), TEXTS),
    "seq2seq": f"{TEXTS} --max-target 8",
    "pretraining": "--steps 20 --global-batch 4 --micro-batch 4 --heldout 8",
    "recommendation": "--epochs 1",
}
SCRIPT = """
import amp_xla.setup
from bert4keras.backend import keras
from bert4keras.models import build_transformer_model
from bert4keras.tokenizers import Tokenizer
import numpy as np
folder = "chinese_L-12_H-768_A-12/"
tokenizer = Tokenizer(folder + "vocab.txt")
bert = build_transformer_model(folder + "bert_config.json", return_keras_model=False)
first = keras.layers.Lambda(lambda vectors: vectors[:, 0])(bert.model.output)
model = keras.models.Model(bert.model.input, keras.layers.Dense(2)(first))
model.compile(loss="mse", optimizer="sgd")
def build_model():
    return model
def make_batch():
    tokens = np.random.RandomState(1).randint(5, 20, (16, 8))
    return [tokens, 0 * tokens], np.ones((16, 2), "f4")
"""
TRAINED = """
from my_script import make_batch, model
from amp_xla.callbacks import Run
model.fit(*make_batch(), callbacks=[Run("runs/mine")], verbose=0)
model.save_weights("best_model.weights")
"""
typed = set()  # a line of several pages is typed once


def lines(page):
    """Return the command lines in a page's blocks, without comments."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found = [re.sub(r"\s+#.*$", "", line) for line in LINE.findall(text)]
    return [line for line in found if COMMAND.match(line)]


def is_elsewhere(line):
    return any(re.search(pattern, line) for pattern in ELSEWHERE.values())


def argv(line):
    """Return the words of a line for the program, with flags that make the job small."""
    words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=\S*$", word)]
    values = dict(re.findall(r'(RECIPE|ARGS)=("[^"]*"|\S+)', line))
    if words[0] != "make":
        command, rest = words[1], words[2:]
        if command not in ("inspect", "rehearse", "tune") or ".py:" in line:
            return [command, *rest]
        at = rest.index("--") if "--" in rest else len(rest)
        own = {"tune": "--steps 1 --rounds 2 --minutes 0.05", "rehearse": "--steps 1"}
        small = f"{SMALL['classification']} {SHAPE}".split()
        return [command, *rest[:at], *own.get(command, "").split(), "--", *rest[at + 1 :], *small]
    recipe = values.get("RECIPE", "classification")
    flags = shlex.split(values.get("ARGS", "").strip('"').replace("FOLDER", BERT))
    if "--resume" not in flags:
        flags += SMALL[recipe].split() + ["--stride", "12"] * ("--stride" in flags)
        if recipe == "pretraining" and "--data" not in flags:
            flags += ["--data", "data/ready"]
        if recipe == "pretraining":
            flags += ["--model", "tiny"]
        elif recipe != "recommendation" and not {"--bert", "--vocab"} & set(flags):
            flags += SHAPE.split()
    return ["train", recipe, "--", *flags]


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """A folder with the files and runs that the pages name."""
    folder = tmp_path_factory.mktemp("ready")
    letters = google_folder.VOCABULARY[5:]
    texts = [" ".join(letters[(n * k) % 15] for k in range(1, 13)) for n in range(1, 65)]
    rows = [f"{text}\t{'even' if n % 2 else 'odd'}\n" for n, text in enumerate(texts)]
    for name in ("train.tsv", "dev.tsv", "test.tsv", "a.tsv", "b.tsv"):
        (folder / name).write_text("".join(rows))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in google_folder.VOCABULARY))
    pairs = [f"{a}\t{b}\t{n % 2}\n" for n, (a, b) in enumerate(zip(texts, reversed(texts)))]
    titles = [f"{text}\t{text[:7]}\n" for text in texts]
    tagged = [text.replace(" ", "\tO\n") + "\tB-letter\n\n" for text in texts]
    triples = [
        {"text": text, "spo_list": [{"subject": text[:1], "predicate": "to", "object": text[-1]}]}
        for text in texts
    ]
    clicks = [f"{n % 2}\t{n}\t1\ta{n % 3}\tb\n" for n in range(300)]
    for name, content in {
        "pairs.tsv": pairs, "dev-pairs.tsv": pairs, "new-pairs.tsv": [p[:-3] + "\n" for p in pairs],
        "titles.tsv": titles, "dev-titles.tsv": titles, "train.bio": tagged, "dev.bio": tagged,
        "train.json": [f"{json.dumps(each)}\n" for each in triples], "clicks.tsv": clicks,
        "dev.json": [f"{json.dumps(each)}\n" for each in triples], "dev-clicks.tsv": clicks,
    }.items():  # fmt: skip
        (folder / name).write_text("".join(content))
    for name in ("texts.txt", "new_texts.txt"):
        (folder / name).write_text("".join(f"{text}\n" for text in texts))
    (folder / "corpus").mkdir()
    with gzip.open(str(folder / "corpus" / "part.jsonl.gz"), "wt") as corpus:
        documents = (" ".join(texts[n % 64 :] + texts[: n % 7]) for n in range(300))
        corpus.writelines(json.dumps({"text": text}) + "\n" for text in documents)
    shutil.copytree(str(folder / "corpus"), str(folder / "clean"))
    for name in (BERT, "chinese-macbert-base"):
        google_folder.write(folder / name)
    (folder / "my_script.py").write_text(SCRIPT)
    (folder / "trained.py").write_text(TRAINED)
    run_python("trained.py", cwd=folder, env={"AMP_XLA_PRECISION": "fp32"})
    command = Commands(Server(), folder)
    for line in (
        f"train classification -- --name mine {SMALL['classification']} {SHAPE}",
        "train seq2seq -- --train train.tsv --dev train.tsv --max-length 24 --epochs 1 --shapes 1"
        f" {SHAPE}",
        "prepare corpus/*.jsonl.gz data/ready --vocab vocab.txt --length 32 --workers 1",
        f"train pretraining -- --data data/ready --model tiny {SMALL['pretraining']}",
    ):
        command.done(CLI, *line.split())
    for name in ("a", "b"):
        shutil.copytree(*(str(folder / "runs" / "classification" / run) for run in ("mine", name)))
    return folder


HERE = {page.stem: [x for x in lines(page) if not is_elsewhere(x)] for page in PAGES}


@pytest.mark.long
@pytest.mark.parametrize("page", [name for name, commands in HERE.items() if commands])
def test_what_a_page_says_can_be_typed(page, ready, tmp_path):
    shutil.copytree(str(ready), str(tmp_path / "work"), symlinks=True)
    command = Commands(Server(), tmp_path / "work")
    for line in HERE[page]:
        if line == "./amp-xla" or line in typed:
            continue
        if "--compiled" in line and backend.kind() == "tf1":
            continue  # it needs TensorFlow 2, as its error says
        typed.add(line)
        first, _, source = line.split(" | ")[0].split(" > ")[0].partition(" < ")
        words = argv(first)
        if words[0] == "train" and "mine" in words and "--resume" not in words:
            shutil.rmtree(str(command.folder / "runs" / words[1] / "mine"))
        job = {"stdin": str(command.folder / source)} if source else {}
        done = command(CLI, *words, **job)
        output = done.out + done.err
        # doctor and tune end with 1 if this machine has no GPU.
        allowed = {0, 1} if words[0] in ("doctor", "tune") else {0}
        missing = "onnx" in line and "needs the package" in done.err
        assert done.code in allowed or missing, f"{line}\n{words}\n{output}"
        assert "Traceback" not in output, output


def test_each_line_is_a_command_or_is_elsewhere():
    """No line of a block is left out because nobody recognizes it."""
    for page in PAGES:
        for line in lines(page):
            assert is_elsewhere(line) or re.search(r"make train|amp-xla", line), line


# test_installed.py runs the script that reads my_data.py.


@pytest.mark.once
@pytest.mark.parametrize("code", [code for code in blocks("script") if "my_data" not in code])
def test_a_script_of_a_page_is_a_program(code, tmp_path):
    """In a process of its own, which has imported nothing before."""
    (tmp_path / "runs" / "pretraining").mkdir(parents=True)
    google_folder.write(tmp_path / "runs" / "pretraining" / "latest")
    (tmp_path / "typed.py").write_text(code)
    assert str(ROOT) not in run_python("typed.py", cwd=tmp_path).out
