"""A link planted in the place of metrics.jsonl."""

from __future__ import annotations

import pytest

from amp_xla.errors import AmpXlaError
from amp_xla.training.metrics import MetricsLog


@pytest.mark.parametrize("there", [True, False])
def test_metrics_are_not_written_through_a_link(tmp_path, there):
    run, target = tmp_path / "run", tmp_path / "target"
    run.mkdir()
    if there:
        target.write_text("mine")
    (run / "metrics.jsonl").symlink_to(target)
    with pytest.raises(AmpXlaError, match=r"metrics\.jsonl is a link"):
        MetricsLog(run)
    assert target.read_text() == "mine" if there else not target.exists()
