"""Readers of markup: the text of a format's states becomes calls.

What a reader finds are steps: a call opens, its arguments grow, it closes. It knows no items, and
nothing of what stands outside the markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from .arguments import Parameters, PythonCalls, braced_call
from .formats import ToolFormat
from .json_text import CallObject, ValueEnd

__all__ = ["CallReader", "Found", "reader_for"]

#: A call opens (name, call id or ""), its arguments grow (JSON text), it is whole.
Found = tuple[Literal["open"], str, str] | tuple[Literal["text"], str] | tuple[Literal["close"]]

Schemas = Mapping[str, Mapping[str, Any] | None]

_NAMED_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?\Z", re.DOTALL)
#: Keys that a call written as bare JSON may begin with.
_CALL_KEYS = frozenset({"name", "type", "id", "function", "parameters", "arguments"})


class CallReader:
    """Reads one stretch of markup. Subclasses read its states.

    ``tentative``: no terminal said that this is a call; only a known tool's name makes it one.
    """

    def __init__(self, form: ToolFormat, schemas: Schemas) -> None:
        self._form = form
        self._schemas = schemas
        self._found: list[Found] = []
        self.tentative = False
        #: At least one call has been found.
        self.begun = False
        #: What the state reads is complete; what follows belongs to something else.
        self.whole = False
        #: This is no call, or no more: the rest is text.
        self.refused = False
        #: Text that belongs to no call.
        self.left = ""

    @property
    def in_string(self) -> bool:
        """Inside a JSON string, where a spelled-out terminal is only text."""
        return False

    def read(self, kind: str, text: str) -> int:
        """Take text of a state; returns how much of it was taken."""
        raise NotImplementedError

    def mean(self, meaning: str) -> None:
        """A terminal said something."""

    def finish(self, cut: bool) -> None:
        """The markup is over; ``cut``: because a limit struck."""

    def take(self) -> list[Found]:
        """What was found since the last call."""
        found, self._found = self._found, []
        return found

    def _opens(self, name: str, call_id: str = "") -> None:
        self.begun = True
        self._found.append(("open", name, call_id))

    def _argues(self, text: str) -> None:
        if text:
            self._found.append(("text", text))

    def _closes(self) -> None:
        self._found.append(("close",))


class _Tagged(CallReader):
    """Formats whose terminals say what is what: names, keys and values, or JSON arguments."""

    def __init__(self, form: ToolFormat, schemas: Schemas) -> None:
        super().__init__(form, schemas)
        self._name: list[str] = []
        self._id: list[str] = []
        self._key: list[str] | None = None
        self._kind: str | None = None
        self._named = False
        self._in_value = False
        self._parameters: Parameters | None = None
        self._json: ValueEnd | None = None
        self._argued = False
        self._has_parameters = "value" in form.reads.values()

    @property
    def in_string(self) -> bool:
        return self._json is not None and self._json.in_string

    def read(self, kind: str, text: str) -> int:
        return _READ_TAGGED[kind](self, text)

    def mean(self, meaning: str) -> None:
        if (act := _MEANINGS.get(meaning)) is not None:
            act(self)

    def finish(self, cut: bool) -> None:
        if self._named and not cut:
            if self._in_value:
                self._value_end()
            self._close()
        elif not self._named:
            self.left += "".join(self._name)

    # Texts

    def _drop(self, text: str) -> int:
        if text.strip():
            self.left += text
        return len(text)

    def _skip(self, text: str) -> int:
        return len(text)

    def _collect_name(self, text: str) -> int:
        self._name.append(text)
        return len(text)

    def _collect_id(self, text: str) -> int:
        self._id.append(text)
        return len(text)

    def _collect_key(self, text: str) -> int:
        if self._key is not None:
            self._key.append(text)
        return len(text)

    def _read_value(self, text: str) -> int:
        if self._parameters is not None:
            self._begin_value()
            self._argues(self._parameters.value(text))
        return len(text)

    def _read_json(self, text: str) -> int:
        if self.whole or self._json is None:
            return len(text)  # a fence behind the arguments, say
        bare = text if self._argued else text.lstrip()
        end = self._json.feed(bare)
        if bare:
            self._argued = True
            self._argues(bare if end is None else bare[:end])
        if end is None:
            return len(text)
        self.whole = True
        return len(text) - len(bare) + end if "args" in self._form.after else len(text)

    # Meanings

    def _call(self) -> None:
        self._name, self._id, self._named = [], [], False
        self._parameters = self._json = None
        self._argued = self.whole = False

    def _name_known(self) -> None:
        name, call_id = "".join(self._name).strip(), "".join(self._id).strip()
        if self._form.id_holds_name:
            call_id, found = name, _NAMED_ID.match(name)
            name = found.group(1) if found else name
        self._named = True
        self._opens(name, call_id)
        if self._has_parameters:
            self._parameters = Parameters(
                self._schemas.get(name),
                trims=self._form.trims,
                untyped_json=self._form.untyped_json,
            )
            self._argues(self._parameters.begin())
        else:
            self._json = ValueEnd()

    def _begin_key(self) -> None:
        self._key, self._kind = [], None

    def _is_string(self) -> None:
        self._kind = "string"

    def _is_json(self) -> None:
        self._kind = "json"

    def _begin_value(self) -> None:
        if self._key is None or self._parameters is None:
            return
        key = "".join(self._key).strip()
        self._key, self._in_value = None, True
        self._argues(self._parameters.key(key, self._kind))

    def _value_end(self) -> None:
        self._begin_value()
        if self._in_value and self._parameters is not None:
            self._argues(self._parameters.value_end())
            self._in_value = False

    def _close(self) -> None:
        if not self._named:
            return
        if self._parameters is not None:
            self._argues(self._parameters.end())
        elif not self._argued:
            self._argues("{}")
        self._closes()
        self._call()


_READ_TAGGED: Mapping[str, Callable[[_Tagged, str], int]] = {
    "drop": _Tagged._drop,
    "skip": _Tagged._skip,
    "name": _Tagged._collect_name,
    "id": _Tagged._collect_id,
    "key": _Tagged._collect_key,
    "value": _Tagged._read_value,
    "json": _Tagged._read_json,
}
_MEANINGS: Mapping[str, Callable[[_Tagged], None]] = {
    "call": _Tagged._call,
    "named": _Tagged._name_known,
    "key": _Tagged._begin_key,
    "string": _Tagged._is_string,
    "json": _Tagged._is_json,
    "value": _Tagged._value_end,
    "close": _Tagged._close,
}


class _Objects(CallReader):
    """JSON objects with a name and arguments, one after another or in a list."""

    def __init__(self, form: ToolFormat, schemas: Schemas) -> None:
        super().__init__(form, schemas)
        self._object: CallObject | None = None
        self._opened = False
        self._depth = 0

    @property
    def in_string(self) -> bool:
        return self._object is not None and self._object.in_string

    def read(self, kind: str, text: str) -> int:
        at = 0
        while at < len(text) and not (self.refused or self.whole):
            at = self._between(text, at) if self._object is None else self._inside(text, at)
        return at

    def finish(self, cut: bool) -> None:
        if self._object is not None and self._opened and not cut:
            self._closes()

    def _between(self, text: str, at: int) -> int:
        char = text[at]
        if char in "{":
            self._object, self._opened = CallObject(), False
            return at
        if char == "[":
            self._depth += 1
        elif char == "]" and self._depth:
            self._depth -= 1
            self.whole = self._depth == 0 and bool(self._form.after)
        elif char not in " \t\r\n,;":
            if self.begun and self._form.after:
                self.whole = True
            else:
                self.refused = True
            return at
        return at + 1

    def _inside(self, text: str, at: int) -> int:
        call = self._object
        assert call is not None
        at += call.feed(text[at:])
        if self._is_other(call):
            self.refused = True
            return at
        if call.name is not None:
            if not self._opened:
                self._opened = True
                self._opens(call.name)
            self._argues(call.take())
        if call.done or call.broken:
            self._object = None
            if self._opened:
                self._closes()
            self.refused = call.broken or not self._opened
        return at

    def _is_other(self, call: CallObject) -> bool:
        """A bare JSON object that is an answer, not a call."""
        if not self.tentative or self._opened:
            return False
        if call.name is not None:
            return call.name not in self._schemas
        return call.first_key is not None and call.first_key not in _CALL_KEYS


class _Python(CallReader):
    """A list of Python calls."""

    def __init__(self, form: ToolFormat, schemas: Schemas) -> None:
        super().__init__(form, schemas)
        self._calls = PythonCalls()

    def read(self, kind: str, text: str) -> int:
        if self._calls.done:
            self.refused = bool(text.strip())
            return 0 if self.refused else len(text)
        for name, arguments in self._calls.feed(text):
            if self.tentative and not self.begun and name not in self._schemas:
                self.refused = True
                return len(text)
            self._opens(name)
            self._argues(arguments)
            self._closes()
        if self._calls.broken:
            self.refused = True
            self.left = self._calls.rest
        if not self._calls.done:
            return len(text)
        self.whole = bool(self._form.after)
        return len(text) - len(self._calls.rest)

    def finish(self, cut: bool) -> None:
        if not self._calls.done and not self.left:
            self.left = self._calls.rest


class _Braced(CallReader):
    """``call:name{key:value}``, read when it is whole."""

    def __init__(self, form: ToolFormat, schemas: Schemas) -> None:
        super().__init__(form, schemas)
        self._text: list[str] = []

    def read(self, kind: str, text: str) -> int:
        self._text.append(text)
        return len(text)

    def finish(self, cut: bool) -> None:
        call = None if cut else braced_call("".join(self._text), self._schemas)
        if call is not None:
            self._opens(call[0])
            self._argues(call[1])
            self._closes()


def reader_for(form: ToolFormat, schemas: Schemas) -> CallReader:
    """A reader for one stretch of markup of this format. ``schemas``: those of the known tools."""
    kinds = set(form.reads.values())
    for kind, reader in _READERS.items():
        if kind in kinds:
            return reader(form, schemas)
    return _Tagged(form, schemas)


_READERS: Mapping[str, type[CallReader]] = {
    "calls": _Objects,
    "python": _Python,
    "braced": _Braced,
}
