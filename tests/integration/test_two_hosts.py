"""Two hosts: network namespaces with addresses and host names of their own, joined by a cable.

``amp_xla ranks --hosts`` runs in the first and reaches the second by an ``ssh`` that enters it.
Both have the same files, as hosts that share a folder do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from tests.horovod import need_horovod
from tests.running import environment

pytestmark = [pytest.mark.horovod, pytest.mark.slow, pytest.mark.once]

HOSTS = {f"amp-a-{os.getpid()}": "10.231.0.1", f"amp-b-{os.getpid()}": "10.231.0.2"}
# ssh -o ... -o ... HOST LINE. A namespace has no host name of its own, so each start sets one.
ENTER = 'ip netns exec "$host" unshare --uts sh -c \'hostname "$0" && eval "$1"\' "$host" "$line"'
SSH = f'#!/bin/sh\nshift 4\nhost=$1 line=$2\necho "$host" >>"${{0%/*}}/asked"\nexec {ENTER}\n'
MODEL = ["--layers", "1", "--hidden", "64", "--max-length", "16", "--vocab-size", "100"]
DATA = ["--train", "train.tsv", "--dev", "dev.tsv", "--shapes", "1", "--precision", "fp32"]
PACE = ["--batch-size", "8", "--epochs", "2", "--log-every", "1", "--dropout", "0"]


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stdout.decode().strip()}")


@pytest.fixture
def hosts() -> Iterator[List[str]]:
    """Names of the two hosts; each finds both by name."""
    need_horovod()
    names = list(HOSTS)
    try:
        try:
            connect(*names)
        except OSError as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
            names_of = Path("/etc/netns", name)
            if names_of.exists():
                (names_of / "hosts").unlink()
                names_of.rmdir()


def connect(first: str, second: str) -> None:
    for name in (first, second):
        ip("netns", "add", name)
        # `ip netns exec` puts it in the place of /etc/hosts. Horovod looks up its own host's name.
        folder = Path("/etc/netns", name)
        folder.mkdir(parents=True)
        lines = ["127.0.0.1 localhost", *(f"{address} {host}" for host, address in HOSTS.items())]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
    ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "cable", "netns", second)
    for name in (first, second):
        ip("-n", name, "address", "add", f"{HOSTS[name]}/24", "dev", "cable")
        for device in ("lo", "cable"):
            ip("-n", name, "link", "set", device, "up")


def run(folder: Path, *command: str, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=str(folder),
        env=environment(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    out = done.stdout.decode()
    assert done.returncode == 0, out[-4000:]
    return out


def lines(folder: Path, name: str) -> List[Dict[str, Any]]:
    text = (folder / "runs" / "classification" / name / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_two_hosts_train_as_one_process_does(hosts: List[str], tmp_path: Path) -> None:
    for name, count in (("train.tsv", 64), ("dev.tsv", 16)):
        texts = [f"{'rain wind' if i % 3 else 'soup salt'} w{i % 7}" for i in range(count)]
        rows = [f"{text}\t{'rain' in text}" for text in texts]
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    train = [sys.executable, "-m", "recipes.classification"]
    words = [*MODEL, *DATA, *PACE]
    run(tmp_path, *train, *words, "--name", "begun")
    # Seeded weights depend on the graph in TensorFlow 1.15, so all begin with those of one run.
    words += ["--warm-start", "runs/classification/begun"]
    run(tmp_path, *train, *words, "--name", "one")
    starter = [sys.executable, "-m", "amp_xla", "ranks", "--recipe", "classification"]
    starter += ["--hosts", ",".join(f"{host}:1" for host in hosts), "--", *words, "--name", "two"]
    path = f"{ssh.parent}:{os.environ['PATH']}"
    enter = ["ip", "netns", "exec", hosts[0], "unshare", "--uts", "sh", "-c"]
    out = run(tmp_path, *enter, 'hostname "$0" && exec "$@"', hosts[0], *starter, PATH=path)

    assert "2 ranks share each batch" in out
    assert (ssh.parent / "asked").read_text().split() == [hosts[1]]
    one, two = lines(tmp_path, "one"), lines(tmp_path, "two")
    assert len([line for line in one if "loss" in line]) == 16
    assert len(one) == len(two)
    for alone, together in zip(one, two):
        measured = [key for key in alone if key.endswith(("loss", "accuracy", "norm", "step"))]
        assert measured
        for key in measured:
            assert together[key] == pytest.approx(alone[key], rel=1e-5), alone
