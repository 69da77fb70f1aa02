"""``python -m amp_xla <command>``."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Dict, List, Optional, Tuple

from amp_xla.process import exits

# command -> (module with main(argv) -> exit code, one line)
COMMANDS: Dict[str, Tuple[str, str]] = {
    "train": ("amp_xla.commands.train", "train a recipe; its flags come after --"),
    "ranks": ("amp_xla.commands.ranks", "train a recipe on several GPUs or machines"),
    "header": ("amp_xla.commands.header", "print the block to paste on top of a bert4keras script"),
    "prepare": ("amp_xla.data.pretraining.prepare", "turn raw text into sequences to pretrain on"),
    "predict": ("amp_xla.commands.predict", "label new text with a trained run"),
    "export": ("amp_xla.commands.export", "write a trained model, tables whole, as a SavedModel"),
    "fill": ("amp_xla.commands.fill", "fill in the [MASK]s of a text with a pretrained run"),
    "evaluate": ("amp_xla.commands.evaluate", "examine pretrained models on the same hidden words"),
    "inspect": ("amp_xla.commands.inspect", "show what mixed precision converts, without a GPU"),
    "rehearse": ("amp_xla.commands.rehearse", "try mixed-precision training out on a CPU"),
    "doctor": ("amp_xla.commands.doctor", "check GPU, driver, TensorFlow, environment, Docker"),
    "tune": ("amp_xla.speed.tune", "find the fastest precision and XLA mode on this machine"),
    "verify": ("amp_xla.commands.verify", "check that the checkpoints of a run are whole"),
}


def _usage() -> str:
    lines = [
        "usage: python -m amp_xla <command> [flags]   (--help after a command lists its flags)"
    ]
    lines += [f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(lines)


def main(argv: Optional[List[str]] = None) -> int:
    """Dispatches; modules are imported only when their command is typed."""
    if argv is None:
        exits.guard()
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
    return exits.exit_code(_run, COMMANDS[name][0], words[1:])


def _run(module: str, words: List[str]) -> int:
    return int(importlib.import_module(module).main(words) or 0)
