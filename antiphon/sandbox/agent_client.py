"""Client of the agent, the program inside a bubblewrap box (a sandbox environment). It sends
requests to the agent and reads the agent's answers.

A box is untrusted, so everything that it sends is validated like the body of a client's request.
"""

from __future__ import annotations

import asyncio
import struct
from asyncio.subprocess import Process
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from antiphon.errors import ToolError
from antiphon.support.tasks import running

from .agent_calls import (
    ENDED,
    FILE_TIMEOUT_S,
    GRACE_S,
    AgentCalls,
    LimitsFrame,
    NetworkFrame,
    OutputFrame,
    ReadFrame,
    WriteFrame,
    decode_answer,
    limits_request,
)
from .base import ExecutionResult, Limits, OutputCallback
from .cgroups import BoxGroup
from .egress.proxy import PROXY_PORT, EgressProxy
from .shared_folder import SharedFolder

_T = TypeVar("_T")

_MAX_STDERR = 4000
#: Answers of more bytes are decoded in a thread.
_LARGE_BYTES = 1 << 20
_CERTIFICATE = "/run/network/ca.pem"
#: Environment variables that name the file of trusted CA certificates, for OpenSSL, Go, requests,
#: curl, Node, git and pip.
_CERTIFICATE_VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("GIT_SSL_CAINFO", "PIP_CERT"),
)


