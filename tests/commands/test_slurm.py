"""Tasks of Slurm become ranks; scripts/slurm/train.sbatch, with programs in place of Slurm's."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from amp_xla.commands import slurm
from amp_xla.errors import AmpXlaError
from amp_xla.process import world
from amp_xla.process.world import World
from tests.support.horovod import need_horovod
from tests.support.killing import metrics
from tests.support.running import ROOT, environment, shell_environment, start_python, until
from tests.tasks.classification.test_recipe import TINY, write_corpus

pytestmark = pytest.mark.once
STEP = {
    "SLURM_STEP_NODELIST": "gpu[08-09,11],big",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}


def test_a_task_and_the_names_of_its_nodes():
    names = "a008-ib a009-ib a010-ib a7-ib b r0n2 r0n3 r1n2 r1n3"
    assert slurm.expand("a[008-010,7]-ib,b,r[0-1]n[2-3]") == names.split()
    task = slurm.read(STEP)
    assert task.plan == "gpu08:2,gpu09:2,gpu11:2,big:1"
    assert slurm.read({**STEP, "SLURM_NODEID": "3", "SLURM_LOCALID": "0"}).port == task.port
    assert slurm.read({**STEP, "SLURM_STEP_ID": "1"}).port != task.port
    assert slurm.read({**STEP, "HOROVOD_GLOO_RENDEZVOUS_PORT": "29400"}).port == 29400
    for port in ("abc", "70000", "0", "-1", "2.0"):
        with pytest.raises(AmpXlaError, match=f"RENDEZVOUS_PORT={port}; allowed: .* 1 to 65535"):
            slurm.read({**STEP, "HOROVOD_GLOO_RENDEZVOUS_PORT": port})
    with pytest.raises(AmpXlaError, match=r"srun did not start.*train\.sbatch"):
        slurm.read({"SLURM_JOB_ID": "4711"})  # a shell of an allocation


@pytest.mark.slow
def test_each_task_has_another_rank():
    need_horovod()
    places = [(node, local) for node, slots in enumerate((2, 2, 2, 1)) for local in range(slots)]
    for rank, (node, local) in enumerate(places):
        place = {"SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
        task = slurm.read({**STEP, **place})
        variables = slurm.variables(task.slot, "10.0.0.1", "eth0", task.port)
        names = ("RANK", "SIZE", "LOCAL_RANK", "CROSS_RANK", "GLOO_RENDEZVOUS_ADDR")
        values = [variables[f"HOROVOD_{name}"] for name in names]
        assert values == [str(rank), "7", str(local), str(node), "10.0.0.1"]


def test_the_interface_and_the_first_nodes_name_may_be_unknown(monkeypatch):
    need_horovod()
    step = {**STEP, "SLURM_STEP_NODELIST": "no.invalid,localhost", "SLURM_NODEID": "0",
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_LOCALID": "0"}  # fmt: skip
    monkeypatch.setattr(slurm, "_serve", lambda task, address: None)
    assert slurm.join(step)["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
    monkeypatch.setattr("psutil.net_if_addrs", dict)
    with pytest.raises(AmpXlaError, match="no network interface .* set .*HOROVOD_GLOO_IFACE"):
        slurm.join(step)
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "eth7")
    assert slurm.join(step)["HOROVOD_GLOO_IFACE"] == "eth7"


@pytest.mark.parametrize("other", ["", "4711.1"])
def test_ranks_of_two_jobs_do_not_meet_at_one_port(monkeypatch, other):
    need_horovod()
    server = slurm.rendezvous("127.0.0.1", 0, slurm.assign("localhost:2"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(server.server_address[1]))
    monkeypatch.setattr(world, "_START_SECONDS", 1.0)
    for job in (other, "4711.0"):
        monkeypatch.setenv(world.MEETING, job)
        with pytest.raises(AmpXlaError, match="rank [01] has not started"):
            world.meet(World(int(job == other), 2))
    monkeypatch.setenv(world.MEETING, other)
    world.meet(World(0, 2))  # both of one job


JOIN = """
import os, sys
from amp_xla.commands import slurm
from amp_xla.errors import AmpXlaError

try:
    print(slurm.join(os.environ)["HOROVOD_RANK"], flush=True)
except AmpXlaError as error:
    sys.exit(f"error: {error}")
