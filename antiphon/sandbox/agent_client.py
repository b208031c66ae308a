"""A box seen from outside: frames to and from its agent. What comes out of it is believed as little
as any client's body.
"""

from __future__ import annotations

import asyncio
import struct
from asyncio.subprocess import Process
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from antiphon.errors import ToolError

from .base import Ended, Entry, Limits, Outcome, Told
from .shared_folder import Shelf

__all__ = ["AgentBox"]

_T = TypeVar("_T")

#: Seconds beyond its own time-out that an agent has to answer.
_SLACK_S = 10.0
_FILE_S = 60.0
_MOST_TOLD = 4000
_DEAD = "The sandbox has ended; its variables and files are gone."


class _Started(msgspec.Struct, frozen=True):
    python: str


class _Ran(msgspec.Struct, frozen=True, kw_only=True):
    output: str
    ended: Ended
    kept: bool
    errors: str = ""
    exit_code: int | None = None
    images: tuple[str, ...] = ()


class _Wrote(msgspec.Struct, frozen=True):
    written: tuple[str, str]


class _Listed(msgspec.Struct, frozen=True):
    entries: tuple[tuple[str, int, int], ...]


class _Content(msgspec.Struct, frozen=True):
    content: bytes | None


class _Removed(msgspec.Struct, frozen=True):
    removed: bool


class _Written(msgspec.Struct, frozen=True):
    error: str = ""


class _Failed(msgspec.Struct, frozen=True):
    error: str


