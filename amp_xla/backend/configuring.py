"""Applies precision settings to TensorFlow, and mends or refuses parts of bert4keras.

Raises an error if the settings come too late for TensorFlow, or if TensorFlow does not see the
driver's GPU.

Users import ``amp_xla.setup``, which calls this module and prints the settings in one line.
"""

from __future__ import annotations

import dataclasses
import functools
import linecache
import os
import re
import sys
import warnings
from typing import Any, Dict, List, Optional

from amp_xla import backend
from amp_xla.backend import compiled, nvidia
from amp_xla.errors import SettingsError, SetupOrderError, UnsupportedError
from amp_xla.process.progress import note
from amp_xla.settings import AUTO, PREFIX, Precision, Settings, auto, flags

_WATCHED = ("tensorflow", "keras", "tf_keras", "bert4keras")
_IMPORT = re.compile(rf"\s*(import|from)\s+(.*,\s*)?({'|'.join(_WATCHED)})\b")
# Variables that an earlier configuration may have set.
_MANAGED = (
    *(flags.XLA_FLAGS, flags.COMPILER_FLAGS, flags.GRAPH_REWRITE, flags.FORK_LOSS_SCALING),
    *(flags.TF32_OVERRIDE, flags.VISIBLE_DEVICES),
)
_NO_REASON = re.compile(r"File |Detected at node|<stack traces|.*:$")  # in TensorFlow's errors
_CRF_THRESHOLD = 1e6
_OWN_INFINITY = 1e12  # bert4keras' default

_PROBE = (
    "import tensorflow as tf; tf.config.experimental.list_physical_devices('GPU');"
    " tf.compat.v1.Session()"
)
# TensorFlow logs the name of a library that it could not load only if these are set.
_LOGGING = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
_MISSING = re.compile(r"Could not load dynamic library '((?!libnvinfer)[^']+)'")  # not TensorRT

_original_environment: Dict[str, str] = dict(os.environ)
_current: Optional[Precision] = None
_xla_failed = False  # where ``auto`` had turned it on


def current() -> Precision:
    """Return the precision in force; configure it from ``AMP_XLA_*`` if it was not configured."""
    return _current or configure()


def compiles() -> bool:
    """Return True if xla is not ``off``; models then use equivalent operations that suit XLA."""
    return _current is not None and _current.settings.xla != "off"


def configure(**overrides: Any) -> Precision:
    """Apply settings; fields of ``Settings`` that are not None override ``AMP_XLA_*``.

    Does not list devices on TensorFlow 2, which would then read its XLA flags too early. So the
    type of half precision is guessed from the driver's files; ``resolve`` reads it from devices.

    Raises:
      SettingsError: a name or value is unknown, contradictory, or ignored by TensorFlow.
      SetupOrderError: TensorFlow has already read its flags; the message names the import that
        came too early.
      UnsupportedError: TensorFlow or tf-keras is missing or lacks a setting (stock 1.15: ``lite``).
    """
    global _current
    settings = Settings.from_environment(_original_environment, **overrides)
    gpu = settings.device != "cpu" and nvidia.has_device(_original_environment)
    tf2 = backend.installed() == "tf2"
    variables = flags.environment(settings, _original_environment, gpu, tf2, _cache(settings, gpu))
    problems = flags.check(_original_environment, tf2)
    if problems:
        raise SettingsError("; ".join(problems))
    _refuse_if_late(settings, variables)
    for name in set(_MANAGED) - set(variables):
        _restore(name)
    os.environ.update(variables)
    if settings.xla == "lite" and backend.kind() == "tf1" and not backend.is_fork():
        _restore(flags.XLA_FLAGS)
        raise UnsupportedError(
            f"xla=lite (--tf_xla_auto_jit=fusible) exists in NVIDIA's TensorFlow 1.15 and in "
            f"TensorFlow 2; stock {backend.tensorflow().__version__} would silently run without "
            f"XLA; allowed here: off, on, no_lazy"
        )
    if backend.kind() == "tf1" and settings.device == "cpu" and backend.gpus():
        # 1.15 may have read CUDA_VISIBLE_DEVICES.
        backend.tensorflow().config.experimental.set_visible_devices([], "GPU")
    _current = _apply(Precision.of(settings, *backend.half_dtype(has_gpu=gpu)))
    return _current


def resolve(**overrides: Any) -> Precision:
    """Apply settings as ``configure`` does; return them as they apply to this machine's devices.

    On TensorFlow 2, later changes of precision, XLA or device are then refused.
    """
    global _current
    _current = _apply(Precision.of(configure(**overrides).settings, *backend.half_dtype()))
    return _current


def choose_xla(choice: auto.Choice) -> Precision:
    """Set XLA before Keras has a session: on if ``choice.on`` and XLA never failed, else off."""
    global _current
    settings = dataclasses.replace(current().settings, xla="on" if choice.on else "off")
    if _xla_failed:
        choice = choice._replace(on=False, why="it failed")
    backend.tensorflow().config.optimizer.set_jit(choice.on)
    _current = dataclasses.replace(current(), settings=settings, choice=choice)
    return _current