sys.stdin.read()
"""


def test_the_first_task_serves_until_it_has_ended():
    need_horovod()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    step = {
        **STEP, "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "3",
        "SLURM_NODEID": "0", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }  # fmt: skip

    def task(local):
        return start_python("-c", JOIN, **{**step, "SLURM_LOCALID": str(local)})

    tasks = [task(local) for local in (1, 0)]  # the first one waits for the second
    assert [one.stdout.readline() for one in tasks] == [b"1\n", b"0\n"]
    _, refused = task(0).communicate(timeout=60)
    assert refused.startswith(b"error: port %d of localhost, where the ranks meet: Addr" % port)
    for one in reversed(tasks):
        assert one.communicate(timeout=60) == (b"", b"")  # the server holds no stream open

    def has_ended():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    until(has_ended)


SCRIPT = ROOT / "scripts" / "slurm" / "train.sbatch"
# This srun writes down its arguments. It ends once the file $END exists, or with 0 after SIGUSR1.
PROGRAMS = {
    "srun": """trap 'exit 0' USR1
printf '%s\\n' "${0##*/}" "$@" > "$WORDS.new" && mv "$WORDS.new" "$WORDS"
while [ ! -e "$END" ]; do sleep 0.05; done
exit 75
""",
    "scontrol": 'echo "$@" > "$WORDS.scontrol"\n',
    "amp-xla": f"echo {sys.executable}\n",
}


@pytest.fixture
def checkout(tmp_path):
    """Make a folder like a checkout, whose environment is this Python."""
    (tmp_path / "recipes").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def start(checkout, container=""):
    """Start the script; return it once srun runs."""
    variables = dict(
        PATH=f"{checkout}:{os.environ['PATH']}", WORDS=str(checkout / "words"),
        END=str(checkout / "end"), SLURM_SUBMIT_DIR=str(checkout), SLURM_JOB_ID="7",
        SLURM_CPUS_PER_TASK="8", CONTAINER=container, DATA="/d",
    )  # fmt: skip
    script = subprocess.Popen(
        ["bash", str(SCRIPT), "--epochs", "3"],
        cwd=str(checkout),
        env=shell_environment(**variables),
    )
    until((checkout / "words").exists)
    return script


@pytest.mark.parametrize(
    ("container", "started"),
    [
        ("", [sys.executable]),
        ("i.sif", "apptainer exec --nv --bind {0},/d:/d:ro --pwd {0} i.sif python3".split()),
        ("nvcr.io#a/b:1", ["--container-image=nvcr.io#a/b:1", "--container-workdir={0}",
                           "--container-mounts={0}:{0},/d:/d:ro", "python3"]),
    ],
)  # fmt: skip
def test_one_script_for_all_containers(checkout, container, started):
    (checkout / "end").touch()
    assert start(checkout, container).wait(30) == 75  # the exit code of a lost rank
    rank = "-m amp_xla ranks --slurm --recipe classification -- --name slurm-7 --resume"
    assert (checkout / "words").read_text().splitlines() == [
        *("srun", "--wait=300", "--cpus-per-task=8"),
        *(word.format(checkout) for word in started),
        *rank.split(),
        *("--epochs", "3"),
    ]
    assert not (checkout / "words.scontrol").exists()


def test_a_preempted_job_is_queued_again(checkout):
    script = start(checkout)
    caught = r"SigCgt:.*[2367abef]..\n"  # signal 10 is SIGUSR1, so the script has set its trap
    until(lambda: re.search(caught, Path(f"/proc/{script.pid}/status").read_text()))
    script.send_signal(signal.SIGUSR1)
    assert script.wait(30) == 0
    assert (checkout / "words.scontrol").read_text() == "requeue 7\n"


# Two network namespaces with host names, connected, on one file system. Each runs one task.
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


@pytest.mark.horovod
@pytest.mark.slow
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
        until(lambda: "step 10/" in logs[0].read_text() or tasks[0].poll() is not None)
        assert tasks[0].poll() is None, logs[0].read_text()
        rows = Path(f"/proc/{tasks[0].pid}/net/tcp").read_text().splitlines()[1:]
        places = [row.split()[1] for row in rows if row.split()[3] == "0A"]  # that listen
        found = {socket.inet_ntoa(bytes.fromhex(place[:8])[::-1]) for place in places}
        assert HOSTS[hosts[0]] in found, "the address that the other host needs"
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
