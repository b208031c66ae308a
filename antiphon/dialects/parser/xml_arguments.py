"""Reads arguments that are written as nested tags: one a key, ``item`` for each of an array."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from antiphon.dialects.json_stream import dump, load

from .argument_values import converted, types_of
from .lexer import QUOTE

__all__ = ["ElementReader", "Target"]

_TAG = re.compile(rf"[^<>{QUOTE}]+")
_TEXT = re.compile(f"[^{QUOTE}]+")
_TAG_LIMIT = 256
_ITEM = "item"
_NESTING = 64


class Target(Protocol):
    """Who is told what the elements say."""

    #: Text that is part of nothing.
    junk: list[str]

    @property
    def schema(self) -> Mapping[str, Any]:
        """What the arguments should be."""

    def key(self, key: str) -> None:
        """A key begins."""

    def json(self, text: str) -> None:
        """Its value, as JSON."""

    def string(self, text: str) -> None:
        """Its value is a string, and this is some of it."""

    def string_end(self) -> None:
        """The string is whole."""


class _Element:
    """One that is open inside an argument."""

    def __init__(self, name: str, types: frozenset[str], schema: Mapping[str, Any]) -> None:
        self.name = name
        self.types = types
        self.schema = schema
        self.text: list[str] = []
        self.children: list[tuple[str, str]] = []

    def value(self) -> str:
        """Its JSON text: of a leaf as its schema reads it, of others an object or an array."""
        if not self.children:
            return converted("".join(self.text), self.types)
        values: dict[str, list[str]] = {}
        for name, value in self.children:
            values.setdefault(name, []).append(value)
        if values.keys() == {_ITEM} and self.types != {"object"}:
            return f"[{', '.join(values[_ITEM])}]"
        members = (f"{dump(name)}: {_one(each)}" for name, each in values.items())
        return f"{{{', '.join(members)}}}"


def _one(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


class ElementReader:
    """``<key>value</key>…``, each tag behind a quote. A string streams; what is nested, and what
    may be one of several of the same name, is given when it is whole."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._open: list[_Element] = []
        self._tag: str | None = None  # from its "<"
        self._streams = False
        self._waiting: tuple[str, list[str]] | None = None
        self.over = self.failed = self.in_string = False

    def read(self, text: str) -> int:
        """All of it is read."""
        at = 0
        while at < len(text):
            at = self._said(text, at) if self._tag is None else self._tagged(self._tag, text, at)
        return at

    def leave(self) -> None:
        """The arguments are over, closed or not."""
        if self._tag:
            self._text(self._tag)
            self._tag = None
        while self._open:
            self._close()
        self._give()

    def _said(self, text: str, at: int) -> int:
        if text[at] == QUOTE:
            self._tag = ""
            return at + 1
        found = _TEXT.match(text, at)
        assert found is not None
        self._text(found.group())
        return found.end()

    def _tagged(self, tag: str, text: str, at: int) -> int:
        """The inside of a tag; what has no form of one is text."""
        char = text[at]
        if not tag and char == "<":
            self._tag = char
            return at + 1
        if len(tag) > 1 and char == ">":
            self._tag = None
            self._turn(tag[1:])
            return at + 1
        found = _TAG.match(text, at, at + _TAG_LIMIT - len(tag)) if tag else None
        if found is not None:
            self._tag = tag + found.group()
            return found.end()
        self._tag = None
        self._text(tag)
        return at

    def _text(self, text: str) -> None:
        if self._streams:
            self._target.string(text)
        elif self._open:
            self._open[-1].text.append(text)
        elif text.strip():
            self._target.junk.append(text)

    def _turn(self, tag: str) -> None:
        name = tag.strip()
        if not name.startswith("/"):
            self._begin(name)
        elif any(element.name == name[1:] for element in self._open):
            while self._open and self._close() != name[1:]:
                pass  # what was left open inside is over with it
        else:
            self._text(f"<{tag}>")

    def _begin(self, name: str) -> None:
        if self._streams or len(self._open) >= _NESTING:
            self._text(f"<{name}>")
            return
        if self._open:
            parent = self._open[-1]
            inner = _inner(parent.schema, name)
            self._open.append(_Element(name, types_of({"properties": {"x": inner}}, "x"), inner))
            return
        if self._waiting is not None and self._waiting[0] == name:
            types = frozenset[str]()
        else:
            self._give()
            types = types_of(self._target.schema, name)
            if types == {"string"}:
                self._target.key(name)
                self._target.string("")
                self._streams = True
        schema = _inner(self._target.schema, name)
        self._open.append(_Element(name, types, schema))

    def _close(self) -> str:
        """The innermost element is over; its name."""
        element = self._open.pop()
        if element.children and (stray := "".join(element.text).strip()):
            self._target.junk.append(stray)
        if self._open:
            self._open[-1].children.append((element.name, element.value()))
        elif self._streams:
            self._streams = False
            self._target.string_end()
        elif self._waiting is not None:
            self._waiting[1].append(element.value())
        else:
            self._waiting = (element.name, [element.value()])
            if element.types and "array" not in element.types:
                self._give()  # there can only be one
        return element.name

    def _give(self) -> None:
        """What waited for more of its name has all there is."""
        if self._waiting is None:
            return
        (name, values), self._waiting = self._waiting, None
        self._target.key(name)
        text = _one(values)
        is_list = types_of(self._target.schema, name) == {"array"}
        if is_list and not isinstance(_loaded(text), list):
            text = f"[{text}]"
        self._target.json(text)


def _inner(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What an element inside another may be."""
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    if found is None and name == _ITEM:
        found = schema.get("items")
    return found if isinstance(found, Mapping) else {}


def _loaded(text: str) -> Any:
    try:
        return load(text)
    except ValueError:
        return None
