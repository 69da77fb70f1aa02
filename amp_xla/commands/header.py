"""``amp-xla header``: print the settings as a block to paste on top of a bert4keras script."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import List, Optional

import jinja2
from typing_extensions import Annotated, Literal

from amp_xla import backend
from amp_xla.config import parse, within
from amp_xla.errors import UnsupportedError
from amp_xla.settings import Precision, Settings, flags, plain

_TEMPLATE = Path(__file__).with_suffix(".txt")
_CODE_WIDTH = 72  # of a line, in front of its comment
# Variables that the other TensorFlow reads
_OTHERS = {
    "tf1": ("TF_USE_LEGACY_KERAS",),
    "tf2": (flags.GRAPH_REWRITE, flags.FORK_LOSS_SCALING),
}


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
    """Return the block of settings to paste, as text.

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
    variables = flags.environment(settings, {}, gpu, runtime == "tf2")
    template = jinja2.Template(_TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True)
    text = template.render(
        tf2=runtime == "tf2", precision=precision, plain=plain,
        variables={k: v for k, v in variables.items() if k not in _OTHERS[runtime]},
    )  # fmt: skip
    lines = (line.partition("  # ") for line in text.splitlines())
    return "".join(
        f"{code:<{_CODE_WIDTH}}{mark}{comment}\n" if mark else f"{code}\n"
        for code, mark, comment in lines
    )


def main(argv: List[str]) -> int:
    """Run the command."""
    print(block(parse(Config, argv, "amp-xla header")), end="")
    return 0
