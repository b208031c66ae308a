"""What equal parts of requests have in common.

Agents send the same instructions, tools and options in every turn. These fields are the shape of a
request. A shape is parsed once, and what follows from it alone is computed once.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from msgspec.structs import asdict

from antiphon.wire.json_types import EncodedText
from antiphon.wire.request import CreateResponse
from antiphon.wire.tools import CodeInterpreter, Mcp, SharedTools, Shell, Tool

__all__ = ["RequestShape", "RequestShapes", "ShapedRequest", "derive", "shape_of"]

#: Limit for the JSON of all kept shapes, in bytes. The objects take some five times as much memory.
_MAX_BYTES = 8 * 2**20
#: Largest kept shape, in bytes of JSON.
_MAX_SHAPE_BYTES = 2**20
#: Limit for the derived values of one shape.
_MAX_DERIVED = 32
#: The fields whose values may be long, as they begin in a body.
_LONG_FIELDS = (b'"tools":', b'"instructions":')
#: A value of this many bytes is long.
_LONG_BYTES = 1024
#: By this many bytes at its start, a long value is looked up.
_PREFIX_BYTES = 128
#: Limit for the long values with the same beginning, such as the tools of an agent and those of its
#: subagents.
_MAX_ALIKE = 8

_T = TypeVar("_T")


class RequestShape:
    """The shape of requests. ``template``: a request of this shape without its own fields, such as
    the input. ``instructions``: its instructions, encoded. ``facts``: see ``_Facts``."""

    __slots__ = ("_derived", "facts", "instructions", "template")

    def __init__(self, template: CreateResponse) -> None:
        if not isinstance(tools := template.tools, SharedTools):
            tools = SharedTools(tools)
            if template.instructions:
                tools.instructions = EncodedText.of(template.instructions)
        self.instructions = tools.instructions
        self.template = ShapedRequest(**{**asdict(template), "tools": tools, "shape": self})
        self.facts = _Facts(self.template)
        self._derived: dict[Hashable, tuple[Any, Any]] = {}

    def derive(
        self, function: Callable[..., _T], objects: tuple[object, ...], *arguments: Hashable
    ) -> _T:
        """Return ``function(*objects, *arguments)``, which is computed once.

        ``function``: a function or a method whose result depends only on its arguments.
        ``objects``: immutable values that are compared by identity, because they are large.
        ``arguments``: small values. If one of them has no hash, nothing is kept.
        """
        key = (function, *map(id, objects), *arguments)
        try:
            kept = self._derived.get(key)
        except TypeError:
            return function(*objects, *arguments)
        if kept is None:
            if len(self._derived) >= _MAX_DERIVED:
                self._derived.clear()
            # The objects are kept, too, so that no other object gets their identity.
            kept = self._derived[key] = objects, function(*objects, *arguments)
        result: _T = kept[1]
        return result


class _Facts(dict[Callable[[CreateResponse], Any], Any]):
    """Function → its result for the template of a shape. It is computed when it is looked up."""

    def __init__(self, template: CreateResponse) -> None:
        self._template = template

    def __missing__(self, function: Callable[[CreateResponse], Any]) -> Any:
        fact = self[function] = function(self._template)
        return fact


class ShapedRequest(CreateResponse, frozen=True, kw_only=True):
    """A request with a kept shape."""

    shape: RequestShape


def shape_of(request: CreateResponse) -> RequestShape | None:
    """Return the shape of a request, or None if it is not kept."""
    return request.shape if isinstance(request, ShapedRequest) else None


def derive(request: CreateResponse, function: Callable[..., _T], *objects: object) -> _T:
    """Return ``function(request, *objects)``, which is computed once for the requests of a shape.

    ``function``: its result depends only on its other arguments and on those fields of the request
    that belong to its shape. ``objects``: immutable values that are compared by identity.
    """
    if not isinstance(request, ShapedRequest):
        return function(request, *objects)
    shape = request.shape
    if objects:
        return shape.derive(function, (shape.template, *objects))
    fact: _T = shape.facts[function]
    return fact


class RequestShapes:
    """The shapes of recent requests of all tenants, limited in bytes. A shape with a secret, such
    as the authorization of an MCP server, is not kept."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        #: Costly bodies are parsed in threads.
        self._lock = threading.Lock()
        self._shapes: OrderedDict[tuple[str | bytes, ...], RequestShape] = OrderedDict()
        #: Beginning of long values → these values, the newest first.
        self._long_values: dict[bytes, tuple[bytes, ...]] = {}
        # Nobody else can guess them, so none of them is in a body before it is put there.
        self._placeholders = {
            name: b'"%b"' % secrets.token_hex(8).encode() for name in _LONG_FIELDS
        }

    def shorten(self, body: bytes) -> tuple[bytes, Mapping[bytes, bytes]]:
        """Replace long values of kept shapes by placeholders, which are strings. A known value is
        recognized much faster than it is parsed. Return the short body, and the value for each
        placeholder.

        The short body is read in the same way: after the name of a field, a value and its
        placeholder are both complete values. But this field may be that of an inner object.
        """
        replaced: dict[bytes, bytes] = {}
        for name in _LONG_FIELDS if len(body) > _LONG_BYTES else ():
            start = body.find(name) + len(name)
            if body[start : start + 1] == b" ":
                start += 1
            known = self._long_values.get(body[start : start + _PREFIX_BYTES], ())
            value = next((value for value in known if body.startswith(value, start)), None)
            if value is not None:
                placeholder = self._placeholders[name]
                body = b"".join((body[:start], placeholder, body[start + len(value) :]))
                replaced[placeholder] = value
        return body, replaced

    def find(self, key: tuple[str | bytes, ...]) -> RequestShape | None:
        """Return the shape whose fields have these names and values, or None."""
        with self._lock:
            shape = self._shapes.get(key)
            if shape is not None:
                self._shapes.move_to_end(key)
            return shape

    def add(self, key: tuple[str | bytes, ...], template: CreateResponse) -> RequestShape | None:
        """Keep a shape, and return it. Returns None for a shape that must not be kept. ``key``:
        names of its fields, each before its value as JSON."""
        size = sum(map(len, key))
        if size > min(_MAX_SHAPE_BYTES, self._max_bytes) or any(
            map(_may_hold_secret, template.tools)
        ):
            return None
        shape = RequestShape(template)
        with self._lock:
            if (known_shape := self._shapes.get(key)) is not None:  # another thread was faster
                return known_shape
            self._bytes += size
            self._shapes[key] = shape
            for value in _long_values(key):
                known = self._long_values.get(value[:_PREFIX_BYTES], ())
                others = [other for other in known if other != value]
                self._long_values[value[:_PREFIX_BYTES]] = value, *others[: _MAX_ALIKE - 1]
            while self._bytes > self._max_bytes:
                oldest, _ = self._shapes.popitem(last=False)
                self._bytes -= sum(map(len, oldest))
                for value in _long_values(oldest):
                    known = self._long_values.pop(value[:_PREFIX_BYTES], ())
                    if others := [other for other in known if other is not value]:
                        self._long_values[value[:_PREFIX_BYTES]] = tuple(others)
        return shape


def _long_values(key: tuple[str | bytes, ...]) -> list[bytes]:
    return [value for value in key if isinstance(value, bytes) and len(value) > _LONG_BYTES]


def _may_hold_secret(tool: Tool) -> bool:
    """Return whether the tool may contain credentials: those of an MCP server, or the secrets of
    the domains that a container may reach."""
    return isinstance(tool, Mcp | CodeInterpreter | Shell)
