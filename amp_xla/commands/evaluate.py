"""``amp-xla evaluate``: score runs on labelled samples.

Each run predicts labelled samples in a separate process, with ``amp-xla predict``, so that runs of
different frameworks can be compared. Results go into the run folders and their reports.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

from typing_extensions import Annotated

from amp_xla.commands.predict import SavedOptions, files_of
from amp_xla.config import parse, within
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable, json_files, output, regular
from amp_xla.process.checkout import ROOT, in_own_environment, running
from amp_xla.process.progress import note
from amp_xla.report import page, record
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.sample_scores import Samples, SampleScores, Scorer


@dataclasses.dataclass(frozen=True)
class Config:
    """Score runs on labelled samples."""

    run: str = "runs/classification/latest"
    """run folders, separated by commas"""
    file: Optional[str] = None
    """labelled samples in the format of the training file"""
    errors: Annotated[int, within(at_least=0)] = 100
    """maximum number of lines in errors.tsv, the worst errors first"""
    json: bool = False
    """print JSON"""
    saved: SavedOptions = SavedOptions()
    seed: Annotated[int, within(0, 2**32 - 1)] = 1
    """seed for the bootstrap"""


def main(argv: List[str]) -> int:
    """Print the scores of each run on labelled samples, and compare each pair of runs."""
    config = parse(Config, argv, "amp-xla evaluate RUN")
    runs, file = folders_of(config.run), config.file
    if file is None:
        raise AmpXlaError("give --file: labelled samples in the format of the training file")
    for run in runs:
        _folder(run, file)
    every = [_scores(run, file, config.saved) for run in runs]
    if len({one.columns for one in every}) > 1:
        raise AmpXlaError(
            "the runs predict different things (labels, scores, ...), so they cannot be compared"
        )
    results = [result_of(one, every, config.seed) for one in every]
    for one, result in zip(every, results):
        write(one, result, config.errors)
    if config.json:
        output.lines(json.dumps(dict(zip(map(str, runs), results)), indent=1).splitlines())
    else:
        output.lines(itertools.chain.from_iterable(map(_text, results)))
        output.lines(
            f"{result['run']} against {other['run']}: {other['verdict']}"
            for i, result in enumerate(results)
            for other in result["against"][i:]
        )
    return 0


def folders_of(names: str) -> List[Path]:
    """Return the folders that commas separate in ``names``, the value of ``--run``.

    Raises:
      AmpXlaError: there is none, or one does not exist.
    """
    folders = [Path(name.strip()) for name in names.split(",") if name.strip()]
    if folders and os.path.exists(names):  # a name with a comma
        folders = [Path(names)]
    if not folders:
        raise AmpXlaError(f"--run {names!r} names no folder")
    missing = [folder for folder in folders if not folder.exists()]
    if missing:
        raise AmpXlaError(f"{missing[0]} is not a folder; `amp-xla runs` lists the runs")
    return folders


def _scores(run: Path, file: str, saved: SavedOptions) -> SampleScores:
    checkpoint, recipe = saved.load(str(run))
    scored = recipe.need("scored", str(run), "evaluate --file needs it")
    files, layout = files_of(checkpoint, recipe)
    if getattr(files, "multilabel", None) is not None:
        raise AmpXlaError(
            f"{run} predicts several labels per text, which evaluate --file cannot score"
        )
    texts, wanted = files.examples(file, layout)
    for sample, text in enumerate(texts, 1):
        if not text.strip():
            raise AmpXlaError(f"{file}: sample {sample} has a blank text; give each sample a text")
    samples = Samples(run, checkpoint.path.name, file, texts, wanted)
    scorer: Scorer = scored(checkpoint, samples)
    note(f"{run}: {checkpoint.path.name} predicts {len(texts):,} samples of {file} ...")
    answers = _predicted(run, texts, saved, checkpoint, as_json=layout is not None)
    return scorer(answers)


def _predicted(
    run: Path, texts: List[str], saved: SavedOptions, checkpoint: Checkpoint, as_json: bool
) -> List[Dict[str, Any]]:
    """Predict the texts with ``amp-xla predict --json``; return its JSON objects, one per text.

    If possible, the command runs in the runtime that trained the run.
    """
    program = running("amp_xla")
    if in_own_environment():
        program = [str(ROOT / "amp-xla")]  # it chooses the runtime that trained the run
    words = ["predict", "--run", str(run), "--json", "--checkpoint", checkpoint.path.name]
    words += ["--recipe", saved.recipe] if saved.recipe else []
    if as_json:  # no text can look like a header
        named = (zip(("text", "pair"), text.split("\t")) for text in texts)
        texts = [json.dumps(dict(pairs)) for pairs in named]
    data = "".join(f"{text}\n" for text in texts).encode("utf-8")
    shown = {**os.environ, "RUNTIME_SHOWN": Path(sys.prefix).name}
    done = subprocess.run([*program, *words], input=data, stdout=subprocess.PIPE, env=shown)
    if done.returncode:
        raise AmpXlaError(f"{run}: predict ended with exit status {done.returncode}; see above")
    return list(map(json.loads, done.stdout.decode("utf-8").splitlines()))


def result_of(one: SampleScores, every: Sequence[SampleScores], seed: int) -> Dict[str, Any]:
    """Return the content of ``result.json`` for one run, compared with all other runs."""
    against = [one.against(other, seed) for other in every if other is not one]
    samples = one.samples
    return {
        "run": str(samples.run), "file": samples.file, "checkpoint": samples.checkpoint,
        "samples": len(samples.texts), "seed": seed, "per_label": [], "confusion": [],
        "mistakes": [], "calibration": [], **one.result(seed), "errors": one.errors(20),
        "against": [{**other, "verdict": _verdict(one.metric, other)} for other in against],
    }  # fmt: skip


def write(one: SampleScores, result: Dict[str, Any], errors: int) -> None:
    """Write ``result.json``, ``errors.tsv`` (at most ``errors`` rows) and the run's report."""
    run, folder = one.samples.run, _folder(one.samples.run, one.samples.file)
    head = "\t".join(one.columns)
    rows = ["\t".join(map(_cell, error.values())) for error in one.errors(errors)]
    folder.mkdir(parents=True, exist_ok=True)
    durable.replace(folder / "result.json", json_files.encode(result))
    durable.replace(folder / "errors.tsv", "\n".join([head, *rows, ""]).encode("utf-8"))
    page.write_run(run)
    note(f"written: {folder}/result.json, errors.tsv; {run}/{page.REPORT}")


