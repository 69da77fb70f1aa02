"""Removes secrets, hosts of ranks and paths of home folders from files for other people."""

from __future__ import annotations

import re
from typing import List, Sequence

HIDDEN = "***"
# Names of flags and variables: --api-key, HF_TOKEN, model.password. Not --token-dropout.
_NAME = re.compile(
    r"(passw(or)?d|passphrase|pwd|secret|token|api[-_]?key|(access|private)[-_]?key|credentials?)$",
    re.IGNORECASE,
)
_FORMS = re.compile(
    r"(?P<before>://)[^/@\s]+(?=@)"  # user:password of a URL
    r"|(?P<query>[?&][^=&\s]*(key|token|secret|signature|sig|password)=)(?!\*{3})[^&\s]+"
    r"|\b(hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abps]-|AKIA|eyJ)[\w.-]{16,}",
    re.IGNORECASE,
)
_HOMES = re.compile(r"(?<![\w.~-])(/(home|Users)/[^/\s'\",:;()<>\\]+(?<!\.)|/root(?!\.?[\w-]))")
_HOST = re.compile(r"(\brank \d+) on \S+")


def without_secrets(words: Sequence[str]) -> List[str]:
    """Return the words of a command line with ``***`` in place of secrets.

    Secrets are values of flags and assignments with a name such as ``--api-key``, passwords and
    keys in URLs, and tokens in the format of a known service.
    """
    hidden: List[str] = []
    follows = False
    for word in map(_without_forms, words):
        name, equals, _ = word.partition("=")
        named = _NAME.search(name) is not None
        if follows and not word.startswith("--"):
            hidden.append(HIDDEN)
        else:
            hidden.append(f"{name}={HIDDEN}" if named and equals else word)
        follows = named and not equals and word.startswith("-")
    return hidden


def for_others(text: str) -> str:
    """Return a text without secrets, hosts of ranks and paths of home folders."""
    return _HOST.sub(r"\1", _HOMES.sub("~", _without_forms(text)))


def _without_forms(text: str) -> str:
    return _FORMS.sub(lambda found: (found["before"] or found["query"] or "") + HIDDEN, text)
