"""Translates settings into environment variables, without setting them.

TensorFlow reads the variables once, so they must be set before it is imported. Values that the
user has set are merged; those that contradict the settings are an error.
"""

from __future__ import annotations

import difflib
import re
from typing import Dict, List, Mapping, Optional

from amp_xla.errors import SettingsError
from amp_xla.settings import AUTO, Settings

XLA_FLAGS = "TF_XLA_FLAGS"
COMPILER_FLAGS = "XLA_FLAGS"
GRAPH_REWRITE = "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE"
FULL_AMP = "TF_ENABLE_AUTO_MIXED_PRECISION"
FORK_LOSS_SCALING = "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING"
TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

REWRITE_PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
LISTS_TF1 = ("WHITELIST", "GRAYLIST", "BLACKLIST", "CLEARLIST")
LISTS_TF2 = ("ALLOWLIST", "INFERLIST", "DENYLIST", "CLEARLIST")
_REWRITE_OTHERS = ("LEVEL", "LOG_PATH", "IGNORE_PERFORMANCE", "EMULATE_FP16", "SIMULATE_GPU")
_TRUE, _FALSE = ("1", "true"), ("0", "false")
# With any value except _TRUE and _FALSE TensorFlow aborts, or silently takes it for false.
_BOOLEANS = (GRAPH_REWRITE, FULL_AMP, FORK_LOSS_SCALING, "TF_ENABLE_ONEDNN_OPTS") + tuple(
    REWRITE_PREFIX + name for name in ("IGNORE_PERFORMANCE", "EMULATE_FP16")
)

JIT = "--tf_xla_auto_jit"
XLA_MODE_FLAGS: Dict[str, Dict[str, str]] = {
    "off": {},
    "on": {JIT: "1"},
    "no_lazy": {JIT: "1", "--tf_xla_enable_lazy_compilation": "false"},
    "lite": {JIT: "fusible"},
}
_SAME = {"0": ("0", "-1"), "1": ("1", "2")}  # equal levels of ``JIT`` since TensorFlow 1.13
CPU_JIT = "--tf_xla_cpu_global_jit"
CACHE = "--tf_xla_persistent_cache_directory"
# Of the 182 seconds in which TensorFlow 2.17 compiled two layers of BERT-base on an H100, XLA spent
# 166 on trying out Triton's kernels; without them the step was as fast (docs/results/h100.md).
NO_TRITON = "--xla_gpu_enable_triton_gemm=false"


def environment(
    settings: Settings,
    environ: Mapping[str, str],
    gpu: bool = True,
    tf2: bool = False,
    cache: str = "",
) -> Dict[str, str]:
    """Return the environment variables to set for ``settings``, by name.

    Args:
      gpu: False adds the flag that XLA needs on a CPU.
      tf2: True adds a flag for XLA of TensorFlow 2; XLA of 1.15 would end the process, because it
        does not know this flag.
      cache: folder of compiled programs; '' = none.

    Raises:
      SettingsError: ``environ`` contradicts ``settings``, or a word of TF_XLA_FLAGS is no flag.
    """
    changes = {"TF_KERAS": "1", "TF_USE_LEGACY_KERAS": "1"}
    for name in changes:
        if environ.get(name, "1").lower() not in _TRUE:
            raise _contradiction(name, environ, "amp_xla, which works with legacy Keras only")
    changes.update(_precision(settings, environ))
    if settings.device == "cpu":
        changes[VISIBLE_DEVICES] = "-1"
    xla = _xla(settings, environ.get(XLA_FLAGS, ""), gpu, cache)
    if xla != environ.get(XLA_FLAGS, ""):
        changes[XLA_FLAGS] = xla
    compiler = environ.get(COMPILER_FLAGS, "")
    if settings.xla != "off" and gpu and tf2 and NO_TRITON.partition("=")[0] not in compiler:
        changes[COMPILER_FLAGS] = f"{compiler} {NO_TRITON}".strip()
    return changes


def _precision(settings: Settings, environ: Mapping[str, str]) -> Dict[str, str]:
    if settings.precision == "amp":
        for name in (FULL_AMP, FORK_LOSS_SCALING):
            if environ.get(name, "0").lower() in _TRUE:
                raise _contradiction(name, environ, "amp_xla's loss scaling (AMP_XLA_LOSS_SCALE)")
        if environ.get(GRAPH_REWRITE, "1").lower() not in _TRUE:
            raise _contradiction(GRAPH_REWRITE, environ, "precision=amp", "tf32")
        # Only NVIDIA's TensorFlow 1.15 reads these; in others session options do the same.
        return {GRAPH_REWRITE: "1", FORK_LOSS_SCALING: "0"}
    for name in (GRAPH_REWRITE, FULL_AMP):
        if environ.get(name, "0").lower() in _TRUE:
            raise _contradiction(name, environ, f"precision={settings.precision}", "amp")
    if settings.precision == "fp32":
        return {TF32_OVERRIDE: "0"}
    if environ.get(TF32_OVERRIDE) == "0":
        raise _contradiction(TF32_OVERRIDE, environ, "precision=tf32", "fp32")
    return {}


