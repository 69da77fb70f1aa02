"""Settings: their meaning on a machine, variables merged with the user's, and ``--xla auto``."""

import hashlib
from pathlib import Path

import pytest

from amp_xla.backend import compiled
from amp_xla.errors import SettingsError
from amp_xla.settings import Precision, Settings, auto, flags
from amp_xla.training.options import PrecisionOptions

pytestmark = pytest.mark.once


@pytest.mark.parametrize("settings, half, infinity, epsilon, scale, words", [
    ({}, "float16", 1e4, 1e-5, 1000.0,
     "precision amp (float16), XLA off, infinity 1e4, epsilon 1e-5"),
    ({}, "bfloat16", 1e4, 1e-5, 1.0,
     "precision amp (bfloat16), XLA off, infinity 1e4, epsilon 1e-5"),
    ({}, None, 1e4, 1e-5, 1.0, "precision amp (float32), XLA off, infinity 1e4, epsilon 1e-5"),
    ({"loss_scale": 8, "xla": "on", "infinity": 3e4}, None, 3e4, 1e-5, 8.0,
     "precision amp (float32), XLA on, infinity 30000, epsilon 1e-5"),
    ({"precision": "fp32"}, "float16", None, None, 1.0, "precision fp32, XLA off"),
])  # fmt: skip
def test_one_value_says_what_the_settings_mean(settings, half, infinity, epsilon, scale, words):
    precision = Precision.of(Settings(**settings), half)
    values = (precision.infinity, precision.epsilon, precision.loss_scale)
    assert values == (infinity, epsilon, scale) and precision.describe() == words


def test_arguments_and_flags_win_over_variables(monkeypatch):
    environ = {"AMP_XLA_PRECISION": "tf32", "AMP_XLA_XLA": "on", "AMP_XLA_LOSS_SCALE": "dynamic"}
    settings = Settings.from_environment(environ, xla="no_lazy", precision=None)
    assert settings == Settings(precision="tf32", xla="no_lazy", loss_scale="dynamic")
    with pytest.raises(SettingsError, match="precison.*did you mean precision"):
        Settings.from_environment(environ, precison="amp")
    monkeypatch.delenv("AMP_XLA_XLA", raising=False)
    assert PrecisionOptions().xla_mode == "auto"
    monkeypatch.setenv("AMP_XLA_XLA", "on")
    assert (PrecisionOptions().xla_mode, PrecisionOptions(xla="off").xla_mode) == ("on", "off")


def environment(environ=None, gpu=True, tf2=False, **settings):
    """Return the variables to set, or raise, as ``configuring.configure`` does."""
    chosen = Settings.from_environment(environ or {}, **settings)
    variables = flags.environment(chosen, environ or {}, gpu, tf2)
    if flags.check(environ or {}, tf2):
        raise SettingsError(*flags.check(environ, tf2))
    return variables


TF, XLA, TRITON = "TF_XLA_FLAGS", "XLA_FLAGS", "--xla_gpu_enable_triton_gemm"


