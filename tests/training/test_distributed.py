"""What is found out before ranks are joined; tests/integration/test_ranks.py joins them."""

from __future__ import annotations

import socket
from typing import Dict

import pytest

from amp_xla.errors import AmpXlaError
from amp_xla.process.world import World
from amp_xla.training.distributed import _check_name

RANK = World(1, 2, 0, "node7")
FAR = {"HOROVOD_CROSS_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}


def test_a_host_whose_own_name_is_the_loopback_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others would wait for it for minutes."""
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    with pytest.raises(
        AmpXlaError, match=r"rank 1 on node7 resolves its own name .* 127.0.1.1.*/etc/hosts"
    ):
        _check_name(RANK, FAR)


@pytest.mark.parametrize(
    "environ",
    [
        {**FAR, "HOROVOD_CROSS_SIZE": "1"},  # one host: the loopback is what ranks use
        {**FAR, "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"},
        {"HOROVOD_CROSS_SIZE": "2"},  # mpirun: Open MPI finds its own ways
    ],
)
def test_elsewhere_the_name_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, environ: Dict[str, str]
) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    _check_name(RANK, environ)


def test_a_host_that_does_not_know_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    with pytest.raises(
        AmpXlaError, match="cannot resolve its own name .*Name or service not known"
    ):
        _check_name(RANK, FAR)
