"""Text classification under a Keras policy: what a Keras user writes in place of the graph rewrite.

    make train RECIPE=keras_classification

trains the model of recipes/classification.py on the same data, with layers that compute in the
policy's dtype and logits in float32. A policy of one's own:

    make train RECIPE=keras_classification RUNTIME=tf2 ARGS="--policy mixed_bfloat16"

With ``model.fit`` and with a loop of one's own: examples/keras_fit.py, keras_custom_loop.py.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, List, Optional, Tuple

from typing_extensions import Annotated, Literal

from amp_xla.errors import SettingsError
from amp_xla.process.arguments import parse
from amp_xla.process.exits import exit_code
from amp_xla.process.fields import SAME_SPEED, changed
from amp_xla.settings import Resolved
from amp_xla.training.checkpoint import Saved
from recipes import classification


@dataclasses.dataclass(frozen=True)
class Config(classification.Config):
    """Train a text classifier under a Keras policy."""

    policy: Annotated[
        Optional[Literal["float32", "mixed_float16", "mixed_bfloat16"]], SAME_SPEED
    ] = None
    """what layers compute in; none = this machine's half precision, else float32"""


def build(config: Config, kept: Optional[Saved] = None) -> Any:
    """The job of recipes/classification.py, built under the policy."""
    if config.switches.precision not in (None, "fp32"):
        raise SettingsError(
            f"--precision {config.switches.precision} is a switch of the graph rewrite, and with a "
            f"policy nothing is rewritten: say --policy, or take RECIPE=classification"
        )
    resolved = changed(config, precision="fp32").switches.resolve()
    from amp_xla import backend, setup
    from amp_xla.precision.compat.keras import set_policy

    policy = config.policy or {
        "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}.get(
        resolved.machine_half or "", "float32")  # fmt: skip
    if policy == "mixed_bfloat16" and backend.kind() == "tf1":
        raise SettingsError(
            "--policy mixed_bfloat16: TensorFlow 1.15 has hardly any operations in bfloat16; "
            "RUNTIME=tf2 has them"
        )
    half = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}.get(policy)
    if half:
        # float16 holds neither bert4keras' 1e12 nor Keras' 1e-7, whoever converts.
        scale = config.switches.loss_scale or ("dynamic" if half == "float16" else "1")
        applied = setup.resolve(
            precision="fp32", xla=config.switches.xla, device=config.switches.device,
            loss_scale=scale, infinity=1e4, epsilon=1e-5,
        )  # fmt: skip
        settings = dataclasses.replace(applied.settings, precision="amp")
        resolved = Resolved(settings, half, f"Keras policy {policy}")
    set_policy(policy)
    return classification.build(config, kept, resolved)


def main(argv: Optional[List[str]] = None) -> int:
    config = parse(Config, argv, "python -m recipes.keras_classification")
    from amp_xla.training.launch import train

    options = config.pace.loop(
        monitor="accuracy", epochs=config.epochs, patience=config.patience)  # fmt: skip
    # Several ranks apply the settings before the job is built.
    config = changed(config, precision=config.switches.precision or "fp32")
    return train("keras_classification", config, build, options)


def predict(saved: Saved, lines: List[str]) -> List[Tuple[str, float]]:
    """Label and probability for each line, computed in float32."""
    return classification.predict(saved, lines, Config)


if __name__ == "__main__":
    sys.exit(exit_code(main))
