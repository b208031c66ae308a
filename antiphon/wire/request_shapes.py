"""What equal parts of requests have in common.

Agents send the same instructions, tools and options in every turn. These fields are the shape of a
request. A shape is parsed once, and what follows from it alone is computed once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from antiphon.wire.request import CreateResponse
from antiphon.wire.tools import CodeInterpreter, Mcp, Shell, Tool

__all__ = ["RequestShape", "RequestShapes"]

#: Limit for the JSON of all kept shapes, in bytes. The objects take some five times as much memory.
_MAX_BYTES = 8 * 2**20
#: Largest kept shape, in bytes of JSON.
_MAX_SHAPE_BYTES = 2**20
#: Limit for the derived values of one shape.
_MAX_DERIVED = 32

_T = TypeVar("_T")


class RequestShape:
    """The shape of requests. ``template``: a request of this shape without its own fields, such as
    the input."""

    __slots__ = ("_derived", "template")

    def __init__(self, template: CreateResponse) -> None:
        self.template = template
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


class RequestShapes:
    """The shapes of recent requests of all tenants, limited in bytes. A shape with a secret, such
    as the authorization of an MCP server, is not kept."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._shapes: OrderedDict[tuple[bytes, ...], RequestShape] = OrderedDict()
        self._by_tools: dict[int, RequestShape] = {}

    def find(self, key: tuple[bytes, ...]) -> RequestShape | None:
        """Return the shape whose fields have these names and values, or None."""
        shape = self._shapes.get(key)
        if shape is not None:
            self._shapes.move_to_end(key)
        return shape

    def find_by_tools(self, tools: tuple[Tool, ...]) -> RequestShape | None:
        """Return the kept shape to which this tuple of tools belongs, as an object, or None."""
        return self._by_tools.get(id(tools))

    def add(self, key: tuple[bytes, ...], template: CreateResponse) -> None:
        """Keep a shape. ``key``: names and values of its fields, as JSON."""
        size = sum(map(len, key))
        if size > min(_MAX_SHAPE_BYTES, self._max_bytes) or any(
            map(_may_hold_secret, template.tools)
        ):
            return
        self._shapes[key] = shape = RequestShape(template)
        self._bytes += size
        if template.tools:  # all empty tuples are the same object
            self._by_tools[id(template.tools)] = shape
        while self._bytes > self._max_bytes:
            oldest, dropped = self._shapes.popitem(last=False)
            self._bytes -= sum(map(len, oldest))
            self._by_tools.pop(id(dropped.template.tools), None)


def _may_hold_secret(tool: Tool) -> bool:
    """Return whether the tool may contain credentials: those of an MCP server, or the secrets of
    the domains that a container may reach."""
    return isinstance(tool, Mcp | CodeInterpreter | Shell)
