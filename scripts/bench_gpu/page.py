"""The record as ``docs/results/gpu.md``."""

from __future__ import annotations

from typing import Callable, List, Optional, Tuple

from amp_xla.speed import table
from scripts.bench_gpu.record import (
    COMPILED,
    CONTESTANTS,
    WITH_XLA,
    Record,
    Row,
)
from scripts.peers import pretraining

NOT_MEASURED = "not measured"
HEAD = ("contestant", "step ms", "samples/s", "peak GiB", "TFLOP/s", "of ceiling", "over tf32",
        "half nodes: foretold, executed", "clusters", "warm-up s", "result")  # fmt: skip
KINDS = {"half": "half precision", "tf32": "tf32", "fp32": "fp32"}
HOW = """
    make bench-gpu

fills this page, for at most eight minutes of GPU time (`ARGS="--seconds 300"`: five). A row is
kept as soon as it is there; cut off, the same command goes on. Rows of another machine, other
versions or other code are not mixed in. PyTorch is that of `.venvs/peers`
([how to make it](peers.md)), or of a Python that `ARGS="--peer /usr/bin/python3"` names. Without
make and network, with the Python of the TensorFlow environment:

    python -m scripts.bench_gpu --peer "env LD_LIBRARY_PATH=/usr/local/cuda/lib64 python3"

`make bench-gpu ARGS=--trial` goes the whole way with a tiny model on any machine, and leaves this
page alone.
""".strip("\n")
WHAT = """
A masked language model's training step on made-up sequences, dropout 0.1, AdamW, clipping at 1,
vocabulary 21,128, 15% of the tokens predicted. Hugging Face's `BertForMaskedLM` computes logits at
every position, as it does for its users. Every row is a process of its own; while one is timed,
the others stand still. Figures: median of the timed steps. TFLOP/s: the matrix products that the
model needs (vocabulary at the masked positions only), forward and twice that backward. Of ceiling:
their share of the best large matrix product that anyone here got in that precision on this
machine. Half nodes: what inspect foretold, and what the executed graph held, casts not counted.
""".strip("\n")


def render(record: Record) -> str:
    """The page."""
    lines = ["# On a GPU: results", ""]
    if record.trial:
        lines += ["**A trial with a tiny model: these are no results.**", ""]
    if not record.rows:
        lines += ["**Not measured:** no machine with an NVIDIA GPU was at hand.", ""]
    lines += [HOW, "", *goals(record), ""]
    if record.rows:
        lines += [*_facts(record), "", WHAT, ""]
    for shape in record.shapes:
        lines += [f"## {shape}", "", *_table(record, shape), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def goals(record: Record) -> List[str]:
    """Goal by shape: met, missed or not measured."""
    bars: List[Tuple[str, str, float, Callable[[Row, str], Optional[float]]]] = [
        ("amp + XLA over tf32", "x", 1.8, lambda row, s: _over(record, row, s, "tf32")),
        ("amp + XLA over torch.compile bf16", "x", 1.0,
         lambda row, s: _over(record, row, s, COMPILED)),
        ("of the ceiling", "%", 0.5, lambda row, s: record.utilisation(row)),
    ]  # fmt: skip
    body = []
    for name, unit, bar, value in bars:
        cells = [f"{name}: at least {_figure(bar, unit)}"]
        for shape in record.shapes:
            best = _fastest(record, shape)
            found = None if best is None else value(best, shape)
            verdict = "met" if found is not None and found >= bar else "missed"
            cells.append(NOT_MEASURED if found is None else f"{_figure(found, unit)}: {verdict}")
        body.append(cells)
    head = ("goal on a data-centre GPU, the fastest XLA mode", *record.shapes)
    return table.markdown(head, body).split("\n")


def _figure(value: float, unit: str) -> str:
    return f"{value:.0%}" if unit == "%" else f"{value:.2f}x"


def _fastest(record: Record, shape: str) -> Optional[Row]:
    rows = [row for row in (record.row(shape, name) for name in WITH_XLA) if row and row.median]
    return min(rows, key=lambda row: row.median, default=None)


def _over(record: Record, row: Row, shape: str, other: str) -> Optional[float]:
    base = record.row(shape, other)
    return base.median / row.median if base and base.median and row.median else None


def _facts(record: Record) -> List[str]:
    ceilings = [
        f"{name} {record.ceiling(kind) / 1e12:.3g}"
        for kind, name in KINDS.items()
        if record.ceiling(kind)
    ]
    return [
        f"- {record.machine}",
        *(f"- {text}" for text in sorted({_versions(row) for row in record.rows if row.seconds})),
        f"- `{record.command}`; {record.spent:.0f} s in all calls",
        f"- revision {record.revision}, code {record.rows[0].of['source']}",
        f"- best matrix products, TFLOP/s: {', '.join(ceilings) or NOT_MEASURED}",
    ]


def _versions(row: Row) -> str:
    names = ("tensorflow", "bert4keras", "torch", "transformers", "python")
    told = ", ".join(f"{name} {row.of[name]}" for name in names if name in row.of)
    return f"{told}; {len(row.seconds)} steps; {row.date}"


def _table(record: Record, shape: str) -> List[str]:
    rows = {name: record.row(shape, name) for name in CONTESTANTS}
    if not any(rows.values()):
        return [NOT_MEASURED]
    body = [[name, *_cells(record, shape, name, row)] for name, row in rows.items()]
    return table.markdown(HEAD, body).split("\n")


def _cells(record: Record, shape: str, name: str, row: Optional[Row]) -> List[str]:
    if row is None or not row.seconds:
        told = NOT_MEASURED if row is None else f"{row.status}: {row.why}"
        return ["-"] * (len(HEAD) - 2) + [told]
    numbers, share = record.shapes[shape], record.utilisation(row)
    over = _over(record, row, shape, "tf32")
    half = "-"
    if CONTESTANTS[name].precision == "amp":
        foretold = record.foretold(shape)
        half = f"{NOT_MEASURED if foretold is None else foretold}, {row.half_nodes}"
    return [
        f"{row.median * 1e3:.1f}",
        f"{numbers['batch_size'] / row.median:.1f}",
        f"{row.peak_bytes / 2**30:.2f}",
        f"{pretraining.model_flops(numbers) / row.median / 1e12:.3g}",
        "-" if share is None else f"{share:.0%}",
        "-" if over is None else f"{over:.2f}x",
        half,
        str(row.clusters) if CONTESTANTS[name].xla not in (None, "off") else "-",
        f"{row.warm_seconds:.1f}",
        row.status + (f": {row.why}" if row.why else ""),
    ]
