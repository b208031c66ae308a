"""One tool call while it is parsed. Nothing of it is emitted before its name is complete."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from antiphon.dialects.json_stream import JsonSpan, ToolInputDecoder, load

from .argument_values import JsonObjectWriter
from .lexer import QUOTE

__all__ = ["CallBuilder", "CallSink", "ToolShape"]

_WRAPPERS = ("arguments", "parameters")
_WRAPPED = re.compile(rf'\s*\{{\s*"(?:{"|".join(_WRAPPERS)})"\s*:\s*(?=\{{)')
_WRAP_LIMIT = 64
#: How a custom tool was shown to the model.
_CUSTOM: Mapping[str, Any] = {"properties": {"input": {"type": "string"}}}


class ToolShape(Struct, frozen=True, kw_only=True):
    """A prompt's tool as it is on the wire.

    A custom tool is a function with one string parameter in the prompt.
    """

    wire_name: str
    namespace: str | None = None
    custom: bool = False
    schema: Mapping[str, Any] | None = None


class CallSink(Protocol):
    """Who is told of calls."""

    def open_call(self, shape: ToolShape, call_id: str) -> None:
        """A call begins."""

    def add_arguments(self, text: str) -> None:
        """Its arguments, or its input, go on."""

    def close_call(self) -> None:
        """It is whole."""


class CallBuilder:
    """Collects what readers find and tells ``sink``. ``tools``: by the names the model was shown.

    ``is_bare``: nothing but its looks says that this is a call; then its name must be a tool's.
    """

    def __init__(self, sink: CallSink, tools: Mapping[str, ToolShape], *, is_bare: bool) -> None:
        self._sink = sink
        self._tools = tools
        self._input_decoder: ToolInputDecoder | None = None
        self._wrapper_head: str | None = ""
        self._wrapped_span: JsonSpan | None = None
        self._object: JsonObjectWriter | None = None
        self._schema: Mapping[str, Any] = {}
        self._keys: list[str] = []
        self._in_string = self._lacks_value = False
        self._has_output = False
        self.is_bare = is_bare
        self.name = ""
        self.call_id = ""
        self.has_started = False
        #: Text in the call that is part of nothing.
        self.stray_text: list[str] = []

    @property
    def is_likely(self) -> bool:
        """More than its looks says that this is a call."""
        return not self.is_bare or self.name in self._tools

    def start(self, *, has_arguments: bool = False) -> bool:
        """The name is known. False: this is no call. ``sure``: it has arguments as calls have."""
        if self.has_started:
            return True
        known = self._tools.get(self.name) or self._tools.get(self.name.removeprefix("functions."))
        if not self.name or (known is None and self.is_bare and not has_arguments):
            return False
        shape = known or ToolShape(wire_name=self.name)
        self._schema = shape.schema or (_CUSTOM if shape.custom else {})
        self._input_decoder = ToolInputDecoder() if shape.custom else None
        if self._properties.keys() & {"arguments", "parameters"} or known is None:
            self._wrapper_head = None  # such a key is the tool's own
        self._sink.open_call(shape, self.call_id)
        self.has_started = True
        return True

    def finish(self) -> None:
        """The call is whole."""
        if self._object is not None:
            self._write_missing_value()
            self._write(self._object.close())
        self._write_unwrapped("", final=True)
        if not self._has_output:
            junk = "".join(self.stray_text).strip()
            is_object = _is_object(junk)  # some write JSON where parameters belong
            self._write(junk if is_object else "{}")
            self.stray_text = [] if is_object else self.stray_text
        if self._input_decoder is not None:
            self._emit(self._input_decoder.finish())
        self._sink.close_call()

    # --- arguments that are JSON ------------------------------------------------------------------

    def add_json_arguments(self, text: str) -> None:
        """More of the arguments' JSON text."""
        self._write_unwrapped(text)

    def _write_unwrapped(self, text: str, *, final: bool = False) -> None:
        """Some put all arguments under one key, ``arguments``: that wrapping is taken off."""
        if self._wrapped_span is not None:
            if not self._wrapped_span.complete:
                self._write(text[: self._wrapped_span.read(text)])
        elif self._wrapper_head is None:
            self._write(text)
        else:
            self._wrapper_head += text
            if (wrapped := _WRAPPED.match(self._wrapper_head)) is not None:
                inside, self._wrapper_head = self._wrapper_head[wrapped.end() :], None
                self._wrapped_span = JsonSpan()
                self._write_unwrapped(inside)
            elif final or not _may_be_wrapper(self._wrapper_head):
                head, self._wrapper_head = self._wrapper_head, None
                self._write(head)

    def _write(self, text: str) -> None:
        if text:
            self._has_output = True
            self._emit(text if self._input_decoder is None else self._input_decoder.read(text))

    def _emit(self, text: str) -> None:
        if text := text.replace(QUOTE, ""):  # a quote where none belongs
            self._sink.add_arguments(text)

    def add_plain_arguments(self, text: str) -> None:
        """All arguments as they stand: a line for each parameter there must be, of which the last
        takes the rest."""
        if not text:
            return
        required = self._schema.get("required")
        keys = required if isinstance(required, list) and required else [""]
        for key, said in zip(keys, text.split("\n", len(keys) - 1), strict=False):
            self.start_parameter(str(key))
            self.add_value(said)

    # --- arguments that come key by key -----------------------------------------------------------

    @property
    def _properties(self) -> Mapping[str, Any]:
        properties = self._schema.get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def start_parameter(self, key: str) -> None:
        """A key begins; an empty one stands for the next property that has no value yet."""
        if self._object is None:
            self._object, self._wrapper_head = JsonObjectWriter(self._schema), None
        self._write_missing_value()
        key = key or next((name for name in self._properties if name not in self._keys), "")
        self._keys.append(key)
        self._write(self._object.write_key(key))
        self._in_string, self._lacks_value = False, True

    def _write_missing_value(self) -> None:
        """A key the model gave no value has none: null."""
        if self._lacks_value:
            self._lacks_value = False
            self._write("null")

    @property
    def takes_string(self) -> bool:
        """Whether the value of the present key can only be a string, by its schema."""
        return self._object is not None and self._object.expects_string

    def add_value(self, text: str) -> None:
        """The whole value of the present key."""
        if self._object is None:
            self.stray_text.append(text)
        else:
            self._lacks_value = False
            self._write(self._object.write_value(text))

    @property
    def schema(self) -> Mapping[str, Any]:
        """What the arguments should be."""
        return self._schema

    def add_json_value(self, text: str) -> None:
        """The whole value of the present key, as JSON."""
        self._lacks_value = False
        self._write(text)

    def add_string(self, text: str) -> None:
        """Some of the present key's value, a string."""
        if self._object is not None:
            quote = "" if self._in_string else '"'
            self._in_string, self._lacks_value = True, False
            self._write(quote + self._object.write_string(text))

    def end_string(self) -> None:
        """The string is whole."""
        if self._object is not None:
            self._write('"')


def _may_be_wrapper(head: str) -> bool:
    """Whether arguments that begin so could lie in a wrapping."""
    bare = "".join(head.split())
    begun = any(f'{{"{key}":'.startswith(bare) for key in _WRAPPERS)
    return begun and len(head) < _WRAP_LIMIT


def _is_object(text: str) -> bool:
    try:
        return isinstance(load(text), dict)
    except ValueError:
        return False
