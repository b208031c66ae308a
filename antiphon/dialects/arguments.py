"""Arguments that are not JSON become JSON: tagged parameters, Python calls, braced pairs.

What the schema of a tool says about a parameter decides how its text is read. Nothing raises.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from .json_text import load

__all__ = ["Parameters", "PythonCalls", "braced_call"]

Json = Mapping[str, Any]
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def _types(schema: Any) -> frozenset[str]:
    """The JSON types a parameter's schema allows; empty if it does not say."""
    if not isinstance(schema, dict):
        return frozenset()
    found: set[str] = set()
    kind = schema.get("type")
    found.update([kind] if isinstance(kind, str) else kind if isinstance(kind, list) else ())
    for key in ("anyOf", "oneOf", "allOf"):
        for arm in schema.get(key) or ():
            found |= _types(arm)
    for value in schema.get("enum") or ():
        found.add("string" if isinstance(value, str) else "number")
    return frozenset(str(name) for name in found)


def _fits(value: Any, types: frozenset[str]) -> bool:
    names = {
        bool: ("boolean",),
        int: ("integer", "number"),
        float: ("number",),
        dict: ("object",),
        list: ("array",),
        type(None): ("null",),
        str: ("string",),
    }[type(value)]
    return not types.isdisjoint(names)


def _read(text: str, types: frozenset[str], untyped_json: bool) -> Any:
    """The value that ``text`` stands for."""
    bare = text.strip()
    if types == {"string"} or (not types and not untyped_json):
        return text
    value: Any = text
    try:
        value = load(bare)
    except ValueError:
        value = _WORDS.get(bare.lower(), text)
        if value is text:
            value = _literal(bare, text)
    if types and not _fits(value, types):
        return text
    return value


