"""Ranks wait for each other before they join."""

from __future__ import annotations

import contextlib
import http.client
import time
from typing import Mapping, Optional

from amp_xla.errors import AmpXlaError, RankLost
from amp_xla.process.world import World

_START_SECONDS = 300.0  # how long ranks wait for the last one to start


def meet(place: World, environ: Mapping[str, str]) -> None:
    """Wait until all ranks have started; ``hvd.init`` aborts if one is about 30 seconds late.

    A host may import TensorFlow from a slow disk. The ranks meet at Horovod's rendezvous server;
    mpirun starts none and waits for all ranks itself.

    Raises:
      AmpXlaError: a rank has not started, or the server has ended.
    """
    address = environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    if not address:
        return
    port, end = int(environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]), time.monotonic() + _START_SECONDS

    def status(method: str, rank: int, body: Optional[bytes] = None) -> int:
        connection = http.client.HTTPConnection(address, port, timeout=_START_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, f"/amp_xla_started/{rank}", body)
            return connection.getresponse().status

    try:
        status("PUT", place.rank, b"yes")
        for rank in range(place.size):
            while status("GET", rank) != http.client.OK:
                if time.monotonic() > end:
                    raise AmpXlaError(f"rank {rank} has not started in {_START_SECONDS:.0f} s")
                time.sleep(0.5)
    except OSError as error:
        raise RankLost(f"the rendezvous server has ended: {error}") from error
