"""The parent's side of the OpenVINO child process: starts it, feeds it, hears it, ends it.

What runs when it dies fails; what comes next has a new one. It knows processes and frames; it
knows no model.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable

import msgspec

from antiphon.errors import BackendError, SetupError

from .protocol import (
    HEAD,
    Asked,
    Cancelled,
    Ready,
    ToChild,
    ToParent,
    pack,
    size_of,
    unpack_for_parent,
)
from .worker import Setup

__all__ = ["Child"]

_GOODBYE_S = 5.0

Hear = Callable[[ToParent | BackendError], None]


class Child:
    """``patience_s``: how long loading may take. Belongs to the event loop."""

    def __init__(self, setup: Setup, *, patience_s: float = 600.0) -> None:
        self._setup = setup
        self._patience_s = patience_s
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._listeners: dict[int, Hear] = {}
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Have one that is ready. Raises ``SetupError`` where the model cannot be loaded."""
        async with self._starting:
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
                problem = await self._first_word(process)
            except BaseException:
                await _end(process)
                raise
            if problem:
                await _end(process)
                raise SetupError(f"OpenVINO cannot load {self._setup.model}: {problem}")
            self._process = process
            self._reading = asyncio.create_task(self._read(process))

    async def _first_word(self, process: asyncio.subprocess.Process) -> str:
        try:
            async with asyncio.timeout(self._patience_s):
                said = await _frame(process)
        except TimeoutError:
            return f"it was not ready within {self._patience_s:g} seconds"
        except EOFError:
            return f"its process ended with code {await process.wait()}"
        ready = said[0]
        return ready.problem if isinstance(ready, Ready) else "it does not speak as expected"

    def ask(self, asked: Asked, hear: Hear) -> None:
        """``hear`` is called with all that is said of it, or with how the process ended. ``start``
        must have been awaited in this step of the event loop."""
        self._listeners[asked.id] = hear
        self._send(asked)

    def leave(self, id: int) -> None:
        """Nothing more of it is heard; it stops within a token."""
        if self._listeners.pop(id, None) is not None:
            self._send(Cancelled(id))

    def _send(self, message: ToChild) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):  # that it died is heard elsewhere
                self._process.stdin.write(pack([message]))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        try:
            while True:
                for message in await _frame(process):
                    hear = None if isinstance(message, Ready) else self._listeners.get(message.id)
                    if hear is not None:
                        hear(message)
        except (EOFError, OSError, msgspec.DecodeError):
            pass
        finally:
            self._process = None
            await _end(process)
            self._lost("closed" if self._closed else "gone: its process ended")

    def _lost(self, how: str) -> None:
        listeners, self._listeners = self._listeners, {}
        for hear in listeners.values():
            hear(BackendError(f"The engine is {how}."))

    async def close(self) -> None:
        self._closed = True
        async with self._starting:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
            if self._reading is not None:
                done, _ = await asyncio.wait([self._reading], timeout=_GOODBYE_S)
                if not done:
                    self._reading.cancel()
                    await asyncio.wait([self._reading])


async def _frame(process: asyncio.subprocess.Process) -> list[ToParent]:
    """Raises ``EOFError`` where the process has ended."""
    assert process.stdout is not None
    head = await process.stdout.readexactly(HEAD.size)
    return unpack_for_parent(await process.stdout.readexactly(size_of(head)))


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
