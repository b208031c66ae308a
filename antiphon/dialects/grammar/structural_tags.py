"""Convert a structural tag, as xgrammar and vLLM define it, to llguidance's Lark.

A structural tag is a JSON description of a text that contains tags. The content between the
beginning and the end of a tag must match a JSON schema, a regex or a grammar. The text outside of
tags is free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.errors import invalid_type, json_type_name, truncated
from antiphon.wire.parsing.fields import read_object, read_string, require

from .json_schema import check_schema, llguidance_schema
from .parameters import json_rule
from .user_ebnf import ebnf_rules
from .user_regex import PLAIN, UnwritableGrammar, class_member, regex_rule

Json = Mapping[str, Any]

#: Maximum nesting depth and maximum number of formats. A format is a part of a structural tag.
_MAX_DEPTH, _MAX_FORMATS = 16, 1_000
_MAX_TIMES = 1_000


def structural_tag_rules(definition: str, prefix: str, path: str) -> tuple[str, str]:
    """Return the rules of a structural tag in Lark, and the name of its start rule.

    ``definition``: the structural tag as JSON. Both the current structure (with ``format``) and the
    older one (with ``structures`` and ``triggers``) are accepted. ``prefix``: the start of the
    rules' names. ``path``: the path of the structural tag in the request. Raises ``InvalidRequest``
    with the path of the part that is invalid or cannot be enforced.
    """
    tag = read_object(json.loads(definition), path)
    writer = _Writer(prefix)
    if "structures" in tag:
        _check_fields(tag, ("type", "structures", "triggers"), path)
        body = writer.triggered_tags(_from_structures(tag, path), path, ())
    else:
        _check_fields(tag, ("type", "format"), path)
        body = writer.body(_field(tag, "format", path), f"{path}.format")
    start = writer.add(body)
    return "\n".join(writer.rules), start


def _from_structures(tag: Json, path: str) -> Json:
    """Convert a structural tag with the older fields ``structures`` and ``triggers`` to the current
    format ``triggered_tags``."""
    tags = [
        {
            "begin": _field(each, "begin", f"{path}.structures[{at}]"),
            "content": {"type": "json_schema", "json_schema": each.get("schema", {})},
            "end": _field(each, "end", f"{path}.structures[{at}]"),
        }
        for at, raw in enumerate(_array(tag, "structures", path))
        for each in (read_object(raw, f"{path}.structures[{at}]"),)
    ]
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


class _Writer:
    """Writes the formats of a structural tag as rules. A format is a part of the structural tag,
    such as ``any_text`` or ``json_schema``.

    Several methods have these parameters. ``path``: the path of the format in the request.
    ``ends``: the texts of which one must follow the format. The rule that the method returns
    matches the format and then one of these texts. ``depth``: the nesting depth of the format.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._count = 0
        self.rules: list[str] = []

    def add(self, body: str, attributes: str = "", *, is_terminal: bool = False) -> str:
        """Add a rule and return its name. ``is_terminal``: the rule is a terminal, so its name is
        in upper case."""
        name = f"{self._prefix}_f_{len(self.rules)}"
        name = name.upper() if is_terminal else name
        self.rules.append(f"{name}{attributes}: {body}")
        return name

    def body(self, raw: object, path: str, ends: tuple[str, ...] = (), depth: int = 0) -> str:
        """Return the body of a rule that matches the format ``raw`` and, after it, one of the texts
        ``ends``. If ``ends`` is empty, the rule matches only the format."""
        self._count += 1
        if depth > _MAX_DEPTH or self._count > _MAX_FORMATS:
            raise _invalid(path, "it contains too many formats or nests them too deeply")
        format = read_object(raw, path)
        kind = _field(format, "type", path)
        if kind == "any_text":
            _check_fields(format, ("type", "excludes"), path)
            return self._text(ends, _texts(format, "excludes", path))
        if kind == "triggered_tags":
            return self.triggered_tags(format, path, ends, depth)
        if kind == "or":
            _check_fields(format, ("type", "elements"), path)
            arms = [
                self.body(each, f"{path}.elements[{at}]", ends, depth + 1)
                for at, each in enumerate(_array(format, "elements", path))
            ]
            return f"({' | '.join(arms)})"
        if kind == "sequence":
            return self._sequence(format, path, ends, depth)
        write = _WRITERS.get(kind) if isinstance(kind, str) else None
        if write is None:
            raise _unsupported(f"{path}.type", f"the format '{truncated(str(kind))}'")
        return f"{write(self, format, path, depth)} {_any_of(ends)}".rstrip()

    # --- text between tags -----------------------------------------------------------------------

    def _text(self, ends: Sequence[str], excludes: Sequence[str]) -> str:
        """Return the rule for free text that ends after the first occurrence of any text in
        ``ends``. If ``ends`` is empty, the free text has any length. ``excludes``: texts that the
        free text must not contain."""
        if not ends:
            # llguidance combines regexes only in terminals.
            return self.add(_text_without(excludes), is_terminal=True) if excludes else _ANY_TEXT
        return self._text_until(ends, excludes)

    def _text_until(self, ends: Sequence[str], excludes: Sequence[str]) -> str:
        """Return the rule for free text that ends after the first occurrence of any text in
        ``ends``. ``excludes``: texts that the free text must not contain."""
        body = f"/(?s:.*)(?:{_regex_of(ends)})/"
        if excludes := [each for each in excludes if each not in ends]:
            body += f" & {_text_without(excludes)}"
        return self.add(body, "[lazy]")

    def triggered_tags(self, format: Json, path: str, ends: tuple[str, ...], depth: int = 0) -> str:
        """Return the rule for free text with tags. A trigger is the text with which one or more
        tags begin. Wherever the free text contains a trigger, one of these tags must begin there.
        """
        _check_fields(
            format,
            ("type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"),
            path,
        )
        triggers, excludes = _texts(format, "triggers", path), _texts(format, "excludes", path)
        tags = [read_object(each, f"{path}.tags[{at}]") for at, each in _tags(format, path)]
        if not triggers:
            raise _invalid(f"{path}.triggers", "at least one trigger is required")
        rests: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        whole: list[str] = []
        for at, tag in enumerate(tags):
            where = f"{path}.tags[{at}]"
            begin = read_string(tag, "begin", where)
            own = [trigger for trigger in rests if begin.startswith(trigger)]
            if len(own) != 1:
                raise _invalid(f"{where}.begin", "it must start with exactly one of the triggers")
            rest = self.add(self._tag({**tag, "begin": begin[len(own[0]) :]}, where, depth))
            rests[own[0]].append(rest)
            whole.append(f"{_literal(own[0])} {rest}")
        arms = [
            f"{self._text_until([trigger], [*excludes, *ends])} ({' | '.join(tag_rests)})"
            for trigger, tag_rests in rests.items()
            if tag_rests
        ]
        any_tag = self.add(" | ".join(arms))
        without_tags = self._text(ends, [*excludes, *triggers])
        first = self.add(" | ".join(whole))
        if _flag(format, "stop_after_first", path):
            if _flag(format, "at_least_one", path):
                return f"{first} {_any_of(ends)}".rstrip()
            return f"({any_tag} {_any_of(ends)} | {without_tags})"
        start = f"{first} " if _flag(format, "at_least_one", path) else ""
        return f"{start}{any_tag}* {without_tags}"

    # --- formats that end by themselves ----------------------------------------------------------

    def _sequence(self, format: Json, path: str, ends: tuple[str, ...], depth: int) -> str:
        _check_fields(format, ("type", "elements"), path)
        elements = _array(format, "elements", path)
        parts = []
        for at, each in enumerate(elements):
            where, is_last = f"{path}.elements[{at}]", at == len(elements) - 1
            if not is_last and _is_unlimited(each):
                raise _invalid(where, "only the last element of a sequence may be free text")
            parts.append(self.body(each, where, ends if is_last else (), depth + 1))
        return " ".join(parts) if parts else _any_of(ends) or '""'

    def _tag(self, tag: Json, path: str, depth: int) -> str:
        _check_fields(tag, ("type", "begin", "content", "end"), path)
        begin, ends = read_string(tag, "begin", path), _ends(tag, path)
        content = self.body(_field(tag, "content", path), f"{path}.content", ends, depth + 1)
        return f"{_literal(begin)} {content}" if begin else content

    def _separated_tags(self, format: Json, path: str, depth: int) -> str:
        _check_fields(
            format, ("type", "tags", "separator", "at_least_one", "stop_after_first"), path
        )
        tags = [
            self._tag(read_object(each, f"{path}.tags[{at}]"), f"{path}.tags[{at}]", depth)
            for at, each in _tags(format, path)
        ]
        tag = self.add(" | ".join(tags))
        separator = read_string(format, "separator", path)
        more = "" if _flag(format, "stop_after_first", path) else f" ({_literal(separator)} {tag})*"
        return f"({tag}{more}){'' if _flag(format, 'at_least_one', path) else '?'}"

    def _const_string(self, format: Json, path: str, depth: int) -> str:
        _check_fields(format, ("type", "value"), path)
        return _literal(read_string(format, "value", path))

    def _json_schema(self, format: Json, path: str, depth: int) -> str:
        _check_fields(format, ("type", "json_schema", "style"), path)
        if format.get("style", "json") != "json":
            raise _unsupported(f"{path}.style", "a style other than 'json'")
        schema = _field(format, "json_schema", path)
        if isinstance(schema, bool):
            schema = {} if schema else _not_any(path)
        where = f"{path}.json_schema"
        plain = llguidance_schema(read_object(schema, where))
        check_schema(json.dumps(plain), where)
        return self.add(json_rule(plain))

    def _regex(self, format: Json, path: str, depth: int) -> str:
        _check_fields(format, ("type", "pattern"), path)
        try:
            return self.add(regex_rule(read_string(format, "pattern", path), PLAIN))
        except UnwritableGrammar as reason:
            raise _invalid(f"{path}.pattern", str(reason)) from None

    def _grammar(self, format: Json, path: str, depth: int) -> str:
        _check_fields(format, ("type", "grammar"), path)
        prefix = f"{self._prefix}_g{self._count}"
        try:
            rules, start = ebnf_rules(read_string(format, "grammar", path), prefix)
        except UnwritableGrammar as reason:
            raise _invalid(f"{path}.grammar", str(reason)) from None
        self.rules.append(rules)
        return start

    def _repeated(self, format: Json, path: str, depth: int) -> str:
        kind = format["type"]
        _check_fields(
            format, ("type", "content", *(("min", "max") if kind == "repeat" else ())), path
        )
        inner = _field(format, "content", path)
        if _is_unlimited(inner):
            raise _invalid(f"{path}.content", "free text cannot be repeated")
        rule = self.add(self.body(inner, f"{path}.content", (), depth + 1))
        if kind != "repeat":
            return f"{rule}{_TIMES[kind]}"
        low, high = (_times(format, name, path) for name in ("min", "max"))
        if low < 0 or -1 < high < low:
            raise _invalid(f"{path}.max", "it must be -1 or at least 'min'")
        return f"{rule}{{{low},{'' if high < 0 else high}}}"


