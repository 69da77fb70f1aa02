"""``amp-xla header``: the setup as a block to paste on top of any bert4keras script.

The block imports nothing of this package. It cannot check what a run really did, nor unscale
gradients and skip bad steps; ``import amp_xla.setup`` and ``LossScaleOptimizer`` can.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional

from typing_extensions import Annotated, Literal

from amp_xla.config import parse, within
from amp_xla.errors import UnsupportedError
from amp_xla.settings import Settings, flags

_WHY: Dict[str, str] = {
    "TF_KERAS": "bert4keras must use TensorFlow's own Keras",
    "TF_USE_LEGACY_KERAS": "tf.keras means Keras 2 (the tf-keras package)",
    flags.GRAPH_REWRITE: "the AMP graph rewrite, for NVIDIA's TensorFlow 1.15",
    flags.FORK_LOSS_SCALING: "no second loss scaling inside tf.train optimizers",
    flags.TF32_OVERRIDE: "float32 means float32, not TF32, on Ampere and newer",
}
_XLA_WHY = {
    "on": "XLA; keep batch shapes few and fixed",
    "no_lazy": "XLA, every cluster compiled at first sight",
    "lite": "XLA Lite: only what XLA can fuse (not on the stock 1.15)",
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Print the block to paste on top of a bert4keras script."""

    runtime: Literal["tf1", "tf2"] = "tf1"
    """the TensorFlow of the script: tf1 = 1.15 (NVIDIA's or stock), tf2 = 2.x with tf-keras"""
    precision: Optional[Literal["fp32", "tf32", "amp"]] = None
    """none = amp"""
    xla: Optional[Literal["off", "on", "no_lazy", "lite"]] = None
    """none = off"""
    infinity: Annotated[Optional[float], within(above=0)] = None
    """what bert4keras masks with; none = 1e4 for amp"""
    epsilon: Annotated[Optional[float], within(above=0)] = None
    """Keras' fuzz factor; none = 1e-5 for amp"""
    loss_scale: Optional[str] = None
    """constant the loss is multiplied by; none = 1000 for amp"""
    gpu: bool = True
    """--no-gpu adds the flag that XLA needs on a CPU"""


def block(config: Config) -> str:
    """The text of the block, ending in a newline.

    Raises:
      SettingsError: a value is not allowed.
      UnsupportedError: a dynamic loss scale, which no header can do.
    """
    settings = Settings.from_environment(
        {},
        precision=config.precision,
        xla=config.xla,
        infinity=config.infinity,
        epsilon=config.epsilon,
        loss_scale=config.loss_scale,
    )
    scale = settings.effective_loss_scale("float16")
    if scale == "dynamic":
        raise UnsupportedError(
            "a pasted header multiplies the loss by a constant; for loss_scale=dynamic wrap the "
            "optimizer in amp_xla.precision.optimizer.LossScaleOptimizer"
        )
    lines = _environment(settings, config)
    lines += ["import tensorflow as tf  # only now"]
    lines += _legacy_keras() if config.runtime == "tf2" else []
    lines += _rewrite(settings, config.runtime)
    lines += _constants(settings, config.runtime)
    if scale != 1:
        lines += _scaling(float(scale))
    width = max(len(code) for code in (line.partition("  # ")[0] for line in lines))
    body = []
    for line in lines:
        code, mark, comment = line.partition("  # ")
        body.append(f"{code:<{min(width, 72)}}  # {comment}" if mark else code)
    title = f"# ---- amp_xla header: {settings.describe()} ----"
    return "\n".join([title, *body, "# ---- end of header; the script goes on below ----", ""])


