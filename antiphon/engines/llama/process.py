"""Start and stop the process that runs llama.cpp. If the process ends unexpectedly, its running
requests fail, and the next request starts a new process."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
import tempfile
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from antiphon.errors import BackendError, LoadInterrupted, SetupError
from antiphon.support.processes import describe_end, kill
from antiphon.support.tasks import BackgroundTasks

from .client import LlamaClient
from .server_program import ServerSetup, ServerStart, encode_setup

_log = structlog.get_logger(__name__)

_LOOPBACK = "127.0.0.1"
_PROGRAM = "antiphon.engines.llama.server_program"
_decode = msgspec.json.Decoder(ServerStart).decode


class LlamaProcess:
    """A process that runs llama.cpp with one model. Use it on one event loop only.

    ``setup``: what the process needs, without the fields ``host``, ``port`` and ``key``.
    """

    def __init__(self, setup: ServerSetup) -> None:
        self._setup = setup
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._watches = BackgroundTasks("watch of llama.cpp")
        # The folder is private to this user, and so is the socket in it.
        self._folder = tempfile.TemporaryDirectory(prefix="antiphon-")
        self._closed = False
        #: Number of CPU threads; 0 before the first start.
        self.threads = 0
        #: Client for the process. It is replaced when the process is started again.
        self.client = LlamaClient("", 0, "")

    @property
    def pid(self) -> int | None:
        """The process id; None if the process does not run."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process if it does not run, and wait until the model is loaded. Raises
        ``SetupError`` if the model cannot be loaded, and ``BackendError`` after ``close``."""
        if self._process is not None:
            return
        async with self._starting:
            if self._closed:
                raise BackendError("The engine is closed.")
            if self._process is None:
                await self._start()

    async def _start(self) -> None:
        (host, port), key = self._address(), secrets.token_urlsafe(32)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", _PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            setup = replace(self._setup, host=host, port=port, key=key)
            problem = await self._load(process, setup)
        except BaseException:
            await _end(process)
            raise
        if problem:
            await _end(process)
            raise SetupError(f"llama.cpp cannot load {self._files()}: {problem}.")
        self._process, self.client = process, LlamaClient(host, port, key)
        self._watches.start(self._watch(process))

    def _address(self) -> tuple[str, int]:
        """Return the address at which the process shall listen; see ``ServerSetup``. Windows has no
        Unix sockets, so there it is a free port of this machine."""
        if hasattr(socket, "AF_UNIX"):
            path = Path(self._folder.name, "llama.sock")
            path.unlink(missing_ok=True)
            return str(path), 0
        with socket.create_server((_LOOPBACK, 0)) as probe:
            port: int = probe.getsockname()[1]
            return _LOOPBACK, port

    async def _load(self, process: asyncio.subprocess.Process, setup: ServerSetup) -> str:
        """Send the setup to the process, and wait until it has loaded the model. Returns the
        problem; empty if there is none. Raises ``LoadInterrupted``."""
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(ConnectionError):  # the process has ended; see below
            process.stdin.write(encode_setup(setup) + b"\n")
            await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            end = describe_end(await process.wait())
            raise LoadInterrupted(
                f"llama.cpp cannot load {self._files()}: its process ended with {end}."
            )
        start = _decode(line)
        self.threads = start.threads
        return start.problem

    def _files(self) -> str:
        setup = self._setup
        draft = setup.speculation and setup.speculation.draft_model
        others = [str(each) for each in (setup.projector, draft, *setup.adapters) if each]
        return f"{setup.model}{' with ' if others else ''}{', '.join(others)}"

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        self._process = None
        if process.stdin is not None:
            process.stdin.close()
        if not self._closed:
            _log.error("llama.cpp has ended", model=self._setup.model, code=code)

    async def end(self, client: LlamaClient) -> None:
        """End the process, because a connection of ``client`` broke. Does nothing if the process
        has already been replaced by a new one."""
        if client is self.client and self._process is not None:
            await _end(self._process)
            await self._watches.wait()

    async def close(self) -> None:
        """End the process. Running requests fail."""
        self._closed = True
        async with self._starting:
            if self._process is not None:
                await _end(self._process)
            await self._watches.wait()
        self._folder.cleanup()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process. It holds nothing but memory, so it needs no time to clean up."""
    await kill(process)
    if process.stdin is not None:
        process.stdin.close()
