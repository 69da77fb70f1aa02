"""``python -m amp_xla <command>``."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Dict, List, Optional, Tuple

from amp_xla.config import exit_code

# command -> (module with main(argv) -> exit code, one line)
COMMANDS: Dict[str, Tuple[str, str]] = {
    "header": ("amp_xla.header", "print the block to paste on top of a bert4keras script"),
    "prepare": ("amp_xla.data.prepare", "turn raw text into sequences to pretrain on"),
    "predict": ("amp_xla.predict", "label new text with a trained run"),
    "inspect": ("amp_xla.rewrite.inspection", "show what mixed precision converts, without a GPU"),
    "rehearse": ("amp_xla.rewrite.rehearse_recipe", "try mixed-precision training out on a CPU"),
    "doctor": ("amp_xla.doctor", "check GPU, driver, TensorFlow, environment, Docker"),
    "tune": ("amp_xla.xla.tune", "find the fastest precision and XLA mode on this machine"),
    "tuned": ("amp_xla.xla.tuned", "train with what tune found"),
    "bench": ("amp_xla.bench", "measure every combination, for the record"),
    "verify": ("amp_xla.verify", "check that the checkpoints of a run are whole"),
}


def _usage() -> str:
    lines = [
        "usage: python -m amp_xla <command> [flags]   (--help after a command lists its flags)"
    ]
    lines += [f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(lines)


def main(argv: Optional[List[str]] = None) -> int:
    """Dispatches; modules are imported only when their command is typed."""
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return 0
    name = words[0]
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        print(f"error: unknown command {name!r}{hint}\n{_usage()}", file=sys.stderr)
        return 2
    module = importlib.import_module(COMMANDS[name][0])
    return exit_code(module.main, words[1:])
