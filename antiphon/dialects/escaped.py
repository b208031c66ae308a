"""A grammar for text, rewritten as one for the same text inside a JSON string.

Custom tools take free text that may have to match a regex or a Lark grammar, while most models
write every argument as JSON. So literals and character classes become their escaped forms:
``"\\n"`` in the text is ``\\\\n`` in the JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["Unwritable", "escaped_lark", "escaped_regex"]

#: Characters that JSON strings hold only in another form, and that form.
_ESCAPES: Mapping[str, str] = {
    '"': '\\"',
    "\\": "\\\\",
    **{chr(code): f"\\u{code:04x}" for code in range(0x20)},
    "\n": "\\n",
    "\t": "\\t",
    "\r": "\\r",
    "\b": "\\b",
    "\f": "\\f",
}
_CATEGORIES: Mapping[str, str] = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


class Unwritable(Exception):
    """The grammar uses what cannot be rewritten; the text says what."""


def escaped_regex(pattern: str, flags: str = "") -> str:
    """The regex (Rust syntax) that matches the JSON-escaped form of what ``pattern`` matches.

    ``flags``: of ``i``, ``m``, ``s``, ``u``, ``x``. Raises ``Unwritable``.
    """
    try:
        value = 0
        for flag in flags:
            value |= {"i": re.I, "m": re.M, "s": re.S, "u": re.U, "x": re.X}.get(flag, 0)
        tree = _parser.parse(pattern, value)
    except (re.error, RecursionError, OverflowError) as error:
        raise Unwritable(f"the regex cannot be read: {error}") from None
    state = tree.state.flags
    text = _sequence(tree, bool(state & re.S))
    return f"(?i:{text})" if state & re.I else text


def _sequence(tree: Any, dotall: bool) -> str:
    return "".join(_node(op, argument, dotall) for op, argument in tree)


def _node(op: Any, argument: Any, dotall: bool) -> str:
    read = _NODES.get(str(op))
    if read is None:
        raise Unwritable(f"'{str(op).lower()}' in a regex cannot be enforced")
    return read(argument, dotall)


def _literal(char: str) -> str:
    return re.escape(_ESCAPES.get(char, char))


def _any(_: Any, dotall: bool) -> str:
    return _without(() if dotall else ("\n",))


def _without(excluded: tuple[str, ...]) -> str:
    """Any character in its JSON form, but not these."""
    plain = "".join(re.escape(char) for char in excluded if char not in _ESCAPES)
    forms = [re.escape(form) for char, form in _ESCAPES.items() if char not in excluded]
    return f'(?:[^"\\\\\\x00-\\x1f{plain}]|{"|".join(forms)})'


def _in(items: Any, dotall: bool) -> str:
    negated = bool(items) and items[0][0] is sre.NEGATE
    members = items[1:] if negated else items
    inside = "".join(_member(op, argument) for op, argument in members)
    matcher = re.compile(f"[{inside}]")
    special = [form for char, form in _ESCAPES.items() if bool(matcher.match(char)) is not negated]
    plain = f'[^{inside}"\\\\\\x00-\\x1f]' if negated else f'[{inside}&&[^"\\\\\\x00-\\x1f]]'
    return "(?:" + "|".join([plain, *(re.escape(form) for form in special)]) + ")"


def _member(op: Any, argument: Any) -> str:
    if op is sre.LITERAL:
        return _in_class(argument)
    if op is sre.RANGE:
        return f"{_in_class(argument[0])}-{_in_class(argument[1])}"
    if op is sre.CATEGORY and str(argument) in _CATEGORIES:
        return _CATEGORIES[str(argument)]
    raise Unwritable(f"'{str(op).lower()}' in a character class cannot be enforced")


def _in_class(code: int) -> str:
    char = chr(code)
    return f"\\x{code:02x}" if code < 128 and not char.isalnum() else char


def _repeat(argument: Any, dotall: bool, lazy: str = "") -> str:
    low, high, tree = argument
    most = "" if high is sre.MAXREPEAT else str(high)
    return f"(?:{_sequence(tree, dotall)}){{{low},{most}}}"


def _branch(argument: Any, dotall: bool) -> str:
    return "(?:" + "|".join(_sequence(arm, dotall) for arm in argument[1]) + ")"


def _group(argument: Any, dotall: bool) -> str:
    _, on, off, tree = argument
    inner = _sequence(tree, (dotall or bool(on & re.S)) and not off & re.S)
    return f"(?i:{inner})" if on & re.I else f"(?:{inner})"


def _at(argument: Any, dotall: bool) -> str:
    """The whole input has to match, so anchors at its ends say nothing new."""
    if str(argument) in ("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING"):
        return ""
    raise Unwritable("word boundaries in a regex cannot be enforced")


_NODES: Mapping[str, Callable[[Any, bool], str]] = {
    "LITERAL": lambda code, _: _literal(chr(code)),
    "NOT_LITERAL": lambda code, _: _without((chr(code),)),
    "ANY": _any,
    "IN": _in,
    "MAX_REPEAT": _repeat,
    "MIN_REPEAT": _repeat,
    "BRANCH": _branch,
    "SUBPATTERN": _group,
    "AT": _at,
}

# --- Lark ----------------------------------------------------------------------------------------

#: A comment, a string (with ``i`` for any case), or a regex with its flags.
_TERMINAL = re.compile(
    r'(?P<comment>//[^\n]*|\#[^\n]*)|(?P<string>"(?:\\.|[^"\\\n])*")(?P<any_case>i?)'
    r"|(?P<regex>/(?:\\.|[^/\\\n])+/)(?P<flags>[a-z]*)"
)


def escaped_lark(definition: str) -> str:
    """The Lark grammar of the JSON-escaped form of what ``definition`` describes. Raises
    ``Unwritable``."""

    def rewrite(match: re.Match[str]) -> str:
        if match["comment"] is not None:
            return ""
        if match["string"] is not None:
            try:
                said = str(json.loads(match["string"]))
            except ValueError:
                said = match["string"][1:-1]
            return json.dumps(json.dumps(said, ensure_ascii=False)[1:-1]) + match["any_case"]
        pattern = match["regex"][1:-1].replace("\\/", "/")
        return "/" + escaped_regex(pattern, match["flags"]).replace("/", "\\/") + "/"

    return _TERMINAL.sub(rewrite, definition)
