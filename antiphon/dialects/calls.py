"""One call as it is read: nothing of it is given out before its name is known.

A reader takes the text of one state of a format and tells the call what it says. Readers know
neither terminals nor items.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from .arguments import ObjectText
from .formats_shape import Reads, ToolFormat
from .json_text import InputText, Span
from .pairs import PairReader
from .records import Record

__all__ = ["Call", "Reader", "ToolShape", "reader_for"]

#: What the name of a call can be: neither white space nor brackets nor quotes.
_NAME = re.compile(r"[\w.\-:/$]*")
_NAME_LIMIT = 256
_LABEL = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?", re.DOTALL)
_WRAPPERS = ("arguments", "parameters")
_WRAPPED = re.compile(rf'\s*\{{\s*"({"|".join(_WRAPPERS)})"\s*:\s*(?=\{{)')
_WRAP_BEGUN = re.compile(
    r'\s*(?:\{\s*(?:"(?:'
    + "|".join(sorted({key[:n] for key in _WRAPPERS for n in range(len(key))}, reverse=True))
    + "|(?:"
    + "|".join(_WRAPPERS)
    + r')(?:"\s*(?::\s*)?)?)?)?)?'
)
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

    def argue(self, text: str) -> None:
        """Its arguments, or its input, go on."""

    def end_call(self) -> None:
        """It is whole."""


class Call:
    """Collects what readers find and tells ``sink``. ``tools``: by the names the model was shown.

    ``is_bare``: nothing but its looks says that this is a call.
    """

    def __init__(self, sink: Sink, tools: Mapping[str, ToolShape], *, is_bare: bool) -> None:
        self._sink = sink
        self._tools = tools
        self._is_bare = is_bare
        self._input: InputText | None = None
        self._head: str | None = ""
        self._inner: Span | None = None
        self._object: ObjectText | None = None
        self._schema: Mapping[str, Any] = {}
        self._keys: list[str] = []
        self._is_quoted = False
        self._wrote = False
        self.name = ""
        self.call_id = ""
        self.begun = False
        #: Text in the call that is part of nothing.
        self.junk: list[str] = []

    @property
    def is_known(self) -> bool:
        """Whether its name is that of a tool."""
        return self.name in self._tools

    def begin(self, *, sure: bool = False) -> bool:
        """The name is known. False: this is no call. ``sure``: it has arguments as calls have."""
        if self.begun:
            return True
        known = self._tools.get(self.name) or self._tools.get(self.name.removeprefix("functions."))
        if not self.name or (known is None and self._is_bare and not sure):
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
            self._write(self._object.end())
        self._unwrapped("", final=True)
        if not self._wrote:
            junk = "".join(self.junk).strip()
            # Some write JSON where parameters belong.
            self._write(junk if junk.startswith("{") else "{}")
            self.junk = [] if junk.startswith("{") else self.junk
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
                self._inner = Span()
                self._unwrapped(inside)
            elif final or len(self._head) > _WRAP_LIMIT or not _WRAP_BEGUN.fullmatch(self._head):
                head, self._head = self._head, None
                self._write(head)

    def _write(self, text: str) -> None:
        if text:
            self._wrote = True
            self._argue(text if self._input is None else self._input.read(text))

    def _argue(self, text: str) -> None:
        if text:
            self._sink.argue(text)

    # --- arguments that come key by key -----------------------------------------------------------

    @property
    def _properties(self) -> Mapping[str, Any]:
        properties = self._schema.get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def key(self, key: str) -> None:
        """A key begins; an empty one stands for the next property that has no value yet."""
        if self._object is None:
            self._object, self._head = ObjectText(self._schema), None
        key = key or next((name for name in self._properties if name not in self._keys), "")
        self._keys.append(key)
        self._write(self._object.key(key))
        self._is_quoted = False

    @property
    def takes_string(self) -> bool:
        """Whether the value of the present key can only be a string, by its schema."""
        return self._object is not None and self._object.is_string

    def value(self, text: str) -> None:
        """The whole value of the present key."""
        if self._object is not None:
            self._write(self._object.value(text))

    def string(self, text: str) -> None:
        """Some of the present key's value, a string."""
        if self._object is not None:
            quote = "" if self._is_quoted else '"'
            self._is_quoted = True
            self._write(quote + self._object.string(text))

    def string_end(self) -> None:
        """The string is whole."""
        self._write('"')


