"""Two ranks on two hosts over a real ssh; the second host is another address of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator

import pytest

from tests.horovod import need_horovod
from tests.integration.test_classification import TINY, write_corpus
from tests.packaging.slurm_node import free_ports
from tests.running import environment

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
HOST = "127.0.0.2"
SERVER = """
ListenAddress {host}
Port {port}
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/pid
StrictModes no
UsePAM no
PermitRootLogin yes
"""
CLIENT = """
Host {host}
  Port {port}
  IdentityFile {folder}/key
  UserKnownHostsFile {folder}/known_hosts
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.once,
    pytest.mark.skipif(SSHD is None or not shutil.which("ssh"), reason="no ssh or no sshd here"),
]


@pytest.fixture
def with_ssh(tmp_path: Path) -> Iterator[str]:
    """A PATH whose ssh reaches HOST."""
    need_horovod()
    names = {"host": HOST, "port": free_ports(1)[0], "folder": tmp_path}
    (tmp_path / "sshd_config").write_text(SERVER.format(**names))
    (tmp_path / "config").write_text(CLIENT.format(**names))
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {tmp_path}/config "$@"\n')
    (tmp_path / "ssh").chmod(0o755)
    key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")]
    subprocess.run(key, check=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # it asks for that
    with (tmp_path / "sshd.log").open("wb") as log:
        serve = [str(SSHD), "-D", "-e", "-f", str(tmp_path / "sshd_config")]
        server = subprocess.Popen(serve, stderr=log)
    path = f"{tmp_path}:{os.environ['PATH']}"
    probe = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", HOST, "true"]
    try:
        for _ in range(30):
            reached = subprocess.run(probe, env={**os.environ, "PATH": path}, capture_output=True)
            if reached.returncode == 0:
                break
            time.sleep(0.2)
        else:
            pytest.skip(f"sshd lets nobody in: {reached.stderr.decode()}")
        yield path
    finally:
        server.terminate()
        server.wait(10)


def test_two_hosts_train_and_stop_in_order(with_ssh: str, tmp_path: Path) -> None:
    write_corpus(tmp_path / "train.tsv", 4000, 1)
    write_corpus(tmp_path / "dev.tsv", 80, 2)
    words = ["--train", "train.tsv", "--dev", "dev.tsv", *TINY, "--epochs", "99", "--name", "two"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        ranks = subprocess.Popen(
            [sys.executable, "-m", "amp_xla", "ranks", "--hosts", f"localhost:1,{HOST}:1", "--"]
            + words,
            cwd=str(tmp_path),
            env=environment({"PATH": with_ssh}),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + 90
        while "step 10/" not in log.read_text():
            assert time.monotonic() < end and ranks.poll() is None, log.read_text()
            time.sleep(0.2)
        ranks.send_signal(signal.SIGTERM)
        assert ranks.wait(60) == 143, log.read_text()
    finally:
        ranks.kill()
    text = log.read_text()
    assert "2 ranks share each batch" in text and "stopped by SIGTERM after step" in text
    assert (tmp_path / "runs" / "classification" / "two").is_dir()
    # Once to find out whether it lets us in, once for the second rank.
    assert (tmp_path / "sshd.log").read_text().count("Accepted publickey") == 2