@pytest.mark.parametrize("name, mine, settings, merged", [
    (TF, "", {"xla": "off"}, None), (TF, "", {"xla": "lite"}, "--tf_xla_auto_jit=fusible"),
    (TF, "", {"xla": "on"}, "--tf_xla_auto_jit=1"),
    (TF, "", {"xla": "auto"}, "--tf_xla_enable_lazy_compilation=false"),
    (TF, "", {"xla": "auto", "gpu": False}, None),
    (TF, "", {"xla": "on", "gpu": False}, "--tf_xla_auto_jit=1 --tf_xla_cpu_global_jit"),
    (TF, "", {"xla": "no_lazy"}, "--tf_xla_auto_jit=1 --tf_xla_enable_lazy_compilation=false"),
    (TF, "--tf_xla_min_cluster_size=2  --tf_xla_clustering_debug", {"xla": "no_lazy"},
     "--tf_xla_min_cluster_size=2 --tf_xla_clustering_debug --tf_xla_auto_jit=1 "
     "--tf_xla_enable_lazy_compilation=false"),
    (TF, "--tf_xla_ops_to_cluster=PW,RED,--tf_xla_min_cluster_size=2", {"xla": "on"},
     "--tf_xla_ops_to_cluster=PW,RED --tf_xla_min_cluster_size=2 --tf_xla_auto_jit=1"),
    (TF, "--tf_xla_auto_jit=2", {"xla": "on"}, None),  # the same level as 1
    (TF, "--tf_xla_auto_jit=-1", {"xla": "auto", "gpu": False}, None),
    # XLA is not to time kernels of Triton.
    (XLA, "", {"xla": "lite", "tf2": True}, f"{TRITON}=false"),
    (XLA, "--xla_dump_to=/d", {"xla": "on", "tf2": True}, f"--xla_dump_to=/d {TRITON}=false"),
    (XLA, f"{TRITON}=true", {"xla": "on", "tf2": True}, None),  # the user's choice stays
    (XLA, "", {"xla": "off", "tf2": True}, None),
    (XLA, "", {"xla": "on", "tf2": True, "gpu": False}, None),
    (XLA, "", {"xla": "on"}, None),  # unknown to XLA of 1.15, which would end the process
])  # fmt: skip
def test_xla_is_merged_with_the_users_flags_and_changes_nothing_twice(name, mine, settings, merged):
    assert environment({name: mine}, **settings).get(name) == merged
    assert name not in environment({name: merged or mine}, **settings)


REWRITE = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"


@pytest.mark.parametrize("name, value, settings, words", [
    ("AMP_XLA_PRECISION", "fp16", {}, ["precision='fp16'", "fp32, tf32, amp"]),
    ("AMP_XLA_XLA", "lit", {}, ["did you mean lite?", "off, on, no_lazy, lite"]),
    ("AMP_XLA_INFINITY", "1e12", {}, ["65504", "at most 32752"]),
    ("AMP_XLA_EPSILON", str(2.0**-25), {}, ["rounds to zero", "above 3.0e-08"]),
    ("AMP_XLA_EPSILON", "tiny", {}, ["not a number"]),
    ("AMP_XLA_LOSS_SCALE", "0", {}, ["loss_scale", "above 0", "dynamic"]),
    ("AMP_XLA_LOSS_SCALE", "9" * 400, {}, ["loss_scale='999", "finite in float32"]),
    ("AMP_XLA_PRECISON", "hunter2", {}, ["AMP_XLA_PRECISON (did you mean AMP_XLA_PRECISION?)"]),
    # Two settings that contradict each other: both are named.
    (TF, "--tf_xla_auto_jit=1", {"xla": "off"}, ["--tf_xla_auto_jit=1", "off"]),
    (TF, "--tf_xla_auto_jit=2", {"xla": "auto"}, ["--tf_xla_auto_jit=2", "auto"]),
    (TF, "--tf_xla_auto_jit=-1", {"xla": "auto"}, ["--tf_xla_auto_jit=-1", "auto", "auto_jit=0"]),
    (TF, "--tf_xla_auto_jit=fusible", {"xla": "on"}, ["_jit=fusible", "xla=on", "lazy, lite"]),
    (TF, "flags.txt", {"xla": "on"}, ["flags.txt", "file"]),
    (TF, "--a=1 b", {"xla": "on"}, ["'b' is not a flag"]),
    ("TF_KERAS", "0", {}, ["TF_KERAS=0"]),
    (flags.FULL_AMP, "1", {}, ["AUTO_MIXED_PRECISION=1", "loss scaling"]),
    (flags.GRAPH_REWRITE, "1", {"precision": "tf32"}, ["GRAPH_REWRITE=1", "tf32"]),
    (flags.GRAPH_REWRITE, "0", {"precision": "amp"}, ["GRAPH_REWRITE=0", "amp"]),
    (flags.TF32_OVERRIDE, "0", {"precision": "tf32"}, ["NVIDIA_TF32_OVERRIDE=0"]),
    # TensorFlow ignores these, or does not understand them.
    ("TF_FORCE_GPU_ALLOW_GROWTH", "1", {}, ["ALLOW_GROWTH=1", "true, false"]),
    (REWRITE + "ALLOWLIST_ADD", "Softmax", {}, ["ignored", REWRITE + "WHITELIST_ADD"]),
    (REWRITE + "WHITLIST_ADD", "Log", {}, ["did you mean", REWRITE + "WHITELIST_ADD"]),
    (flags.FULL_AMP, "yes", {}, ["=yes", "0, 1, true, false"]),
    (REWRITE + "IGNORE_PERFORMANCE", "on", {}, ["=on", "not a boolean"]),
])  # fmt: skip
def test_a_bad_value_is_named_with_what_is_allowed(name, value, settings, words):
    with pytest.raises(SettingsError) as error:
        environment({name: value}, **settings)
    message = str(error.value)
    assert len(message) < 300 and all(word in message for word in words), message
    assert "hunter2" not in message  # an unknown variable may hold a secret


