"""More shapes than XLA compiles are named before the first step."""

from __future__ import annotations

from amp_xla.training.tensorflow_engine import MAX_COMPILATIONS, shape_warning


def test_more_planned_shapes_than_xla_compiles() -> None:
    warning = shape_warning(MAX_COMPILATIONS + 1, "on")
    assert "--shapes" in warning and "no_lazy" in warning
    assert shape_warning(MAX_COMPILATIONS, "on") == ""
    assert shape_warning(MAX_COMPILATIONS + 1, "no_lazy") == ""
