"""The finder names the node at which each head fails with this bert4keras and each infinity."""

import pytest

from amp_xla import backend
from amp_xla.diagnose import overflow
from amp_xla.graph import training_graph
from tests.support import heads

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

# From 0.11.5 on bert4keras masks with `where`, and its infinity cannot be set.
SAFE = backend.bert4keras_version() >= backend.SAFE_MASKS
INFINITIES = (None,) if SAFE else (1e12, 1e4)
old = pytest.mark.skipif(SAFE, reason="this bert4keras overflows nowhere")


@pytest.fixture(scope="module")
def table():
    """Return (infinity, head) -> the finding as JSON, or None if everything is finite."""
    library, findings = backend.bert4keras(), {}
    before = None if SAFE else library.infinity()
    for infinity in INFINITIES:
        if infinity:
            library.set_infinity(infinity)
        for name in heads.HEADS:
            head = heads.build(name)
            training = training_graph.view(head.model)
            rewritten, values = overflow.rewrite(training), training.values()
            finding = overflow.replay(training, rewritten, values, head.arrays, step=0)
            findings[infinity, name] = None if finding is None else finding.to_json()
    yield findings
    if before:
        library.set_infinity(before)


def test_these_are_finite(table):
    names = heads.HEADS if SAFE else ("classifier", "MLM", "GlobalPointer")
    assert all(table[infinity, name] is None for infinity in INFINITIES for name in names)


@old
@pytest.mark.parametrize("head", ["LM", "UniLM", "RealFormer"])
def test_others_fail_at_the_mask_multiplication(table, head):
    assert table[1e4, head] is None
    finding = table[1e12, head]
    layer = f"Transformer-{1 if head == 'RealFormer' else 0}-MultiHeadSelfAttention"
    assert (finding["node"], finding["op"], finding["layer"]) == (f"{layer}/mul", "Mul", layer)
    assert (finding["phase"], finding["half"], finding["float32_too"]) == ("forward", True, False)
    assert "in sequence_masking: x = x * mask + value * (1 - mask)" in finding["source"]
    assert finding["source"].startswith("bert4keras/backend.py:")
    assert "K.set_infinity(1e4)" in finding["remedies"][0]
    assert "bert4keras 0.11.5" in finding["remedies"][1]
    assert "_ADD=Mul" in finding["remedies"][-1]


@old
@pytest.mark.parametrize("infinity", INFINITIES)
def test_a_crf_fails(table, infinity):
    finding = table[infinity, "CRF"]
    assert (finding["layer"], finding["phase"], finding["half"]) == ("CRF", "forward", True)
    assert finding["float32_too"] is False
    # `import amp_xla.setup` always gives this layer an infinity that its mask recognizes.
    assert (finding["node"], finding["op"]) == ("loss/CRF_loss/mul_1", "Mul")
    assert "in dense_loss: y_true, y_pred = y_true * mask, y_pred * mask" in finding["source"]
    assert "use bert4keras 0.11.5: ConditionalRandomField of 0.11.3" in finding["remedies"][0]
