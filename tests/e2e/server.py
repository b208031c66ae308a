"""A real server process with the real embedded model, on a free loopback port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.real.embedded_model import smollm2

_WAIT_S = 60


class Server:
    """One process. ``url`` ends in ``/v1``."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/v1"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.root + path, timeout=60) as answer:
            return str(answer.read().decode())

    def running(self) -> int:
        """Return the number of running responses, from the metrics."""
        found = re.search(r"^antiphon_num_requests_running (\d+)", self.get("/metrics"), re.M)
        assert found is not None
        return int(found.group(1))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(_WAIT_S)


def antiphon(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "ANTIPHON_LOG_LEVEL": "error"}
    return subprocess.run(
        [sys.executable, "-m", "antiphon", *arguments],
        cwd=cwd,
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=_WAIT_S,
    )


@contextmanager
def serving(
    folder: Path,
    settings: str = "",
    *,
    store: str = "",
    model: str = "",
    environment: Mapping[str, str] = {},
) -> Iterator[Server]:
    """Serve from ``folder``, whose ``antiphon.toml`` gets ``settings`` too. By default from SQLite
    there, and the embedded model. ``environment``: further variables."""
    folder.mkdir(exist_ok=True)
    model = model or (
        f'[models.smollm2]\nsource = "{smollm2()}"\naliases = ["gpt-5.5"]\n'
        "threads = 1\ncontext_size = 2048\nparallel = 4\n"
    )
    store = store or f"sqlite:{folder}/responses.db"
    if "sandbox" not in settings:  # on by default, but it takes time to start
        settings = f'sandbox.kind = "off"\n{settings}'
    (folder / "antiphon.toml").write_text(
        f'port = 0\nstore = "{store}"\nlog_level = "error"\n{settings}\n{model}'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "antiphon", "serve"],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Server(process, _port(process))
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(_WAIT_S)
        if process.stdout is not None:
            process.stdout.close()


def _port(process: subprocess.Popen[str]) -> int:
    """Return the port, read from the banner."""
    assert process.stdout is not None
    chunks = []
    begun = time.monotonic()
    for line in process.stdout:
        chunks.append(line)
        if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)) is not None:
            return int(found.group(1))
        if time.monotonic() - begun > _WAIT_S:
            break
    raise AssertionError("the server did not start: " + "".join(chunks))
