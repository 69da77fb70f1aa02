"""Training on two hosts, which are connected network namespaces with different host names.

Each runs one task of a Slurm step, with the variables that srun sets. Both share the file system.
"""

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
    starter = [sys.executable, "-m", "amp_xla", "ranks", "classification", "--slurm", "--"]
    data = ["--train", "train.tsv", "--dev", "dev.tsv", *TINY, "--epochs", "99", "--name", "two"]
    step = {
        "SLURM_STEP_NODELIST": ",".join(hosts), "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_LOCALID": "0", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0",
    }  # fmt: skip
    logs = [tmp_path / host for host in hosts]
    tasks = []
    for node, (host, log) in enumerate(zip(hosts, logs)):
        # Each start sets the host name, which a namespace does not have.
        enter = ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c"]
        command = [*enter, 'hostname "$0" && exec "$@"', host, *starter, *data]
        env = environment({**step, "SLURM_NODEID": str(node)})
        with log.open("wb") as out:
            tasks.append(
                subprocess.Popen(command, cwd=str(tmp_path), env=env, stdout=out, stderr=out)
            )
    try:
        end = time.monotonic() + 120
        while "step 10/" not in logs[0].read_text():
            assert time.monotonic() < end and tasks[0].poll() is None, logs[0].read_text()
            time.sleep(0.2)
        assert HOSTS[hosts[0]] in listening(tasks[0].pid), "the address that the other host needs"
        for task in tasks:
            task.send_signal(signal.SIGTERM)
        assert [task.wait(60) for task in tasks] == [143, 143], [log.read_text() for log in logs]
    finally:
        for task in tasks:
            task.kill()
    text = logs[0].read_text()
    assert "2 ranks share each batch" in text and "stopped by SIGTERM after step" in text
    run = tmp_path / "runs" / "classification" / "two"
    assert metrics(run)[0]["step"] == 5 and list((run / "checkpoints").glob("step-*"))
