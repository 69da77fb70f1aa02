"""Settings as environment variables: merged with the user's, or refused by name."""

from __future__ import annotations

import pytest

from amp_xla.errors import SettingsError
from amp_xla.settings import Settings, flags

pytestmark = pytest.mark.once


def environment(environ=None, gpu=True, **settings):
    return flags.environment(Settings(**settings), environ or {}, gpu)


@pytest.mark.parametrize("mode, gpu, expected", [
    ("off", True, None), ("lite", True, "--tf_xla_auto_jit=fusible"),
    ("on", True, "--tf_xla_auto_jit=1"),
    ("on", False, "--tf_xla_auto_jit=1 --tf_xla_cpu_global_jit"),
    ("no_lazy", True, "--tf_xla_auto_jit=1 --tf_xla_enable_lazy_compilation=false"),
])  # fmt: skip
def test_xla_modes(mode, gpu, expected):
    assert environment(xla=mode, gpu=gpu).get("TF_XLA_FLAGS") == expected


@pytest.mark.parametrize("mine, mode, merged", [
    ("--tf_xla_min_cluster_size=2  --tf_xla_clustering_debug", "no_lazy",
     "--tf_xla_min_cluster_size=2 --tf_xla_clustering_debug --tf_xla_auto_jit=1 "
     "--tf_xla_enable_lazy_compilation=false"),
    ("--tf_xla_ops_to_cluster=PW,RED,--tf_xla_min_cluster_size=2", "on",
     "--tf_xla_ops_to_cluster=PW,RED --tf_xla_min_cluster_size=2 --tf_xla_auto_jit=1"),
    ("--tf_xla_auto_jit=2", "on", "--tf_xla_auto_jit=2"),  # the same level as 1
])  # fmt: skip
def test_merges_with_the_users_flags_and_changes_nothing_twice(mine, mode, merged):
    assert environment({"TF_XLA_FLAGS": mine}, xla=mode).get("TF_XLA_FLAGS", mine) == merged
    assert "TF_XLA_FLAGS" not in environment({"TF_XLA_FLAGS": merged}, xla=mode)


@pytest.mark.parametrize("name, value, settings, words", [
    ("TF_XLA_FLAGS", "--tf_xla_auto_jit=1", {"xla": "off"}, ["--tf_xla_auto_jit=1", "off"]),
    ("TF_XLA_FLAGS", "flags.txt", {"xla": "on"}, ["flags.txt", "file"]),
    ("TF_XLA_FLAGS", "--a=1 b", {"xla": "on"}, ["'b' is not a flag"]),
    ("TF_KERAS", "0", {}, ["TF_KERAS=0"]),
    ("TF_ENABLE_AUTO_MIXED_PRECISION", "1", {}, ["AUTO_MIXED_PRECISION=1", "loss scaling"]),
    (flags.GRAPH_REWRITE, "1", {"precision": "tf32"}, ["GRAPH_REWRITE=1", "tf32"]),
    (flags.GRAPH_REWRITE, "0", {"precision": "amp"}, ["GRAPH_REWRITE=0", "amp"]),
    ("NVIDIA_TF32_OVERRIDE", "0", {"precision": "tf32"}, ["NVIDIA_TF32_OVERRIDE=0"]),
])  # fmt: skip
def test_a_contradiction_names_both_sides(name, value, settings, words):
    with pytest.raises(SettingsError) as error:
        environment({name: value}, **settings)
    assert all(word in str(error.value) for word in words)


REWRITE = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"


@pytest.mark.parametrize("name, value, major, words", [
    ("TF_FORCE_GPU_ALLOW_GROWTH", "1", None, ["ALLOW_GROWTH=1", "true, false"]),
    (REWRITE + "ALLOWLIST_ADD", "Softmax", 1, ["ignored", REWRITE + "WHITELIST_ADD"]),
    (REWRITE + "WHITLIST_ADD", "Log", 1, ["did you mean", REWRITE + "WHITELIST_ADD"]),
    ("TF_ENABLE_AUTO_MIXED_PRECISION", "yes", None, ["=yes", "0, 1, true, false"]),
    (REWRITE + "IGNORE_PERFORMANCE", "on", None, ["=on", "not a boolean"]),
])  # fmt: skip
def test_misspelt_variables_are_reported(name, value, major, words):
    (problem,) = flags.check({name: value}, major)
    assert all(word in problem for word in words)


def test_precision_switches():
    amp = environment(precision="amp")
    assert amp["TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE"] == "1"
    assert amp["TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING"] == "0"
    assert environment(precision="fp32")["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "NVIDIA_TF32_OVERRIDE" not in environment(precision="tf32")
    assert all(environment(precision=p)["TF_KERAS"] == "1" for p in ("fp32", "tf32", "amp"))
