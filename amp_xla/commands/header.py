"""``amp-xla header``: print the settings as a block to paste on top of a bert4keras script."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional

from typing_extensions import Annotated, Literal

from amp_xla import backend
from amp_xla.config import parse, within
from amp_xla.errors import UnsupportedError
from amp_xla.settings import Precision, Settings, flags, plain

_WHY: Dict[str, str] = {
    "TF_KERAS": "bert4keras must use TensorFlow's own Keras",
    "TF_USE_LEGACY_KERAS": "tf.keras means Keras 2 (the tf-keras package)",
    flags.GRAPH_REWRITE: "the AMP graph rewrite, for NVIDIA's TensorFlow 1.15",
    flags.FORK_LOSS_SCALING: "no second loss scaling inside tf.train optimizers",
    flags.TF32_OVERRIDE: "float32 means float32, not TF32, on Ampere and newer",
}
_XLA_WHY = {
    "on": "XLA; keep batch shapes few and fixed",
    "no_lazy": "XLA; each cluster is compiled when it first runs",
    "lite": "XLA Lite: compiles only what XLA can fuse (not in stock 1.15)",
}
_CODE_WIDTH = 72
_REWRITE = {
    "tf1": [
        'tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})'
        "  # the AMP graph rewrite, for every other TensorFlow"
    ],
    "tf2": [
        'gpu = tf.config.list_physical_devices("GPU")  # TensorFlow reads the variables here',
        'amp = "auto_mixed_precision" if gpu else "auto_mixed_precision_onednn_bfloat16"'
        "  # float16 on a GPU, bfloat16 on a CPU",
        "tf.config.optimizer.set_experimental_options({amp: True})  # the AMP graph rewrite",
    ],
}
_REFUSE_CRF = [
    "    import bert4keras.layers  # its CRF and MEMM would not mask padding",
    "    def refuse(*args, **kwargs):  # replaces both",
    '        raise NotImplementedError("CRF and MEMM need bert4keras 0.11.5, or a header with '
    '--precision tf32")  # they recognise padding by a score below -1e6',
    "    bert4keras.layers.ConditionalRandomField = refuse  # the CRF",
    "    bert4keras.layers.MaximumEntropyMarkovModel = refuse  # the MEMM",
]
_SCALING = [
    "def scale_loss(loss):  # model.compile(loss=scale_loss(my_loss)), or on a loss tensor",
    "    if isinstance(loss, str):  # the name of a Keras loss",
    "        loss = tf.keras.losses.get(loss)  # its function",
    "    if callable(loss):  # a Keras loss function",
    "        return lambda y_true, y_pred: loss(y_true, y_pred) * LOSS_SCALE"
    "  # the printed loss is this many times larger",
    "    return loss * LOSS_SCALE  # a tensor, e.g. inside a bert4keras Loss layer",
]
_LEGACY_KERAS = [
    "import sys, tf_keras  # Keras 2, which bert4keras is written for",
    "tf.compat.v1.disable_eager_execution()  # the rewrite and bert4keras work on graphs",
    'sys.modules["keras"] = tf_keras  # for `import keras` in bert4keras',
    'for name in ("backend", "layers", "models", "optimizers", "initializers", "activations"):'
    "  # for `from keras.x import y`",
    '    sys.modules["keras." + name] = getattr(tf_keras, name)  # the module of tf_keras',
    "for name, value in vars(tf_keras.optimizers.legacy).items():"
    "  # bert4keras subclasses the old optimizers",
    "    if isinstance(value, type):  # classes only",
    "        setattr(tf_keras.optimizers, name, value)  # Optimizer is legacy.Optimizer",
    "        setattr(tf.keras.optimizers, name, value)  # the same for tf.keras",
    "from tf_keras.src.backend import RandomGenerator  # draws the initial weights",
    "set_rng_type = RandomGenerator._set_rng_type  # without the next lines query, key and value",
    "RandomGenerator._set_rng_type = lambda self, kind, **more: set_rng_type("
    "  # kernels of an untrained attention layer would start out equal:",
    '    self, "legacy_stateful" if kind == "stateless" and not self._seed else kind, **more'
    "  # one initializer without a seed returns the same numbers each time",
    ")  # the next line hides the warning about this",
    'import warnings; warnings.filterwarnings("ignore", "The initializer")  # fixed above',
]


@dataclasses.dataclass(frozen=True)
class Config:
    """Print the block to paste on top of a bert4keras script."""

    runtime: Optional[Literal["tf1", "tf2"]] = None
    """TensorFlow of the script: tf1 = 1.15, tf2 = 2.x with tf-keras; none = the installed one"""
    precision: Literal["fp32", "tf32", "amp"] = "amp"
    """fp32: float32; tf32: TF32 on GPUs; amp: mixed precision by the graph rewrite"""
    xla: Literal["off", "on", "no_lazy", "lite"] = "off"
    """XLA mode; see docs/switches.md"""
    infinity: Annotated[Optional[float], within(above=0)] = None
    """mask value of bert4keras; none = 1e4 for amp, else bert4keras' default"""
    epsilon: Annotated[Optional[float], within(above=0)] = None
    """epsilon of Keras; none = 1e-5 for amp, else Keras' default"""
    loss_scale: Optional[str] = None
    """number by which the loss is multiplied; none = 1000 for amp, else 1"""
    gpu: bool = True
    """the script runs on a GPU; --no-gpu = on a CPU, where XLA needs one more TensorFlow flag"""


