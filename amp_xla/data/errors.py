"""The one error of this room: the user's data cannot be used as it is."""

from __future__ import annotations

from amp_xla.errors import AmpXlaError


class DataError(AmpXlaError, ValueError):
    """Names the file, line or value at fault, what was found there and what is allowed."""
