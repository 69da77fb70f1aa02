"""The commands of ``amp-xla``. Standard library only: the launcher reads this file."""

import difflib
from typing import Dict, NamedTuple, Tuple


class Command(NamedTuple):
    """A command: a module whose ``main(argv)`` returns the exit code.

    ``positional``: flags whose values may come first, in this order, without the flag's name.
    """

    module: str
    positional: Tuple[str, ...]
    summary: str


OF_A_SCRIPT = (
    "a script trained this run by model.fit, and only the script can build its model: predict in "
    "the script, or export the model by: amp-xla export RUN my_script.py:build_model"
)
_ELSEWHERE = {"prepare": "amp_xla.tasks.pretraining.data.prepare", "tune": "amp_xla.speed.tune"}
COMMANDS: Dict[str, Command] = {
    name: Command(_ELSEWHERE.get(name, f"amp_xla.commands.{name}"), positional, summary)
    for name, positional, summary in (
        ("train", ("recipe",), "train a recipe"),
        ("ranks", ("recipe",), "train on several GPUs or machines"),
        ("predict", ("run", "file"), "label text with a trained model"),
        ("fill", ("run",), "fill in the [MASK]s of a text"),
        ("evaluate", ("run",), "score runs on labelled text"),
        ("runs", ("folder",), "list runs with state, best value and settings"),
        ("report", ("run",), "write report.html with the curves of runs"),
        ("export", ("run", "script"), "convert a trained model for other programs"),
        ("convert", ("source", "to"), "convert pretrained weights for other programs"),
        ("verify", ("run",), "check the checkpoints of a run"),
        ("prepare", ("corpus", "out"), "turn text into pretraining data"),
        ("inspect", ("recipe",), "show what mixed precision converts, without a GPU"),
        ("rehearse", ("recipe",), "try mixed-precision training on a CPU"),
        ("plan", ("recipe",), "forecast time, memory and cost on GPUs that are not here"),
        ("tune", ("recipe",), "find the fastest precision and XLA mode"),
        ("doctor", (), "check GPU, driver, TensorFlow, Docker"),
        ("header", (), "print a block to paste into a script"),
    )
}


def usage(program: str) -> str:
    """Return the help text that lists all commands."""
    lines = [f"usage: {program} <command> [arguments]   (<command> --help lists its flags)"]
    for name, command in COMMANDS.items():
        words = " ".join([name, *(word.upper() for word in command.positional)])
        if command.positional == ("recipe",):
            words += " FLAGS" if name == "train" else " -- FLAGS"
        lines.append(f"  {words:<26} {command.summary}")
    return "\n".join(lines)


def unknown_command(name: str, more: Tuple[str, ...] = ()) -> str:
    """Return the message for an unknown command; ``more``: commands that only the launcher has."""
    names = (*COMMANDS, *more)
    close = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(names)}"
    return f"error: unknown command {name!r}; {hint}"
