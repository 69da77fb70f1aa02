"""The finder names the node at which each head fails with this bert4keras and each infinity."""

import functools

import pytest

from amp_xla import backend
from amp_xla.diagnose import overflow
from amp_xla.graph import training_graph
from tests.support import heads

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

# From 0.11.5 on bert4keras masks with `where`, and its infinity cannot be set.
SAFE = backend.bert4keras_version() >= backend.SAFE_MASKS
MASKED = "in sequence_masking: x = x * mask + value * (1 - mask)"
ADVICE = ("K.set_infinity(1e4)", "bert4keras 0.11.5", "_ADD=Mul")
# Head -> layer and node that fail, code of bert4keras, remedies; with infinity 1e12.
FAILS = {
    **{head: (f"Transformer-{number}-MultiHeadSelfAttention", "/mul", MASKED, ADVICE)
       for head, number in (("LM", 0), ("UniLM", 0), ("RealFormer", 1))},
    # `import amp_xla.setup` always gives this layer an infinity that its mask recognizes.
    "CRF": ("CRF", "loss/CRF_loss/mul_1", "in dense_loss: y_true, y_pred = y_true * mask, y_pred",
            ("use bert4keras 0.11.5: ConditionalRandomField of 0.11.3",)),
}  # fmt: skip


@pytest.mark.parametrize("infinity", [None] if SAFE else [1e12, 1e4])
@pytest.mark.parametrize("name", heads.HEADS)
def test_the_first_node_that_fails(name, infinity, request):
    if infinity:
        library = backend.bert4keras()
        request.addfinalizer(functools.partial(library.set_infinity, library.infinity()))
        library.set_infinity(infinity)
    head = heads.build(name)
    training = training_graph.view(head.model)
    rewritten, values = overflow.rewrite(training), training.values()
    finding = overflow.replay(training, rewritten, values, head.arrays, step=0)
    if SAFE or name not in FAILS or (infinity == 1e4 and name != "CRF"):
        assert finding is None
        return
    found, (layer, node, source, remedies) = finding.to_json(), FAILS[name]
    assert (found["layer"], found["node"]) == (layer, layer * node.startswith("/") + node)
    assert (found["op"], found["phase"]) == ("Mul", "forward")
    assert (found["half"], found["float32_too"]) == (True, False)
    assert found["source"].startswith("bert4keras/") and source in found["source"]
    assert all(any(words in remedy for remedy in found["remedies"]) for words in remedies)
