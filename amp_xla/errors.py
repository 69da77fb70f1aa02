"""Errors for users. Each message names the thing, what was found and what is allowed."""

from __future__ import annotations


class AmpXlaError(Exception):
    """The base class of all errors that a user can fix. They are printed as one line."""


class SettingsError(AmpXlaError, ValueError):
    """A setting or environment variable has a wrong name or value."""


class SetupOrderError(AmpXlaError, RuntimeError):
    """A setting comes too late, because TensorFlow has already read the environment."""


class DataError(AmpXlaError, ValueError):
    """A file, line or value of the data, or pretrained weights, cannot be used.

    The message is ``problem``, then ``advice``. The advice names flags of training; commands
    without these flags, such as ``predict``, print only the problem.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem}{advice}")
        self.problem, self.advice = problem, advice


class UnsupportedError(AmpXlaError, RuntimeError):
    """Something is not supported, e.g. by this TensorFlow, bert4keras, device or model."""


class NothingConvertedError(AmpXlaError, RuntimeError):
    """Mixed precision is on and the device supports it, but no node runs in half precision."""


class RankLost(AmpXlaError):
    """Another rank, or the ranks' rendezvous server, has ended or does not respond."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: run the same command with --resume
