"""One call as it is read: nothing of it is given out before its name is known.

It knows what tools there are, and nothing of how calls are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from antiphon.dialects.json_stream import InputText, JsonSpan, load

from .argument_values import ObjectText
from .lexer import QUOTE

__all__ = ["Call", "Sink", "ToolShape"]

_WRAPPERS = ("arguments", "parameters")
_WRAPPED = re.compile(rf'\s*\{{\s*"(?:{"|".join(_WRAPPERS)})"\s*:\s*(?=\{{)')
_WRAP_LIMIT = 64
#: How a custom tool was shown to the model.
_CUSTOM: Mapping[str, Any] = {"properties": {"input": {"type": "string"}}}


class ToolShape(Struct, frozen=True, kw_only=True):
    """What a tool the model was shown is on the wire. A custom tool was shown as a function with
    one string parameter, its input."""

    wire_name: str
    namespace: str | None = None
    custom: bool = False
    schema: Mapping[str, Any] | None = None


class Sink(Protocol):
    """Who is told of calls."""

    def call(self, shape: ToolShape, call_id: str) -> None:
        """A call begins."""

    def add_arguments(self, text: str) -> None:
        """Its arguments, or its input, go on."""

    def end_call(self) -> None:
        """It is whole."""


class Call:
    """Collects what readers find and tells ``sink``. ``tools``: by the names the model was shown.

    ``is_bare``: nothing but its looks says that this is a call; then its name must be a tool's.
    """

    def __init__(self, sink: Sink, tools: Mapping[str, ToolShape], *, is_bare: bool) -> None:
        self._sink = sink
        self._tools = tools
        self._input: InputText | None = None
        self._head: str | None = ""
        self._inner: JsonSpan | None = None
        self._object: ObjectText | None = None
        self._schema: Mapping[str, Any] = {}
        self._keys: list[str] = []
        self._is_quoted = self._lacks_value = False
        self._wrote = False
        self.is_bare = is_bare
        self.name = ""
        self.call_id = ""
        self.begun = False
        #: Text in the call that is part of nothing.
        self.junk: list[str] = []

    @property
    def is_likely(self) -> bool:
        """More than its looks says that this is a call."""
        return not self.is_bare or self.name in self._tools

    def begin(self, *, sure: bool = False) -> bool:
        """The name is known. False: this is no call. ``sure``: it has arguments as calls have."""
        if self.begun:
            return True
        known = self._tools.get(self.name) or self._tools.get(self.name.removeprefix("functions."))
        if not self.name or (known is None and self.is_bare and not sure):
            return False
        shape = known or ToolShape(wire_name=self.name)
        self._schema = shape.schema or (_CUSTOM if shape.custom else {})
        self._input = InputText() if shape.custom else None
        if self._properties.keys() & {"arguments", "parameters"} or known is None:
            self._head = None  # such a key is the tool's own
        self._sink.call(shape, self.call_id)
        self.begun = True
        return True

    def end(self) -> None:
        """The call is whole."""
        if self._object is not None:
            self._give_value()
            self._write(self._object.end())
        self._unwrapped("", final=True)
        if not self._wrote:
            junk = "".join(self.junk).strip()
            is_object = _is_object(junk)  # some write JSON where parameters belong
            self._write(junk if is_object else "{}")
            self.junk = [] if is_object else self.junk
        if self._input is not None:
            self._argue(self._input.finish())
        self._sink.end_call()

    # --- arguments that are JSON ------------------------------------------------------------------

    def arguments(self, text: str) -> None:
        """More of the arguments' JSON text."""
        self._unwrapped(text)

    def _unwrapped(self, text: str, *, final: bool = False) -> None:
        """Some put all arguments under one key, ``arguments``: that wrapping is taken off."""
        if self._inner is not None:
            if not self._inner.over:
                self._write(text[: self._inner.read(text)])
        elif self._head is None:
            self._write(text)
        else:
            self._head += text
            if (wrapped := _WRAPPED.match(self._head)) is not None:
                inside, self._head = self._head[wrapped.end() :], None
                self._inner = JsonSpan()
                self._unwrapped(inside)
            elif final or not _may_be_wrapped(self._head):
                head, self._head = self._head, None
                self._write(head)

    def _write(self, text: str) -> None:
        if text:
            self._wrote = True
            self._argue(text if self._input is None else self._input.read(text))

    def _argue(self, text: str) -> None:
        if text := text.replace(QUOTE, ""):  # a quote where none belongs
            self._sink.add_arguments(text)

    def body(self, text: str) -> None:
        """All arguments as they stand: a line for each parameter there must be, of which the last
        takes the rest."""
        if not text:
            return
        required = self._schema.get("required")
        keys = required if isinstance(required, list) and required else [""]
        for key, said in zip(keys, text.split("\n", len(keys) - 1), strict=False):
            self.key(str(key))
            self.value(said)

    # --- arguments that come key by key -----------------------------------------------------------

    @property
    def _properties(self) -> Mapping[str, Any]:
        properties = self._schema.get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def key(self, key: str) -> None:
        """A key begins; an empty one stands for the next property that has no value yet."""
        if self._object is None:
            self._object, self._head = ObjectText(self._schema), None
        self._give_value()
        key = key or next((name for name in self._properties if name not in self._keys), "")
        self._keys.append(key)
        self._write(self._object.key(key))
        self._is_quoted, self._lacks_value = False, True

    def _give_value(self) -> None:
        """A key the model gave no value has none: null."""
        if self._lacks_value:
            self._lacks_value = False
            self._write("null")

    @property
    def takes_string(self) -> bool:
        """Whether the value of the present key can only be a string, by its schema."""
        return self._object is not None and self._object.is_string

    def value(self, text: str) -> None:
        """The whole value of the present key."""
        if self._object is None:
            self.junk.append(text)
        else:
            self._lacks_value = False
            self._write(self._object.value(text))

    @property
    def schema(self) -> Mapping[str, Any]:
        """What the arguments should be."""
        return self._schema

    def json(self, text: str) -> None:
        """The whole value of the present key, as JSON."""
        self._lacks_value = False
        self._write(text)

    def string(self, text: str) -> None:
        """Some of the present key's value, a string."""
        if self._object is not None:
            quote = "" if self._is_quoted else '"'
            self._is_quoted, self._lacks_value = True, False
            self._write(quote + self._object.string(text))

    def string_end(self) -> None:
        """The string is whole."""
        if self._object is not None:
            self._write('"')


def _may_be_wrapped(head: str) -> bool:
    """Whether arguments that begin so could lie in a wrapping."""
    bare = "".join(head.split())
    begun = any(f'{{"{key}":'.startswith(bare) for key in _WRAPPERS)
    return begun and len(head) < _WRAP_LIMIT


def _is_object(text: str) -> bool:
    try:
        return isinstance(load(text), dict)
    except ValueError:
        return False
