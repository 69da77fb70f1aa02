"""Recipes: each file is one training job."""

import sys

if sys.argv[:1] == ["-m"]:  # Python is starting `python -m recipes.<name>`
    from amp_xla.process import exits

    exits.guard()
