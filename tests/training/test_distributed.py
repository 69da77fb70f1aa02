"""Checks before ranks join; tests/integration/test_ranks.py joins them."""

from __future__ import annotations

from typing import Any

import pytest

from amp_xla.errors import AmpXlaError
from amp_xla.process.world import World
from amp_xla.training.distributed import _check_name

FAR = {"HOROVOD_CROSS_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}


@pytest.mark.once
def test_a_host_whose_name_no_other_host_can_reach_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr("socket.gethostbyname", lambda name: "127.0.1.1")
    rank = World(1, 2, "node7")
    with pytest.raises(AmpXlaError, match="rank 1 on node7 resolves .* 127.0.1.1.*/etc/hosts"):
        _check_name(rank, FAR)
    _check_name(rank, {**FAR, "HOROVOD_CROSS_SIZE": "1"})  # ranks on one host use this address