def _literal(bare: str, text: str) -> Any:
    """Some models write Python where JSON was meant."""
    if bare[:1] not in ("[", "{", "("):
        return text
    try:
        value = ast.literal_eval(bare)
        json.dumps(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return list(value) if isinstance(value, tuple) else value


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class Parameters:
    """The arguments of one call whose parameters come tag by tag, as JSON text that only grows.

    A value that is a string by its schema streams; any other is written when it is whole.
    """

    def __init__(self, schema: Json | None, *, trims: bool, untyped_json: bool) -> None:
        self._properties: Json = (schema or {}).get("properties") or {}
        self._trims = trims
        self._untyped_json = untyped_json
        self._written = 0
        self._types: frozenset[str] = frozenset()
        self._streams = False
        self._text: list[str] = []
        self._held = ""
        self._begun = False

    def begin(self) -> str:
        """The call has its name."""
        return "{"

    def key(self, key: str, kind: str | None) -> str:
        """A parameter begins. ``kind``: ``string`` or ``json`` where the model says which."""
        self._types = _types(self._properties.get(key))
        if kind == "string":
            self._types = frozenset({"string"})
        as_json = kind == "json" or self._untyped_json
        self._streams = self._types == {"string"} or (not self._types and not as_json)
        self._text, self._held, self._begun = [], "", False
        comma = ", " if self._written else ""
        self._written += 1
        return f"{comma}{_dump(key)}: " + ('"' if self._streams else "")

    def value(self, text: str) -> str:
        """More of the value."""
        if not self._streams:
            self._text.append(text)
            return ""
        if self._trims:
            if not self._begun and text:
                self._begun = True
                text = text.removeprefix("\n")
            # The last line end before the closing tag is not the value's.
            text = self._held + text
            self._held = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        return _dump(text)[1:-1]

    def value_end(self) -> str:
        """The value is whole."""
        if self._streams:
            self._held = ""
            return '"'
        text = "".join(self._text)
        if self._trims:
            text = text.removeprefix("\n").removesuffix("\n")
        return _dump(_read(text, self._types, True))

    def end(self) -> str:
        """The call is whole."""
        return "}"


# --- Python calls --------------------------------------------------------------------------------

_HEAD = re.compile(r"[\s,\[]*([A-Za-z_][\w.\-]*)\s*\(")
_HEAD_BEGUN = re.compile(r"[\s,\[]*([A-Za-z_][\w.\-]*\s*)?\Z")
_LIST_END = re.compile(r"[\s,]*\]")
_TURN = re.compile(r"[\\\"'()\[\]{}]")


class PythonCalls:
    """Reads ``[f(a=1), g()]`` as it comes, brackets or not; each call is given when it is whole."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._name: str | None = None
        self._depth = 0
        self._quote = ""
        #: The list was closed.
        self.done = False
        #: This is no list of calls, or no more.
        self.broken = False

    @property
    def rest(self) -> str:
        """The text that belongs to no whole call."""
        return self._text

    def feed(self, text: str) -> list[tuple[str, str]]:
        """The calls that are whole with ``text``: (name, arguments as JSON)."""
        self._text += text
        calls: list[tuple[str, str]] = []
        while not (self.done or self.broken):
            if self._name is None and not self._head():
                break
            end = self._end()
            if end is None:
                break
            arguments = _keywords(self._text[self._start : end])
            if arguments is None:
                self.broken = True
                break
            calls.append((str(self._name), arguments))
            self._text, self._at, self._name = self._text[end + 1 :], 0, None
        return calls

    def _head(self) -> bool:
        head = _HEAD.match(self._text)
        if head is not None:
            self._name, self._at, self._depth = head.group(1), head.end(), 1
            self._start = head.end()
            return True
        if (end := _LIST_END.match(self._text)) is not None:
            self.done = True
            self._text = self._text[end.end() :]
        elif not _HEAD_BEGUN.match(self._text):
            self.broken = True
        return False

    def _end(self) -> int | None:
        """The position of the parenthesis that closes the call."""
        while (turn := _TURN.search(self._text, self._at)) is not None:
            char, self._at = turn.group(), turn.end()
            if char == "\\":
                if self._at == len(self._text):
                    self._at -= 1  # what it escapes has not come yet
                    return None
                self._at += 1
            elif self._quote:
                self._quote = "" if char == self._quote else self._quote
            elif char in "\"'":
                self._quote = char
            elif char in "([{":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return self._at - 1
        self._at = len(self._text)
        return None


def _keywords(text: str) -> str | None:
    """``a=1, b="x"`` as JSON. JSON's own words for true, false and null are understood."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(word.arg is None for word in call.keywords):
            return None
        return _dump({str(word.arg): _constant(word.value) for word in call.keywords})
    except (ValueError, SyntaxError, TypeError, AssertionError, MemoryError, RecursionError):
        return None


def _constant(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_constant(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {
                str(_constant(key)): _constant(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
    return ast.literal_eval(node)


# --- braced pairs --------------------------------------------------------------------------------

_BRACED = re.compile(r"\s*call:([\w.\-]+)\s*\{(.*)\}\s*\Z", re.DOTALL)
_PAIR = re.compile(r"\s*,?\s*([\w.\-]+)\s*:\s*(?:<escape>(.*?)<escape>|([^,]*))", re.DOTALL)
_QUOTED = re.compile(r"<escape>(.*?)<escape>", re.DOTALL)
_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.\-]*)\s*:")


def braced_call(text: str, schema_of: Mapping[str, Json | None]) -> tuple[str, str] | None:
    """``call:name{key:<escape>text<escape>,n:42}`` as (name, arguments as JSON)."""
    found = _BRACED.match(text)
    if found is None:
        return None
    name, body = found.groups()
    quoted: list[str] = []

    def keep(match: re.Match[str]) -> str:
        quoted.append(match.group(1))
        return f'"\x00{len(quoted) - 1}"'

    bare = _BARE_KEY.sub(r'\1"\2":', "{" + _QUOTED.sub(keep, body) + "}")
    try:
        arguments = _restored(load(bare), quoted)
    except ValueError:
        arguments = _pairs(body, (schema_of.get(name) or {}).get("properties") or {})
    return name, _dump(arguments)


def _restored(value: Any, quoted: list[str]) -> Any:
    match value:
        case str() if value.startswith("\x00"):
            return quoted[int(value[1:])]
        case dict():
            return {key: _restored(inner, quoted) for key, inner in value.items()}
        case list():
            return [_restored(inner, quoted) for inner in value]
    return value


def _pairs(body: str, properties: Json) -> dict[str, Any]:
    return {
        key: text if text is not None else _read(bare, _types(properties.get(key)), True)
        for key, text, bare in (
            (m.group(1), m.group(2), m.group(3) or "") for m in _PAIR.finditer(body)
        )
    }