def fall_back(error: Exception) -> bool:
    """Return whether a run must start again without XLA, which ``auto`` had turned on.

    ``error`` ended the run. Only an error of a TensorFlow operation can be a failure of XLA.
    """
    global _xla_failed
    if _current is None or _current.choice is None or not _current.choice.on:
        return False
    _xla_failed = isinstance(error, backend.tf.errors.OpError)
    if _xla_failed:
        lines = [line.strip() for line in str(error).splitlines()]
        reason = next((line for line in lines if line and not _NO_REASON.match(line)), "")[:200]
        note(
            f"XLA failed ({reason}): training goes on without it, from the last checkpoint or the "
            f"first step; --xla off leaves it off from the start"
        )
    return _xla_failed


def may_want_xla() -> bool:
    """Return whether a GPU may be used, XLA is off, and AMP_XLA_XLA is not set."""
    chosen = current().settings
    asked = chosen.xla != "off" or f"{PREFIX}XLA" in _original_environment
    return not asked and chosen.device != "cpu" and nvidia.has_device(_original_environment)


def _cache(settings: Settings, gpu: bool) -> str:
    """Return the folder of compiled programs; '' = none."""
    compiles = settings.xla != "off" and (gpu or settings.xla != AUTO)
    own = flags.CACHE in _original_environment.get(flags.XLA_FLAGS, "")
    if settings.cache == "off" or not compiles or own or backend.installed() != "tf2":
        return ""
    return compiled.folder(_original_environment, gpu)


def _apply(precision: Precision) -> Precision:
    """Switch the graph rewrite, set bert4keras' and Keras' constants; return what is in force."""
    backend.set_graph_rewrite(precision.half)
    _warn_of_tapes()
    infinity = None
    try:
        library = backend.bert4keras()
    except UnsupportedError:  # a plain Keras script
        pass
    else:
        if hasattr(library, "set_infinity"):
            infinity = precision.infinity
            library.set_infinity(infinity or _OWN_INFINITY)
        if backend.bert4keras_version() < backend.SAFE_MASKS:
            _guard_crf()
        _mend_optimizers()
    backend.K.set_epsilon(precision.epsilon or 1e-7)
    return dataclasses.replace(precision, infinity=infinity)


def _restore(name: str) -> None:
    os.environ.pop(name, None)
    if name in _original_environment:
        os.environ[name] = _original_environment[name]


def _refuse_if_late(settings: Settings, variables: Dict[str, str]) -> None:
    target = {**{n: _original_environment.get(n) for n in _MANAGED}, **variables}
    missing = {n: v for n, v in target.items() if os.environ.get(n) != v}
    if _current is None:
        loaded = [name for name in _WATCHED if name in sys.modules]
        if not loaded or not missing:
            return
        what = f"{', '.join(loaded)} is already imported"
    else:
        same = settings.precision == _current.settings.precision
        if not backend.used() or (same and not missing):
            return
        what = "TensorFlow has already made a session or listed its devices"
    late = ", ".join(sorted(f"{n}={v}" for n, v in missing.items())) or "the graph rewrite"
    raise SetupOrderError(
        f"{what}, so {late} would come too late; move `import amp_xla.setup` (or the call of "
        f"configure) above {_culprit()}"
    )


def _culprit() -> str:
    """Return the script's first import of one of ``_WATCHED``, with its line number if found."""
    path = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    for number, line in enumerate(linecache.getlines(path), 1):
        if _IMPORT.match(line):
            return f"line {number} of {os.path.basename(path)}: `{line.strip()}`"
    return "the first import of tensorflow, keras or bert4keras"


