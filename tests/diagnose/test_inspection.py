"""inspect and plan count what the pass converts; inspect fails if the pass did nothing."""

import json

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import keras
from amp_xla.commands import recipe_job
from amp_xla.diagnose import inspect
from amp_xla.errors import DataError
from amp_xla.graph.virtual_gpu import PREFIX, PassFailedError
from amp_xla.speed.plan.count import count
from tests.integration import test_export_scripts as example_scripts
from tests.support import heads
from tests.support.commands import CLI
from tests.support.small_fit import Batches, X, Y

ATTENTION = "Transformer-0-MultiHeadSelfAttention"


@pytest.fixture(scope="module")
def head():
    return heads.build("classifier")


@pytest.fixture(scope="module")
def report(head):
    return inspect(head.model, head.batch)


def test_the_report(report):
    assert report.half_nodes > 50
    assert report.casts > 10
    assert report.half_flops_share > 0.99 and report.unmeasured == []
    # Batch 4, length 24, hidden 32: projections, attention, feed-forward, the head's classes.
    forward = 2 * 4 * (24 * (4 * 32**2 + 2 * 24 * 32 + 2 * 32 * 64) + 32 * 5)
    assert report.matmul_flops == pytest.approx(3 * forward, rel=0.02)
    layers = {layer.layer: layer for layer in report.layers}
    attention = layers[ATTENTION]
    assert (attention.matmul, attention.backward) == ("6/6", "12/12")
    assert attention.softmax == "1/1"  # fork on 1.15, stock on 2.17
    norm = layers["Transformer-0-FeedForward-Norm"]
    assert norm.other.startswith("0/") and norm.blocked_by == "Mean"
    mean = next(b for b in report.blockers if (b.op, b.phase) == ("Mean", "forward"))
    assert norm.layer in mean.layers and "bert4keras/layers.py" in mean.source
    assert any(c.value == pytest.approx(1e-12) and not c.half for c in report.constants)
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["half_nodes"] == report.half_nodes
    for text in ("of the matmul FLOPs run in float16", "What keeps the rest in float32"):
        assert text in str(report)


@pytest.mark.once
def test_plan_counts_the_same(head, report):
    work = count(head.model, head.batch)
    assert sum(p.flops for p in work.products) == report.matmul_flops
    half = sum(p.flops for p in work.products if p.half)
    assert half / report.matmul_flops == pytest.approx(report.half_flops_share)
    weights = head.model.trainable_weights
    assert work.variables == len(weights)
    assert work.parameters == sum(w.shape.num_elements() for w in weights)
    # Fusion saves traffic, and so does half precision; what is kept is read at least once.
    assert work.kept < work.fused.full < work.unfused.full
    assert work.fused.amp < work.fused.full
    # Batch 4, length 24, hidden 32: a layer's tensors are 27 times its input, not a few and not
    # hundreds.
    assert 10 < work.kept / (4 * 4 * 24 * 32) < 100


@pytest.mark.parametrize(
    "lists, change, ops, reason",
    [
        ("white black", "ADD", "Tanh", "conflicting entries: Tanh"),
        ("white", "REMOVE", "MatMul,BatchMatMul,BatchMatMulV2,Einsum", "No .* ops found"),
    ],
)
def test_a_pass_that_did_nothing_is_an_error_with_its_reason(
    cleared, monkeypatch, lists, change, ops, reason
):
    model = keras.models.Sequential([keras.layers.Dense(4, input_shape=(4,), activation="tanh")])
    model.compile("sgd", "mse")
    names = {"white": ("WHITELIST", "ALLOWLIST"), "black": ("BLACKLIST", "DENYLIST")}
    for name in lists.split():
        monkeypatch.setenv(f"{PREFIX}{names[name][backend.kind() == 'tf2']}_{change}", ops)
    with pytest.raises(PassFailedError, match=reason):
        inspect(model)


@pytest.fixture(scope="module")
def command(command):
    example_scripts.write(command.folder)
    return command


# Without --batch, a batch is made up from the model's inputs and loss.
@pytest.mark.parametrize(("words", "rows"), [
    (["tag.py:model", "--batch", "tagged"], (4, 24)),
    pytest.param(["tag.py:model"], (32, 128), marks=pytest.mark.once),
])  # fmt: skip
def test_a_model_is_inspected(command, words, rows):
    command.done(CLI, "inspect", *words)
    report = json.loads((command.folder / "runs/tag/inspect/amp.json").read_text())
    assert report["half_nodes"] > 50
    assert [tuple(shape[:2]) for shape in report["batch"].values()][:2] == [rows, rows]


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize(("words", "scale"), [
    (["--batch", "named", "--", "64"], 64.0),  # the script has arguments, too
    (["--batch", "title.py:batches"], 256.0),  # the loss scale of the optimizer
])  # fmt: skip
def test_a_model_is_rehearsed(command, words, scale):
    command.done(CLI, "rehearse", "title.py:with_batch", "--steps", "2", *words)
    path = command.folder / "runs/title/rehearse/rehearsal.json"
    steps = json.loads(path.read_text())["steps"]
    assert [step["loss_scale"] for step in steps] == [scale] * 2


@pytest.mark.once
def test_a_batch_without_samples_is_named():
    empty = backend.bert4keras("snippets").DataGenerator([])
    for batches in (iter(()), Batches(4, (X[:0], Y[:0])), [X[:0], Y[:0]], {}, empty):
        with pytest.raises(DataError, match="tag.py:none has no samples"):
            recipe_job._batches(batches, "tag.py:none")
    some = recipe_job._batches(Batches(13), "tag.py:some")  # starts over after its end
    assert [next(some)[1].tolist() for _ in range(3)] == [
        *map(np.ndarray.tolist, (Y[:13], Y[13:], Y[:13]))
    ]


@pytest.mark.once
@pytest.mark.parametrize(
    "words, message",
    [
        (["tag.py:modl"], "tag.py has no 'modl'; did you mean model?"),
        (["tag.py:texts"], "tag.py:texts is of type list; allowed: a compiled"),
        (
            ["tag.py:model", "--batch", "named"],
            "2 arrays for 3 placeholders; needed, in this",
        ),
        (["classification", "--batch", "tagged"], "classification is a recipe, which has its own"),
        (["rehearse", "tag.py:model"], "tag.py:model returns no batch to train on; give --batch"),
    ],
)
def test_one_clear_line(command, words, message):
    done = command(CLI, *(words if words[0] == "rehearse" else ["inspect", *words]))
    assert message in done.error
    assert not (command.folder / "runs" / "classification").exists()
