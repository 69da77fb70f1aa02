"""A real recipe whose numbers overflow: the report, in the terminal and in the run folder."""

import json

import numpy as np

from tests.support.commands import RECIPE, Commands

# After the first update the weights are so large that their squares are beyond float32.
FLAGS = (
    "--train a.tsv --dev a.tsv --layers 1 --hidden 64 --epochs 1 --batch-size 8 --precision fp32 "
    "--learning-rate 1e30 --warmup 0 --name run --on-nonfinite stop"
).split()


def test_the_report_names_the_node_and_the_batch_is_kept(server, tmp_path):
    lines = [f"word{i % 7} other{i % 5} text\tabc{i % 3}\n" for i in range(40)]
    (tmp_path / "a.tsv").write_text("".join(lines))
    done = Commands(server, tmp_path)(RECIPE, *FLAGS)
    assert done.code == 2, done.err
    said = done.out + done.err
    assert said.count("first non-finite node: ") == 1
    run = tmp_path / "runs" / "classification" / "run"
    folder = run / "nonfinite-00000001"
    assert [path.name for path in run.glob("nonfinite-*")] == [folder.name]
    assert f"report and batch: runs/classification/run/{folder.name}" in said
    report = json.loads((folder / "report.json").read_text())
    assert report["node"] in said
    assert (report["step"], report["phase"], report["loss_scale"]) == (1, "forward", 1.0)
    assert report["output"]["infinite"] + report["output"]["nan"] >= 1
    assert all(i["range"]["infinite"] + i["range"]["nan"] == 0 for i in report["inputs"])
    assert report["layer"].startswith(("Embedding", "Transformer"))
    assert report["float32_too"] is True
    assert any("lower the learning rate" in remedy for remedy in report["remedies"])
    assert (folder / "report.txt").read_text().strip() in said
    batch = np.load(str(folder / "batch.npz"))
    assert batch["token_ids"].shape[0] == 8
    assert set(batch["labels"]) <= {0, 1, 2}
