"""One tool call while it is parsed. Nothing of it is emitted before its name is complete."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from antiphon.dialects.json_stream import JsonSpan, ToolInputDecoder, load

from .argument_values import JsonObjectWriter
from .lexer import QUOTE

__all__ = ["CallBuilder", "CallSink", "ToolShape"]

#: Keys under which models put all arguments once more.
_WRAPPERS = ("arguments", "parameters", "params", "kwargs")
_WRAPPED = re.compile(rf'\s*\{{\s*"(?:{"|".join(_WRAPPERS)})"\s*:\s*(?=\{{)')
_WRAP_LIMIT = 64
#: The schema of a custom tool, as the model was shown it.
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
    """Receives parsed calls."""

    def open_call(self, shape: ToolShape, call_id: str) -> None:
        """Open a call."""

    def add_arguments(self, text: str) -> None:
        """Add a part of the call's arguments, or of a custom tool's input."""

    def close_call(self) -> None:
        """Close the call."""


class CallBuilder:
    """Collects the parts of one call from the readers and emits them to ``sink``.

    - ``tools``: name in the prompt → tool.
    - ``is_bare``: only the syntax suggests a call, so the name must be the name of a known tool.
    - ``repeated_name``: the name in a header before the call. If the call has another
      name, the name in the header is treated as stray text.
    """

    def __init__(
        self,
        sink: CallSink,
        tools: Mapping[str, ToolShape],
        *,
        is_bare: bool,
        repeated_name: str = "",
    ) -> None:
        self._sink = sink
        self._tools = tools
        self._repeated_name = repeated_name
        self._input_decoder: ToolInputDecoder | None = None
        self._wrapper_head: str | None = ""
        self._wrapped_span: JsonSpan | None = None
        self._wrapper_tail: list[str] = []
        self._object: JsonObjectWriter | None = None
        self._schema: Mapping[str, Any] = {}
        self._keys: set[str] = set()
        self._next_properties: Iterator[str] | None = None
        self._in_string = self._lacks_value = False
        self._has_output = False
        self.is_bare = is_bare
        self.name = ""
        self.call_id = ""
        self.has_started = False
        #: Text inside the call that belongs to no part of it.
        self.stray_text: list[str] = []

    @property
    def is_likely(self) -> bool:
        """Whether this is probably a call: there is markup around it, or its name is the name of a
        tool."""
        return not self.is_bare or self.name in self._tools

    @property
    def _tool(self) -> ToolShape | None:
        return self._tools.get(self.name) or self._tools.get(self.name.removeprefix("functions."))

    @property
    def parameter_names(self) -> Collection[str]:
        """The parameter names of the function that is called. Empty for a custom tool and for an
        unknown function."""
        tool = self._tool
        if tool is None or tool.custom or tool.schema is None:
            return ()
        properties = tool.schema.get("properties")
        return properties.keys() if isinstance(properties, Mapping) else ()

    def start(self, *, has_arguments: bool = False) -> bool:
        """Start the call after its name. Return False if this is not a call.

        ``has_arguments``: arguments in the syntax of calls follow the name, so the text is a call
        even if no tool has this name.
        """
        if self.has_started:
            return True
        known = self._tool
        if not self.name or (known is None and self.is_bare and not has_arguments):
            return False
        shape = known or ToolShape(wire_name=self.name)
        self._schema = shape.schema or (_CUSTOM if shape.custom else {})
        self._input_decoder = ToolInputDecoder() if shape.custom else None
        if self._properties.keys() & set(_WRAPPERS) or known is None:
            self._wrapper_head = None  # such a key is the tool's own
        if self._repeated_name not in ("", self.name):
            self.stray_text.insert(0, f"{self._repeated_name}\n")
        self._sink.open_call(shape, self.call_id)
        self.has_started = True
        return True

    def finish(self) -> None:
        """End the call."""
        if self._object is not None:
            self._write_missing_value()
            self._write(self._object.close())
        self._write_unwrapped("", final=True)
        self._end_wrapper()
        if not self._has_output:
            stray = "".join(self.stray_text).strip()
            is_object = _is_object(stray)  # some models write JSON where parameters belong
            self._write(stray if is_object else "{}")
            self.stray_text = [] if is_object else self.stray_text
        if self._input_decoder is not None:
            self._emit(self._input_decoder.finish())
            if stray := self._input_decoder.stray_text:
                self.stray_text.append(f"{stray}\n")
        self._sink.close_call()

    # --- arguments that are JSON ------------------------------------------------------------------

    def add_json_arguments(self, text: str) -> None:
        """Add a part of the arguments' JSON text."""
        self._write_unwrapped(text)

    def _write_unwrapped(self, text: str, *, final: bool = False) -> None:
        """Write arguments without the object that some models put around them."""
        if self._wrapped_span is not None:
            end = 0
            if not self._wrapped_span.complete:
                end = self._wrapped_span.read(text)
                self._write(text[:end])
            self._wrapper_tail.append(text[end:])
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

    def _end_wrapper(self) -> None:
        """Move the text between the arguments and the end of the wrapper object to the stray text.

        Some models put such a wrapper object around the arguments.
        """
        tail = "".join(self._wrapper_tail).strip().removesuffix("}").strip().removeprefix(",")
        if tail:
            self.stray_text.append(f"{tail.strip()}\n")

    def _write(self, text: str) -> None:
        if text:
            self._has_output = True
            self._emit(text if self._input_decoder is None else self._input_decoder.read(text))

    def _emit(self, text: str) -> None:
        if text := text.replace(QUOTE, ""):  # a misplaced quote
            self._sink.add_arguments(text)

    def add_plain_arguments(self, text: str) -> None:
        """Add arguments without markup: one line for each required parameter.

        The last parameter takes all remaining lines.
        """
        if not text:
            return
        required = self._schema.get("required")
        keys = required if isinstance(required, list) and required else [""]
        for key, value in zip(keys, text.split("\n", len(keys) - 1), strict=False):
            self.start_parameter(str(key))
            self.add_value(value)

    # --- arguments that come key by key -----------------------------------------------------------

    @property
    def _properties(self) -> Mapping[str, Any]:
        properties = self._schema.get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def start_parameter(self, key: str) -> None:
        """Start a parameter. An empty key stands for the next property without a value."""
        if self._object is None:
            self._object, self._wrapper_head = JsonObjectWriter(self._schema), None
        self._write_missing_value()
        if not key:
            if self._next_properties is None:
                self._next_properties = iter(self._properties)
            key = next((name for name in self._next_properties if name not in self._keys), "")
        self._keys.add(key)
        self._write(self._object.write_key(key))
        self._in_string, self._lacks_value = False, True

    def _write_missing_value(self) -> None:
        """Write null if the last key has no value."""
        if self._lacks_value:
            self._lacks_value = False
            self._write("null")

    @property
    def takes_string(self) -> bool:
        """Whether the value of the current key can only be a string, by its schema."""
        return self._object is not None and self._object.expects_string

    def add_value(self, text: str) -> None:
        """Add the complete value of the current key, as text."""
        if self._object is None:
            self.stray_text.append(text)
        else:
            self._lacks_value = False
            self._write(self._object.write_value(text))

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema of the arguments."""
        return self._schema

    def add_json_value(self, text: str) -> None:
        """Add the complete value of the current key, as JSON."""
        self._lacks_value = False
        self._write(text)

    def add_string(self, text: str) -> None:
        """Add a part of the current key's value, which is a string."""
        if self._object is not None:
            quote = "" if self._in_string else '"'
            self._in_string, self._lacks_value = True, False
            self._write(quote + self._object.write_string(text))

    def end_string(self) -> None:
        """End the string value."""
        if self._object is not None:
            self._write('"')


def _may_be_wrapper(head: str) -> bool:
    """Whether arguments that start with ``head`` may be wrapped in another object."""
    bare = "".join(head.split())
    is_prefix = any(f'{{"{key}":'.startswith(bare) for key in _WRAPPERS)
    return is_prefix and len(head) < _WRAP_LIMIT


def _is_object(text: str) -> bool:
    try:
        return isinstance(load(text), dict)
    except ValueError:
        return False
