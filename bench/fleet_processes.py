"""The processes of a fleet: llama-servers with a tiny model, and a router over them.

``VLLM_ROUTER`` and ``SMG`` name the programs of the routers, where they are not on the path.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

_ROOT = Path(__file__).parents[1]
_MODEL = _ROOT / "tests" / "tiny_models" / "tiny-tools" / "tiny-tools.gguf"
_LLAMA_SERVER = _ROOT / "tests" / "upstream" / "llama_server.py"
_WAIT_S = 300
#: Of which conversations are made.
WORDS = (
    "harbour lantern copper winter river garden engine paper mirror ladder basket thunder bridge"
    " candle forest pocket saddle window hammer needle".split()
)


class Router(Struct, frozen=True, kw_only=True):
    """A router's command. ``policy``: without the session's key, it chooses by the prompt.
    ``engine``: how Antiphon calls the engines behind it. ``setting``: the setting ``router``."""

    variable: str
    arguments: tuple[str, ...]
    policy: str
    engine: str
    setting: str


#: The simulated router, which needs no program.
SIMULATED = "a simulated router"
#: SMG refuses prompts of token ids for engines like these.
_IDS = f'engine = "completions"\nengine_options = {{ tokenizer = "{_MODEL}" }}'
ROUTERS = {
    SIMULATED: Router(variable="", arguments=(), policy="", engine=_IDS, setting="vllm-router"),
    "vllm-router": Router(
        variable="VLLM_ROUTER",
        arguments=("--prometheus-host", "127.0.0.1"),
        policy="consistent_hash",
        engine=_IDS,
        setting="vllm-router",
    ),
    "smg": Router(
        variable="SMG",
        arguments=("--backend", "sglang", "--prometheus-host", "127.0.0.1"),
        policy="consistent_hashing",
        engine='engine = "chat_completions"\nengine_options = { flavour = "llama-server" }',
        setting="smg",
    ),
}
#: vllm-router's own retries go to the same engine, and by default it takes 60 s to find that an
#: engine is back.
QUICK_CHECKS = (
    *("--disable-retries", "--health-check-interval-secs", "1", "--health-failure-threshold", "1"),
    *("--health-success-threshold", "1", "--cb-failure-threshold", "1"),
    *("--cb-success-threshold", "1", "--cb-timeout-duration-secs", "1"),
)


class Engine:
    """A llama-server that can be killed and started again at its address."""

    def __init__(self) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Start the llama-server and wait until it has loaded the model."""
        self._process = subprocess.Popen(
            [sys.executable, str(_LLAMA_SERVER), str(_MODEL), str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(f"{self.url}/health")
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def running_engines(count: int = 2) -> Iterator[list[Engine]]:
    """Start engines and yield them."""
    engines = [Engine() for _ in range(count)]
    try:
        yield engines
    finally:
        for engine in engines:
            engine.kill()


@contextmanager
def running_router(name: str, urls: Sequence[str], *more: str) -> Iterator[str]:
    """Start a router over the engines and yield its address."""
    row, port, metrics = ROUTERS[name], _free_port(), _free_port()
    program = router_program(name)
    assert program is not None
    if name == SIMULATED:
        command = [program, "-m", "bench.fleet_router", str(port), *urls]
    else:
        command = [
            *(program, *(["launch"] if name == "smg" else [])),
            *("--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls),
            *("--prometheus-port", str(metrics), "--policy", row.policy),
            *(*row.arguments, *more),
        ]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=_ROOT, stdout=log, stderr=log)
        try:
            _wait_for(f"http://127.0.0.1:{port}/v1/models")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(_WAIT_S)


def router_program(name: str) -> str | None:
    """Return the program of a router. Returns None if it is not installed."""
    if name == SIMULATED:
        return sys.executable
    return os.environ.get(ROUTERS[name].variable) or shutil.which(name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str) -> None:
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer")
