"""Parse request bodies: bytes to a JSON object, within limits.

For an invalid, deeply nested or hostile body, a short error with status 400 is raised.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from antiphon.errors import InvalidRequest
from antiphon.support.text import replace_lone_surrogates
from antiphon.wire.json_types import JsonObject

from .errors import json_type_name

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: Where msgspec's message says that the JSON is wrong.
_PLACE = re.compile(r"byte (\d+)")
#: Strings, brackets and commas of JSON.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{},]', re.DOTALL)
#: A part of a string of JSON, without its quotes. So many bytes are matched at a time.
_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_PIECE_BYTES = 2**20
#: Length of a path in an error.
_MAX_PATH = 256
#: The types of values that contain other values, in JSON that is parsed.
_CONTAINERS = frozenset({dict, list})


class BodyLimits(Struct, frozen=True, kw_only=True):
    """Limits of a request body.

    ``items``: maximum number of items in one array. ``parts``: maximum number of parts in one item.
    ``tools``: maximum number of tools in one list. ``nesting``: maximum depth of arrays and
    objects, including the body itself. ``containers``: maximum number of arrays and objects in the
    body. ``members``: maximum number of members of all objects together. ``values``: maximum number
    of the values in all arrays and objects together.

    The last three stop bodies that are slow to parse: the parser holds the GIL, so all clients wait
    for it. They are checked before parsing, by counting brackets, colons and commas. Brackets and
    colons inside strings count too, commas do not, because texts have many. A prompt of token ids
    has as many values as the context of a model, so ``values`` is above a million.
    """

    items: int = 10_000
    parts: int = 2_000
    tools: int = 1_024
    nesting: int = 64
    containers: int = 250_000
    members: int = 500_000
    values: int = 2_000_000


DEFAULT_LIMITS = BodyLimits()

#: Length of a body that is parsed fast whatever is in it. The longest time for one of this length
#: was some 10 ms for a Responses request, and 60 ms for one of the Messages API.
_SHORT = 2**17


def is_costly(body: bytes) -> bool:
    """Return whether it may take more than a few milliseconds to parse this body."""
    return len(body) > _SHORT


def parse_json_object(body: bytes, limits: BodyLimits, *, nulls: bool = False) -> JsonObject:
    """Parse a body that must be a JSON object. Raises ``InvalidRequest``.

    Null fields at the top level mean "not given" and are dropped. If ``nulls`` is true, they are
    kept.
    """
    _check_counts(body, limits)
    try:
        raw = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep(body, limits.nesting) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not _SURROGATE.search(body):
            raise _not_json(body, error) from None
        raw = _decode_with_surrogates(body, limits)
    if not isinstance(raw, dict):
        raise InvalidRequest(
            "Invalid type for the body of your request: expected an object, "
            f"but got {json_type_name(raw)} instead.",
            code="invalid_type",
        )
    if _is_deeper(raw, limits.nesting):
        raise _too_deep(body, limits.nesting)
    if nulls or None not in raw.values():
        return raw
    return {name: value for name, value in raw.items() if value is not None}


def _check_counts(body: bytes, limits: BodyLimits) -> None:
    """Raise ``InvalidRequest`` for a body that is slow to parse."""
    size = len(body)  # counting takes a while, and a short body cannot have too many
    if size > limits.containers and body.count(b"[") + body.count(b"{") > limits.containers:
        raise _too_many(limits.containers, "arrays and objects")
    if size > limits.members and body.count(b":") > limits.members:
        raise _too_many(limits.members, "members of objects")
    has_commas = size > limits.values and body.count(b",") > limits.values
    if has_commas and _has_more_commas(body, limits.values):
        raise _too_many(limits.values, "values")


def _has_more_commas(body: bytes, limit: int) -> bool:
    """Return whether JSON has more than ``limit`` commas outside its strings. This is a loop, and
    not one regular expression, which would hold the GIL for the whole body."""
    count = position = 0
    while (start := body.find(b'"', position)) >= 0 and count <= limit:
        count += body.count(b",", position, start)
        position = _end_of_string(body, start)
    return count + body.count(b",", position) > limit


def _end_of_string(body: bytes, start: int) -> int:
    """Return the position after the string that begins at ``start``."""
    position = start + 1
    while (
        piece := _TEXT.match(body, position, position + _PIECE_BYTES)
    ) and piece.end() > position:
        position = piece.end()
    return position + 1


def _decode_with_surrogates(body: bytes, limits: BodyLimits) -> Any:
    """Parse JSON that contains lone surrogates. Each lone surrogate is replaced by U+FFFD.

    JSON allows lone surrogates. Clients send them when they cut a text inside a surrogate pair. No
    tokenizer can encode them.
    """
    try:
        raw = json.loads(body.decode(), parse_constant=_refuse_constant)
        return msgspec.json.decode(replace_lone_surrogates(json.dumps(raw, ensure_ascii=False)))
    except RecursionError:
        raise _too_deep(body, limits.nesting) from None
    except (ValueError, msgspec.DecodeError):
        raise _not_json(body) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _is_deeper(raw: Any, limit: int) -> bool:
    level = [raw]
    for _ in range(limit):
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if type(child) in _CONTAINERS
        ]
        if not level:
            return False
    return True


def _path_of_deepest(body: bytes, limit: int) -> str:
    """Return the path of the first value that is nested deeper than ``limit``, or the beginning of
    its path, if it is long. The body may be too deep for a parser."""
    #: The place within each array or object that is open: an index, or a name in quotes.
    path: list[int | bytes] = []
    for token in _TOKEN.finditer(body):
        text = token.group()
        if text in (b"{", b"["):
            if len(path) == limit:
                break
            path.append(0 if text == b"[" else b"")
        elif text in (b"}", b"]"):
            del path[-1:]
        elif path and isinstance(place := path[-1], int):
            path[-1] = place + (text == b",")
        elif path and text.startswith(b'"'):
            path[-1] = text
    names = (
        f"[{place}]" if isinstance(place, int) else f".{place[1:-1].decode(errors='replace')}"
        for place in path
    )
    return "".join(names).lstrip(".")[:_MAX_PATH]


def _not_json(body: bytes, error: Exception | None = None) -> InvalidRequest:
    """Return the error for a body that is no JSON. ``error``: says what is wrong, and where."""
    detail = "" if error is None else f" ({str(error).removeprefix('JSON is malformed: ')})"
    if b"\n" in body and (place := _PLACE.search(detail)):
        lines = body[: int(place[1])].split(b"\n")
        column = len(lines[-1].decode(errors="replace")) + 1
        detail = (
            f"{detail[: place.start()]}line {len(lines)}, column {column}{detail[place.end() :]}"
        )
    return InvalidRequest(
        f"We could not parse the JSON body of your request.{detail}", code="invalid_json"
    )


def _too_many(limit: int, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"The body of your request has more than {limit} {what}.", code="invalid_value"
    )


def _too_deep(body: bytes, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"The body of your request is nested deeper than {limit} levels.",
        param=_path_of_deepest(body, limit),
        code="invalid_value",
    )
