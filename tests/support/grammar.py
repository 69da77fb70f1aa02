"""A small prepared corpus whose grammar can be learned in a minute."""

import numpy as np

from amp_xla.tasks.pretraining.data import prepare


def prepared(folder):
    """Write ``corpus.txt`` into ``folder``, and sequences of 32 tokens into its ``data``."""
    rng = np.random.RandomState(0)
    pairs = [(f"north{i}", f"south{i}") for i in range(12)]
    lines = []
    for _ in range(1500):
        chosen = [pairs[i] for i in rng.randint(0, 12, 6)]
        lines.append(" ".join(f"{a} goes with {b} ." for a, b in chosen))
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    prepare.prepare(
        prepare.Config(
            out=str(folder / "data"), corpus=str(folder / "corpus.txt"), vocab_size=192,
            length=32, heldout=0.05, workers=1,
        )
    )  # fmt: skip