_TIMES: Mapping[str, str] = {"optional": "?", "plus": "+", "star": "*"}
_WRITERS: Mapping[str, Callable[[_Writer, Json, str, int], str]] = {
    "const_string": _Writer._const_string,
    "grammar": _Writer._grammar,
    "json_schema": _Writer._json_schema,
    "optional": _Writer._repeated,
    "plus": _Writer._repeated,
    "regex": _Writer._regex,
    "repeat": _Writer._repeated,
    "star": _Writer._repeated,
    "tag": lambda writer, format, path, depth: writer._tag(format, path, depth),
    "tags_with_separator": _Writer._separated_tags,
}

# --- texts ---------------------------------------------------------------------------------------

_ANY_TEXT = "/(?s:.*)/"


def _text_without(texts: Iterable[str]) -> str:
    return rf"/(?s:.*)/ & ~/(?s:.*)(?:{_regex_of(texts)})(?s:.*)/"


def _regex_of(texts: Iterable[str]) -> str:
    return "|".join("".join(class_member(ord(char)) for char in text) for text in texts)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _any_of(texts: Sequence[str]) -> str:
    return f"({' | '.join(map(_literal, texts))})" if texts else ""


def _is_unlimited(raw: object, depth: int = 0) -> bool:
    """Return whether a format is free text or ends with free text. The end of such a format can be
    recognized only by the text that follows it. (A format is a part of a structural tag.) ``raw``:
    the format. ``depth``: its nesting depth."""
    if not isinstance(raw, dict) or depth > _MAX_DEPTH:
        return False
    inner = raw.get("elements")
    elements = inner if isinstance(inner, list) else []
    match raw.get("type"):
        case "any_text" | "triggered_tags":
            return True
        case "or":
            return any(_is_unlimited(each, depth + 1) for each in elements)
        case "sequence":
            return bool(elements) and _is_unlimited(elements[-1], depth + 1)
        case "tag":
            has_end = raw.get("end") not in ("", [], [""])
            return not has_end and _is_unlimited(raw.get("content"), depth + 1)
    return False


