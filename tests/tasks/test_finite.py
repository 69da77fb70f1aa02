"""The heads of tasks are finite in float16, on padded batches of the built-in texts."""

import pytest

from tests.support.commands import CLI

TINY = "--layers 1 --hidden 64 --max-length 32 --shapes 1 --batch-size 16 --vocab-size 200".split()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["tagging", "relations", "reading"])
def test_a_head_is_finite_in_float16(command, recipe):
    """With the lists of NVIDIA's TensorFlow where it is 1.15; a tagger's head is a CRF."""
    done = command(CLI, "rehearse", "--recipe", recipe, "--steps", "2", "--", *TINY)
    assert done.code == 0 and "suggested constant loss scale" in done.out, done.out + done.err
