"""Ranks wait for each other before they join, and announce that they train."""

from __future__ import annotations

import contextlib
import http.client
import os
import time
from typing import Optional

from amp_xla.errors import AmpXlaError, RankLost
from amp_xla.process.world import World

_START_SECONDS = 300.0  # how long ranks wait for the last one to start
# Set where another job's ranks may use the same port: job and step, a part of every path.
MEETING = "RANK_MEETING"
TRAINING = "amp_xla_training"  # path of ranks that train


def meet(place: World) -> None:
    """Wait until all ranks have started; ``hvd.init`` aborts if one is about 30 seconds late.

    A host may import TensorFlow from a slow disk. The ranks meet at Horovod's rendezvous server;
    mpirun starts none and waits for all ranks itself.

    Raises:
      AmpXlaError: a rank has not started, or the server has ended.
    """
    if not _address():
        return
    path, end = f"amp_xla_started{os.environ.get(MEETING, '')}", time.monotonic() + _START_SECONDS
    try:
        _status("PUT", path, place.rank, b"yes")
        for rank in range(place.size):
            while _status("GET", path, rank) != http.client.OK:
                if time.monotonic() > end:
                    raise AmpXlaError(f"rank {rank} has not started in {_START_SECONDS:.0f} s")
                time.sleep(0.5)
    except OSError as error:
        raise RankLost(f"the rendezvous server has ended: {error}") from error


def announce(place: World) -> None:
    """Tell the launcher that from now on this rank stops together with the others."""
    if place.size > 1 and _address():
        with contextlib.suppress(OSError):  # the launcher was killed
            _status("PUT", TRAINING, place.rank, b"yes")


def _address() -> str:
    return os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")


def _status(method: str, path: str, rank: int, body: Optional[bytes] = None) -> int:
    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    connection = http.client.HTTPConnection(_address(), port, timeout=_START_SECONDS)
    with contextlib.closing(connection):
        connection.request(method, f"/{path}/{rank}", body)
        return connection.getresponse().status