@functools.lru_cache(maxsize=None)
def _warn_of_tapes() -> None:
    """Warn if a script uses GradientTape in graph mode, where an eager loop trains nothing."""
    from tensorflow.python.framework import ops

    tape, libraries = backend.tensorflow().GradientTape, ("tensorflow", "tf_keras", "amp_xla")
    original = tape.__enter__

    def enter(self: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not (caller.startswith(libraries) or ops.executing_eagerly_outside_functions()):
            tape.__enter__ = original
            warnings.warn(
                "GradientTape in graph mode: amp_xla.setup has turned eager execution off, so an "
                "eager loop trains nothing (only a session computes gradients). For an eager loop, "
                "remove the import of amp_xla.setup; LossScaleOptimizer works without it",
                stacklevel=2,
            )
        return original(self)

    tape.__enter__ = enter


@functools.lru_cache(maxsize=None)
def _guard_crf() -> None:
    for name in backend.CRF_LAYERS:
        layer = getattr(backend.bert4keras("layers"), name)
        layer.__init__ = _guarded(name, layer.__init__)


def _guarded(name: str, init: Any) -> Any:
    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        precision = current()
        chosen = precision.settings.infinity or _OWN_INFINITY
        if precision.half or chosen <= _CRF_THRESHOLD:
            version = ".".join(map(str, backend.bert4keras_version()))
            raise UnsupportedError(
                f"{name} of bert4keras {version} cannot be trained with {precision.describe()}: "
                f"it treats only scores below -1e6 as padding, so it needs float32 and an infinity "
                f"above 1e6. Set AMP_XLA_PRECISION=tf32 (or fp32) and remove AMP_XLA_INFINITY; or "
                f"install bert4keras 0.11.5 and, on TensorFlow 2, replace the CRF's metric by `def "
                f"accuracy(y_true, y_pred): return CRF.sparse_accuracy(y_true, y_pred)`"
            )
        backend.bert4keras().set_infinity(chosen)  # amp's 1e4 is for half precision
        init(self, *args, **kwargs)

    return checked


@functools.lru_cache(maxsize=None)
def _mend_optimizers() -> None:
    """Replace functions of ``bert4keras.optimizers``, for scripts that import them from now on."""
    module: Any = backend.bert4keras("optimizers")
    averaging = _averaged_once(module.extend_with_exponential_moving_average)
    for version in ("", "_v2"):
        setattr(module, f"extend_with_exponential_moving_average{version}", averaging)
        setattr(module, f"extend_with_lookahead{version}", _refuse)


def _refuse(BaseOptimizer: Any, name: Optional[str] = None) -> Any:
    version = ".".join(map(str, backend.bert4keras_version()))
    raise UnsupportedError(
        f"extend_with_lookahead of bert4keras {version} starts its slow weights at 0, so the first "
        f"step would halve all weights; remove it (for averaged weights use "
        f"extend_with_exponential_moving_average)"
    )


def _averaged_once(extend: Any) -> Any:
    """Return ``extend``, changed so that moving averages of embeddings move once per step.

    bert4keras 0.11.5 averages them twice with its own optimizers, whose sparse update calls the
    dense one. No version averages them with Keras' SGD, whose sparse method has another name.
    """

    @functools.wraps(extend)
    def averaging(BaseOptimizer: Any, name: Optional[str] = None) -> Any:
        cls = extend(BaseOptimizer, name)
        dense = cls._resource_apply_dense
        averaged: List[Any] = []

        def apply_dense(self: Any, grad: Any, var: Any) -> Any:
            averaged.append(var)
            return dense(self, grad, var)

        def apply_sparse(self: Any, grad: Any, var: Any, indices: Any, **state: Any) -> Any:
            averaged.clear()
            update = super(cls, self)._resource_apply_sparse_duplicate_indices
            operation = update(grad, var, indices, **state)
            if averaged:
                return operation
            average, momentum = self.get_slot(var, "ema"), self.ema_momentum
            with backend.tf.control_dependencies([operation]):
                return backend.K.update(average, average * momentum + var * (1.0 - momentum))

        cls._resource_apply_dense = apply_dense
        cls._resource_apply_sparse_duplicate_indices = apply_sparse
        del cls._resource_apply_sparse
        return cls

    return averaging


def refuse_unseen_gpu(device: str) -> None:
    """Raise an error if training would silently run on the CPU.

    Args:
      device: ``auto``, ``cpu`` (never an error) or ``gpu`` (an error without a GPU).

    Raises:
      UnsupportedError: the driver shows a GPU that TensorFlow does not see, or ``device`` is
        ``gpu`` and there is no GPU.
    """
    if device == "cpu" or backend.gpus():
        return
    driver = nvidia.look()
    if driver.shown:
        raise UnsupportedError(
            f"the driver shows {driver.describe()}, but TensorFlow "
            f"{backend.tensorflow().__version__} does not see it: {_reason(driver)}; or "
            f"train on the CPU: AMP_XLA_DEVICE=cpu"
        )
    if device == "gpu":
        raise UnsupportedError(
            f"device=gpu, but no GPU can be used ({driver.hidden or driver.describe()}); next: "
            f"amp-xla doctor, or AMP_XLA_DEVICE=cpu"
        )


def _reason(driver: nvidia.Driver) -> str:
    """Return why TensorFlow sees no GPU, and what to do next."""
    fork = backend.is_fork()
    stock_1 = backend.kind() == "tf1" and not fork
    old = "" if stock_1 else nvidia.too_old(driver)
    if old:
        return f"{old}; next: a newer driver, or an older container from docs/doctor.md"
    # A new process, which takes some seconds.
    out = nvidia.run([sys.executable, "-c", _PROBE], {**os.environ, **_LOGGING})[1]
    missing = list(dict.fromkeys(_MISSING.findall(out)))
    cuda = [name for name in missing if not name.startswith("libcuda.so")]
    if cuda:
        fix = f"make env RUNTIME={'nvtf1' if fork else 'tf2'}, on the machine with the driver"
        if stock_1:
            fix = "this build is for CUDA 10: make train RUNTIME=tf2, RUNTIME=nvtf1 or "
            fix += "make docker-train"
        return f"{', '.join(cuda)} not found; next: {fix}"
    if missing:
        return (
            f"{missing[0]}, the driver's own library, not found; next: install the driver's "
            f"libraries (Debian: libcuda1, Ubuntu: libnvidia-compute-...); start a container with "
            f"its GPUs (docker --gpus all, apptainer --nv)"
        )
    said = f"nvidia-smi reports: {driver.problem}" if driver.problem else "it gives no access"
    return f"{said}; next: restart the machine, or install the driver again"
