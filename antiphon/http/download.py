"""File downloads: streamed, with range requests (RFC 9110, section 14)."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from urllib.parse import quote

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from antiphon.http.json_response import Reply
from antiphon.http.middleware.errors import error_reply
from antiphon.http.openapi.operation import HeaderParam
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.resources.file_storage.contents import StoredFile

RANGE_HEADERS = (
    HeaderParam(name="range", description="One range of bytes, such as `bytes=0-1023`."),
    HeaderParam(
        name="if-range",
        description="An `etag`. If the file has another one, the whole file is sent.",
    ),
)
_MEDIA_TYPE = "application/octet-stream"
_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})-([0-9]{0,18})\s*\Z", re.IGNORECASE)


async def download_reply(request: Request, stored: StoredFile) -> Reply:
    """Build the response for the content of a file, or for the range that the request names.
    Raises ``StoreError``."""
    size = stored.file.bytes
    etag = f'"{stored.file.id}"'  # files never change
    headers = {
        "accept-ranges": "bytes",
        "etag": etag,
        "content-disposition": _disposition(stored.file.filename),
        "x-content-type-options": "nosniff",
    }
    if stored.sha256 is not None:
        digest = base64.b64encode(bytes.fromhex(stored.sha256)).decode()
        headers["repr-digest"] = f"sha-256=:{digest}:"  # RFC 9530
    wanted = None
    if request.headers.get("if-range", etag) == etag:
        wanted = requested_range(request.headers.get("range", ""), size)
    start, end = wanted or (0, size)
    if wanted is not None and start >= end:
        return error_reply(
            416,
            f"The range is outside the file, which has {size} bytes.",
            code="range_not_satisfiable",
            headers={"content-range": f"bytes */{size}"},
        )
    if wanted is not None:
        headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    headers["content-length"] = str(end - start)
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return Reply(b"", status, headers, media_type=_MEDIA_TYPE)
    chunks = stored.read(start, end)
    return _Download(await anext(chunks, b""), chunks, status, headers)


def requested_range(header: str, size: int) -> tuple[int, int] | None:
    """Parse the Range header of a request for a file of ``size`` bytes. Returns start (included)
    and end (excluded) of the range.

    If the file has no byte in the range, the returned start is greater than or equal to the end.
    The caller then refuses the request. If the header is not one valid range of bytes, None is
    returned. The caller then sends the whole file.
    """
    match = _RANGE.match(header)
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    start, end = int(match[1]), size
    if match[2]:
        if int(match[2]) < start:
            return None
        end = min(size, int(match[2]) + 1)
    return start, end


class _Download(Reply):
    """A response whose body is streamed. ``first``: the first chunk. It is read before the response
    starts, so that a read failure can still set the HTTP status."""

    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes, None],
        status: int,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(None, status, headers, media_type=_MEDIA_TYPE)
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            async with CancelOnDisconnect(scope, receive):
                start = {"status": self.status_code, "headers": self.raw_headers}
                await send({"type": "http.response.start", **start})
                chunk = self._first
                async for following in self._rest:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    chunk = following
            await send({"type": "http.response.body", "body": chunk})


def _disposition(filename: str) -> str:
    return f"attachment; filename*=UTF-8''{quote(filename, safe='')}"
