"""Start and stop the OpenVINO worker process, send requests to it, and read its messages. This
module runs in the parent process.

If the worker process ends unexpectedly, its running requests fail. The next request starts a new
worker process.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable

import msgspec

from antiphon.errors import BackendError, EngineLost, LoadInterrupted, SetupError
from antiphon.support.processes import describe_end, kill
from antiphon.support.tasks import BackgroundTasks

from .protocol import (
    LENGTH_PREFIX,
    CancelRequest,
    GenerateRequest,
    LoadResult,
    ToParent,
    ToWorker,
    pack,
    payload_size,
    unpack_for_parent,
)
from .worker import WorkerSetup

_LOAD_TIMEOUT_S, _SHUTDOWN_TIMEOUT_S = 600.0, 5.0

MessageHandler = Callable[[ToParent | BackendError], None]


class WorkerProcess:
    """Starts and stops the worker process, which runs the model, and exchanges messages with it.
    Use this class in the parent process, and on one event loop only."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._start_lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._readers = BackgroundTasks("reader of an engine process")
        self._listeners: dict[int, MessageHandler] = {}
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the worker process if it does not run. Wait until the model is loaded.

        Raises ``SetupError`` if the model cannot be loaded, and ``BackendError`` if the engine is
        closed.
        """
        async with self._start_lock:
            if self._closed:
                raise BackendError("The engine is closed.")
            if self._process is not None:
                return
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "antiphon.engines.openvino.worker"),
                msgspec.json.encode(self._setup).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=2**20,
            )
            try:
                problem = await self._wait_until_ready(process)
            except BaseException:
                await kill(process)
                raise
            if problem:
                await kill(process)
                raise SetupError(f"OpenVINO cannot load {self._setup.model}: {problem}")
            self._process = process
            self._readers.start(self._read(process))

    async def _wait_until_ready(self, process: asyncio.subprocess.Process) -> str:
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                messages = await _read_frame(process)
        except TimeoutError:
            return f"it was not ready within {_LOAD_TIMEOUT_S:g} seconds"
        except EOFError:
            end = describe_end(await process.wait())
            raise LoadInterrupted(
                f"OpenVINO cannot load {self._setup.model}: its process ended with {end}"
            ) from None
        ready = messages[0]
        return (
            ready.problem
            if isinstance(ready, LoadResult)
            else "its first message is not as expected"
        )

    def submit(self, request: GenerateRequest, on_message: MessageHandler) -> None:
        """Send a request to the worker process. The caller must await ``start`` directly before
        this call, without another ``await`` in between. During another ``await``, the process could
        end.

        ``on_message`` is called with each message that the worker process sends for this request.
        If the process ends, ``on_message`` is called with a ``BackendError``.
        """
        self._listeners[request.id] = on_message
        self._send(request)

    def cancel(self, id: int) -> None:
        """Stop the request ``id``. The worker process generates at most one more token for it. The
        function ``on_message`` that was passed to ``submit`` is not called again."""
        if self._listeners.pop(id, None) is not None:
            self._send(CancelRequest(id))

    def _send(self, message: ToWorker) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):  # the reader task handles its death
                self._process.stdin.write(pack([message]))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        try:
            while True:
                for message in await _read_frame(process):
                    on_message = (
                        None if isinstance(message, LoadResult) else self._listeners.get(message.id)
                    )
                    if on_message is not None:
                        on_message(message)
        except (EOFError, OSError, msgspec.DecodeError):
            pass
        finally:
            self._process = None
            await kill(process)
            listeners, self._listeners = self._listeners, {}
            for on_message in listeners.values():
                on_message(BackendError("The engine is closed.") if self._closed else EngineLost())

    async def close(self) -> None:
        self._closed = True
        async with self._start_lock:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
            await self._readers.close(_SHUTDOWN_TIMEOUT_S)


async def _read_frame(process: asyncio.subprocess.Process) -> list[ToParent]:
    """Read one frame and return its messages. Raises ``EOFError`` if the process has ended."""
    assert process.stdout is not None
    head = await process.stdout.readexactly(LENGTH_PREFIX.size)
    return unpack_for_parent(await process.stdout.readexactly(payload_size(head)))
