"""Parse the frames that clients send over a WebSocket.

A frame is a JSON object. Its ``type`` is ``response.create`` or ``response.steer``.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, unsupported_parameter
from antiphon.wire.items import Item
from antiphon.wire.json_types import JsonObject
from antiphon.wire.request import CreateResponse

from .errors import (
    invalid_type,
    invalid_value,
    json_type_name,
    missing_parameter,
    unknown_parameter,
)
from .fields import known_fields
from .json_body import DEFAULT_LIMITS, BodyLimits, is_costly, parse_json_object
from .requests import read_create
from .steering import read_steering_input

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")
_TYPES = ("response.create", "response.steer")


class FrameEnvelope(Struct, frozen=True):
    """A client's frame whose ``type`` is valid and whose other fields are not checked yet.

    ``stream_id``: the name of the frame's lane. A client can use several lanes on one connection.
    The frames of one lane are processed in order. None means the lane without a name. ``fields``:
    the unchecked fields. ``is_costly``: whether it may take long to check them. ``size``: bytes of
    the frame.
    """

    type: str
    stream_id: str | None
    fields: JsonObject
    is_costly: bool = False
    size: int = 0


class CreateFrame(Struct, frozen=True):
    """A request for a response."""

    request: CreateResponse


class SteerFrame(Struct, frozen=True):
    """Input for a response that is in progress. ``raw``: the input as the client sent it, because a
    refusal returns it. ``error``: why the frame is invalid. ``input`` is then empty."""

    previous_response_id: str
    raw: Any
    input: tuple[Item, ...] = ()
    error: InvalidRequest | None = None


def read_envelope(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> FrameEnvelope:
    """Parse the JSON of a frame and check its ``type`` and ``stream_id``. Raises
    ``InvalidRequest``."""
    fields = parse_json_object(body, limits)
    kind = fields.pop("type", None)
    if kind is None:
        raise missing_parameter("type")
    if kind not in _TYPES:
        raise invalid_value("type", str(kind)[:64], _TYPES)
    stream_id = fields.pop("stream_id", None)
    if stream_id is not None and not (isinstance(stream_id, str) and _STREAM_ID.match(stream_id)):
        raise InvalidRequest(
            "The 'stream_id' field must be a non-empty string with at most 256 characters and may "
            "only contain letters, numbers, underscores, hyphens, and periods.",
            param="stream_id",
            code="invalid_stream_id",
        )
    return FrameEnvelope(kind, stream_id, fields, is_costly(body), len(body))


def read_frame(
    envelope: FrameEnvelope, limits: BodyLimits = DEFAULT_LIMITS
) -> CreateFrame | SteerFrame:
    """Parse the fields of a frame. Raises ``InvalidRequest``."""
    fields = dict(envelope.fields)
    if envelope.type == "response.steer":
        return _read_steer(envelope, limits)
    generate = fields.pop("generate", True)
    if not isinstance(generate, bool):
        raise invalid_type("generate", "a boolean", json_type_name(generate))
    # Responses over a WebSocket are always streamed, whatever a client sets.
    fields["stream"] = True
    request = read_create(fields if generate else _prewarming(fields), limits)
    if request.background:
        where = "over a WebSocket, because its responses end with the connection"
        raise unsupported_parameter("background", where=where)
    return CreateFrame(request)


def _prewarming(fields: JsonObject) -> JsonObject:
    """Return the fields of a request that only caches its prompt."""
    name = "prompt_cache_options"
    options = {} if fields.get(name) is None else fields[name]
    prewarming = {**options, "prewarm": True} if isinstance(options, dict) else options
    return {**fields, name: prewarming}


def _read_steer(envelope: FrameEnvelope, limits: BodyLimits) -> SteerFrame:
    fields = envelope.fields
    target, raw = fields.get("previous_response_id"), fields.get("input", "")
    frame = SteerFrame(target if isinstance(target, str) else "", raw)
    try:
        if envelope.stream_id is not None:  # the response decides the lane
            raise unknown_parameter("stream_id")
        known_fields(fields, ("previous_response_id", "input"), "")
        if not isinstance(target, str):
            raise invalid_type("previous_response_id", "a string", json_type_name(target))
        return replace(frame, input=read_steering_input(fields, limits))
    except InvalidRequest as error:
        return replace(frame, error=error)
