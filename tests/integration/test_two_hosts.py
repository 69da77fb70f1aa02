"""Training on two hosts, which are connected network namespaces with different host names.

``amp-xla ranks --hosts`` runs in the first and reaches the second by a fake ``ssh`` that enters the
namespace. Both share the file system.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.horovod import need_horovod
from tests.support.killing import metrics
from tests.support.running import environment
from tests.tasks.classification.test_recipe import TINY, write_corpus

pytestmark = [pytest.mark.horovod, pytest.mark.slow, pytest.mark.once]

HOSTS = {f"amp-a-{os.getpid()}": "10.231.0.1", f"amp-b-{os.getpid()}": "10.231.0.2"}
# ssh -o ... -o ... HOST LINE. Each start sets the host name, which a namespace does not have.
ENTER = 'ip netns exec "$host" unshare --uts sh -c \'hostname "$0" && eval "$1"\' "$host" "$line"'
SSH = f'#!/bin/sh\nshift 4\nhost=$1 line=$2\necho "$host" >>"${{0%/*}}/asked"\nexec {ENTER}\n'


def ip(*words):
    done = subprocess.run(["ip", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stdout.decode().strip()}")


@pytest.fixture
def hosts():
    """Make two hosts that can look up each other; return their names."""
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


def connect(first, second):
    for name in (first, second):
        ip("netns", "add", name)
        # `ip netns exec` mounts this file as /etc/hosts. Horovod looks up the name of its host.
        folder = Path("/etc/netns", name)
        folder.mkdir(parents=True)
        lines = ["127.0.0.1 localhost", *(f"{address} {host}" for host, address in HOSTS.items())]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
    ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "cable", "netns", second)
    for name in (first, second):
        ip("-n", name, "address", "add", f"{HOSTS[name]}/24", "dev", "cable")
        for device in ("lo", "cable"):
            ip("-n", name, "link", "set", device, "up")


def listening(pid):
    """Return the addresses on which the host of a process takes connections."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    hexadecimal = {row[1].partition(":")[0] for row in rows if row[3] == "0A"}
    return {socket.inet_ntoa(bytes.fromhex(address)[::-1]) for address in hexadecimal}


def test_two_hosts_train_and_stop_in_order(hosts, tmp_path):
    write_corpus(tmp_path / "train.tsv", 400, 1)
    write_corpus(tmp_path / "dev.tsv", 80, 2)
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    enter = ["ip", "netns", "exec", hosts[0], "unshare", "--uts", "sh", "-c"]
    starter = [sys.executable, "-m", "amp_xla", "ranks", "--recipe", "classification"]
    starter += ["--hosts", ",".join(f"{host}:1" for host in hosts), "--"]
    data = ["--train", "train.tsv", "--dev", "dev.tsv", *TINY, "--epochs", "99", "--name", "two"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        ranks = subprocess.Popen(
            [*enter, 'hostname "$0" && exec "$@"', hosts[0], *starter, *data],
            cwd=str(tmp_path),
            env=environment({"PATH": f"{ssh.parent}:{os.environ['PATH']}"}),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + 120
        while "step 10/" not in log.read_text():
            assert time.monotonic() < end and ranks.poll() is None, log.read_text()
            time.sleep(0.2)
        assert listening(ranks.pid) == {HOSTS[hosts[0]]}, (
            "only the address that the other host needs"
        )
        ranks.send_signal(signal.SIGTERM)
        assert ranks.wait(60) == 143, log.read_text()
    finally:
        ranks.kill()
    text = log.read_text()
    assert "2 ranks share each batch" in text and "stopped by SIGTERM after step" in text
    assert (ssh.parent / "asked").read_text().split() == [hosts[1]]
    run = tmp_path / "runs" / "classification" / "two"
    assert metrics(run)[0]["step"] == 5 and list((run / "checkpoints").glob("step-*"))
