"""Presets of pretraining equal the papers: settings, model, initial weights."""

import functools

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.config import flat, parse
from amp_xla.errors import SettingsError
from amp_xla.models import dropout
from amp_xla.models.options import SIZES
from amp_xla.process.world import World
from amp_xla.tasks.pretraining import options, presets
from amp_xla.tasks.pretraining.data import prepare
from amp_xla.training import distributed
from recipes.pretraining import Config

pytestmark = pytest.mark.once
SETTINGS = (
    "learning_rate steps global_batch beta2 adam_epsilon clip_norm mask dropout optimizer".split()
)
ALWAYS = dict(mask_rate=0.15, decay="linear", weight_decay=0.01, average=0.0)
# preset, model -> SETTINGS, and the updates of the warm-up
PAPERS = {
    ("bert", "base"): (1e-4, 1_000_000, 256, 0.999, 1e-6, 1.0, "token", 0.1, "adamw", 10_000),
    ("roberta", "base"): (6e-4, 500_000, 8192, 0.98, 1e-6, 0.0, "token", 0.1, "adamw", 24_000),
    ("roberta", "large"): (4e-4, 500_000, 8192, 0.98, 1e-6, 0.0, "token", 0.1, "adamw", 30_000),
    ("lamb", "large"): (6e-3, 7_038, 65_536, 0.999, 1e-6, 1.0, "token", 0.1, "lamb", 2_000),
    ("wwm", "base"): (1e-4, 1_000_000, 384, 0.999, 1e-6, 1.0, "word", 0.1, "adamw", 10_000),
    ("cramming", "base"): (1e-3, 2_000, 4096, 0.98, 1e-12, 0.5, "token", 0.0, "adamw", 1_000),
}


def described(config):
    return presets.described(flat(config), flat(Config()))


@pytest.mark.parametrize(("preset", "model"), sorted(PAPERS))
def test_a_preset_is_what_its_paper_says(preset, model):
    found = flat(parse(Config, ["--preset", preset, "--model", model]))
    *values, updates = PAPERS[preset, model]
    expected = {**dict(zip(SETTINGS, values)), **ALWAYS}
    assert {name: found[name] for name in expected} == expected
    assert int(found["warmup"] * found["steps"]) == pytest.approx(updates, abs=1)


QUICK = "preset quick; meant for minutes on a laptop, sequences of 32 tokens"


@pytest.mark.parametrize(("words", "steps", "batch", "said"), [
    ("", 1600, 48, QUICK), ("--model base --preset quick", 1600, 48, QUICK),
    ("--steps 5 --global-batch 32", 5, 32, QUICK),
    ("--model base", 500_000, 8192, "preset roberta;"),  # a model of BERT's size is trained as one
])  # fmt: skip
def test_without_a_preset_the_model_decides(words, steps, batch, said):
    config = parse(Config, words.split())
    assert (config.length.steps, config.length.global_batch) == (steps, batch)
    assert described(config).startswith(said)


def test_what_is_typed_stays_and_help_shows_the_defaults(capsys):
    config = parse(Config, "--beta2 0.9 --preset bert --dropout 0.2 --steps 3000".split())
    found = flat(config)
    assert [found[name] for name in ("beta2", "dropout", "steps")] == [0.9, 0.2, 3000]
    assert described(config).startswith("preset bert, but beta2 0.9, dropout 0.2; meant for text ")
    with pytest.raises(SettingsError, match="--preset berd: allowed is bert"):
        parse(Config, ["--preset", "berd"])
    assert set(presets.PRESETS) >= {preset for preset, _ in PAPERS}
    for words, rate in (("--help", "0.001"), ("--preset lamb --help", "0.006")):
        with pytest.raises(SystemExit):
            parse(Config, words.split())
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "peak learning rate" in text and f"(above 0; default: {rate})" in text


class TwoRanks(distributed.Ranks):
    """Rank 0 of two; the other one answers with the same bytes."""

    def exchange(self, mine):
        return [mine, mine]


def test_with_several_ranks_the_first_prepares_the_built_in_corpus(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a few words\n" * 50)
    small = functools.partial(prepare.Config, corpus=str(tmp_path / "a.txt"), workers=1)
    monkeypatch.setattr(prepare, "Config", lambda **options: small(vocab_size=64, **options))
    monkeypatch.setattr(distributed, "_current", TwoRanks(World(0, 2)))
    monkeypatch.chdir(tmp_path)
    assert options.TextOptions().prepared().total("documents", "train") > 0


def test_berts_model_and_where_it_starts(monkeypatch, cleared):
    """BERT-base's 109,482,240 parameters, of which the pooler's 590,592 are not trained here."""
    layers, *sizes = SIZES["base"]
    monkeypatch.setitem(SIZES, "base", (1, *sizes))  # the first stands for all
    config = parse(Config, ["--preset", "bert", "--model", "base"])
    dropout.install(1)
    lm = config.encoder.language_model(30_522, 128)
    shapes = {w.name.split(":")[0]: w.shape.as_list() for w in lm.weights}
    rows_beyond = lm.padded - 30_522
    sizes = [
        np.prod(shape) * (layers if name.startswith("Transformer-0-") else 1)
        for name, shape in shapes.items()
        if not name.startswith("MLM")
    ]
    assert sum(sizes) - rows_beyond * 768 + 768 * 768 + 768 == 109_482_240
    assert shapes["Embedding-Position/embeddings"] == [512, 768]
    kernel = next(w for w in lm.weights if w.shape.as_list() == [768, 3072])
    # Normal, of 0.02, cut at two deviations, which leaves 0.88 of the deviation. Every run draws
    # anew, so the bounds are five standard errors of that many values.
    backend.session().run(kernel.initializer)
    values = backend.session().run(kernel)
    deviation, off = 0.02 * 0.8796, 5 / np.sqrt(values.size)
    assert np.std(values) == pytest.approx(deviation, rel=off / np.sqrt(2))
    assert abs(np.mean(values)) < off * deviation and np.abs(values).max() <= 0.0401
