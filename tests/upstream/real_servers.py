"""Real servers with their usual commands: found on this machine, started on the loopback with a
time limit, and stopped in the end. Nothing is downloaded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

from msgspec import Struct

from tests.tiny_models.tiny_tools import FOLDER, GGUF

_ROOT = Path(__file__).parents[2]
#: Time limit for a start, in seconds: vLLM is the slowest, on two busy cores.
_START_S = 240
_STOP_S = 20
#: No telemetry and no downloads.
_OFFLINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}


class Missing(Exception):
    """The server is not on this machine."""


class Real(Struct, frozen=True, kw_only=True):
    """``command``: starts it on a port; raises ``Missing``. ``ready``: where it answers once it can
    be asked. ``model``: what it calls the tiny model; None: whatever it lists."""

    command: Callable[[int], list[str]]
    ready: str = "health"
    model: str | None = None


def _program(variable: str, name: str, *places: Path) -> str:
    """The program named by the environment, or found on this machine."""
    if result := os.environ.get(variable):
        return result
    for place in places:
        if place.is_file():
            return str(place)
    if found := shutil.which(name):
        return found
    raise Missing(f"no {name} on the path, and {variable} names none")


_BESIDE = Path(sys.executable).parent


def _vllm(port: int, folder: Path = FOLDER, *more: str) -> list[str]:
    return [
        _program("VLLM", "vllm", _BESIDE / "vllm", _ROOT / ".venv-vllm" / "bin" / "vllm"),
        *("serve", str(folder), *more, "--host", "127.0.0.1", "--port", str(port)),
        *("--enforce-eager", "--dtype", "float32", "--block-size", "32"),
        *("--max-model-len", "1024", "--enable-prompt-tokens-details"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]


def _vllm_held(backend: str) -> Callable[[int], list[str]]:
    """Without white space in JSON, which so small a model would write without end."""
    config = json.dumps({"backend": backend, "disable_any_whitespace": True})
    return lambda port: _vllm(port, FOLDER, "--structured-outputs-config", config)


def seeing_vllm(folder: Path) -> Real:
    """vLLM with the image model in ``folder``. Needs torchvision."""

    def command(port: int) -> list[str]:
        started = _vllm(port, folder, "--enable-scale-out")
        python = Path(started[0]).with_name("python")
        requests = [python, "-c", "import torchvision"]
        if (
            python.is_file()
            and subprocess.run(requests, capture_output=True, check=False).returncode
        ):
            raise Missing("vLLM is there, but its torchvision is not, or of another PyTorch")
        return started

    return Real(command=command)


def _sglang(port: int, *more: str) -> list[str]:
    """``make sglang`` makes it for the CPU; ``SGLANG`` names another environment's Python."""
    python = Path(os.environ.get("SGLANG") or _ROOT / ".venv-sglang" / "bin" / "python")
    if not python.is_file():
        raise Missing("no SGLang in .venv-sglang, and SGLANG names no Python that has it")
    return [
        *(str(python), str(Path(__file__).with_name("sglang_server.py"))),
        *("--model-path", str(FOLDER), "--host", "127.0.0.1", "--port", str(port)),
        *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"),
        *("--sampling-backend", "pytorch", "--max-total-tokens", "16384"),
        *("--context-length", "1024", "--tool-call-parser", "qwen"),
        *("--constrained-json-disable-any-whitespace", *more),
    ]


def _sglang_llguidance(port: int) -> list[str]:
    return _sglang(port, "--grammar-backend", "llguidance")


def _transformers(port: int) -> list[str]:
    return [
        _program("TRANSFORMERS", "transformers", _BESIDE / "transformers"),
        *("serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", str(FOLDER)),
    ]


def _llama(port: int) -> list[str]:
    """llama.cpp's own program, or its server in the Python package; in ``make check`` that is left
    to ``tests/e2e/test_upstreams.py``."""
    try:
        program = _program("LLAMA_SERVER", "llama-server")
    except Missing:
        if None in (find_spec("xllamacpp"), find_spec("torch")):
            raise
        script = Path(__file__).with_name("llama_server.py")
        return [sys.executable, str(script), str(GGUF), str(port)]
    return [
        *(program, "-m", str(GGUF), "--host", "127.0.0.1", "--port", str(port)),
        *("--jinja", "-c", "4096", "-np", "4", "-t", "1"),
    ]


SERVERS: Mapping[str, Real] = {
    "vllm": Real(command=_vllm_held("xgrammar")),
    "vllm, guidance": Real(command=_vllm_held("guidance")),
    "sglang": Real(command=_sglang),
    "sglang, llguidance": Real(command=_sglang_llguidance),
    "transformers": Real(command=_transformers, model=str(FOLDER)),
    "llama-server": Real(command=_llama),
}


@contextmanager
def serving(real: Real) -> Iterator[str]:
    """Yield the server's address. Raises ``Missing`` if it is not installed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with TemporaryFile() as log:
        command = real.command(port)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            # vLLM calls ninja, which is in the same folder
            env={**os.environ, **_OFFLINE, "PATH": _our_field(command[0])},
            start_new_session=True,
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}/{real.ready}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            _stop(process)
            if process.stdin is not None:
                process.stdin.close()


def _our_field(program: str) -> str:
    return os.pathsep.join((str(Path(program).parent), os.environ.get("PATH", "")))


def _wait(process: subprocess.Popen[bytes], url: str, log: object) -> None:
    until = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    log.seek(0)  # type: ignore[attr-defined]
    output = log.read().decode("utf-8", "replace")  # type: ignore[attr-defined]
    raise AssertionError(f"{process.args!r} does not answer:\n{output[-4000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop all processes of the group: engines have child processes."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            process.wait(_STOP_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