def block(config: Config) -> str:
    """Return the text of the block.

    Raises:
      SettingsError: a value is not allowed.
      UnsupportedError: the loss scale is dynamic, which a header cannot implement.
    """
    chosen = dataclasses.asdict(config)
    runtime, gpu = chosen.pop("runtime") or backend.installed(), chosen.pop("gpu")
    settings = Settings.from_environment({}, **chosen)
    # Constants for float16 on a GPU, which do no harm in bfloat16 on a CPU.
    precision = Precision.of(settings, "float16")
    if precision.loss_scale == "dynamic":
        raise UnsupportedError(
            "a pasted header multiplies the loss by a constant; for loss_scale=dynamic wrap the "
            "optimizer in amp_xla.precision.optimizer.LossScaleOptimizer"
        )
    lines = _environment(settings, runtime, gpu) + _tensorflow(runtime)
    if settings.precision == "amp":
        lines += _REWRITE[runtime]
    lines += _constants(precision)
    if precision.loss_scale != 1:
        scale = f"LOSS_SCALE = {precision.loss_scale:g}"
        lines += [f"{scale}  # keeps small gradients above float16's smallest number", *_SCALING]
    title = (
        f"# ---- amp_xla header for TensorFlow {'1.15' if runtime == 'tf1' else '2.x'}: "
        f"{precision.describe()}, loss scale {plain(precision.loss_scale)} ----"
    )
    end = "# ---- end of header; the script follows ----"
    return "\n".join([title, *_aligned(lines), end, ""])


def _aligned(lines: List[str]) -> List[str]:
    parts = [line.partition("  # ") for line in lines]
    width = min(_CODE_WIDTH, max(len(code) for code, _, _ in parts))
    return [f"{code:<{width}}  # {text}" if mark else code for code, mark, text in parts]


def _environment(settings: Settings, runtime: str, gpu: bool) -> List[str]:
    lines = ["import os  # these variables must be set before TensorFlow is imported"]
    variables = flags.environment(settings, {}, gpu, runtime == "tf2")
    other = ["TF_USE_LEGACY_KERAS"]
    if runtime == "tf2":
        other = [flags.GRAPH_REWRITE, flags.FORK_LOSS_SCALING]
    why = {
        flags.XLA_FLAGS: _XLA_WHY.get(settings.xla),
        flags.COMPILER_FLAGS: "compiles in a third of the time",
    }
    merged = {name: variables.pop(name) for name in why if name in variables}
    for name, value in variables.items():
        if name not in other:
            lines.append(f'os.environ["{name}"] = "{value}"  # {_WHY[name]}')
    for name, value in merged.items():
        lines.append(
            f'os.environ["{name}"] = os.environ.get("{name}", "") + " {value}"  # {why[name]}'
        )
    return lines


def _tensorflow(runtime: str) -> List[str]:
    version, other = ("1.15", "tf2") if runtime == "tf1" else ("2.", "tf1")
    lines = [
        "import tensorflow as tf  # only now",
        f'if not tf.__version__.startswith("{version}"):  # each TensorFlow needs its own block',
        f'    raise SystemExit(f"this header is for TensorFlow {version.rstrip(".")}, found '
        f'{{tf.__version__}}: use amp-xla header --runtime {other}")  # stop',
    ]
    return lines if runtime == "tf1" else lines + _LEGACY_KERAS


def _constants(precision: Precision) -> List[str]:
    lines = ["from bert4keras.backend import K  # the Keras backend that bert4keras uses"]
    if precision.infinity is not None:
        lines += [
            'if hasattr(K, "set_infinity"):  # bert4keras 0.10.8-0.11.4, not 0.11.5',
            f"    K.set_infinity({precision.infinity:g})  # masks that fit float16",
        ]
        if precision.infinity <= 1e6:
            lines += _REFUSE_CRF
    if precision.epsilon is not None:
        lines.append(f"K.set_epsilon({precision.epsilon:g})  # 1e-7 is too small for float16")
    return lines


def main(argv: List[str]) -> int:
    """Run the command."""
    print(block(parse(Config, argv, "amp-xla header")), end="")
    return 0
