"""``amp-xla <command>``: import the module of this command only, and run the command."""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import List, Optional, Sequence

from amp_xla.commands import COMMANDS, unknown_command, usage
from amp_xla.errors import AmpXlaError
from amp_xla.process import exits
from amp_xla.process.progress import note


def main(argv: Optional[List[str]] = None) -> int:
    """Run one command; return its exit code."""
    if argv is None:
        exits.guard()
    words = sys.argv[1:] if argv is None else argv
    return exits.exit_code(_run, words)


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(usage("amp-xla"))
        return 0
    if words[0] not in COMMANDS:
        note(unknown_command(words[0]))
        return 2
    command = COMMANDS[words[0]]
    flags = with_flags(words[1:], command.positional, words[0] in ("evaluate", "report"))
    return int(importlib.import_module(command.module).main(flags) or 0)


def with_flags(words: Sequence[str], names: Sequence[str], several: bool = False) -> List[str]:
    """Turn leading values into flags: ``RUN FILE`` -> ``--run RUN --file FILE``.

    If ``several``, commas join all values to one. A word ``-`` is a value, too: it means standard
    input.

    Raises:
      AmpXlaError: there are more values than ``names``.
    """
    values = list(itertools.takewhile(lambda word: word == "-" or word[:1] != "-", words))
    rest = list(words[len(values) :])
    if several and values:
        values = [",".join(values)]
    if len(values) > len(names):
        allowed = " ".join(name.upper() for name in names) or "flags only"
        raise AmpXlaError(f"unexpected {values[len(names)]!r}; allowed: {allowed}")
    pairs = [(f"--{name}", value) for name, value in zip(names, values)]
    return [*itertools.chain.from_iterable(pairs), *rest]
