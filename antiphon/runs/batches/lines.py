"""The lines of a batch's input file, and the lines of its result files."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from antiphon.backends.base import upstream_usage
from antiphon.errors import RequestError
from antiphon.wire.json_types import JsonObject
from antiphon.wire.resources.batches import BatchFault
from antiphon.wire.response import Usage, sum_usage

_encode = msgspec.json.encode
#: Maximum number of bytes of one line.
MAX_LINE_BYTES = 64 * 2**20


class BatchLine(Struct, frozen=True, kw_only=True):
    """A request of a batch. ``body``: the JSON that would be the body of the HTTP request."""

    custom_id: str
    url: str
    method: str
    body: msgspec.Raw

    def fault(self, endpoint: str) -> tuple[str, str, str] | None:
        """Return the code, message and field of an error of this line. Returns None if it has
        none."""
        if not self.custom_id:
            return "missing_required_parameter", "The custom_id is missing.", "custom_id"
        if self.method != "POST":
            return "invalid_method", "The method must be POST.", "method"
        if self.url != endpoint:
            return "invalid_url", f"The url must be the batch's endpoint, {endpoint}.", "url"
        if not bytes(self.body).lstrip().startswith(b"{"):
            return "invalid_request", "The body must be an object.", "body"
        return None


class LineReply(Struct, frozen=True):
    """The answer to the request of a line: HTTP status, request id, and JSON body. ``may_retry``:
    whether a failed request may be executed again."""

    status: int
    request_id: str
    body: bytes
    may_retry: bool = True

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300


class LinePlace(NamedTuple):
    """Where a line is in a file: its number from 1, the position of its first byte, and its number
    of bytes without the line end."""

    number: int
    start: int
    size: int


async def find_lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[LinePlace, None]:
    """Yield the places of the lines of a file that are not blank. No line is kept in memory. Raises
    ``RequestError`` for a line that is too long."""
    number = start = size = position = 0
    is_blank = True
    async for chunk in chunks:
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            if not is_blank or piece.strip():
                yield LinePlace(number + 1, start, size + len(piece))
            number, position = number + 1, position + len(piece) + 1
            start, size, is_blank = position, 0, True
        position, size = position + len(pieces[-1]), size + len(pieces[-1])
        is_blank = is_blank and not pieces[-1].strip()
        if size > MAX_LINE_BYTES:
            raise RequestError(f"Line {number + 1} is longer than {MAX_LINE_BYTES} bytes.")
    if not is_blank:
        yield LinePlace(number + 1, start, size)


async def split_lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a file that are not empty. Only one line is kept in memory."""
    rest: list[bytes] = []
    async for chunk in chunks:
        *lines, last = chunk.split(b"\n")
        for end in lines:
            if line := b"".join((*rest, end)):
                yield line
            rest = []
        rest.append(last)
    if line := b"".join(rest):
        yield line


_decode = msgspec.json.Decoder(BatchLine).decode


def read_line(line: bytes) -> BatchLine | BatchFault:
    """Parse a line of the input file. Returns the fault of a line that is not such an object."""
    try:
        return _decode(line)
    except msgspec.MsgspecError as error:
        return BatchFault(code="invalid_json_line", message=f"The line is not valid: {error}.")


def result_of(line_id: str, custom_id: str, reply: LineReply) -> bytes:
    """Return the result line of a request that was executed."""
    response: JsonObject = {
        "status_code": reply.status,
        "request_id": reply.request_id,
        "body": msgspec.Raw(reply.body),
    }
    return _encode({"id": line_id, "custom_id": custom_id, "response": response, "error": None})


def failed_result(line_id: str, custom_id: str, code: str, message: str) -> bytes:
    """Return the result line of a request that was not executed."""
    error = {"code": code, "message": message}
    return _encode({"id": line_id, "custom_id": custom_id, "response": None, "error": error})


def usage_of(body: bytes, so_far: Usage) -> Usage:
    """Add the usage that an answer reports to ``so_far``. The names are those of the Responses API
    or those of Chat Completions."""
    try:
        usage: Any = msgspec.json.decode(body).get("usage") or {}
    except (msgspec.DecodeError, AttributeError):
        return so_far
    used = upstream_usage(
        _count(usage, "input_tokens", "prompt_tokens"),
        _count(usage, "output_tokens", "completion_tokens"),
        cached_tokens=_detail(
            usage, "cached_tokens", "input_tokens_details", "prompt_tokens_details"
        ),
        reasoning_tokens=_detail(
            usage, "reasoning_tokens", "output_tokens_details", "completion_tokens_details"
        ),
    )
    return sum_usage((so_far, used))


def _count(usage: JsonObject, *names: str) -> int:
    return next((int(usage[name]) for name in names if isinstance(usage.get(name), int)), 0)


def _detail(usage: JsonObject, name: str, *objects: str) -> int:
    found = (usage[each] for each in objects if isinstance(usage.get(each), dict))
    return next((_count(each, name) for each in found), 0)