# --- fields --------------------------------------------------------------------------------------


def _field(format: Json, name: str, path: str) -> Any:
    require(format, path, name)
    return format[name]


def _texts(format: Json, name: str, path: str) -> tuple[str, ...]:
    """Return the texts in the field ``name``, which is an array. Empty if the field is missing."""
    values = format.get(name, [])
    if not isinstance(values, list):
        raise invalid_type(f"{path}.{name}", "an array", json_type_name(values))
    for at, each in enumerate(values):
        if not isinstance(each, str) or not each:
            raise invalid_type(f"{path}.{name}[{at}]", "a non-empty string", json_type_name(each))
    return tuple(values)


def _ends(tag: Json, path: str) -> tuple[str, ...]:
    """Return the texts that can end a tag. Empty if the tag has no end text, so that it ends where
    its content ends."""
    end = _field(tag, "end", path)
    ends = (end,) if isinstance(end, str) else _texts(tag, "end", path)
    return tuple(each for each in ends if each)


def _array(format: Json, name: str, path: str) -> list[Any]:
    values = _field(format, name, path)
    if not isinstance(values, list):
        raise invalid_type(f"{path}.{name}", "an array", json_type_name(values))
    return values


def _tags(format: Json, path: str) -> Iterator[tuple[int, Any]]:
    tags = _array(format, "tags", path)
    if not tags:
        raise _invalid(f"{path}.tags", "at least one tag is required")
    return enumerate(tags)


def _flag(format: Json, name: str, path: str) -> bool:
    value = format.get(name, False)
    if not isinstance(value, bool):
        raise invalid_type(f"{path}.{name}", "a boolean", json_type_name(value))
    return value


def _times(format: Json, name: str, path: str) -> int:
    value = _field(format, name, path)
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid_type(f"{path}.{name}", "an integer", json_type_name(value))
    if not -1 <= value <= _MAX_TIMES:
        raise _invalid(f"{path}.{name}", f"it must be from -1 to {_MAX_TIMES}")
    return value


def _check_fields(format: Json, names: Sequence[str], path: str) -> None:
    for name in format:
        if name not in names:
            raise _unsupported(f"{path}.{truncated(name)}", "this field")


def _not_any(path: str) -> Any:
    raise _invalid(f"{path}.json_schema", "no value matches the schema 'false'")


def _invalid(path: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid structural tag: {reason}.", param=path, code="invalid_grammar")


def _unsupported(path: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported value: '{path}': {what} of structural tags cannot be enforced.",
        param=path,
        code="unsupported_value",
    )
