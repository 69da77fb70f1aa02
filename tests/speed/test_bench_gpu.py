"""``make bench-gpu``: a trial for real, cut off and gone on with; its page; what it refuses."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Tuple

import pytest

from amp_xla.speed.machine import Machine
from amp_xla.speed.measure import ChildEnded
from scripts.bench_gpu.__main__ import Bench, Config
from scripts.bench_gpu.page import NOT_MEASURED, goals, render
from scripts.bench_gpu.record import (
    CONTESTANTS,
    INSPECT,
    PAGE,
    SHAPES,
    TRIAL,
    Record,
    Row,
    plan,
    read,
    source,
)
from scripts.peers.pretraining import model_flops
from tests.running import ROOT, environment, run_python

NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
BASE = "BERT-base 64 x 128"
H100 = Machine("1 x NVIDIA H100", True, "550.1", "2.17.1", "0.11.5", False, "float16", "3.12.1",
               "", 16, 79.6)  # fmt: skip
# Two rows: XLA and inspect where TensorFlow has half precision on a CPU, else inspect and fp32.
ONLY = "4 x 16, inspect;4 x 16, " + ("fp32" if sys.version_info < (3, 8) else "amp + xla on")


def command(out: Path, *words: str) -> List[str]:
    return ["-m", "scripts.bench_gpu", "--out", str(out), "--peer", "/nowhere/python", *words]


def rows(out: Path) -> List[Any]:
    path = out.with_suffix(".json")
    return json.loads(path.read_text())["rows"] if path.exists() else []


@pytest.mark.slow
@pytest.mark.once
def test_a_trial_is_cut_off_and_goes_on(tmp_path) -> None:
    out = tmp_path / "new" / "gpu"
    words = command(out, "--trial", "--steps", "3", "--abreast", "2", "--only", ONLY)
    run = subprocess.Popen(
        [sys.executable, *words], cwd=str(ROOT), env=environment(NO_GPU), stderr=subprocess.PIPE
    )
    until = time.monotonic() + 120
    while not rows(out) and time.monotonic() < until and run.poll() is None:
        time.sleep(0.02)
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=30)[1].decode()
    assert run.returncode == 143, said
    assert "without PyTorch: /nowhere/python: No such file" in said
    kept = rows(out)
    assert len(kept) == 1, "the signal came too late to cut anything off"

    done = run_python(*words, env=NO_GPU)
    assert done.code == 0, done.err
    found = rows(out)
    assert found[: len(kept)] == kept  # not measured twice
    assert {row["status"] for row in found} == {"ok"}
    assert len(found) == 2
    told, timed = sorted(found, key=lambda row: row["contestant"] != INSPECT)
    assert told["half_nodes"] > 50
    assert abs(told["flops"] / model_flops(TRIAL["tiny 4 x 16"]) - 1) < 0.01
    assert len(timed["seconds"]) == 3 and timed["loss"] > 0
    assert timed["peak_bytes"] > 1e8 and timed["ceiling"] > 0
    if "xla" in ONLY:
        assert timed["half_nodes"] > 50 and timed["clusters"] > 0
    page = out.with_suffix(".md").read_text()
    assert done.out == page + "\n"
    assert "these are no results" in page and re.search(
        r"\| (fp32|amp \+ xla on) +\| \d+\.\d +\|", page
    )
    assert json.loads(out.with_suffix(".json").read_text())["trial"]


@pytest.mark.once
def test_what_is_refused_leaves_no_file(tmp_path) -> None:
    done = run_python(*command(tmp_path / "gpu"), env=NO_GPU)
    assert done.code == 2 and done.err.startswith("error: no GPU that TensorFlow "), done.err
    assert done.err.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.once
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--trial", "--out", "docs/results/gpu"], "a trial is no result: choose an --out outside"),
        (["--only", "fp16"], "--only fp16: no row is called so; names: BERT-base 32 x 512; "),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_bad_words_are_one_line(words, why, tmp_path) -> None:
    done = run_python("-m", "scripts.bench_gpu", *words)
    assert done.code == 2 and why in done.err and done.err.count("\n") == 1, done.err


@pytest.mark.once
def test_the_committed_page_is_what_the_record_says() -> None:
    """After a change of page.py: ``python -m scripts.bench_gpu --render``."""
    record = read(PAGE.with_suffix(".json"), trial=False)
    assert PAGE.read_text(encoding="utf-8") == render(record)


def row(contestant: str, seconds: float, shape: str = BASE, **more: Any) -> Row:
    more.setdefault("of", {"tensorflow": "2.17.1", "source": "abc"})
    return Row(shape, contestant, date="2026-11-23", seconds=[seconds] * 20, **more)


@pytest.mark.once
def test_figures_goals_and_bad_rows() -> None:
    flops = model_flops(SHAPES[BASE])
    failed = Row(BASE, "fp32", {"source": "abc"}, "2026-11-23", "out of memory", "OOM when allocat")
    record = Record(rows=[
        row("amp + xla on", 0.1, half_nodes=900, clusters=7, ceiling=flops / 0.1 / 0.5,
            peak_bytes=3 * 2**30, warm_seconds=41.0),
        row("tf32", 0.15, ceiling=flops / 0.15),
        row("PyTorch bf16, torch.compile", 0.2, ceiling=flops / 0.1 / 0.4, of={"source": "abc"}),
        Row(BASE, INSPECT, {}, "2026-11-23", half_nodes=880),
        failed,
    ])  # fmt: skip
    body = {line.split("|")[1].strip(): line for line in render(record).splitlines() if "|" in line}
    cells = [cell.strip() for cell in body["amp + xla on"].split("|")[2:-1]]
    # The best product counts, whoever got it: PyTorch's, so half precision's share is 40%, not 50%.
    assert cells == ["100.0", "640.0", "3.00", f"{flops / 1e11:.3g}", "40%", "1.50x", "880, 900",
                     "7", "41.0", "ok"]  # fmt: skip
    assert body["fp32"].split("|")[-2].strip() == "out of memory: OOM when allocat"
    assert body["amp"].split("|")[-2].strip() == NOT_MEASURED
    verdicts = [[cell.strip() for cell in line.split("|")[2:4]] for line in goals(record)[2:]]
    assert verdicts == [
        ["1.50x: missed", NOT_MEASURED],
        ["2.00x: met", NOT_MEASURED],
        ["40%: missed", NOT_MEASURED],
    ]


@pytest.mark.once
def test_the_plan_holds_every_row_once_and_the_goals_first() -> None:
    found = plan(Record())
    asked = {(shape, name) for shape in SHAPES for name in CONTESTANTS}
    assert sorted(p for p in found if p[1] != INSPECT) == sorted(asked)
    assert [shape for shape, name in found if name == INSPECT] == [BASE, "BERT-large 16 x 128"]
    assert {name for _, name in found[:12]} == {"amp + xla on", "tf32", "amp",
                                                "PyTorch bf16, torch.compile"}  # fmt: skip


@pytest.mark.once
def test_rows_of_another_machine_or_code_are_not_mixed_in(tmp_path, capsys) -> None:
    of = {"device": H100.device, "driver": "550.1", "tensorflow": "2.17.1", "bert4keras": "0.11.5",
          "python": "3.12.1", "source": source(), "steps": "20"}  # fmt: skip
    record = Record(rows=[
        row("amp", 0.1, of=of),
        row("fp32", 0.1, of={**of, "driver": "535.2"}),
        row("PyTorch bf16", 0.1, of={"torch": "1"}),  # PyTorch is not here now: it stays
    ])  # fmt: skip
    out = tmp_path / "gpu"
    record.write(out.with_suffix(".json"))
    bench = Bench(Config(peer="/nowhere/python"), record, H100, out, time.monotonic())
    bench.part_with_others()
    assert [r.contestant for r in record.rows] == ["amp", "PyTorch bf16"]
    assert len(read(tmp_path / "gpu.before.json", trial=False).rows) == 3
    assert "not mixed in, because of another driver: 1 rows" in capsys.readouterr().err
    assert (BASE, "fp32") in bench.todo() and (BASE, "amp") not in bench.todo()
    assert all("PyTorch" not in name for _, name in bench.todo())
    older = dataclasses.replace(H100, tensorflow="1.15.5")
    todo = Bench(Config(peer="/nowhere/python"), Record(), older, out, time.monotonic()).todo()
    assert (BASE, "amp + xla lite") not in todo and (BASE, "amp + xla on") in todo


class Fake:
    """A row's process; tf32 lacks memory beside others."""

    alive: ClassVar[List[Fake]] = []
    timed: ClassVar[List[Tuple[str, List[bool]]]] = []  # who, and whether each other stood still

    def __init__(self, shape: str, contestant: str) -> None:
        self.name, self.halted = contestant, False
        self.alive.append(self)

    def answer(self, seconds: float) -> Dict[str, Any]:
        if self.name == "tf32" and len(self.alive) > 1:
            raise ChildEnded("out of memory", "OOM when allocating")
        return {"warm_seconds": 1.0, "half_nodes": 5, "flops": 1.0}

    def ask(self, seconds: float, do: str, **more: Any) -> Dict[str, Any]:
        if do == "steps":
            self.timed.append((self.name, [o.halted for o in self.alive if o is not self]))
        return {"seconds": [0.1] * more.get("steps", 0), "loss": 1.0, "peak_bytes": 1}

    def halt(self) -> None:
        self.halted = True

    def go_on(self) -> None:
        self.halted = False

    def close(self) -> None:
        self.alive.remove(self)


