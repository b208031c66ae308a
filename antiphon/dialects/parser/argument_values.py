"""Convert the values of arguments to JSON. Models write a value as JSON, as a Python literal, as a
literal of the form ``{key:value}``, or as plain text. A text such as ``5`` can be plain text or a
literal. The schema decides which of them it is.

The JSON text is streamed, so text that was emitted once never changes. A string is emitted piece by
piece. Any other value is emitted once it is complete. The functions here accept any text and never
raise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.dialects.grammar.schema_types import SchemaTypes, has_type
from antiphon.dialects.json_stream import (
    ESCAPE_DIGITS,
    ESCAPES,
    StringDecoder,
    dump,
    escape_string,
    load,
)

from .lexer import QUOTE

Json = Mapping[str, Any]

STRING = frozenset({"string"})
#: How many closing brackets that nothing opened a value may end with.
_MAX_STRAY = 3
_SCALARS = frozenset({"integer", "number", "boolean", "null"})


def to_json_text(text: str, types: frozenset[str] = frozenset()) -> str:
    """Convert the text of a value to JSON. ``types``: the JSON types that the schema allows, or
    empty for any type.

    - JSON that is not a string stays as it is.
    - Python literals and literals of the form ``{key:value}`` are converted.
    - All other text becomes a string. Quotes around the text become part of the string.

    If the schema allows no string, closing brackets at the end that nothing opened are dropped, and
    quotes around a value of an allowed type. Missing closing brackets are added.

    Exception to the first two rules: if the schema allows a string but not the type of this value,
    the text becomes a string. A text without any characters becomes an empty array or object, or
    null, if the schema allows this type and no string.
    """
    bare = text.strip()
    if not bare and types and (empty := _empty_value(types)) is not None:
        return empty
    candidates = [bare, _literal_to_json(bare)]
    if QUOTE in bare:  # a model that drifts between quotes leaves out some of them
        candidates.append(_literal_to_json(bare.replace(QUOTE, "")))
    if types and "string" not in types:
        stray = len(bare) - len(bare.rstrip("]})"))
        candidates += [_literal_to_json(bare[:-n]) for n in range(1, min(stray, _MAX_STRAY) + 1)]
        candidates.append(_literal_to_json(bare, closes=True))
    for candidate in candidates:
        try:
            value = load(candidate)
            found = candidate if candidate == bare else dump(value)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, str) and types and "string" not in types:
            found = convert_string(candidate, types)
            value = load(found)
        if not isinstance(value, str) and ("string" not in types or has_type(value, types)):
            return found
    return dump(text.replace(QUOTE, ""))


#: Values that JSON cannot express.
_NO_VALUES = frozenset({"undefined", "NaN", "Infinity", "-Infinity", "+Infinity", "inf", "nan"})
_EMPTY: Mapping[str, str] = {"array": "[]", "object": "{}", "null": "null"}


def convert_string(text: str, types: frozenset[str]) -> str:
    """Return the JSON text of a string where a schema allows only other types. A string that
    contains a value of one of these types is converted to this value. ``types``: the JSON types
    that the schema allows."""
    bare = text.strip()
    if not bare:
        return _empty_value(types) or dump(text)
    for candidate in (bare, _literal_to_json(bare)):
        try:
            value = load(candidate)
            if isinstance(value, str):  # in quotes that do not belong to it
                value = load(_WORDS.get(value, value))
            if isinstance(value, float) and value.is_integer() and "number" not in types:
                value = int(value)
            if has_type(value, types):
                return dump(value)
        except (ValueError, RecursionError):  # no literal, or a number that JSON cannot express
            continue
    return dump(text)


def _empty_value(types: frozenset[str]) -> str | None:
    """Return the JSON text of a value without any text, or None if no type has such a value."""
    return (
        None
        if "string" in types
        else next((text for name, text in _EMPTY.items() if name in types), None)
    )


def convert_word(word: str, types: frozenset[str]) -> str | None:
    """Convert a number or a word without quotes to JSON. ``types``: the JSON types that the schema
    allows, or empty for any type. Returns None if the word is neither a number nor a literal."""
    if word in _NO_VALUES:
        return "null"
    text = _WORDS.get(word, word)
    try:
        value = load(text)
    except ValueError:
        if not word.isascii():
            return None
        try:
            is_float = bool({".", "e", "E"} & set(word)) and "x" not in word
            value = float(word) if is_float else int(word, 16 if "x" in word else 10)
            text = dump(value)
        except ValueError:
            return None
    return dump(word) if "string" in types and not has_type(value, types) else text


# --- literals ------------------------------------------------------------------------------------

_PYTHON_ESCAPES: Mapping[str, str] = {
    **ESCAPES,
    "'": "'",
    "v": "\v",
    "a": "\a",
    "0": "\0",
    "\n": "",
}
_PYTHON_DIGITS: Mapping[str, int] = {**ESCAPE_DIGITS, "x": 2, "U": 8}
_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"} | {
    word: word for word in ("true", "false", "null")
}
_SIGNS: Mapping[str, str] = {"=": ":"}
#: A constructor of Python, as a token of JSON → the opening bracket of the value that it makes.
_CONSTRUCTORS: Mapping[str, str] = {
    '"dict"': "{",
    **dict.fromkeys(('"list"', '"tuple"', '"set"'), "["),
}
_OPENING = re.compile(r"\s*[\[{(]")
_LITERAL = re.compile(
    rf"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|{QUOTE}[^{QUOTE}]*{QUOTE})
    |(?P<word>(?:[^\W\d]|[/~@$])[\w.\-/~@$]*)|(?P<number>[+-]?[\d.][\w.+-]*)|(?P<space>\s+)
    |(?P<sign>["'{QUOTE}].*|.)""",  # an opening quote without a closing one matches up to the end
    re.DOTALL | re.VERBOSE,
)


