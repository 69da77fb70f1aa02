"""Choose a runtime, build its environment with uv, and start the program in it.

Standard library only, because it runs before anything is installed. `./amp-xla` starts it.
"""

import sys

from amp_xla.process.checkout import as_typed


class SetupError(Exception):
    """An environment cannot be chosen or built; the text is for the user."""


def say(text: str) -> None:
    """Print to stderr; stdout is only for output that other programs read."""
    print(as_typed(text), file=sys.stderr, flush=True)
