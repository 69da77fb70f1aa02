"""The one import: mixed precision, XLA and bert4keras' numeric constants, set in time.

    import amp_xla.setup                     # above every import of tensorflow or bert4keras

reads ``AMP_XLA_PRECISION`` (fp32, tf32, amp), ``AMP_XLA_XLA`` (off, on, no_lazy, lite),
``AMP_XLA_INFINITY``, ``AMP_XLA_EPSILON``, ``AMP_XLA_LOSS_SCALE`` (1, a number, dynamic) and
``AMP_XLA_DEVICE`` (auto, cpu, gpu);
``amp_xla.setup.configure(precision="amp", xla="on")`` says the same from Python. Both raise
rather than train with a switch that TensorFlow would not see.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from typing import Any, Dict, Optional

from amp_xla import backend
from amp_xla.errors import SettingsError, SetupOrderError, UnsupportedError
from amp_xla.settings import Resolved, Settings, flags

_WATCHED = ("tensorflow", "keras", "tf_keras", "bert4keras")
_CRF_THRESHOLD = 1e6

_original_environment: Dict[str, str] = dict(os.environ)
_current: Optional[Settings] = None


def current() -> Settings:
    """The settings in force in this process."""
    assert _current is not None  # set at the end of this module's import
    return _current


def configure(**overrides: Any) -> Settings:
    """Applies settings given by keyword over those in ``AMP_XLA_*``.

    Args:
      **overrides: fields of ``amp_xla.settings.Settings``; None means "not given".

    Returns:
      The settings now in force.

    Raises:
      SettingsError: a name or value is unknown, or the environment contradicts it.
      SetupOrderError: TensorFlow has read its switches already; the message names the import.
      UnsupportedError: this TensorFlow cannot do it (``lite`` on the stock 1.15).
    """
    global _current
    settings = Settings.from_environment(_original_environment, **overrides)
    gpu = settings.device != "cpu" and backend.nvidia_device(_original_environment)
    wanted = flags.environment(settings, _original_environment, gpu)
    problems = flags.check(_original_environment)
    if problems:
        raise SettingsError("; ".join(problems))
    _refuse_if_late(settings, wanted)
    for name in set(_managed()) - set(wanted):
        _restore(name)
    os.environ.update(wanted)

    major = backend.version()[0]
    problems = flags.check(_original_environment, major)
    if problems:
        raise SettingsError("; ".join(problems))
    if settings.xla == "lite" and not backend.has_lite():
        _restore(flags.XLA_FLAGS)
        raise UnsupportedError(
            f"xla=lite (--tf_xla_auto_jit=fusible) exists in NVIDIA's TensorFlow 1.15 and in "
            f"TensorFlow 2; stock {backend.tensorflow().__version__} would silently run without "
            f"XLA; allowed here: off, on, no_lazy"
        )
    if backend.kind() == "tf1":
        # Here, quietly: TensorFlow 1.15 reports on missing drivers when it first looks, and
        # reads its XLA flags later than that.
        backend.gpus()
        if settings.device == "cpu":
            backend.hide_gpus()
    backend.set_graph_rewrite(_requested_half(settings, gpu))
    _set_constants(settings)
    _current = settings
    return settings


def resolve(**overrides: Any) -> Resolved:
    """Applies settings as ``configure`` does, looks at the devices, and says what they mean here.

    From here on TensorFlow's switches are read: settings that differ come too late.

    Args:
      **overrides: as for ``configure``.

    Raises:
      SettingsError, SetupOrderError, UnsupportedError: as ``configure``.
    """
    settings = configure(**overrides)
    resolved = Resolved(settings, *backend.half_dtype())
    # Before the devices were listed this was a guess, see _requested_half.
    backend.set_graph_rewrite(resolved.half)
    return resolved


def _managed() -> Dict[str, str]:
    """Variables that an earlier configure() may have set and this one may have to take back."""
    names = (
        *(flags.XLA_FLAGS, flags.GRAPH_REWRITE, flags.FORK_LOSS_SCALING, flags.TF32_OVERRIDE),
        flags.VISIBLE_DEVICES,
    )
    return {name: os.environ[name] for name in names if name in os.environ}


def _restore(name: str) -> None:
    if name in _original_environment:
        os.environ[name] = _original_environment[name]
    else:
        os.environ.pop(name, None)


def _requested_half(settings: Settings, gpu: bool) -> Optional[str]:
    """Which rewrite to switch on; on a GPU too old or absent TensorFlow skips it by itself."""
    if settings.precision != "amp":
        return None
    return "bfloat16" if backend.kind() == "tf2" and not gpu else "float16"


def _refuse_if_late(settings: Settings, wanted: Dict[str, str]) -> None:
    target = {**{n: _original_environment.get(n) for n in _managed()}, **wanted}
    missing = {n: v for n, v in target.items() if os.environ.get(n) != v}
    if _current is None:
        loaded = [name for name in _WATCHED if name in sys.modules]
        if not loaded or not missing:
            return
        what = f"{', '.join(loaded)} is already imported"
    else:
        same = settings.precision == _current.precision
        if not backend.used() or (same and not missing):
            return
        what = "TensorFlow has already made a session or listed its devices"
    late = ", ".join(sorted(f"{n}={v}" for n, v in missing.items())) or "the graph rewrite"
    raise SetupOrderError(
        f"{what}, so {late} would come too late; move `import amp_xla.setup` (or the call of "
        f"configure) above {_culprit()}"
    )


def _culprit() -> str:
    """The first import in the user's script that pulls TensorFlow in, quoted with its line."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    generic = "the first import of tensorflow, keras or bert4keras"
    if not path:
        return generic
    try:
        with open(path, encoding="utf-8") as script:
            source = script.read()
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return generic
    for node in sorted(
        (n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))),
        key=lambda n: n.lineno,
    ):
        names = (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
        if any(name.split(".")[0] in _WATCHED for name in names):
            line = source.splitlines()[node.lineno - 1].strip()
            return f"line {node.lineno} of {os.path.basename(path)}: `{line}`"
    return generic


def _set_constants(settings: Settings) -> None:
    """K.set_infinity (where bert4keras has it), K.set_epsilon, and the guard on CRF layers."""
    keras_backend = backend.K
    try:
        library = backend.bert4keras()
    except UnsupportedError:  # a plain Keras script: the switches still hold
        library = None
    if library is not None:
        infinity = settings.effective_infinity
        setter = getattr(library, "set_infinity", None)
        if setter is not None:
            setter(1e12 if infinity is None else infinity)
        if backend.bert4keras_version() < backend.SAFE_MASKS:
            _guard_crf()
    epsilon = settings.effective_epsilon
    keras_backend.set_epsilon(1e-7 if epsilon is None else epsilon)


def _guard_crf() -> None:
    layers = backend.bert4keras("layers")
    for name in backend.CRF_LAYERS:
        layer = getattr(layers, name)
        if not hasattr(layer.__init__, "guarded_by_amp_xla"):
            layer.__init__ = _guarded(name, layer.__init__)


def _guarded(name: str, init: Any) -> Any:
    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        infinity = current().effective_infinity
        if current().precision == "amp" or (infinity or 1e12) <= _CRF_THRESHOLD:
            version = ".".join(map(str, backend.bert4keras_version()))
            raise UnsupportedError(
                f"{name} of bert4keras {version} cannot be trained with {current().describe()}: "
                f"it tells padding by a score below -1e6, so infinity=1e4 leaves padding "
                f"unmasked and infinity=1e12 is NaN in float16; allowed: AMP_XLA_PRECISION=tf32 "
                f"(or fp32) with bert4keras' own infinity, or bert4keras 0.11.5"
            )
        init(self, *args, **kwargs)

    checked.guarded_by_amp_xla = True  # type: ignore[attr-defined]
    return checked


configure()