class AgentBox:
    """``Box`` over the process of an agent."""

    def __init__(self, process: Process, limits: Limits, shelf: Shelf) -> None:
        self._process = process
        self._limits = limits
        self._shelf = shelf
        self._turn = asyncio.Lock()
        self._is_closed = False
        #: Of the Python inside.
        self.version = ""

    @classmethod
    async def begun(cls, process: Process, limits: Limits, shelf: Shelf, wait_s: float) -> AgentBox:
        """Once it answers. Raises ``ToolError`` with what it said instead."""
        box = cls(process, limits, shelf)
        frame = {
            "op": "limits",
            "memory": limits.memory_bytes,
            "processes": limits.processes,
            "disk": limits.disk_bytes,
        }
        try:
            box.version = (await box._ask(frame, _Started, wait_s)).python
        except ToolError:
            await asyncio.to_thread(shelf.close)
            raise ToolError(await box._last_words()) from None
        except BaseException:
            await box.close()
            raise
        return box

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and self._process.returncode is None

    async def python(self, code: str, *, timeout_s: float, most: int) -> Outcome:
        frame = {"op": "python", "code": code, "timeout": timeout_s, "most": most}
        return await self._run(frame, timeout_s, most)

    async def command(
        self, command: str, *, timeout_s: float, most: int, told: Told | None = None
    ) -> Outcome:
        frame = {
            "op": "command",
            "command": command,
            "timeout": timeout_s,
            "most": most,
            "tells": told is not None,
        }
        return await self._run(frame, timeout_s, most, told)

    async def entries(self) -> tuple[Entry, ...]:
        listed = await self._ask({"op": "entries"}, _Listed, _FILE_S)
        return tuple(Entry(*each) for each in listed.entries if _is_path(each[0]))

    async def read(self, path: str) -> bytes | None:
        frame = {"op": "read", "path": path, "most": self._limits.disk_bytes}
        return (await self._ask(frame, _Content, _FILE_S)).content

    async def write(self, path: str, content: bytes) -> None:
        frame = {"op": "write", "path": path, "content": content}
        error = (await self._ask(frame, _Written, _FILE_S)).error
        if error:
            raise ToolError(f"{path} could not be written: {error}")

    async def remove(self, path: str) -> bool:
        return (await self._ask({"op": "remove", "path": path}, _Removed, _FILE_S)).removed

    async def share(self, name: str, files: Mapping[str, bytes], scripts: Collection[str]) -> None:
        if not self.is_alive:
            raise ToolError(_DEAD)
        await asyncio.to_thread(self._shelf.put, name, files, scripts, most=self._limits.disk_bytes)

    async def close(self) -> None:
        self._is_closed = True
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:  # to its end, unless somebody is about to read that
                with suppress(RuntimeError, OSError):
                    await pipe.read()
        await asyncio.to_thread(self._shelf.close)

    async def _run(
        self, frame: dict[str, Any], timeout_s: float, most: int, told: Told | None = None
    ) -> Outcome:
        ran = await self._ask(frame, _Ran, timeout_s + _SLACK_S, told and _bounded(told, most))
        return Outcome(
            output=ran.output[: 2 * most],
            errors=ran.errors[: 2 * most],
            ended=ran.ended,
            exit_code=ran.exit_code,
            images=tuple(filter(_is_path, ran.images)),
            kept=ran.kept,
        )

    async def _ask(
        self, frame: dict[str, Any], kind: type[_T], wait_s: float, told: Told | None = None
    ) -> _T:
        async with self._turn:
            if not self.is_alive:
                raise ToolError(_DEAD)
            self._send(frame)
            asking = asyncio.ensure_future(self._answer(told))
            try:
                raw = await asyncio.wait_for(asyncio.shield(asking), wait_s)
            except asyncio.CancelledError:
                await self._stop(asking)
                raise
            except (OSError, EOFError, TimeoutError, ValueError):
                asking.cancel()
                await self.close()
                raise ToolError(_DEAD) from None
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError:
            pass
        try:
            failed = msgspec.json.decode(raw, type=_Failed)
        except msgspec.DecodeError:
            await self.close()
            raise ToolError(_DEAD) from None
        raise ToolError(failed.error)

    def _send(self, frame: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        body = msgspec.json.encode(frame)
        self._process.stdin.write(struct.pack(">I", len(body)) + body)

    async def _answer(self, told: Told | None) -> bytes:
        """What it says last. Raises ``EOFError`` or ``OSError`` if there is nobody, ``ValueError``
        for too much, or nonsense."""
        assert self._process.stdin is not None
        await self._process.stdin.drain()
        frame = await self._frame()
        while told is not None and frame.startswith(b'{"written"'):
            told(*msgspec.json.decode(frame, type=_Wrote).written)
            frame = await self._frame()
        return frame

    async def _frame(self) -> bytes:
        assert self._process.stdout is not None
        (size,) = struct.unpack(">I", await self._process.stdout.readexactly(4))
        if size > 2 * self._limits.disk_bytes + (1 << 24):
            raise ValueError("a frame is too long")
        return await self._process.stdout.readexactly(size)

    async def _stop(self, asking: asyncio.Future[bytes]) -> None:
        """What runs is interrupted, and the box stays usable; one that does not heed it ends."""
        with suppress(OSError):
            self._send({"op": "stop"})
        done, _ = await asyncio.wait({asking}, timeout=_SLACK_S)
        if not done or asking.exception() is not None:
            asking.cancel()
            await self.close()

    async def _last_words(self) -> str:
        """What the program that should have started the box said instead."""
        said = b""
        if self._process.stderr is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    said = await self._process.stderr.read(_MOST_TOLD)
        line = said.decode(errors="replace").strip().splitlines()[-1:]
        return line[0] if line else "it ended at once"


def _bounded(told: Told, most: int) -> Told:
    """Hears no more than there may be."""
    left = [most, most]

    def tell(*pieces: str) -> None:
        heard = [piece[:room] for piece, room in zip(pieces, left, strict=True)]
        left[:] = [room - len(piece) for piece, room in zip(heard, left, strict=True)]
        if any(heard):
            told(*heard)

    return tell


def _is_path(path: str) -> bool:
    return bool(path) and not path.startswith("/") and ".." not in path.split("/")
