"""Presets of pretraining equal the papers: settings, model, initial weights."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.config import flat, parse
from amp_xla.errors import SettingsError
from amp_xla.models import dropout
from amp_xla.process.world import World
from amp_xla.tasks.pretraining import options, presets
from amp_xla.tasks.pretraining.data import prepare
from amp_xla.training import distributed
from recipes.pretraining import Config

pytestmark = pytest.mark.once
# preset, model -> rate, warm-up in updates, updates, batch, beta2, epsilon, clipping, masks,
# dropout
PAPERS = {
    ("bert", "base"): (1e-4, 10_000, 1_000_000, 256, 0.999, 1e-6, 1.0, "token", 0.1),
    ("roberta", "base"): (6e-4, 24_000, 500_000, 8192, 0.98, 1e-6, 0.0, "token", 0.1),
    ("roberta", "large"): (4e-4, 30_000, 500_000, 8192, 0.98, 1e-6, 0.0, "token", 0.1),
    ("lamb", "large"): (6e-3, 2_000, 7_038, 65_536, 0.999, 1e-6, 1.0, "token", 0.1),
    ("wwm", "base"): (1e-4, 10_000, 1_000_000, 384, 0.999, 1e-6, 1.0, "word", 0.1),
    ("cramming", "base"): (1e-3, 1_000, 2_000, 4096, 0.98, 1e-12, 0.5, "token", 0.0),
}


def described(config):
    return presets.described(flat(config), flat(Config()))


@pytest.mark.parametrize(("preset", "model"), sorted(PAPERS))
def test_a_preset_is_what_its_paper_says(preset, model):
    config = parse(Config, ["--preset", preset, "--model", model])
    update, encoder, amount = config.update, config.encoder, config.length
    goal, optimization = config.goal, config.optimization
    rate, warm, steps, batch, beta2, epsilon, clip, mask, drop = PAPERS[preset, model]
    assert (update.learning_rate, amount.steps, amount.global_batch) == (rate, steps, batch)
    assert int(update.warmup * amount.steps) == pytest.approx(warm, abs=1)
    assert (optimization.beta2, optimization.adam_epsilon, update.clip_norm) == (
        beta2,
        epsilon,
        clip,
    )
    assert (goal.mask, goal.mask_rate, encoder.dropout) == (mask, 0.15, drop)
    assert optimization.optimizer == ("lamb" if preset == "lamb" else "adamw")
    assert optimization.decay == "linear"
    assert update.weight_decay == 0.01 and optimization.average == 0.0


@pytest.mark.parametrize(
    ("words", "preset"),
    [("", "quick"), ("--model base", "roberta"), ("--model base --preset quick", "quick")],
)
def test_models_of_berts_size_are_trained_as_berts(words, preset):
    config = parse(Config, words.split())
    assert described(config).startswith(f"preset {preset};")


@pytest.mark.parametrize(("words", "steps", "batch"), [
    ("--preset quick --model base", 1600, 48), ("--steps 5 --global-batch 32", 5, 32),
])  # fmt: skip
def test_quick_has_large_batches_of_short_sequences(words, steps, batch):
    config = parse(Config, words.split())
    assert (config.length.steps, config.length.global_batch) == (steps, batch)
    assert (
        described(config) == "preset quick; meant for minutes on a laptop, sequences of 32 tokens"
    )


def test_what_is_typed_stays_and_is_said():
    config = parse(Config, "--beta2 0.9 --preset bert --dropout 0.2 --steps 3000".split())
    assert (config.optimization.beta2, config.encoder.dropout, config.length.steps) == (
        0.9,
        0.2,
        3000,
    )
    assert described(config).startswith("preset bert, but beta2 0.9, dropout 0.2; meant for text ")
    with pytest.raises(SettingsError, match="'berd'"):
        parse(Config, ["--preset", "berd"])
    assert set(presets.PRESETS) >= {preset for preset, _ in PAPERS}


def test_help_shows_the_defaults_of_the_preset(capsys):
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


def test_berts_model_and_where_it_starts():
    """BERT-base's 109,482,240 parameters, of which the pooler's 590,592 are not trained here."""
    config = parse(Config, ["--preset", "bert", "--model", "base"])
    dropout.install(1)
    lm = config.encoder.language_model(30_522, 128)
    shapes = {w.name.split(":")[0]: w.shape.as_list() for w in lm.weights}
    rows_beyond = lm.padded - 30_522
    sizes = [np.prod(shape) for name, shape in shapes.items() if not name.startswith("MLM")]
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
    backend.K.clear_session()
