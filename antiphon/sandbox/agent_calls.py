"""Requests to the agent, and the agent's answers. The agent is the program inside a box. A box is a
sandbox environment. This module is independent of the transport.

A box is untrusted, so everything that it returns is validated like the body of a client's request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from antiphon.errors import ToolError

from .base import EndReason, ExecutionResult, FileEntry, Limits, OutputCallback

_T = TypeVar("_T")

#: Seconds that the agent may take to answer after the time limit of a request has ended.
GRACE_S = 10.0
FILE_TIMEOUT_S = 60.0
ENDED = "The sandbox has ended; its variables and files are gone."


class LimitsFrame(msgspec.Struct, frozen=True):
    """The answer of the agent (the program inside a box) to the first request, which sets the
    resource limits. ``python``: the version of the Python interpreter in the box."""

    python: str


class _RunFrame(msgspec.Struct, frozen=True, kw_only=True):
    output: str
    ended: EndReason
    kept: bool
    errors: str = ""
    exit_code: int | None = None
    images: tuple[str, ...] = ()


class OutputFrame(msgspec.Struct, frozen=True):
    """A message of the agent (the program inside the box) with new output of a running command.
    ``output``: the new standard output and the new standard error."""

    output: tuple[str, str] = msgspec.field(name="written")


class _ListFrame(msgspec.Struct, frozen=True):
    entries: tuple[tuple[str, int, int], ...]


class ReadFrame(msgspec.Struct, frozen=True):
    """The answer of the agent (the program inside a box) to a request to read a file. ``content``:
    the content of the file, or None if there is no such file."""

    content: bytes | None


class _RemoveFrame(msgspec.Struct, frozen=True):
    removed: bool


class NetworkFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty answer of the agent (the program inside the box). The agent sends it after it has
    given code in the box access to the network proxy."""


class WriteFrame(msgspec.Struct, frozen=True):
    """The answer of the agent (the program inside a box) to a request to write a file. ``error``:
    the reason why the file could not be written. It is empty if the file was written."""

    error: str = ""


class _ErrorFrame(msgspec.Struct, frozen=True):
    error: str


class AgentCalls:
    """Base class of boxes: the methods of ``Box`` that send a request to the agent (the program
    inside the box). A subclass adds the transport: it implements ``_request``."""

    async def python(self, code: str, *, timeout_s: float, max_chars: int) -> ExecutionResult:
        frame = {"op": "python", "code": code, "timeout": timeout_s, "most": max_chars}
        return await self._run(frame, timeout_s, max_chars)

    async def command(
        self,
        command: str,
        *,
        timeout_s: float,
        max_chars: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        frame = {
            "op": "command",
            "command": command,
            "timeout": timeout_s,
            "most": max_chars,
            "tells": on_output is not None,
        }
        return await self._run(frame, timeout_s, max_chars, on_output)

    async def list_files(self) -> tuple[FileEntry, ...]:
        listed = await self._request({"op": "entries"}, _ListFrame, FILE_TIMEOUT_S)
        return tuple(FileEntry(*each) for each in listed.entries if is_relative_path(each[0]))

    async def remove(self, path: str) -> bool:
        frame = {"op": "remove", "path": path}
        return (await self._request(frame, _RemoveFrame, FILE_TIMEOUT_S)).removed

    async def _request(
        self,
        frame: Mapping[str, object],
        kind: type[_T],
        wait_s: float,
        on_output: OutputCallback | None = None,
    ) -> _T:
        """Send a request to the agent (the program inside the box), and return the agent's answer.
        Raises ``ToolError``.

        - ``frame``: the request.
        - ``kind``: the type of the answer.
        - ``wait_s``: maximum time to wait for the answer, in seconds.
        - ``on_output``: for the request to run a command, a function that receives the output while
          the command runs.
        """
        raise NotImplementedError

    async def _run(
        self,
        frame: Mapping[str, object],
        timeout_s: float,
        max_chars: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        answer = await self._request(
            frame,
            _RunFrame,
            timeout_s + GRACE_S,
            on_output and _limit_output(on_output, max_chars),
        )
        return ExecutionResult(
            output=answer.output[: 2 * max_chars],
            stderr=answer.errors[: 2 * max_chars],
            end_reason=answer.ended,
            exit_code=answer.exit_code,
            images=tuple(filter(is_relative_path, answer.images)),
            variables_kept=answer.kept,
        )


def limits_request(limits: Limits) -> dict[str, object]:
    """Return the first request to an agent (the program inside a box). It sets the resource limits
    of the box."""
    return {
        "op": "limits",
        "memory": limits.memory_bytes,
        "processes": limits.processes,
        "disk": limits.disk_bytes,
    }


def decode_answer(raw: bytes, kind: type[_T]) -> _T:
    """Decode an answer of the agent (the program inside a box). ``kind``: the expected type. Raises
    ``ToolError`` if the agent reports an error. Raises ``msgspec.DecodeError`` if the answer is
    neither of the expected type nor an error."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        failed = msgspec.json.decode(raw, type=_ErrorFrame)
    raise ToolError(failed.error)


def _limit_output(on_output: OutputCallback, max_chars: int) -> OutputCallback:
    """Return a callback that passes output on to ``on_output``: at most ``max_chars`` characters of
    standard output, and at most ``max_chars`` characters of standard error."""
    room_left = [max_chars, max_chars]

    def forward(*pieces: str) -> None:
        shortened = [piece[:room] for piece, room in zip(pieces, room_left, strict=True)]
        room_left[:] = [room - len(s) for s, room in zip(shortened, room_left, strict=True)]
        if any(shortened):
            on_output(*shortened)

    return forward


def is_relative_path(path: str) -> bool:
    """Whether a path is relative and contains no ``..``. Joined to a folder, such a path stays
    inside the folder."""
    return bool(path) and not path.startswith("/") and ".." not in path.split("/")
