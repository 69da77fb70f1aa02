"""The cells of docs/notebook.md in a real kernel: stop, fit again, restart, resume, export."""

import os
import queue
import sys
import time

import pytest

from amp_xla.training import checkpoint
from tests.support.running import ROOT, environment
from tests.support.snippets import blocks

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(300)]
FILE, IMPORTS, FIT, EXPORT = blocks("notebook")
# A batch that is read while the file "go" is missing.
HOLD = """
import itertools, pathlib, time
class Held(Data):
    calls, at = itertools.count(), {at}
    def __getitem__(self, index):
        if next(self.calls) == self.at:
            pathlib.Path("held").touch()
            while not pathlib.Path("go").exists():
                time.sleep(0.05)
        return super().__getitem__(index)
"""


class Notebook:
    def __init__(self, folder):
        manager = pytest.importorskip("jupyter_client.manager")
        program = folder / "amp-xla"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m amp_xla "$@"\n')
        program.chmod(0o755)
        path = {"PATH": f"{folder}:{os.environ['PATH']}", "AMP_XLA_PRECISION": "fp32"}
        self.folder, self.kernel = folder, manager.KernelManager(kernel_name="python3")
        env = {"PYTHONPATH": str(ROOT), **path}
        self.kernel.start_kernel(cwd=str(folder), env=environment(env))
        self.connect()

    def connect(self):
        self.client = self.kernel.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def restart(self):
        self.client.stop_channels()
        self.kernel.restart_kernel(now=True)
        self.connect()

    def __call__(self, code, presses=0):
        """Run a cell, press stop while a batch is read; return the error and all that it shows."""
        for name in ("held", "go"):
            (self.folder / name).unlink() if (self.folder / name).exists() else None
        texts, errors, sent = [], [], self.client.execute(code)
        while True:
            if presses and (self.folder / "held").exists():
                for _ in range(presses):
                    self.kernel.interrupt_kernel()
                    time.sleep(0.7)  # an earlier second signal is the launcher's
                (self.folder / "go").touch()
                presses = 0
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                assert self.kernel.is_alive(), texts
                continue
            content = message["content"]
            if message["parent_header"].get("msg_id") == sent:
                texts.append(content.get("text", "") + "\n".join(content.get("traceback", ())))
                errors.append(content.get("ename", ""))
                if content.get("execution_state") == "idle":
                    return "".join(errors), "".join(texts)


def test_the_cells_of_the_page(tmp_path):
    notebook = Notebook(tmp_path)
    held = FIT.replace("Data()", "Held()")
    caught = held[: held.index("model.fit")] + "try:\n    " + held[held.index("model.fit") :]
    caught += "except KeyboardInterrupt:\n    print('saving', model.name)"
    try:
        assert notebook(FILE)[0] == notebook(IMPORTS)[0] == ""
        for code, at, error, line in (
            (held, 0, "KeyboardInterrupt", "stopped by SIGINT before the first step"),
            (caught, 15, "", "stopped by SIGINT after step"),
            (held, 5, "KeyboardInterrupt", "stopped by SIGINT after step"),
        ):
            assert notebook(HOLD.format(at=at))[0] == ""
            found, text = notebook(code, presses=2)
            assert found == error and line in text, text
            assert ("saving" in text) == (code is caught) and "exit" not in text, text
        assert notebook("model.name, Data()")[0] == ""  # variables are still there
        stopped = checkpoint.newest(tmp_path / "runs/mine/checkpoints")
        assert 15 < stopped.step < 30
        notebook.restart()
        assert notebook(IMPORTS)[0] == ""
        error, text = notebook(FIT)
        assert not error and f"resumed from {stopped.path.name}" in text and "done: " in text, text
        whole = FIT.replace("runs/mine", "runs/whole")
        assert notebook(f"resumed = model.get_weights()\n{whole}")[0] == ""
        same = "assert all((a == b).all() for a, b in zip(resumed, model.get_weights()))"
        assert notebook(same) == ("", "")
        error, text = notebook(EXPORT)
        assert not error and "written: exported, from step-00000030" in text, text
    finally:
        notebook.client.stop_channels()
        notebook.kernel.shutdown_kernel(now=True)
