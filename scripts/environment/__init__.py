"""Choose a runtime, build its environment with uv, and start the program in it.

Standard library only, because it runs before anything is installed. `./amp-xla` starts it.
"""

import sys


class SetupError(Exception):
    """An environment that cannot be chosen or built; its text is the line for the user."""


def say(text: str) -> None:
    """Print to stderr; stdout carries only answers that other programs read."""
    print(text, file=sys.stderr, flush=True)
