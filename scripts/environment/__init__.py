"""Choose a runtime, build its environment with uv, and start the program in it.

Standard library only, because it runs before anything is installed. `./amp-xla` starts it.
"""

import sys


class SetupError(Exception):
    """An environment cannot be chosen or built; the text is for the user."""


def say(text: str) -> None:
    """Print to stderr; stdout is only for output that other programs read."""
    print(text, file=sys.stderr, flush=True)