def string_decoder(quote: str, *, raw: bool = False) -> StringDecoder:
    """Return the decoder for a string literal. ``quote``: a quote character of Python, or ``QUOTE``
    for the quote of a tool format. ``raw``: whether a backslash is a plain character."""
    if raw or quote == QUOTE:
        return StringDecoder(quote, {}, {})
    return StringDecoder(quote, _PYTHON_ESCAPES, _PYTHON_DIGITS)


def _literal_to_json(text: str, *, closes: bool = False) -> str:
    """Convert a Python literal, or a literal of the form ``{key:value}``, to JSON. If the literal
    is not valid, the result is not valid JSON. ``closes``: whether to add closing brackets that are
    missing at its end."""
    tokens: list[str] = []
    closers: list[str] = []  # of the parentheses that are open
    was_word = False
    for found in _LITERAL.finditer(text):
        kind, token = found.lastgroup, found.group()
        if kind == "space":
            continue
        if kind == "word" and was_word:  # a string of several words without quotes
            tokens[-1] = dump(load(tokens[-1]) + " " + token)
            continue
        was_word = kind == "word" and token not in _WORDS
        if token == "(":
            token, closer = _parentheses(tokens, is_outer=bool(_OPENING.match(text, found.end())))
            closers.append(closer)
        elif token == ")":
            token = closers.pop() if closers else "]"
        if kind == "sign":
            _add_sign(_SIGNS.get(token, token), tokens)
        else:
            tokens.append(_token_to_json(kind, token))
    if tokens[:1] == ["{"] and tokens[-1] == "}" and len(tokens) > 2 and ":" not in tokens:
        tokens[0], tokens[-1] = "[", "]"  # a set of Python
    return "".join([*tokens, *(_missing_brackets(tokens) if closes else ())])


def _parentheses(tokens: list[str], *, is_outer: bool) -> tuple[str, str]:
    """Return the brackets of JSON in place of parentheses: those of a tuple, or of a constructor
    such as ``dict(…)``, whose name is the last one of ``tokens`` and is removed. ``is_outer``:
    whether a bracket follows, as in ``list([…])``. The constructor then has no meaning."""
    opener = _CONSTRUCTORS.get(tokens[-1]) if tokens else None
    if opener is None:
        return "[", "]"
    tokens.pop()
    return ("", "") if is_outer else (opener, CLOSERS[opener])


#: Opening bracket → closing bracket, in JSON.
CLOSERS: Mapping[str, str] = {"{": "}", "[": "]"}


def _missing_brackets(tokens: Iterable[str]) -> Iterable[str]:
    """Return the closing brackets that the tokens of a literal lack."""
    missing: list[str] = []
    for token in tokens:
        if token in CLOSERS:
            missing.append(CLOSERS[token])
        elif missing and token == missing[-1]:
            missing.pop()
    return reversed(missing)


def _token_to_json(kind: str | None, token: str) -> str:
    """Convert a string, a number or a word of a literal."""
    if kind == "string":
        string = string_decoder(token[0])
        return dump(string.read(token, 1)[0] + string.finish())
    if kind == "number":
        return convert_word(token, frozenset()) or token
    return _WORDS.get(token, dump(token))


def _add_sign(sign: str, tokens: list[str]) -> None:
    """Add a bracket, a comma or a colon of a literal to its tokens."""
    if not sign:
        return
    if sign == ":" and tokens and tokens[-1][:1] not in '"{[':
        tokens[-1] = dump(tokens[-1])  # keys are strings
    elif sign in "]}" and tokens and tokens[-1] == ",":
        tokens.pop()
    tokens.append(sign)


# --- writing an object incrementally -------------------------------------------------------------


class JsonObjectWriter:
    """Writes the arguments of a call as a JSON object, key by key. Each method returns the JSON
    text that the caller must append to the object. ``schemas``: the schema of the arguments."""

    def __init__(self, schemas: SchemaTypes) -> None:
        self._property_types = schemas
        self._types: frozenset[str] = frozenset()
        self._has_keys = False

    @property
    def expects_string(self) -> bool:
        """Whether the schema allows only a string as the value of the current key."""
        return self._types == STRING

    @property
    def expects_other_type(self) -> bool:
        """Whether the schema states the type of the current key's value and allows no string."""
        return bool(self._types) and "string" not in self._types

    @property
    def expects_scalar(self) -> bool:
        """Whether the schema allows only numbers, booleans and null as the current key's value."""
        return bool(self._types) and self._types <= _SCALARS

    def write_key(self, key: str) -> str:
        """Write a key. The caller must write its value next."""
        self._types = self._property_types.of_property(key)
        before = ", " if self._has_keys else "{"
        self._has_keys = True
        return f"{before}{dump(key)}: "

    def write_value(self, text: str) -> str:
        """Write a complete value. ``text``: the value as the model wrote it. It is converted to
        JSON according to the schema."""
        return to_json_text(text, self._types)

    def write_quoted(self, text: str) -> str:
        """Write a complete string where the schema allows no string. It is converted to the type
        that the schema allows, if possible."""
        return convert_string(text, self._types)

    @staticmethod
    def write_string(text: str) -> str:
        """Write a piece of a string value, with JSON's escapes. The quotes around the string are
        not written. The caller must add them."""
        return escape_string(text)

    def close(self) -> str:
        """Return the text that ends the object."""
        return "}" if self._has_keys else "{}"
