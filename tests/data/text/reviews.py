"""Chinese reviews, if this machine has them; built-in text tests the same."""

from __future__ import annotations

import pytest

from tests.running import ROOT

FOLDER = ROOT.parent / "shared" / "data"
VOCAB = FOLDER / "vocab_zh.txt"
TRAIN = FOLDER / "sentiment" / "sentiment.train.data"
VALID = FOLDER / "sentiment" / "sentiment.valid.data"

needed = pytest.mark.skipif(
    not VOCAB.is_file(),
    reason="the Chinese reviews are not beside the repository; built-in text is tested instead",
)