@pytest.mark.once
def test_each_is_timed_alone_and_out_of_memory_beside_others_is_no_result(tmp_path) -> None:
    config = Config(only="tiny 4 x 16, ", peer="/nowhere/python", abreast=3)
    record = Record(trial=True)
    bench = Bench(config, record, H100, tmp_path / "gpu", time.monotonic())
    bench._start = Fake  # type: ignore[assignment, method-assign]
    bench.run()
    assert Fake.timed[0] == ("amp + xla on", [True, True])
    assert Fake.timed[-1] == ("tf32", [])
    assert {r.status for r in record.rows} == {"ok"} and not Fake.alive
    assert len(record.rows) == 7 and not bench.todo()


@pytest.mark.once
def test_when_the_time_is_up_nothing_half_done_is_kept(tmp_path) -> None:
    config = Config(seconds=0.2, peer="/nowhere/python")
    bench = Bench(config, Record(trial=True), H100, tmp_path / "gpu", time.monotonic())
    with pytest.raises(ChildEnded):
        bench.run()
    assert len(bench.todo()) == 13 and not list(tmp_path.iterdir())


@pytest.mark.once
@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"rows": [{"shape": "a"}]}'])
def test_a_damaged_record_is_one_line(text, tmp_path) -> None:
    (tmp_path / "gpu.json").write_text(text)
    with pytest.raises(Exception, match="is not a record of bench-gpu"):
        read(tmp_path / "gpu.json", trial=False)
