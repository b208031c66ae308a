"""Parse the input with which a client steers a response that is in progress."""

from __future__ import annotations

from typing import get_args

from antiphon.wire.items import Item
from antiphon.wire.json_types import JsonObject
from antiphon.wire.steering import SteeringPart

from .errors import empty_value, invalid_type, invalid_value, json_type_name, missing_parameter
from .fields import known_fields, read_array, read_object
from .items import read_items, read_part
from .json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object

_PARTS = tuple(str(part.__struct_config__.tag) for part in get_args(SteeringPart))


def parse_steer(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> tuple[Item, ...]:
    """Parse the body of ``POST /v1/responses/{id}/steer``. Raises ``InvalidRequest``."""
    return read_steering_input(
        known_fields(parse_json_object(body, limits), ("input",), ""), limits
    )


def read_steering_input(
    fields: JsonObject, limits: BodyLimits = DEFAULT_LIMITS
) -> tuple[Item, ...]:
    """Read the field ``input`` of a steering submission: a text, or messages of the user with
    texts, images and files. Raises ``InvalidRequest``."""
    raw = fields.get("input")
    if raw is None:
        raise missing_parameter("input")
    if isinstance(raw, str):
        raw = [{"role": "user", "content": raw}] if raw else []
    messages = read_array(raw, "input", limits.items, "a string or an array")
    if not messages:
        raise empty_value("input", messages)
    checked = [_checked(message, f"input[{index}]") for index, message in enumerate(messages)]
    return read_items(checked, "input", limits)


def _checked(raw: object, path: str) -> JsonObject:
    """Return the fields of a message that steers a response. Only its contents are unchecked."""
    fields = known_fields(read_object(raw, path), ("type", "role", "content"), path)
    if fields.setdefault("type", "message") != "message":
        raise invalid_value(f"{path}.type", str(fields["type"])[:64], ("message",))
    if fields.get("role", "user") != "user":
        raise invalid_value(f"{path}.role", str(fields["role"])[:64], ("user",))
    content = fields.get("content")
    if isinstance(content, list):
        for index, part in enumerate(content):
            read_part(part, f"{path}.content[{index}]", _PARTS)
    elif content is not None and not isinstance(content, str):
        expected = "a string or an array"
        raise invalid_type(f"{path}.content", expected, json_type_name(content))
    return fields