class Reader(Protocol):
    """Reads the text of one state."""

    @property
    def over(self) -> bool:
        """It is whole: what follows belongs to another state."""

    @property
    def failed(self) -> bool:
        """This is no call."""

    @property
    def in_string(self) -> bool:
        """What looks like markup here is only text."""

    def read(self, text: str) -> int:
        """Take text; returns how much of it was taken."""

    def leave(self) -> None:
        """A terminal came, or the end."""


class _Plain:
    """Most readers take all there is."""

    over = failed = in_string = False

    def __init__(self, call: Call) -> None:
        self.call = call
        self.parts: list[str] = []

    def read(self, text: str) -> int:
        self.parts.append(text)
        return len(text)

    def leave(self) -> None:
        """Nothing is left to say."""

    @property
    def text(self) -> str:
        return "".join(self.parts)


class _Name(_Plain):
    """The name; refuses at the first character that no name has."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._length = 0
        self._is_whole = False

    def read(self, text: str) -> int:
        at = 0 if self._length else len(text) - len(text.lstrip())
        if not self._is_whole:
            name = _NAME.match(text, at, at + _NAME_LIMIT - self._length)
            assert name is not None
            self.parts.append(name.group())
            self._length += len(name.group())
            at = name.end()
            self._is_whole = at < len(text)
        at = len(text) - len(text[at:].lstrip())
        self.failed = at < len(text)
        return at

    def leave(self) -> None:
        self.call.name = self.text


class _Label(_Name):
    """An id that holds the name: ``functions.NAME:0``."""

    def leave(self) -> None:
        self.call.call_id = self.text
        found = _LABEL.fullmatch(self.call.call_id)
        self.call.name = found.group(1) if found else ""


class _Id(_Plain):
    """The call's id, as the model gives it."""

    def leave(self) -> None:
        self.call.call_id = self.text.strip()


class _Gap(_Plain):
    """Between two parts of a call there is nothing to read."""

    def read(self, text: str) -> int:
        if self.call.begun:
            self.call.junk.append(text)
        return len(text)


class _Json(_Plain):
    """The arguments as JSON; whatever else stands there is kept as the model wrote it."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._span = Span()
        self._begun = False

    @property
    def in_string(self) -> bool:  # type: ignore[override]
        return self._span.in_string

    def read(self, text: str) -> int:
        at = 0
        if not self._begun:
            at = len(text) - len(text.lstrip())
            self._begun = at < len(text)
        end = self._span.read(text, at)
        self.call.arguments(text[at:end])
        self.over = self._span.over
        return end


class _Key(_Plain):
    """The name of a parameter."""

    def leave(self) -> None:
        self.call.key(self.text.strip())


class _Literal(_Plain):
    """A value that may be no string: read when it is whole."""

    def __init__(self, call: Call, *, trims: bool) -> None:
        super().__init__(call)
        self._trims = trims

    def leave(self) -> None:
        text = self.text
        self.call.value(text.removeprefix("\n").removesuffix("\n") if self._trims else text)


class _String(_Plain):
    """A value that is a string, as it stands. ``trims``: without a line end on either side."""

    def __init__(self, call: Call, *, trims: bool) -> None:
        super().__init__(call)
        self._trims = trims
        self._begun = False
        self._held = ""
        call.string("")

    def read(self, text: str) -> int:
        said = text
        if self._trims:
            said = self._held + (text if self._begun else text.removeprefix("\n"))
            self._begun = True
            self._held = "\n" if said.endswith("\n") else ""
            said = said.removesuffix("\n")
        self.call.string(said)
        return len(text)

    def leave(self) -> None:
        self.call.string_end()


def reader_for(reads: Reads, call: Call, form: ToolFormat) -> Reader:
    """A reader for a state of ``form`` that reads that."""
    match reads:
        case "string":
            return _String(call, trims=form.trims)
        case "value" if call.takes_string:
            return _String(call, trims=form.trims)
        case "value" | "literal":
            return _Literal(call, trims=form.trims)
        case "pairs":
            parameter = form.written.parameter
            assert parameter is not None
            return PairReader(call, parameter, form.written.after[0])
    return _READERS[reads](call)


_READERS: Mapping[Reads, Callable[[Call], Reader]] = {
    "name": _Name,
    "label": _Label,
    "id": _Id,
    "gap": _Gap,
    "json": _Json,
    "key": _Key,
    "record": Record,
}