def _environment(settings: Settings, config: Config) -> List[str]:
    lines = ["import os  # these variables must be set before TensorFlow is imported"]
    variables = flags.environment(settings, {}, config.gpu)
    if config.runtime == "tf1":
        del variables["TF_USE_LEGACY_KERAS"]
    else:
        for name in (flags.GRAPH_REWRITE, flags.FORK_LOSS_SCALING):
            variables.pop(name, None)
    xla = variables.pop(flags.XLA_FLAGS, "")
    lines += [f'os.environ["{n}"] = "{v}"  # {_WHY[n]}' for n, v in variables.items()]
    if xla:
        lines.append(
            f'os.environ["{flags.XLA_FLAGS}"] = os.environ.get("{flags.XLA_FLAGS}", "") '
            f'+ " {xla}"  # {_XLA_WHY[settings.xla]}'
        )
    return lines


def _rewrite(settings: Settings, runtime: str) -> List[str]:
    if settings.precision != "amp":
        return []
    lines = [
        'tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})'
        "  # the AMP graph rewrite, for every other TensorFlow"
    ]
    if runtime == "tf2":
        lines = [
            'amp = "auto_mixed_precision" if os.path.exists("/dev/nvidiactl") else '
            '"auto_mixed_precision_onednn_bfloat16"  # float16 on a GPU, bfloat16 on a CPU',
            "tf.config.optimizer.set_experimental_options({amp: True})  # the AMP graph rewrite",
        ]
    return lines


def _constants(settings: Settings, runtime: str) -> List[str]:
    lines = ["from bert4keras.backend import K  # the backend of bert4keras, as it chose it"]
    infinity, epsilon = settings.effective_infinity, settings.effective_epsilon
    if infinity is not None:
        # 0.11.5 masks with tf.where and has no infinity to set.
        lines.append(
            f'if hasattr(K, "set_infinity"): K.set_infinity({infinity:g})'
            f"  # masks that fit float16 (bert4keras 0.10.8-0.11.4)"
        )
    if epsilon is not None:
        lines.append(f"K.set_epsilon({epsilon:g})  # a fuzz factor that is not zero in float16")
    return lines


def _scaling(scale: float) -> List[str]:
    return [
        f"LOSS_SCALE = {scale:g}  # lifts small gradients out of float16's underflow",
        "def scale_loss(loss):  # model.compile(loss=scale_loss(my_loss)), or on a loss tensor",
        "    if callable(loss):  # a Keras loss function",
        "        return lambda y_true, y_pred: loss(y_true, y_pred) * LOSS_SCALE"
        "  # the printed loss is this many times larger",
        "    return loss * LOSS_SCALE  # a tensor, e.g. inside a bert4keras Loss layer",
    ]


def _legacy_keras() -> List[str]:
    return [
        "import sys, tf_keras  # Keras 2, which bert4keras is written for",
        "tf.compat.v1.disable_eager_execution()  # the rewrite and bert4keras work on graphs",
        'sys.modules["keras"] = tf_keras  # what bert4keras gets from `import keras`',
        'for name in ("backend", "layers", "models", "optimizers", "initializers", "activations"):'
        "  # and from `from keras.x import y`",
        '    sys.modules["keras." + name] = getattr(tf_keras, name)  # one module each',
        "for name, value in vars(tf_keras.optimizers.legacy).items():"
        "  # bert4keras subclasses the old optimizers",
        "    if isinstance(value, type):  # classes only",
        "        setattr(tf_keras.optimizers, name, value)  # Optimizer is legacy.Optimizer",
        "        setattr(tf.keras.optimizers, name, value)  # the same by its other name",
        "from tf_keras.src.backend import RandomGenerator  # draws the initial weights",
        "set_rng_type = RandomGenerator._set_rng_type  # without the next three lines the query,",
        "RandomGenerator._set_rng_type = lambda self, kind, **more: set_rng_type("
        "  # key and value kernels of an untrained attention layer",
        '    self, "legacy_stateful" if kind == "stateless" and not self._seed else kind, **more'
        "  # would start out equal",
        ")  # ... and the warning about it is answered by the line below",
        'import warnings; warnings.filterwarnings("ignore", "The initializer")  # see above',
    ]


def main(argv: List[str]) -> int:
    """The command."""
    print(block(parse(Config, argv, "amp-xla header")), end="")
    return 0
