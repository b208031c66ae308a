"""Reads arguments that are written as nested tags: one a key, ``item`` for each of an array."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from antiphon.dialects.json_stream import dump, load

from .argument_values import property_types, to_json_text
from .lexer import QUOTE

__all__ = ["XmlArgumentReader", "XmlTarget"]

_TAG = re.compile(rf"[^<>{QUOTE}]+")
_TEXT = re.compile(f"[^{QUOTE}]+")
_TAG_LIMIT = 256
_ITEM = "item"
_NESTING = 64


class XmlTarget(Protocol):
    """Who is told what the elements say."""

    #: Text that is part of nothing.
    stray_text: list[str]

    @property
    def schema(self) -> Mapping[str, Any]:
        """What the arguments should be."""

    def start_parameter(self, key: str) -> None:
        """A key begins."""

    def add_json_value(self, text: str) -> None:
        """Its value, as JSON."""

    def add_string(self, text: str) -> None:
        """Its value is a string, and this is some of it."""

    def end_string(self) -> None:
        """The string is whole."""


class _Element:
    """One that is open inside an argument."""

    def __init__(self, name: str, types: frozenset[str], schema: Mapping[str, Any]) -> None:
        self.name = name
        self.types = types
        self.schema = schema
        self.text: list[str] = []
        self.children: list[tuple[str, str]] = []

    def to_json(self) -> str:
        """Its JSON text: of a leaf as its schema reads it, of others an object or an array."""
        if not self.children:
            return to_json_text("".join(self.text), self.types)
        values: dict[str, list[str]] = {}
        for name, value in self.children:
            values.setdefault(name, []).append(value)
        if values.keys() == {_ITEM} and self.types != {"object"}:
            return f"[{', '.join(values[_ITEM])}]"
        members = (f"{dump(name)}: {_value_or_array(each)}" for name, each in values.items())
        return f"{{{', '.join(members)}}}"


def _value_or_array(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


class XmlArgumentReader:
    """``<key>value</key>…``, each tag behind a quote. A string streams; what is nested, and what
    may be one of several of the same name, is given when it is whole."""

    def __init__(self, target: XmlTarget) -> None:
        self._target = target
        self._open_elements: list[_Element] = []
        self._tag: str | None = None  # from its "<"
        self._streams = False
        self._pending: tuple[str, list[str]] | None = None
        self.complete = self.failed = self.in_string = False

    def read(self, text: str) -> int:
        """All of it is read."""
        at = 0
        while at < len(text):
            at = (
                self._read_text(text, at)
                if self._tag is None
                else self._read_tag(self._tag, text, at)
            )
        return at

    def finish(self) -> None:
        """The arguments are over, closed or not."""
        if self._tag:
            self._add_text(self._tag)
            self._tag = None
        while self._open_elements:
            self._close_element()
        self._flush_pending()

    def _read_text(self, text: str, at: int) -> int:
        if text[at] == QUOTE:
            self._tag = ""
            return at + 1
        found = _TEXT.match(text, at)
        assert found is not None
        self._add_text(found.group())
        return found.end()

    def _read_tag(self, tag: str, text: str, at: int) -> int:
        """The inside of a tag; what has no form of one is text."""
        char = text[at]
        if not tag and char == "<":
            self._tag = char
            return at + 1
        if len(tag) > 1 and char == ">":
            self._tag = None
            self._handle_tag(tag[1:])
            return at + 1
        found = _TAG.match(text, at, at + _TAG_LIMIT - len(tag)) if tag else None
        if found is not None:
            self._tag = tag + found.group()
            return found.end()
        self._tag = None
        self._add_text(tag)
        return at

    def _add_text(self, text: str) -> None:
        if self._streams:
            self._target.add_string(text)
        elif self._open_elements:
            self._open_elements[-1].text.append(text)
        elif text.strip():
            self._target.stray_text.append(text)

    def _handle_tag(self, tag: str) -> None:
        name = tag.strip()
        if not name.startswith("/"):
            self._open_element(name)
        elif any(element.name == name[1:] for element in self._open_elements):
            while self._open_elements and self._close_element() != name[1:]:
                pass  # what was left open inside is over with it
        else:
            self._add_text(f"<{tag}>")

    def _open_element(self, name: str) -> None:
        if self._streams or len(self._open_elements) >= _NESTING:
            self._add_text(f"<{name}>")
            return
        if self._open_elements:
            parent = self._open_elements[-1]
            inner = _child_schema(parent.schema, name)
            self._open_elements.append(
                _Element(name, property_types({"properties": {"x": inner}}, "x"), inner)
            )
            return
        if self._pending is not None and self._pending[0] == name:
            types = frozenset[str]()
        else:
            self._flush_pending()
            types = property_types(self._target.schema, name)
            if types == {"string"}:
                self._target.start_parameter(name)
                self._target.add_string("")
                self._streams = True
        schema = _child_schema(self._target.schema, name)
        self._open_elements.append(_Element(name, types, schema))

    def _close_element(self) -> str:
        """The innermost element is over; its name."""
        element = self._open_elements.pop()
        if element.children and (stray := "".join(element.text).strip()):
            self._target.stray_text.append(stray)
        if self._open_elements:
            self._open_elements[-1].children.append((element.name, element.to_json()))
        elif self._streams:
            self._streams = False
            self._target.end_string()
        elif self._pending is not None:
            self._pending[1].append(element.to_json())
        else:
            self._pending = (element.name, [element.to_json()])
            if element.types and "array" not in element.types:
                self._flush_pending()  # there can only be one
        return element.name

    def _flush_pending(self) -> None:
        """What waited for more of its name has all there is."""
        if self._pending is None:
            return
        (name, values), self._pending = self._pending, None
        self._target.start_parameter(name)
        text = _value_or_array(values)
        is_list = property_types(self._target.schema, name) == {"array"}
        if is_list and not isinstance(_try_load(text), list):
            text = f"[{text}]"
        self._target.add_json_value(text)


def _child_schema(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What an element inside another may be."""
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    if found is None and name == _ITEM:
        found = schema.get("items")
    return found if isinstance(found, Mapping) else {}


def _try_load(text: str) -> Any:
    try:
        return load(text)
    except ValueError:
        return None
