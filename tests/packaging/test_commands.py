"""Each command of the program runs once, in the order of a user's day, on small data."""

import pytest

from amp_xla.commands import COMMANDS
from tests.support.commands import CLI

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(900)]

MODEL = "--layers 1 --hidden 64 --max-length 32"
DATA = f"--train train.tsv --dev train.tsv {MODEL} --shapes 1 --vocab-size 100 --epochs 1"
RUN = "runs/classification/mine"
# Command -> exit code and part of the output. Each command uses files of the ones before.
DAY = {
    f"train --recipe=classification {DATA} --name mine": (0, f"amp-xla predict {RUN}"),
    f"predict {RUN} texts.txt": (0, "\tsalt 3 soup"),
    f"verify {RUN}": (0, "whole"),
    f"evaluate {RUN} --file train.tsv": (0, "  accuracy           1.0000   95%: 1.0000 to 1.0000"),
    f"evaluate {RUN} --errors 1 --file train.tsv": (0, "probability and accuracy; 0 is best\n"),
    f"evaluate {RUN} --file texts.txt": (2, "error: texts.txt"),
    f"evaluate {RUN} --file other.tsv": (2, f"the label 'bake', which is not a label of {RUN};"),
    f"evaluate {RUN} train.tsv": (2, "error: give --file: labelled samples"),
    f"report {RUN},runs/none": (2, "error: runs/none is not a folder; `"),
    "runs": (0, f"{RUN}  done "),
    f"report {RUN}": (0, "/mine/report.html"),
    "report runs": (2, "amp-xla runs` lists all runs"),
    f"fill {RUN} --text salt[MASK]": (2, "has no `fill`; give a pretraining run"),
    f"export {RUN} --format hf": (0, f"written: {RUN}/export-hf, from step-"),
    f"convert {RUN}/export-hf converted --format google": (0, "written: converted, 21 of 21"),
    f"inspect classification -- {DATA}": (0, "written: runs/classification/inspect/amp.json"),
    f"inspect classification --compiled t4 -- {DATA}": (0, "inspect/compiled.json"),
    f"plan classification --gpu t4,h100 -- {DATA}": (0, "of the program that XLA compiles for t4"),
    f"rehearse classification --steps 1 -- {DATA}": (0, "written: runs/classification/rehearse"),
    f"tune classification --steps 1 --rounds 2 --minutes 0.1 -- {DATA}": (0, "samples/s"),
    "header --xla on": (0, "TensorFlow 2."),
    "doctor --json": (0, '"about"'),
    "prepare text.txt data --length 32 --vocab-size 128 --workers 1": (0, "sequences"),
    "runs data": (2, "error: data has no runs"),
    f"ranks classification --np x -- {DATA}": (2, "--np 'x'; allowed: auto, or a whole"),
}


def test_each_command_is_run():
    assert {words.split()[0] for words in DAY} == set(COMMANDS)


def test_all_commands(command):
    """Run the commands in processes forked from one with TensorFlow."""
    folder = command.folder
    lines = [f"salt {n} soup\tcook\nbolt {n} nut\tbuild\n" for n in range(64)]
    (folder / "train.tsv").write_text("".join(lines))
    (folder / "other.tsv").write_text("salt 3 soup\tbake\n")
    (folder / "texts.txt").write_text("salt 3 soup\n")
    words = [f"{word} is a word. So is {word}s.\n\n" for word in dir(str) * 5]
    (folder / "text.txt").write_text("".join(words))
    for line, (code, text) in DAY.items():
        done = command(CLI, *line.split())
        output = done.out + done.err
        assert (done.code, text in output) == (code, True), f"{line}\n{output}"
        assert "Traceback" not in output, output
        assert (" predicts " in output) == line.endswith("--file train.tsv"), output
    assert '"recipe": "classification"' in (folder / RUN / "run.json").read_text()
