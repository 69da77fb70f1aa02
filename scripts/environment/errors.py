"""What goes wrong before any of this project's own code runs."""


class SetupError(Exception):
    """Only the user can mend this; the message says what was found and the next command."""
