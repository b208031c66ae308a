"""Build a tool call while the model's output is parsed. The parser emits no part of a call before
the call's name is complete."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, Protocol

from msgspec import Struct

from antiphon.dialects.grammar.schema_types import SchemaTypes, keyword_list, keyword_object
from antiphon.dialects.json_stream import JsonSpan, StringDecoder, ToolInputDecoder, load_object

from .argument_values import JsonObjectWriter, to_json_text
from .json_repair import JsonRepair
from .lexer import QUOTE

#: Keys of an additional object in which some models wrap the arguments: ``{"arguments": {…}}``.
WRAPPERS = ("arguments", "parameters", "params", "kwargs", "input", "properties")
#: The text before the real arguments, which are an object or a string of JSON.
_WRAPPED = re.compile(
    rf'\s*(?:\{{\s*"(?:{"|".join(WRAPPERS)})"\s*:\s*(?:(?=\{{)|"(?=\s*\{{))|"(?=\s*[{{"]))'
)
_WRAP_LIMIT = 64
#: Characters that do not tell names apart.
_SIGN = re.compile(r"[\s.:/_$#\"'`*-]")
#: A tool's name as models write it: a list of parameters may follow it, as in ``find(query)``.
_WRITTEN_NAME = re.compile(rf"([^()]*)(?:\(([\w\s,]*)\))?{_SIGN.pattern}*")
#: Namespaces that say only that a name is that of a tool.
_NAMESPACES = re.compile(
    rf"\A{_SIGN.pattern}*+(?:(?:functions?|tools?|default_api|mcp)(?:[.:/]+|__))+", re.I
)
#: Characters that have no meaning after the arguments.
_CLOSING = " \t\r\n]}`"
#: The schema of a custom tool, as the model was shown it.
_CUSTOM: Mapping[str, Any] = {"properties": {"input": {"type": "string"}}}


class ToolShape(Struct, frozen=True, kw_only=True):
    """Describes a tool from the prompt, so that the model's calls of the tool can be converted to
    calls in the API.

    - ``wire_name``, ``namespace``: the tool's name and namespace in the API. Its name in the prompt
      may differ.
    - ``custom``: whether it is a custom tool. In the prompt, a custom tool is a function with one
      string parameter.
    - ``schema``: the JSON schema of the tool's arguments, or None.
    """

    wire_name: str
    namespace: str | None = None
    custom: bool = False
    schema: Mapping[str, Any] | None = None


class ToolShapes(dict[str, ToolShape]):
    """The tools of a prompt: name of a tool in the prompt → the tool. It must not change."""

    @cached_property
    def by_bare_name(self) -> Mapping[str, str]:
        """What tells a tool's name apart, with or without its namespace → its name in the prompt,
        or "" if this tells several tools not apart."""
        whole: dict[str, str] = {}
        short: dict[str, str] = {}
        for key, tool in self.items():
            for names, name in ((whole, _bare_name(key)), (short, _bare_name(tool.wire_name))):
                names[name] = "" if name in names else key
        return short | whole


def meant_tool(written: str, tools: Mapping[str, ToolShape]) -> str:
    """Return the name in the prompt of the tool that the model means by ``written``, or "" if it
    may mean no tool or several.

    The name may have other separators, another case, quotes around it, a general namespace, or a
    list of the tool's parameters after it. Or it may lack the tool's own namespace.
    """
    if written in tools:
        return written
    found = _WRITTEN_NAME.fullmatch(written)
    if found is None or not (name := _bare_name(found[1])):
        return ""
    shapes = tools if isinstance(tools, ToolShapes) else ToolShapes(tools)
    meant = shapes.by_bare_name.get(name)
    if not meant:
        return ""
    parameters = re.findall(r"\w+", found[2] or "")
    names = _schemas_of(tools[meant]).property_names
    return meant if set(parameters).issubset(names) else ""


def _bare_name(name: str) -> str:
    """Return the characters of a tool's name that tell it apart from other names."""
    return _SIGN.sub("", _NAMESPACES.sub("", name)).casefold()