def _folder(run: Path, file: str) -> Path:
    """Return the folder for the results of a file; raise OSError if it cannot be written."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in Path(file).name).strip(".")
    folder = run / record.EVALUATIONS / (name or "file")
    for path in (run, folder.parent, folder):
        regular.refuse_unwritable(path if path is run else regular.not_linked(path))
    return folder


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else output.printable(value)


def _text(result: Dict[str, Any]) -> Iterator[str]:
    yield f"{result['run']}, {result['checkpoint']}: {result['samples']:,} samples"
    wide = max(18, *map(len, result["metrics"]))
    for name, value in result["metrics"].items():
        ends = f"   95%: {value['low']:.4f} to {value['high']:.4f}" if "low" in value else ""
        if name == "calibration_error":
            ends = "   mean distance between probability and accuracy; 0 is best"
        yield f"  {name.replace('_', ' '):<{wide}} {value['value']:.4f}{ends}"
    if not result["per_label"]:
        return
    width = min(24, max(len(row["label"]) for row in result["per_label"]))
    unit = result.get("unit", "samples")
    yield f"  {'label':<{width}} precision  recall      f1 {unit:>8}"
    numbers = "{precision:9.4f} {recall:7.4f} {f1:7.4f} {support:8,}"
    for row in result["per_label"]:
        yield f"  {row['label'][:width]:<{width}} {numbers.format(**row)}"
    if result["mistakes"]:
        words = [f"{label} as {wrong} {count}" for count, label, wrong in result["mistakes"][:5]]
        yield f"  most frequent mistakes: {', '.join(words)}"


def _verdict(name: str, against: Dict[str, Any]) -> str:
    """Return as text whether a run is better or worse than another, by the score ``name``."""
    p = against.get("p", 0.0)  # without McNemar's test, the interval alone decides
    points, low, high = (100 * against[name][key] for key in ("value", "low", "high"))
    interval = f"{name} {points:+.1f} points, 95%: {low:+.1f} to {high:+.1f}"
    interval += f", McNemar p {p:.3g}" if "p" in against else ""
    verdict = "no significant difference"
    if p < 0.05 and (low > 0 or high < 0):
        verdict = "better" if low > 0 else "worse"
    return f"{verdict}, {interval}"
