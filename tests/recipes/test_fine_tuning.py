"""A classifier's defaults follow what it starts from, and those of a resumed run what it began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import pytest

from amp_xla.config import document, flat, parse
from amp_xla.models import published
from recipes import classification, jax_classification, keras_classification

BERTS = {"learning_rate": 2e-5, "epochs": 3, "batch_size": 32, "token_dropout": 0.0,
         "label_smoothing": 0.0}  # fmt: skip
SCRATCH = {"learning_rate": 5e-4, "epochs": 8, "batch_size": 16, "token_dropout": 0.1,
           "label_smoothing": 0.1}  # fmt: skip


@pytest.fixture(
    params=[classification, keras_classification, jax_classification],
    ids=["graph", "keras", "jax"],
)
def recipe(request: Any, tmp_path: Path, monkeypatch: Any) -> Any:
    monkeypatch.chdir(tmp_path)
    for name, width in (("wide", 768), ("narrow", 512)):
        (tmp_path / name).mkdir()
        text = json.dumps({"hidden_size": width})
        (tmp_path / name / "bert_config.json").write_text(text)
    return request.param


def of(recipe: Any, *words: str) -> Dict[str, Any]:
    found = flat(parse(recipe.Config, list(words)))
    return {name: found[name] for name in BERTS}


def test_without_a_bert_nothing_has_changed(recipe: Any) -> None:
    assert of(recipe) == SCRATCH


def test_a_published_bert_has_its_own_and_a_narrow_one_those_of_scratch(recipe: Any) -> None:
    assert of(recipe, "--bert", "wide") == BERTS
    assert of(recipe, "--bert", "narrow") == SCRATCH
    assert of(recipe, "--bert", "nowhere") == BERTS  # who reads its weights says what is wrong


def test_what_is_typed_stays(recipe: Any) -> None:
    found = of(recipe, "--bert", "wide", "--learning-rate", "5e-4", "--batch-size", "16")
    assert found == {**BERTS, "learning_rate": 5e-4, "batch_size": 16}


@pytest.mark.parametrize("began", [BERTS, SCRATCH, {**BERTS, "epochs": 5}])
def test_a_resumed_run_has_the_defaults_that_it_began_with(
    recipe: Any, tmp_path: Path, began: Dict[str, Any]
) -> None:
    """Also where the folder is gone or another one stands there; and in runs of before."""
    words = [w for k, v in began.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    name = recipe.__name__.rpartition(".")[2]
    run = tmp_path / "runs" / name / "a"
    run.mkdir(parents=True)
    (run.parent / "latest").symlink_to("a")
    text = json.dumps(document(parse(recipe.Config, ["--bert", "wide", *words])))
    (run / "config.json").write_text(text)
    for bert in ("wide", "narrow", "nowhere"):
        assert of(recipe, "--bert", bert, "--name", "a", "--resume") == began
        assert of(recipe, "--bert", bert, "--resume") == began
        longer = of(recipe, "--bert", bert, "--name", "a", "--resume", "--epochs", "9")
        assert longer == {**began, "epochs": 9}
    assert of(recipe, "--bert", "wide", "--name", "b", "--resume") == BERTS
    (run / "config.json").write_text("{")
    assert of(recipe, "--bert", "wide", "--name", "a", "--resume") == BERTS


def test_the_line_at_the_start_says_which_and_warns(recipe: Any) -> None:
    def line(*words: str, steps: int = 400) -> str:
        config = parse(recipe.Config, list(words))
        return published.fine_tuned(flat(config), config.defaults(), steps)

    assert line() == "defaults of a small model from scratch (--bert has others)"
    assert line("--bert", "wide") == "fine-tuning with BERT's own defaults"
    high = line("--bert", "wide", "--learning-rate", "5e-4")
    assert "but learning_rate 0.0005" in high and "2e-5 to 5e-5 are usual" in high
    assert "narrower than 768" in line("--bert", "narrow")
    assert "warning" not in line("--bert", "narrow")
    assert line(steps=144).endswith("; 144 updates in all are few: --epochs 23 may learn more")
    assert "27 updates in all are few: --epochs 45 may" in line("--bert", "wide", steps=27)
    assert "few" not in line("--epochs", "1", steps=18)
