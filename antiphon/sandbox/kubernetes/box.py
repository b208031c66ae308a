"""A box (sandbox environment) that is a pod. An agent, the program that runs code and commands,
runs in the pod. The pod also contains a runtime, which forwards the server's requests to the
agent."""

from __future__ import annotations

import asyncio
import base64
import io
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import resources
from typing import TypeVar

import msgspec
import structlog

from antiphon.errors import ToolError
from antiphon.sandbox.agent_calls import (
    ENDED,
    FILE_TIMEOUT_S,
    AgentCalls,
    LimitsFrame,
    WriteFrame,
    decode_answer,
    is_relative_path,
    limits_request,
)
from antiphon.sandbox.base import ExecutionResult, Limits, OutputCallback
from antiphon.sandbox.egress.proxy import EgressProxy
from antiphon.sandbox.guest import AGENT_FILES
from antiphon.support.tasks import running

from .runtime import FileRefused, PodLost, PodRuntime

_T = TypeVar("_T")

_log = structlog.get_logger(__name__)

_ARCHIVE, _REQUEST = ".antiphon.zip", ".antiphon/request"
_COMMAND = f"python3 /mnt/{_ARCHIVE}"
_MAIN = "from guest.pod import main\nmain()\n"
_STOP_S = 10.0


class PodBox(AgentCalls):
    """A ``Box`` that is a pod. ``runtime``: the client of the runtime in the pod. ``release``: an
    async function that deletes the pod, by deleting its claim (the request for the pod)."""

    def __init__(
        self, runtime: PodRuntime, limits: Limits, release: Callable[[], Awaitable[None]]
    ) -> None:
        self._runtime = runtime
        self._limits = limits
        self._release = release
        self._call_lock = asyncio.Lock()
        self._is_closed = False
        self._shared_bytes: dict[str, int] = {}
        #: Version of the Python interpreter inside the pod.
        self.version = ""

    async def start(self) -> None:
        """Start the agent, the program in the pod that serves requests. Raises ``ToolError``."""
        try:
            await self._runtime.upload(_ARCHIVE, _agent_archive())
            await self._runtime.execute(f"{_COMMAND} serve", timeout_s=FILE_TIMEOUT_S)
        except (PodLost, FileRefused) as error:
            raise ToolError(f"The agent does not start in the pod: {error}.") from None
        answer = await self._request(limits_request(self._limits), LimitsFrame, FILE_TIMEOUT_S)
        self.version = answer.python

    @property
    def is_alive(self) -> bool:
        return not self._is_closed

    async def command(
        self,
        command: str,
        *,
        timeout_s: float,
        max_chars: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        """Run a command, as ``Box.command`` does. ``on_output`` gets all output after the command
        has ended, because the pod's runtime returns the output only then."""
        result = await super().command(command, timeout_s=timeout_s, max_chars=max_chars)
        if on_output is not None and (result.output or result.stderr):
            on_output(result.output[:max_chars], result.stderr[:max_chars])
        return result

    async def read(self, path: str) -> bytes | None:
        if not is_relative_path(path):
            return None
        async with self._pod() as pod:
            return await pod.download(f"data/{path}", self._limits.disk_bytes)

    async def write(self, path: str, content: bytes) -> None:
        if not is_relative_path(path) or len(content) > self._limits.disk_bytes:
            raise ToolError(f"{path} could not be written.")
        async with self._pod() as pod:
            try:
                await pod.upload(f"data/{path}", content)
            except FileRefused as error:
                raise ToolError(f"{path} could not be written: {error}") from None

    async def share(self, name: str, files: Mapping[str, bytes], scripts: Collection[str]) -> None:
        """Put files into the folder ``/mnt/skills/NAME``, as ``Box.share`` does. In a pod, the
        files are not protected: code can change them. Such changes affect only this pod."""
        others = sum(size for other, size in self._shared_bytes.items() if other != name)
        size = sum(map(len, files.values()))
        if size + others > self._limits.disk_bytes:
            raise ToolError(f"There is not enough disk space for {name} in this container.")
        if not all(map(is_relative_path, (name, *files))):
            raise ToolError(f"A file of {name} leads out of its folder.")
        encoded = {path: base64.b64encode(content).decode() for path, content in files.items()}
        frame = {"op": "share", "name": name, "files": encoded, "scripts": sorted(scripts)}
        await self._request(frame, WriteFrame, FILE_TIMEOUT_S)
        self._shared_bytes[name] = size

    async def open_network(self, proxy: EgressProxy) -> None:
        raise ToolError("Containers in Kubernetes have no network.")

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._release()

    async def _request(
        self,
        frame: Mapping[str, object],
        kind: type[_T],
        wait_s: float,
        on_output: OutputCallback | None = None,
    ) -> _T:
        async with self._pod():
            raw = await self._call(frame, wait_s)
        try:
            return decode_answer(raw, kind)
        except msgspec.MsgspecError:
            await self.close()
            raise ToolError(ENDED) from None

    async def _call(self, frame: Mapping[str, object], wait_s: float) -> bytes:
        try:
            await self._runtime.upload(_REQUEST, msgspec.json.encode({"tells": False, **frame}))
        except FileRefused as error:
            raise ToolError(f"The request does not fit into the container: {error}") from None
        execution = self._runtime.execute(f"{_COMMAND} call /mnt/{_REQUEST}", timeout_s=wait_s)
        async with running(execution) as call:
            try:
                return await asyncio.shield(call)
            except asyncio.CancelledError:
                await self._interrupt(call)
                raise

    @asynccontextmanager
    async def _pod(self) -> AsyncIterator[PodRuntime]:
        """Context manager for one request to the runtime, the HTTP server in the pod. Yields the
        client of the runtime. Only one request runs at a time. If the pod is lost, the context
        manager closes the box and raises ``ToolError``."""
        async with self._call_lock:
            if not self.is_alive:
                raise ToolError(ENDED)
            try:
                yield self._runtime
            except PodLost as error:
                _log.info("the pod of a container has ended", reason=str(error))
                await self.close()
                raise ToolError(ENDED) from None

    async def _interrupt(self, call: asyncio.Future[bytes]) -> None:
        """Interrupt the running request. ``call``: the task that waits for the answer to this
        request. If the request does not end in time, the box is closed."""
        with suppress(PodLost):
            await self._runtime.execute(f"{_COMMAND} stop", timeout_s=_STOP_S)
        done, _ = await asyncio.wait({call}, timeout=_STOP_S)
        if not done:
            call.cancel()
            await self.close()
        else:
            call.exception()  # mark the exception as retrieved: ``stop`` ended the command


def _agent_archive() -> bytes:
    """Return the code of the agent as a zip file that Python can run."""
    guest = resources.files("antiphon.sandbox.guest")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("__main__.py", _MAIN)
        opened.writestr("guest/__init__.py", "")
        for name in (*AGENT_FILES, "pod.py"):
            opened.writestr(f"guest/{name}", guest.joinpath(name).read_bytes())
    return archive.getvalue()
