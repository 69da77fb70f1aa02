"""The errors a user can meet. Each names the thing, what was found and what is allowed."""

from __future__ import annotations


class AmpXlaError(Exception):
    """Base of every error this package raises on purpose; printed without a traceback."""


class SettingsError(AmpXlaError, ValueError):
    """A setting or an environment variable has a name or a value that cannot work."""


class SetupOrderError(AmpXlaError, RuntimeError):
    """A switch would be thrown too late to be seen by TensorFlow."""


class DataError(AmpXlaError, ValueError):
    """The user's data cannot be used as it is: file, line or value, what was found and allowed."""


class UnsupportedError(AmpXlaError, RuntimeError):
    """This TensorFlow, bert4keras or device cannot do what was asked."""


class NothingConvertedError(AmpXlaError, RuntimeError):
    """Mixed precision was asked for and possible, yet no node runs in half precision."""