@pytest.mark.parametrize("precision, variables", [
    ("amp", {flags.GRAPH_REWRITE: "1", flags.FORK_LOSS_SCALING: "0"}),
    ("fp32", {flags.TF32_OVERRIDE: "0"}), ("tf32", {}),
])  # fmt: skip
def test_precision_switches(precision, variables):
    keras = {"TF_KERAS": "1", "TF_USE_LEGACY_KERAS": "1"}
    assert environment(precision=precision) == {**keras, **variables}


def test_a_program_of_xla_stays_only_with_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_folder", None)
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = Path(compiled.folder(environ, gpu=False))
    good = hashlib.sha256(b"a program").hexdigest().encode()
    checksums = {"none": b"", "damaged": b"\xff", "other": b"0" * 64, "good": good}
    for name, checksum in checksums.items():
        (folder / f"{name}.pb").write_bytes(b"a program")
        (folder / f"{name}.pb.sha256").write_bytes(checksum)
    (folder / "none.pb.sha256").unlink()
    compiled._prepared.cache_clear()
    assert compiled.folder(environ, gpu=False) == str(folder)
    assert [path.name for path in folder.glob("*.pb")] == ["good.pb"]


H100, A100, T4, P100, CPU = (9, 0), (8, 0), (7, 5), (6, 0), None
TINY, BASE, LARGE = (3, 192), (12, 768), (24, 1024)


@pytest.mark.parametrize("on, steps, tokens, size, shapes, card, runtime", [
    (False, 400, 64 * 384, BASE, 1, H100, "tf2"), (True, 500, 64 * 384, BASE, 1, H100, "tf2"),
    (False, 500, 64 * 384, BASE, 2, H100, "tf2"), (True, 1_000, 64 * 384, BASE, 2, H100, "tf2"),
    (False, 1_000, 32 * 128, BASE, 1, H100, "tf2"), (True, 3_000, 32 * 128, BASE, 1, H100, "tf2"),
    (False, 500, 32 * 384, LARGE, 1, H100, "tf2"), (True, 800, 32 * 384, LARGE, 1, H100, "tf2"),
    (True, 1_000, 64 * 384, BASE, 2, T4, "tf2"), (False, 5_000, 32 * 128, BASE, 2, A100, "tf2"),
    (True, 6_000, 32 * 128, BASE, 2, A100, "tf2"), (False, 50_000, 16 * 64, TINY, 2, T4, "tf2"),
    (True, 100_000, 16 * 64, TINY, 2, T4, "tf2"), (False, 10**6, 64 * 384, BASE, 1, P100, "tf2"),
    (False, 400, 64 * 384, BASE, 1, T4, "tf1"), (True, 1_000, 64 * 384, BASE, 1, H100, "tf1"),
    (False, 2_000, 64 * 128, BASE, 2, T4, "tf1"), (False, 10**6, 64 * 384, BASE, 1, CPU, "tf2"),
    (False, 10**6, 64 * 384, BASE, 1, CPU, "tf1"), (False, 10**6, 0, None, 1, H100, "tf2"),
])  # fmt: skip
def test_xla_is_on_where_it_pays(on, steps, tokens, size, shapes, card, runtime):
    work = size and auto.Work(steps, tokens, *size, shapes)
    choice = auto.choose(work, card, runtime)
    assert (choice.on, choice.lengths) == (on, 2 if on else None), choice
    assert ("not measured on TensorFlow 1.15" in str(choice)) == (runtime == "tf1" and card != CPU)
    assert f"--xla {'off' if on else 'on'} overrules" in str(choice)