class AgentBox(AgentCalls):
    """A ``Box`` whose agent (the program inside the box) runs in a child process. The server talks
    to the agent over the standard input and output of the child process."""

    def __init__(
        self,
        process: Process,
        limits: Limits,
        shared: SharedFolder,
        group: BoxGroup | None = None,
    ) -> None:
        self._process = process
        self._group = group
        self._limits = limits
        self._shared = shared
        self._call_lock = asyncio.Lock()
        self._is_closed = False
        self._proxy: asyncio.Server | None = None
        self._egress: EgressProxy | None = None
        #: Version of the Python interpreter inside the box.
        self.version = ""

    @classmethod
    async def start(
        cls,
        process: Process,
        limits: Limits,
        shared: SharedFolder,
        wait_s: float,
        group: BoxGroup | None = None,
    ) -> AgentBox:
        """Create the box for an agent (the program inside the box) that has been started in
        ``process``, and wait until the agent answers.

        - ``shared``: the folder that the server shares with the box.
        - ``wait_s``: maximum time to wait, in seconds.
        - ``group``: the control group of the box. None if it has no control group.

        Raises ``ToolError`` if the agent does not answer in time. The message is the last line that
        the process wrote to standard error.
        """
        box = cls(process, limits, shared, group)
        try:
            answer = await box._request(limits_request(limits), LimitsFrame, wait_s)
            box.version = answer.python
        except ToolError:
            await asyncio.to_thread(box._remove_parts)
            raise ToolError(await box._start_error()) from None
        except BaseException:
            await box.close()
            raise
        return box

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and self._process.returncode is None

    async def read(self, path: str) -> bytes | None:
        frame = {"op": "read", "path": path, "most": self._limits.disk_bytes}
        return (await self._request(frame, ReadFrame, FILE_TIMEOUT_S)).content

    async def write(self, path: str, content: bytes) -> None:
        # In a thread: base64 of a large file takes a while.
        frame = await asyncio.to_thread(
            msgspec.json.encode, {"op": "write", "path": path, "content": content}
        )
        error = (await self._request(frame, WriteFrame, FILE_TIMEOUT_S)).error
        if error:
            raise ToolError(f"{path} could not be written: {error}")

    async def share(self, name: str, files: Mapping[str, bytes], scripts: Collection[str]) -> None:
        if not self.is_alive:
            raise ToolError(ENDED)
        await asyncio.to_thread(
            self._shared.put, name, files, scripts, max_bytes=self._limits.disk_bytes
        )

    async def open_network(self, proxy: EgressProxy) -> None:
        folder = self._shared.network
        self._egress = proxy
        self._proxy = await asyncio.start_unix_server(proxy.serve, str(folder / "proxy"))
        (folder / "proxy").chmod(0o666)  # only the user of the box can enter the folder
        (folder / "ca.pem").write_bytes(proxy.certificate)
        (folder / "ca.pem").chmod(0o644)
        environment = {**dict.fromkeys(_CERTIFICATE_VARIABLES, _CERTIFICATE), **proxy.environment}
        frame = {"op": "network", "environment": environment, "port": PROXY_PORT}
        await self._request(frame, NetworkFrame, FILE_TIMEOUT_S)

    async def close(self) -> None:
        self._is_closed = True
        if self._proxy is not None:
            self._proxy.close()
        if self._egress is not None:
            await self._egress.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:  # read to the end; fails if another task is reading the pipe
                with suppress(RuntimeError, OSError):
                    await pipe.read()
        await asyncio.to_thread(self._remove_parts)

    def _remove_parts(self) -> None:
        """Delete the folder and the control group that the server created for the box."""
        self._shared.close()
        if self._group is not None:
            self._group.remove()

    async def _run(
        self,
        frame: Mapping[str, object],
        timeout_s: float,
        max_chars: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        kills = 0 if self._group is None else self._group.oom_kills()
        result = await super()._run(frame, timeout_s, max_chars, on_output)
        if self._group is not None and self._group.oom_kills() > kills:
            result = replace(result, end_reason="memory")
        return result

    async def _request(
        self,
        frame: Mapping[str, object] | bytes,
        kind: type[_T],
        wait_s: float,
        on_output: OutputCallback | None = None,
    ) -> _T:
        async with self._call_lock:
            if not self.is_alive:
                raise ToolError(ENDED)
            self._send_frame(frame)
            async with running(self._read_response(on_output)) as response:
                try:
                    raw = await asyncio.wait_for(asyncio.shield(response), wait_s)
                except asyncio.CancelledError:
                    await self._interrupt(response)
                    raise
                except (OSError, EOFError, TimeoutError, ValueError):
                    response.cancel()
                    await self.close()
                    raise ToolError(ENDED) from None
        try:
            if len(raw) > _LARGE_BYTES:
                return await asyncio.to_thread(decode_answer, raw, kind)
            return decode_answer(raw, kind)
        except msgspec.DecodeError:
            await self.close()
            raise ToolError(ENDED) from None

    def _send_frame(self, frame: Mapping[str, object] | bytes) -> None:
        """Send a frame. ``frame``: its content, which may be encoded already."""
        assert self._process.stdin is not None
        body = frame if isinstance(frame, bytes) else msgspec.json.encode(frame)
        self._process.stdin.write(struct.pack(">I", len(body)))
        self._process.stdin.write(body)

    async def _read_response(self, on_output: OutputCallback | None) -> bytes:
        """Read frames from the agent (the program inside the box) until its answer is complete.
        Frames with new output are passed to ``on_output``. Return the last frame, which is the
        answer.

        Raises ``EOFError`` or ``OSError`` if the agent has ended, and ``ValueError`` if a frame is
        too long or malformed.
        """
        assert self._process.stdin is not None
        await self._process.stdin.drain()
        frame = await self._read_frame()
        while on_output is not None and frame.startswith(b'{"written"'):
            on_output(*msgspec.json.decode(frame, type=OutputFrame).output)
            frame = await self._read_frame()
        return frame

    async def _read_frame(self) -> bytes:
        assert self._process.stdout is not None
        (size,) = struct.unpack(">I", await self._process.stdout.readexactly(4))
        if size > 2 * self._limits.disk_bytes + (1 << 24):
            raise ValueError("a frame is too long")
        return await self._process.stdout.readexactly(size)

    async def _interrupt(self, response: asyncio.Future[bytes]) -> None:
        """Interrupt the running request. ``response``: the task that reads the answer of the agent
        (the program inside the box). If the agent answers in time, the box stays usable. If it does
        not, the box is closed."""
        with suppress(OSError):
            self._send_frame({"op": "stop"})
        done, _ = await asyncio.wait({response}, timeout=GRACE_S)
        if not done or response.exception() is not None:
            response.cancel()
            await self.close()

    async def _start_error(self) -> str:
        """Return the reason why the box did not start: the last line that its process wrote to
        standard error."""
        error_output = b""
        if self._process.stderr is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    error_output = await self._process.stderr.read(_MAX_STDERR)
        line = error_output.decode(errors="replace").strip().splitlines()[-1:]
        return line[0] if line else "it ended immediately"
