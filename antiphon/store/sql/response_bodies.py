"""The form in which responses are stored, without their output.

Agents send the same tools and instructions in every turn, often more than everything else. They are
compressed once for all responses that have them.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from antiphon.wire.response import Response, encodable, without_shared
from antiphon.wire.tools import SharedTools

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Response).decode
#: The first byte of compressed data (RFC 1950). JSON does not begin with it.
_PACKED = b"x"


def encode_body(response: Response) -> bytes:
    """Return the response without its output as JSON. If many responses have the same tools and
    instructions, these precede the JSON in the form of ``SharedTools.pack``."""
    tools = response.tools
    if isinstance(tools, SharedTools):
        instructions = None if tools.instructions is None else tools.instructions.text
        if response.instructions is instructions and (packed := tools.pack()) is not None:
            return packed + _encode(replace(without_shared(response), output=()))
    return _encode(encodable(response, output=()))


class BodyDecoder:
    """Decodes the bodies that ``encode_body`` returns. If consecutive responses have the same tools
    and instructions, they share these objects. Several threads may use one decoder at a time."""

    def __init__(self) -> None:
        #: The tools that were unpacked last, in both forms.
        self._last = b"none", SharedTools()

    def decode(self, body: bytes) -> Response:
        """Return a response without its output. Raises ``msgspec.MsgspecError``."""
        if body[:1] != _PACKED:
            return _decode(body)
        packed, tools = self._last
        if not body.startswith(packed):
            tools, rest = SharedTools.unpack(body)
            packed = body.removesuffix(rest)
            self._last = packed, tools
        instructions = None if tools.instructions is None else tools.instructions.text
        response = _decode(body[len(packed) :])
        return replace(response, tools=tools, instructions=instructions)
