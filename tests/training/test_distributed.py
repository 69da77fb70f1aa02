"""What is found out before ranks are joined; tests/integration/test_ranks.py joins them."""

from __future__ import annotations

import contextlib
import socket
from typing import Dict

import pytest

from amp_xla.errors import AmpXlaError
from amp_xla.process.world import World
from amp_xla.training.distributed import _check_name

pytestmark = pytest.mark.once

RANK = World(1, 2, 0, "node7")
FAR = {"HOROVOD_CROSS_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}


@pytest.mark.parametrize(
    ("environ", "address", "words"),
    [
        (FAR, "127.0.1.1", r"rank 1 on node7 resolves its own name .* 127.0.1.1.*/etc/hosts"),
        (FAR, "", "resolves its own name .* to nothing .*Name or service not known"),
        ({**FAR, "HOROVOD_CROSS_SIZE": "1"}, "127.0.1.1", ""),  # ranks on one host use it
    ],
)
def test_a_host_whose_own_name_no_other_host_reaches_is_refused(
    monkeypatch: pytest.MonkeyPatch, environ: Dict[str, str], address: str, words: str
) -> None:
    """Others would wait for it for minutes."""

    def resolve(name: str) -> str:
        if not address:
            raise socket.gaierror(-2, "Name or service not known")
        return address

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    with pytest.raises(AmpXlaError, match=words) if words else contextlib.nullcontext():
        _check_name(RANK, environ)