def _contradiction(
    name: str, environ: Mapping[str, str], what: str, precision: str = ""
) -> SettingsError:
    fix = f", or set AMP_XLA_PRECISION={precision}" if precision else ""
    return SettingsError(f"{name}={environ[name]} contradicts {what}; unset it{fix}")


def parse_xla_flags(text: str) -> Dict[str, Optional[str]]:
    """Return ``--a=1 --b`` as ``{"--a": "1", "--b": None}``; the last of equal names counts."""
    flags: Dict[str, Optional[str]] = {}
    # A comma separates flags only before `--`: `--tf_xla_ops_to_cluster=PW,RED` is one flag.
    for word in re.split(r"\s+|,(?=--)", text.strip()) if text.strip() else []:
        name, _, value = word.partition("=")
        if not name.startswith("--"):
            raise SettingsError(
                f"{XLA_FLAGS}={text!r}: {word!r} is not a flag; allowed: flags such as "
                f"--tf_xla_auto_jit=1, separated by spaces; a file of flags is not read"
            )
        flags.pop(name, None)
        flags[name] = value if "=" in word else None
    return flags


def _xla(settings: Settings, current: str, gpu: bool, cache: str) -> str:
    flags = parse_xla_flags(current)
    # ``auto`` turns XLA on in the sessions' options, when the data have been read.
    needed = XLA_MODE_FLAGS.get(settings.xla, {})
    if settings.xla == AUTO and gpu:
        # Lazily, the first batch of each further length runs without XLA: with two lengths, a run
        # that is resumed between their first batches would have other bits.
        needed = {"--tf_xla_enable_lazy_compilation": "false"}
    for name, value in {JIT: "0", **needed}.items():
        # -1 also turns XLA off in sessions whose options turn it on, as ``auto`` does on a GPU.
        same = {} if settings.xla == AUTO and gpu else _SAME
        if name in flags and flags[name] not in same.get(value, (value,)):
            raise SettingsError(
                f"{XLA_FLAGS} has {name}={flags[name]} but xla={settings.xla} needs "
                f"{name}={value}; remove the flag, or set AMP_XLA_XLA to another of "
                f"{', '.join(XLA_MODE_FLAGS)}"
            )
    if settings.xla == "off":
        return current
    for name, value in needed.items():
        flags.setdefault(name, value)
    if not gpu and settings.xla != AUTO:  # which leaves XLA off on a CPU
        flags.setdefault(CPU_JIT, None)
    if cache:
        flags.setdefault(CACHE, cache)
    return " ".join(n if v is None else f"{n}={v}" for n, v in flags.items())


def check(environ: Mapping[str, str], tf2: bool) -> List[str]:
    """Return a sentence for each environment variable that TensorFlow ignores or misunderstands."""
    lists = LISTS_TF1 + LISTS_TF2 if tf2 else LISTS_TF1
    known = [f"{REWRITE_PREFIX}{s}_{a}" for s in lists for a in ("ADD", "REMOVE")]
    known += [REWRITE_PREFIX + other for other in _REWRITE_OTHERS]
    problems = []
    for name, value in sorted(environ.items()):
        if name == "TF_FORCE_GPU_ALLOW_GROWTH" and value not in ("true", "false"):
            problems.append(f"{name}={value} is ignored by TensorFlow; allowed: true, false")
        elif name in _BOOLEANS and value.lower() not in _TRUE + _FALSE:
            problems.append(f"{name}={value} is not a boolean; allowed: 0, 1, true, false")
        elif name.startswith(REWRITE_PREFIX) and name not in known:
            stem, _, action = name[len(REWRITE_PREFIX) :].rpartition("_")
            new = dict(zip(LISTS_TF2, LISTS_TF1)).get(stem, stem)
            close = difflib.get_close_matches(f"{REWRITE_PREFIX}{new}_{action}", known, 1)
            hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(known)}"
            problems.append(f"{name}={value} is ignored by this TensorFlow; {hint}")
    return problems
