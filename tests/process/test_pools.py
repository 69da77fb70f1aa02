"""Pools under a signal watch: the signal that ends a worker may come while it is forked."""

from __future__ import annotations

import multiprocessing

import pytest

from amp_xla.process.stopping import SignalWatch


def _square(number: int) -> int:
    return number * number


@pytest.mark.once
@pytest.mark.timeout(120)
def test_pools_end_though_signals_come_while_they_fork() -> None:
    with SignalWatch():
        for _ in range(200):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(_square, range(4)) == [0, 1, 4, 9]
