"""JSON responses encoded by msgspec."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

_encode = msgspec.json.Encoder().encode

#: What a handler returns. (``Response`` is an object of the API.)
Reply = Response


class _JsonReply(Reply):
    """A JSON response that encodes its value with msgspec. It builds its two headers,
    ``content-length`` and ``content-type``, itself, because this is faster than Starlette's general
    code."""

    def render(self, content: object) -> bytes:
        return _encode(content)

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]
        if headers:
            self.headers.update(headers)


def json_reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """Build a response from a wire value or anything else msgspec can encode."""
    return _JsonReply(value, status, headers)