class CallSink(Protocol):
    """Receives the parsed calls of a reply. ``ParserDeltaBuilder`` implements it."""

    def add_text(self, text: str) -> None:
        """Add text of the answer."""

    def open_call(self, shape: ToolShape, call_id: str) -> None:
        """Start a call. ``shape``: the name and schema of the called tool. ``call_id``: the id that
        the model wrote, or ``""``."""

    def add_arguments(self, text: str) -> None:
        """Add text to the call's arguments, or to a custom tool's input."""

    def close_call(self, *, is_complete: bool = True) -> None:
        """End the call. ``is_complete``: whether the arguments of the call are JSON."""


class CallBuilder:
    """Builds one call from the parts that the state readers parse, and passes it to ``sink``.

    Stray text is text inside the call that is part of neither the name, the id nor the arguments.
    It is collected in ``stray_text``, and the parser emits it after the call as text of the answer.

    - ``tools``: name of a tool in the prompt → the tool.
    - ``is_bare``: whether no special token marks the call, and only the syntax of the text suggests
      it.
    - ``is_listed``: whether a call before it or a special token shows that it was meant as a call.
    - ``passes_unknown``: whether a marked call of an unknown tool is a call, because the caller
      rejects it. Otherwise, its text is part of the answer.
    - ``repeated_name``: the name in a header before the call. If the call has another name, the
      name in the header is stray text.
    """

    def __init__(
        self,
        sink: CallSink,
        tools: Mapping[str, ToolShape],
        *,
        is_bare: bool,
        is_listed: bool = False,
        repeated_name: str = "",
        passes_unknown: bool = False,
    ) -> None:
        self._sink = sink
        self._tools = tools
        self.is_listed = is_listed
        self._passes_unknown = passes_unknown
        self._repeated_name = repeated_name
        self._input_decoder: ToolInputDecoder | None = None
        self._wrapper_head: str | None = ""
        self._wrapped: JsonSpan | StringDecoder | None = None
        self._wrapper_tail: list[str] = []
        self._repair: JsonRepair | None = None
        self._object: JsonObjectWriter | None = None
        #: The schema of the arguments, which is empty before the call starts, and its parameters.
        self.schemas = SchemaTypes({})
        self._names: Collection[str] = ()
        self._keys: set[str] = set()
        self._next_properties: Iterator[str] | None = None
        self._in_string = self._lacks_value = False
        self._has_wrappers = False
        #: A string that is passed on once it is complete, because the schema allows no string.
        self._string: list[str] = []
        #: The key and the value of a parameter that may wrap all arguments.
        self._wrapper: tuple[str, str] | None = None
        self._has_output = False
        self.is_bare = is_bare
        self.name = ""
        self.call_id = ""
        self.message = ""  # text of the answer that precedes the call
        self.has_started = False
        #: Whether the call is text, because it names an unknown function. Its values are read as
        #: those of any call, so that tags in them have no meaning, but nothing is passed on.
        self.is_text = False
        #: Whether only the arguments can tell which tool is called. They are then held back.
        self.is_unnamed = False
        self._unnamed_arguments: list[str] = []
        #: Text inside the call that is part of neither the name, the id nor the arguments.
        self.stray_text: list[str] = []
        #: Whether the arguments are incomplete, for example because a string has no end.
        self.is_broken = False

    @property
    def is_likely(self) -> bool:
        """Whether the text is probably a call: either a special token marks it, or it names a known
        tool."""
        return not self.is_bare or self._tool is not None

    @property
    def _tool(self) -> ToolShape | None:
        return self._tools.get(self.tool_named(self.name))

    def tool_named(self, written: str) -> str:
        """Return the name in the prompt of the tool that ``written`` means, or "". If only the
        syntax of the text suggests a call, ``written`` must be the tool's own name."""
        if not self.is_bare:
            return meant_tool(written, self._tools)
        names = (written, written.removeprefix("functions."))
        return next((name for name in names if name in self._tools), "")

    @property
    def only_tool(self) -> str:
        """The name of the tool in the prompt, or "" if there are several."""
        return next(iter(self._tools)) if len(self._tools) == 1 else ""

    @property
    def parameter_names(self) -> Collection[str]:
        """The names of the parameters of the function that is called. Empty for a custom tool and
        for an unknown function."""
        tool = self._tool
        return () if tool is None or tool.custom else _schemas_of(tool).property_names

    @property
    def required_names(self) -> Collection[str]:
        """The names of the parameters that a call of the function must have."""
        tool = self._tool
        return () if tool is None else _required(_schemas_of(tool))

    @property
    def missing_parameters(self) -> Collection[str] | None:
        """The parameters of the function that the call has not given yet. None if the function's
        parameters are unknown."""
        names = self._names
        return [name for name in names if name not in self._keys] if names else None

    def start(self) -> bool:
        """Start the call. The caller must have set ``name``. Returns False and starts nothing if
        the model's text is not a call."""
        if self.has_started or self.is_unnamed:
            return True
        known = self._tool
        if not self.name or (known is None and self.is_bare and not self.is_listed):
            return False
        self.is_text = known is None and (self.is_bare or not self._passes_unknown)
        shape = known or ToolShape(wire_name=self.name)
        self.schemas = _schemas_of(shape)
        self._names = self.schemas.property_names
        self._input_decoder = ToolInputDecoder() if shape.custom else None
        if not set(WRAPPERS).isdisjoint(self._names) or known is None:
            self._wrapper_head = None  # a key like "arguments" is a parameter of the tool itself
        self._has_wrappers = self._wrapper_head is not None and bool(self._names)
        if self._repeated_name not in ("", self.name):
            self.stray_text.insert(0, f"{self._repeated_name}\n")
        if not self.is_text:
            if self.message:
                self._sink.add_text(self.message)
            self._sink.open_call(shape, self.call_id)
        self.has_started = True
        return True

    def start_by_arguments(self) -> bool:
        """Start a call without a name, if its arguments fit the schema of only one tool. Returns
        False if they do not."""
        text, self._unnamed_arguments, self.is_unnamed = "".join(self._unnamed_arguments), [], False
        names = [name for name, tool in self._tools.items() if _fits(tool, text)]
        self.name = names[0] if len(names) == 1 else ""
        if not self.start():
            return False
        self.add_json_arguments(text)
        return True

    def finish(self) -> None:
        """End the call."""
        if self._wrapper is not None:
            self._unwrap_parameter(*self._wrapper)
        if self._object is not None:
            self._write_missing_value()
            self._write(self._object.close())
        self._write_unwrapped("", final=True)
        self._end_wrapper()
        self._end_json()
        if not self._has_output:
            # Text in the place of arguments may be arguments.
            self.is_broken |= bool(self._names) and "".join(self.stray_text).strip() != ""
            self._write("{}")
        if self._input_decoder is not None:
            self._emit(self._input_decoder.finish())
            if stray := self._input_decoder.stray_text:
                self.stray_text.append(f"{stray}\n")
        is_broken = self.is_broken or (self._repair is not None and self._repair.is_broken)
        self._sink.close_call(is_complete=not is_broken)

    def cut(self) -> None:
        """Pass on what was held back of a call that was cut off. The call stays open."""
        if not self.is_bare and self.name and self.start():
            self._write_unwrapped("", final=True)

    def _end_json(self) -> None:
        if self._repair is not None:
            self._write(self._repair.finish())
            if rest := "".join(self._repair.rest).lstrip(_CLOSING).rstrip():
                self.stray_text.append(f"{rest}\n")

    # --- arguments that are JSON ------------------------------------------------------------------

    def add_json_arguments(self, text: str) -> None:
        """Add the next piece of arguments that the model writes as JSON."""
        if self.is_unnamed:
            self._unnamed_arguments.append(text)
        elif self._object is not None:  # the call already has arguments between tags
            self.stray_text.append(text)
        else:
            self._write_unwrapped(text)

    def _write_unwrapped(self, text: str, *, final: bool = False) -> None:
        """Pass on a piece of the arguments. ``final``: whether this is the last piece.

        Some models wrap the arguments in another object, such as ``{"arguments": {…}}``, or write
        them as a string of JSON, or both. Only the inner object is passed on.
        """
        if self._wrapped is not None:
            inner, end = self._read_wrapped(self._wrapped, text)
            self._write_json(inner)
            self._wrapper_tail.append(text[end:])
        elif self._wrapper_head is None:
            self._write_json(text)
        else:
            self._wrapper_head += text
            if (wrapped := _WRAPPED.match(self._wrapper_head)) is not None:
                inside, self._wrapper_head = self._wrapper_head[wrapped.end() :], None
                is_string = wrapped.group().endswith('"')
                self._wrapped = StringDecoder() if is_string else JsonSpan()
                self._write_unwrapped(inside)
            elif final or not _may_be_wrapper(self._wrapper_head):
                head, self._wrapper_head = self._wrapper_head, None
                self._write_json(head)

    @staticmethod
    def _read_wrapped(wrapped: JsonSpan | StringDecoder, text: str) -> tuple[str, int]:
        """Read the next piece of the real arguments. Returns them, and the position after them."""
        if wrapped.complete:
            return "", 0
        if isinstance(wrapped, JsonSpan):
            end = wrapped.read(text)
            return text[:end], end
        inner, end = wrapped.read(text)
        return inner + (wrapped.finish() if wrapped.complete else ""), end

    def _write_json(self, text: str) -> None:
        if self._input_decoder is not None:
            self._write(text)  # a custom tool's input need not be JSON
        elif text:
            self._repair = self._repair or JsonRepair(self.schemas)
            self._write(self._repair.read(text))

    def _end_wrapper(self) -> None:
        """Process the text after arguments that the model wrapped in another object, such as
        ``{"arguments": {…}}``. The text after the inner object, without the closing brace of the
        outer object, is added to ``stray_text``."""
        tail = "".join(self._wrapper_tail).strip().removesuffix("}").strip().removeprefix(",")
        if tail:
            self.stray_text.append(f"{tail.strip()}\n")

    def _write(self, text: str) -> None:
        if text:
            self._has_output = True
            self._emit(text if self._input_decoder is None else self._input_decoder.read(text))

    def _emit(self, text: str) -> None:
        text = text.replace(QUOTE, "")  # the model wrote a quote where none belongs
        if text and not self.is_text:
            self._sink.add_arguments(text)

    def add_plain_arguments(self, text: str) -> None:
        """Add arguments that the model writes as plain lines, without tags and without JSON. The
        lines are the values of the required parameters, in the schema's order.

        The last required parameter gets all remaining lines.
        """
        if not text:
            return
        keys = _required(self.schemas) or [""]
        for key, value in zip(keys, text.split("\n", len(keys) - 1), strict=False):
            self.start_parameter(key)
            self.add_value(value)

    # --- arguments that come key by key -----------------------------------------------------------

    def start_parameter(self, key: str, *, is_object: bool = False) -> None:
        """Start the parameter ``key``. If the key is empty, the value belongs to the schema's next
        property that has no value yet. ``is_object``: whether the value without a key is an object,
        which may contain all arguments."""
        if self._repair is not None:  # the call already has arguments that are JSON
            self.stray_text.append(f"{key} ")
            return
        if self._wrapper is not None:
            self.add_value(self._start_wrapper_parameter())
        if self._object is None:
            if self._has_wrappers and (is_object or key in WRAPPERS):
                self._wrapper = (key, "")
                return
            self._object, self._wrapper_head = JsonObjectWriter(self.schemas), None
        self._write_missing_value()
        if not key:
            if self._next_properties is None:
                self._next_properties = iter(self._names)
            key = next((name for name in self._next_properties if name not in self._keys), "")
        self._keys.add(key)
        self._write(self._object.write_key(key))
        self._in_string, self._lacks_value = False, True

    def find_key(self) -> None:
        """Start the parameter of the next value if no key precedes this value, but a text that is
        the name of a parameter: the opening tag of the key is missing."""
        key = self.stray_text[-1].strip() if self.stray_text and not self._lacks_value else ""
        if key and key in (self.missing_parameters or ()):
            del self.stray_text[-1]
            self.start_parameter(key)

    def _start_wrapper_parameter(self) -> str:
        """Start the parameter that could wrap all arguments, because it is an ordinary parameter.
        Returns its value."""
        assert self._wrapper is not None
        (key, value), self._wrapper = self._wrapper, None
        self._has_wrappers = False
        self.start_parameter(key)
        return value

    def _unwrap_parameter(self, key: str, value: str) -> None:
        """Add the arguments that the only parameter of the call wraps. If its value is no object,
        or if it has no key and not only arguments in its value, it is an ordinary parameter."""
        found = load_object(text := to_json_text(value))
        if found is not None and (key or (found and set(self._names).issuperset(found))):
            self._wrapper, self._wrapper_head = None, None
            self._write_json(text)
        else:
            self.add_value(self._start_wrapper_parameter())

    def _write_missing_value(self) -> None:
        """Write ``null`` as the value of the last key if the model wrote no value for it."""
        if self._lacks_value:
            self._lacks_value = False
            self._write("null")

    @property
    def takes_string(self) -> bool:
        """Whether the schema allows only a string as the value of the current key."""
        return self._object is not None and self._object.expects_string

    @property
    def takes_other_type(self) -> bool:
        """Whether the current value cannot be a string: the schema allows no string, or the value
        may wrap all arguments."""
        return self._object is None or self._object.expects_other_type

    @property
    def takes_scalar(self) -> bool:
        """Whether the schema allows only numbers, booleans and null as the current value. Such a
        value contains no tags."""
        return self._object is not None and self._object.expects_scalar

    def add_value(self, text: str) -> None:
        """Add the complete value of the current key. It is converted to JSON according to the
        schema."""
        if self._wrapper is not None:
            self._wrapper = (self._wrapper[0], text)
        elif self._object is None or not self._lacks_value:  # no key precedes the value
            self.stray_text.append(text)
        else:
            self._lacks_value = False
            self._write(self._object.write_value(text))

    def add_json_value(self, text: str) -> None:
        """Add the complete value of the current key. ``text``: the value as JSON."""
        if self._wrapper is not None and text.startswith("{"):
            self._wrapper = (self._wrapper[0], text)
            return
        if self._wrapper is not None:
            self._start_wrapper_parameter()
        if self._object is None:
            self.stray_text.append(text)
        else:
            self._lacks_value = False
            self._write(text)

    def add_string(self, text: str) -> None:
        """Add the next piece of the current key's value, which is a string. ``text``: the piece,
        without quotes and escapes."""
        if self._wrapper is not None:
            self._wrapper = (self._wrapper[0], self._wrapper[1] + text)
        elif self._object is None or not (self._lacks_value or self._in_string):
            self.stray_text.append(text)  # no key precedes the value
        elif self._object.expects_other_type:
            self._in_string, self._lacks_value = True, False
            self._string.append(text)
        else:
            quote = "" if self._in_string else '"'
            self._in_string, self._lacks_value = True, False
            self._write(quote + self._object.write_string(text))

    def end_string(self) -> None:
        """End the string value that ``add_string`` has written."""
        if self._object is None or self._wrapper is not None or not self._in_string:
            return
        self._in_string = False
        if self._object.expects_other_type:
            self._write(self._object.write_quoted("".join(self._string)))
            self._string = []
        else:
            self._write('"')


def _may_be_wrapper(head: str) -> bool:
    """Return whether a text may still turn out to be an object that wraps the real arguments, such
    as ``{"arguments": {…}}``, or a string that contains them. ``head``: the text of the arguments
    that has been read so far."""
    bare = "".join(head.split())
    is_prefix = any(text.startswith(bare) for text in ('"', *(f'{{"{k}":"' for k in WRAPPERS)))
    return is_prefix and len(head) < _WRAP_LIMIT


def _schemas_of(tool: ToolShape) -> SchemaTypes:
    return SchemaTypes(tool.schema or (_CUSTOM if tool.custom else {}))


def _required(schemas: SchemaTypes) -> list[str]:
    return [str(name) for name in keyword_list(schemas.forms(schemas.root)[0], "required")]


def _fits(tool: ToolShape, arguments: str) -> bool:
    """Return whether arguments, as JSON, have all required parameters of a tool and no others than
    its parameters."""
    given, schemas = load_object(arguments), _schemas_of(tool)
    return given is not None and any(
        given.keys() <= keyword_object(form, "properties").keys()
        and all(name in list(given) for name in keyword_list(form, "required"))
        for form in schemas.forms(schemas.root)
    )
