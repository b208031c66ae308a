"""What clients say over a WebSocket: frames of JSON, each a request for a response or for a change
of one that is being made.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.errors import bad_type, bad_value, kind_of, missing
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, Limits, parse
from antiphon.wire.parsing.requests import read_create

from .request import CreateResponse

__all__ = ["Create", "Envelope", "Steer", "read_envelope", "read_frame"]

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")
_TYPES = ("response.create", "response.steer")


class Envelope(Struct, frozen=True):
    """A frame whose ``type`` is known, and the lane it names (None: the one without a name)."""

    type: str
    stream_id: str | None
    fields: dict[str, Any]


class Create(Struct, frozen=True):
    """A response is wanted; without ``generate``, only a warm-up for what follows."""

    request: CreateResponse
    generate: bool = True


class Steer(Struct, frozen=True):
    """A response that is being made is to go another way."""

    previous_response_id: str | None


def read_envelope(text: str, limits: Limits = DEFAULT_LIMITS) -> Envelope:
    """Raises ``InvalidRequest`` for what is no frame of this API."""
    fields = parse(text.encode(), limits)
    kind = fields.pop("type", None)
    if kind is None:
        raise missing("type")
    if kind not in _TYPES:
        raise bad_value("type", str(kind)[:64], _TYPES)
    stream_id = fields.pop("stream_id", None)
    if stream_id is not None and not (isinstance(stream_id, str) and _STREAM_ID.match(stream_id)):
        raise InvalidRequest(
            "The 'stream_id' field must be a non-empty string with at most 256 characters and may "
            "only contain letters, numbers, underscores, hyphens, and periods.",
            param="stream_id",
            code="invalid_stream_id",
        )
    return Envelope(kind, stream_id, fields)


def read_frame(envelope: Envelope, limits: Limits = DEFAULT_LIMITS) -> Create | Steer:
    """What the frame asks. Raises ``InvalidRequest``."""
    fields = dict(envelope.fields)
    if envelope.type == "response.steer":
        previous = fields.get("previous_response_id")
        return Steer(previous if isinstance(previous, str) else None)
    generate = fields.pop("generate", True)
    if not isinstance(generate, bool):
        raise bad_type("generate", "a boolean", kind_of(generate))
    # Every answer is streamed here; some clients say so.
    fields.pop("stream", None)
    request = read_create(fields, limits)
    if request.background:
        raise InvalidRequest(
            "Unsupported parameter: 'background' is not supported over a WebSocket: its responses "
            "belong to the connection.",
            param="background",
            code="unsupported_parameter",
        )
    return Create(request, generate)
