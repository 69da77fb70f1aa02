"""Links planted where files are written: nothing is written or deleted behind them."""

from __future__ import annotations

import pytest

from amp_xla.process import durable

pytestmark = pytest.mark.once


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("mine")
    return folder


def test_a_link_in_the_place_of_the_temporary_file_is_replaced(tmp_path, outside):
    planted = tmp_path / f"{durable.TEMPORARY}config.json"
    planted.symlink_to(outside / "precious")
    durable.replace(tmp_path / "config.json", b"{}")
    assert (tmp_path / "config.json").read_text() == "{}"
    assert not (tmp_path / "config.json").is_symlink() and not planted.exists()
    assert (outside / "precious").read_text() == "mine"


@pytest.mark.parametrize("name", [f"{durable.TEMPORARY}step-1", "step-1"])
def test_removing_a_link_leaves_what_it_points_to(tmp_path, outside, name):
    (tmp_path / name).symlink_to(outside)
    durable.remove(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside"]
    assert (outside / "precious").read_text() == "mine"
