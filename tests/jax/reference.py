"""Write a tiny BERT and its hidden states in bert4keras: `python -m tests.jax.reference`.

It needs TensorFlow. Its files are stored in ``tests/jax/reference``, because no runtime has both
TensorFlow and JAX.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent / "reference"


def main() -> None:
    import os

    os.environ["AMP_XLA_PRECISION"] = "fp32"
    import amp_xla.setup  # noqa: F401
    from amp_xla.models import dropout, encoders
    from tests.models import google_folder

    random = np.random.RandomState(1)
    values = {
        name: random.normal(float("gamma" in name), 0.3, shape).astype(np.float32)
        for name, shape in google_folder.tensors(google_folder.CONFIG, language_model=True).items()
    }
    shutil.rmtree(str(FOLDER), ignore_errors=True)
    google_folder.write(FOLDER, values)
    with dropout.inference():
        model = encoders.transformer(str(FOLDER)).model
    tokens = random.randint(1, 20, (4, 11))
    tokens[1, 6:] = 0
    segments = np.where(tokens, random.randint(0, 2, tokens.shape), 0)
    hidden = model.predict([tokens, segments])
    np.savez(str(FOLDER / "hidden.npz"), tokens=tokens, segments=segments, hidden=hidden)


if __name__ == "__main__":
    main()
