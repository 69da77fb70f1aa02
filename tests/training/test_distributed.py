"""Ranks without Horovod; tests/integration/test_ranks.py joins real ones."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from amp_xla.errors import AmpXlaError
from amp_xla.precision.agreement import _check_name
from amp_xla.process.world import World
from amp_xla.training.distributed import Ranks

pytestmark = pytest.mark.once
FAR = {"HOROVOD_CROSS_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}


def test_a_host_whose_name_no_other_host_can_reach_is_refused(monkeypatch):
    monkeypatch.setattr("socket.gethostbyname", lambda name: "127.0.1.1")
    rank = World(1, 2, "node7")
    with pytest.raises(AmpXlaError, match="rank 1 on node7 resolves .* 127.0.1.1.*/etc/hosts"):
        _check_name(rank, FAR)
    _check_name(rank, {**FAR, "HOROVOD_CROSS_SIZE": "1"})  # ranks on one host use this address


def test_ranks_exchange_while_one_of_them_works():
    """Horovod ends ranks that exchange nothing for a while."""
    together, sent, third = threading.Barrier(2, timeout=60), {}, threading.Event()  # type: Any
    counts = {0: 0, 1: 0}

    class Thread(Ranks):
        def exchange(self, mine):
            sent[self.world.rank] = mine
            together.wait()
            values = [sent[0], sent[1]]
            together.wait()
            counts[self.world.rank] += 1
            if counts[1] == 3:
                third.set()
            return values

    def work(rank):
        assert rank or third.wait(60)
        return rank

    def run(rank):
        return Thread(World(rank, 2)).all_do(lambda: work(rank))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, (0, 1))) == [[0, 1], [0, 1]]
