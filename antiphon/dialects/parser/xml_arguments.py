"""Reader of arguments that are nested tags. Each key is a tag, and each element of an array stands
in the tag ``item``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from antiphon.dialects.json_stream import dump

from .argument_values import STRING, to_json_text
from .lexer import QUOTE
from .tool_call import CallBuilder

_TAG = re.compile(rf"[^<>{QUOTE}]+")
_TEXT = re.compile(f"[^{QUOTE}]+")
_TAG_LIMIT = 256
_ITEM = "item"
_NESTING = 64
#: The types of values that contain elements.
_NESTED = frozenset({"array", "object"})


class _Element:
    """An element whose closing tag has not been read yet.

    - ``types``: the JSON types that its value may have. ``schema``: the JSON schema of its value.
    - ``text``: the text directly inside it.
    - ``children``: the elements inside it, as pairs of name and JSON text.
    """

    def __init__(self, name: str, types: frozenset[str], schema: Mapping[str, Any]) -> None:
        self.name = name
        #: Whether its value is text, so that other tags in it are text.
        self.is_plain = bool(types) and ("string" in types or not types & _NESTED)
        self.types = types
        self.schema = schema
        self.text: list[str] = []
        self.children: list[tuple[str, str]] = []

    def to_json(self) -> str:
        """Return the value of this element as JSON text.

        If the element contains no other elements, its text becomes a value of one of the JSON types
        that the schema allows for it. Otherwise, the elements inside it become an object or an
        array.
        """
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
    """Return the JSON text for all elements with the same name. ``values``: the values of these
    elements as JSON texts. A single value stays unchanged, and several values become an array."""
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


class XmlArgumentReader:
    """Reads arguments of the form ``<key>value</key>…``. A special token precedes each tag. In the
    text that this reader gets, the character ``QUOTE`` stands for that token.

    - A string is passed on to ``target`` piece by piece.
    - A nested value is passed on once it is complete.
    - If a key may occur again, all its values are passed on together once they are complete.
      Several values become an array.
    - In a value that may be a string, or whose type contains no elements, only the closing tag of
      the value is a tag.

    ``quote``: the text of the special token.
    """

    def __init__(self, target: CallBuilder, quote: str) -> None:
        self._target = target
        self._quote = quote
        self._open_elements: list[_Element] = []
        self._tag: str | None = None  # the tag so far, from its "<"; None outside of a tag
        self._streams = False
        self._pending: tuple[str, list[str]] | None = None
        self.complete = self.failed = False

    @property
    def in_string(self) -> bool:
        """Whether the text read so far ends inside an element. There, the tags that end a call are
        text."""
        return bool(self._open_elements)

    def read(self, text: str) -> int:
        """Read the next piece of text. Returns its length, because all of the text belongs to the
        arguments."""
        at = 0
        while at < len(text):
            at = (
                self._read_text(text, at)
                if self._tag is None
                else self._read_tag(self._tag, text, at)
            )
        return at

    def finish(self) -> None:
        """End the arguments. Elements that are still open are closed."""
        if self._tag:
            self._add_text(self._quote + self._tag)
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
        """Read text inside a tag, from position ``at`` on. Returns the next position. ``tag``: the
        tag so far.

        If the tag turns out to be invalid, it becomes plain text.
        """
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
        self._add_text(self._quote + tag if self._open_elements else tag)
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
        inner = self._open_elements[-1] if self._open_elements else None
        if name in (self._target.missing_parameters or ()) and self._is_unclosed():
            self._close_element()  # the closing tag of the value is missing
            self._open_element(name)
        elif inner is not None and inner.is_plain and name != f"/{inner.name}":
            self._add_text(f"{self._quote}<{tag}>")
        elif not name.startswith("/"):
            self._open_element(name)
        elif any(element.name == name[1:] for element in self._open_elements):
            while self._open_elements and self._close_element() != name[1:]:
                pass  # closing an element closes the open elements inside it
        else:
            self._add_text(f"{self._quote if inner else ''}<{tag}>")

    def _is_unclosed(self) -> bool:
        """Whether the value of a parameter is open, and contains no elements."""
        return len(self._open_elements) == 1 and self._open_elements[0].is_plain

    def _open_element(self, name: str) -> None:
        if len(self._open_elements) >= _NESTING:
            self._add_text(f"{self._quote}<{name}>")
            return
        if self._open_elements:
            inner = self._child_schema(self._open_elements[-1].schema, name)
            self._open_elements.append(_Element(name, self._target.schemas.of(inner), inner))
            return
        if self._pending is not None and self._pending[0] == name:
            types = frozenset[str]()
        else:
            self._flush_pending()
            types = self._target.schemas.of_property(name)
            if types == STRING:
                self._target.start_parameter(name)
                self._target.add_string("")
                self._streams = True
        schema = self._child_schema(self._target.schemas.root, name)
        self._open_elements.append(_Element(name, types, schema))

    def _close_element(self) -> str:
        """Close the innermost element and return its name."""
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
                self._flush_pending()  # a key whose value is not an array cannot occur again
        return element.name

    def _flush_pending(self) -> None:
        """Pass the key and the values in ``_pending`` on to ``target``. The values were held back
        because the same key could occur again."""
        if self._pending is None:
            return
        (name, values), self._pending = self._pending, None
        self._target.start_parameter(name)
        text = _value_or_array(values)
        is_list = self._target.schemas.of_property(name) == {"array"}
        if is_list and not text.startswith("["):
            text = f"[{text}]"
        self._target.add_json_value(text)

    def _child_schema(self, schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """Return the schema of the element ``name`` inside an element with the schema ``schema``.
        Returns an empty mapping if ``schema`` does not describe the inner element."""
        found = self._target.schemas.member(schema, name)
        return found or (self._target.schemas.items(schema) if name == _ITEM else {})
