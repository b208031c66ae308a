"""The compared servers: how each is started over the upstream, with a store of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.config.model import DEFAULT_MODEL

from .llama_server import CONTEXT, PARALLEL, command
from .upstream import MODEL

#: Where ``make peers`` installs the others, each in an environment of its own.
_BUILD = Path(__file__).parents[2] / "build" / "peers"
_START_S = 120
#: LiteLLM would fetch a price list, and does not start without a key, which costs CPU time.
_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}


class Peer(Struct, frozen=True, kw_only=True):
    """A compared server. ``command`` returns its command line; it gets the port, the upstream's
    address and an empty folder. ``program``: a file that exists if the server is installed.
    ``share``: number of its requests relative to other servers; below 1 for a slow server."""

    name: str
    program: Path
    command: Callable[[int, str, Path], list[str]]
    share: float = 1.0


class PeerProcess(Struct):
    """A running server with all its child processes."""

    peer: Peer
    port: int
    pid: int

    @property
    def pids(self) -> list[int]:
        """Return all processes of the server's session."""
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.pid:
                    found.append(int(folder.name))
        return found

    @property
    def cpu_s(self) -> float:
        """CPU time of all threads so far, in seconds."""
        spent = 0
        for pid in self.pids:
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    with suppress(OSError):
                        spent += int((task / "schedstat").read_text().split()[0])
        return spent / 1e9

    @property
    def rss_bytes(self) -> int:
        """Return the resident memory of all processes, in bytes."""
        pages = 0
        for pid in self.pids:
            with suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def _antiphon(engine: str) -> Callable[[int, str, Path], list[str]]:
    def command(port: int, upstream: str, folder: Path) -> list[str]:
        config = folder / "antiphon.toml"
        config.write_text(
            f'[models.{MODEL}]\nsource = "{upstream}/v1"\nengine = "{engine}"\n'
            f'upstream_model = "{MODEL}"\n'
        )
        flags = ["--config", str(config), "--port", str(port), "--store", f"sqlite:{folder}/a.db"]
        return [sys.executable, "-m", "antiphon", "serve", *flags]

    return command


def _smg(port: int, upstream: str, folder: Path) -> list[str]:
    program = str(_BUILD / "smg" / "bin" / "smg")
    flags = ["--host", "127.0.0.1", "--prometheus-host", "127.0.0.1"]
    flags += ["--prometheus-port", str(_free_port()), "--log-level", "warn"]
    flags += ["--backend", "openai", "--history-backend", "memory"]
    return [program, "launch", "--port", str(port), "--worker-urls", upstream, *flags]


def _agentic_api(port: int, upstream: str, folder: Path) -> list[str]:
    program = str(_BUILD / "agentic-api" / "bin" / "agentic-server")
    flags = ["--llm-api-base", upstream, "--skip-llm-ready-check"]
    flags += ["--gateway-host", "127.0.0.1", "--gateway-port", str(port)]
    return [program, *flags, "--db-url", f"sqlite:///{folder}/a.db?mode=rwc"]


def _litellm(port: int, upstream: str, folder: Path) -> list[str]:
    config = folder / "litellm.yaml"
    config.write_text(
        f"model_list:\n  - model_name: {MODEL}\n    litellm_params:\n"
        f"      model: hosted_vllm/{MODEL}\n      api_base: {upstream}/v1\n      api_key: none\n"
    )
    program = str(_BUILD / "litellm" / "bin" / "litellm")
    flags = ["--host", "127.0.0.1", "--telemetry", "False"]
    return [program, "--config", str(config), "--port", str(port), *flags]


def _embedded(port: int, upstream: str, folder: Path) -> list[str]:
    config = folder / "antiphon.toml"
    config.write_text(
        f'[models.{MODEL}]\nsource = "{DEFAULT_MODEL}"\nthreads = 1\nparallel = {PARALLEL}\n'
        f"context_size = {CONTEXT}\n"
    )
    flags = ["--config", str(config), "--port", str(port), "--store", f"sqlite:{folder}/a.db"]
    return [sys.executable, "-m", "antiphon", "serve", *flags]


PEERS = (
    Peer(
        name="Antiphon, chat upstream",
        program=Path(sys.executable),
        command=_antiphon("chat_completions"),
    ),
    Peer(
        name="Antiphon, responses upstream",
        program=Path(sys.executable),
        command=_antiphon("responses"),
    ),
    Peer(
        name="agentic-api",
        program=_BUILD / "agentic-api" / "bin" / "agentic-server",
        command=_agentic_api,
    ),
    Peer(name="SMG", program=_BUILD / "smg" / "bin" / "smg", command=_smg),
    Peer(
        name="LiteLLM",
        program=_BUILD / "litellm" / "bin" / "litellm",
        command=_litellm,
        share=0.1,
    ),
)
#: Servers over llama-server with the default model, and with the model inside.
MODEL_PEERS = (
    Peer(name="llama-server", program=Path(sys.executable), command=command(PARALLEL, CONTEXT)),
    Peer(name="Antiphon, llama.cpp inside", program=Path(sys.executable), command=_embedded),
    msgspec.structs.replace(PEERS[0], name="Antiphon over it"),
    msgspec.structs.replace(PEERS[3], name="SMG over it"),
    msgspec.structs.replace(PEERS[4], name="LiteLLM over it", share=1.0),
)


def llama_server() -> Peer:
    """The upstream of ``MODEL_PEERS``."""
    return MODEL_PEERS[0]


@contextmanager
def started(peer: Peer, upstream: str, folder: Path) -> Iterator[PeerProcess]:
    """Start a server, wait until it answers, and stop it on exit. Raises ``RuntimeError``."""
    port = _free_port()
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            peer.command(port, upstream, folder),
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder,
            env=os.environ | _ENVIRONMENT,
        )
    try:
        _wait_until_up(process, port, folder)
        yield PeerProcess(peer=peer, port=port, pid=process.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.3)
    raise RuntimeError((folder / "log.txt").read_text(errors="replace")[-2000:])
