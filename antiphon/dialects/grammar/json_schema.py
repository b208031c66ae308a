"""Check JSON schemas, and change them for grammars. The module tells which schemas a grammar can
enforce, and checks the rules of strict mode.

``llguidance`` decides what a grammar can enforce. If it does not support a keyword, the error
message names this keyword.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.errors import InvalidRequest
from antiphon.grammars import check as grammar_check

from .regex_syntax import RegexSyntaxError, parse_regex
from .schema_types import Schema, keyword_list, keyword_object, resolve_pointer
from .user_regex import LONGEST, expanded_length

_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[([^\[\]]*)\]")
#: Splits a regex into parts, so that its character classes can be recognized.
_CLASS_PARTS = re.compile(r"\\.|\[(?P<negated>\^)?\]?|\]|[^\\\[\]]+|\\", re.DOTALL)
#: Maximum value of ``minItems`` and ``maxItems``. It is needed because llama.cpp's grammars take
#: memory in proportion to these values.
_MAX_ITEMS = 10_000
_NUL = r"\x00"
_PREFIX = re.compile(r"^(?:at )?\d+\(\d+\): |^failed to compile JSON schema: ")


def short_grammar_fault(lark: str) -> str | None:
    """Return the error message for an invalid grammar in llguidance's Lark, shortened to one line.
    Returns None if the grammar is valid."""
    fault = grammar_check.grammar_fault(lark)
    return _first_line(fault) if fault else None


def _place(schema: object, keywords: set[str], path: str) -> str | None:
    """Return the path of the first schema that has one of ``keywords``. The search covers
    ``schema`` itself and the schemas inside it. Returns None if no schema has one of the keywords.
    ``path``: the path of ``schema``."""
    if not isinstance(schema, Mapping):
        return None
    if keywords & schema.keys():
        return path
    places = (_place(inner, keywords, f"{path}.{where}") for where, inner in _inner(schema))
    return next((place for place in places if place is not None), None)


def _first_line(fault: str) -> str:
    """Return an error message of llguidance as one line, without positions and prefixes."""
    lines = fault.strip().splitlines()
    line = lines[0]
    if line.endswith(":"):  # a drawing of the position follows, then the reason
        why = next((each for each in lines[1:] if each.startswith("error: ")), "")
        line = f"{line} {why.removeprefix('error: ')}"
    for _ in range(2):
        line = _PREFIX.sub("", line)
    return line[:200]


def check_schema(text: str, path: str) -> None:
    """Raise ``InvalidRequest`` if a schema cannot be enforced. ``text``: the schema as JSON.
    ``path``: its path in the request.

    If a keyword is unknown, the error contains the path of the schema that has this keyword.
    """
    if len(text) > LONGEST or 'Items"' in text or "{" in text.partition('"pattern"')[2]:
        _check_lengths(json.loads(text), path)
    if '"$ref"' in text:
        _check_references(json.loads(text), path)
    fault = short_grammar_fault(f"start: %json {text}")
    if fault is None:
        return
    unknown = _UNKNOWN_KEYS.search(fault)
    if unknown is not None:
        names = unknown.group(1).replace('"', "'")
        fault = f"the keyword {names} is not supported."
        path = _place(json.loads(text), set(re.findall("'([^']*)'", names)), path) or path
    raise InvalidRequest(f"Invalid schema: {fault}", param=path, code="invalid_json_schema")


def _check_lengths(schema: object, path: str) -> None:
    """Raise ``InvalidRequest`` for a keyword whose value would make the grammar too large."""
    if isinstance(schema, list):
        for inner in schema:
            _check_lengths(inner, path)
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if (limit := _exceeded_limit(key, value)) is not None:
            raise InvalidRequest(
                f"Invalid schema: '{key}' {limit}.", param=path, code="invalid_json_schema"
            )
        _check_lengths(value, path)


def _exceeded_limit(key: str, value: object) -> str | None:
    """Return the limit that the value of the keyword ``key`` exceeds, as a text for the error
    message. Returns None if the value exceeds no limit."""
    if key in ("minItems", "maxItems"):
        is_large = isinstance(value, int | float) and value > _MAX_ITEMS
        return f"may be at most {_MAX_ITEMS}" if is_large else None
    if key == "pattern":
        is_long = isinstance(value, str) and _spelled(value) > LONGEST
    else:
        values = value if key == "enum" and isinstance(value, list) else [value]
        is_long = key in ("const", "enum") and any(len(json.dumps(v)) > LONGEST for v in values)
    return f"must not spell out more than {LONGEST} characters" if is_long else None


def _check_references(whole: Schema, path: str) -> None:
    """Raise ``InvalidRequest`` if a reference in the schema leads only back to itself.

    No value matches a schema with such a reference. llguidance rejects some of these schemas, but
    accepts others. The check takes time linear in the schema's size. ``whole``: the schema.
    ``path``: its path in the request.
    """
    settled: set[str] = set()
    schemas: list[Any] = [whole]
    while schemas:
        schema = schemas.pop()
        if isinstance(schema, list):
            schemas += schema
        elif isinstance(schema, Mapping):
            _follow_reference(schema, whole, settled, path)
            schemas += (inner for key, inner in schema.items() if key not in _VALUES)


def _follow_reference(schema: Schema, whole: Schema, settled: set[str], path: str) -> None:
    """Follow the references of ``schema`` to a schema without ``$ref``. Raises ``InvalidRequest``
    if the references form a cycle.

    ``whole``: the schema in which the references are looked up. ``settled``: references that were
    already followed without an error.
    """
    passed: set[str] = set()
    target: Any = schema
    while isinstance(target, Mapping) and isinstance(reference := target.get("$ref"), str):
        if reference in settled:
            break
        if reference in passed:
            raise InvalidRequest(
                f"Invalid schema: the reference '{reference[:100]}' leads to itself.",
                param=path,
                code="invalid_json_schema",
            )
        passed.add(reference)
        target = resolve_pointer(whole, reference)
    settled |= passed


def _spelled(pattern: str) -> int:
    """Return the number of characters that a regex contains if its repetitions are written out."""
    try:
        return expanded_length(parse_regex(pattern))
    except RegexSyntaxError:
        return 0  # llguidance reports the error


def llguidance_schema(schema: Schema) -> dict[str, Any]:
    """Return a copy of the schema that can be passed to llguidance.

    Patterns that llguidance would read wrongly are changed. ``$schema`` is removed, because it may
    name a version that llguidance does not know. ``x-guidance`` from the schema's author is
    removed, because only Antiphon may set llguidance's options.
    """
    plain = {key: value for key, value in schema.items() if key not in ("$schema", "x-guidance")}
    right: dict[str, Any] = _with_right_patterns("", plain)
    return right


def _with_right_patterns(key: str, value: object) -> Any:
    """Return a copy of ``value`` in which the patterns that llguidance would read wrongly are
    changed. ``key``: the key in the schema under which the value stands."""
    if key == "pattern" and isinstance(value, str):
        return _exclude_nul(value)
    if isinstance(value, list):
        return [_with_right_patterns(key, inner) for inner in value]
    if not isinstance(value, Mapping) or key in _VALUES:
        return value
    return {key: _with_right_patterns(key, inner) for key, inner in value.items()}


def _exclude_nul(pattern: str) -> str:
    """Change the negated character classes of a pattern, such as ``[^"]``, so that they no longer
    match NUL.

    This works around an error in llguidance. In a JSON string, a negated class that matches all
    control characters also matches an escaped quote or backslash, even if the class excludes these
    characters. The error does not occur if the class excludes NUL.
    """
    parts: list[str] = []
    in_class = False
    for part in _CLASS_PARTS.finditer(pattern):
        opens = not in_class and part[0][0] == "["
        parts.append(part[0] + (_NUL if opens and part["negated"] else ""))
        in_class = opens or (in_class and part[0] != "]" and not part[0].endswith("]"))
    return "".join(parts)


def is_enforced(schema: Schema, path: str, *, strict: bool) -> bool:
    """Return whether a grammar enforces the whole schema. ``path``: the schema's path in the
    request.

    - Returns True if the grammar enforces the whole schema.
    - Returns False if the grammar enforces only a part of the schema, and ``strict`` is False. Then
      a validator must check the rest.
    - Otherwise, raises ``InvalidRequest``.
    """
    try:
        check_schema(json.dumps(schema), path)
    except InvalidRequest:
        if strict:
            raise
        check_schema(json.dumps(lenient_schema(schema)), path)
        return False
    return True


def lenient_schema(schema: Schema) -> dict[str, Any]:
    """Return the schema with options that make llguidance ignore the keywords that it cannot
    enforce. Values that no grammar supports, such as a pattern with a lookahead, are removed."""
    hints = schema.get("x-guidance") or {}
    return {
        **_without_lookaround("", schema),
        "x-guidance": {**hints, "lenient": True, "coerce_one_of": True},
    }


_LOOKAROUND = re.compile(r"\(\?<?[=!]|\\[bB]")
_VALUES = ("const", "enum", "default", "examples")


def _without_lookaround(key: str, value: object) -> Any:
    """Return ``value`` without patterns that no grammar supports, and without a ``maxItems`` that
    is too large. ``key``: the key under which the value stands."""
    if isinstance(value, list):
        return [_without_lookaround(key, inner) for inner in value]
    if not isinstance(value, Mapping) or key in _VALUES:
        return value
    return {
        key: _without_lookaround(key, inner)
        for key, inner in value.items()
        if not (key == "pattern" and isinstance(inner, str) and _LOOKAROUND.search(inner))
        and not (key == "maxItems" and isinstance(inner, int | float) and inner > _MAX_ITEMS)
    }


def check_strict(schema: Schema, path: str) -> None:
    """Raise ``InvalidRequest`` if a schema breaks the rules of strict mode. ``path``: its path in
    the request.

    In strict mode, every object must exclude additional properties and require all of its
    properties. Source: OpenAI's documentation of structured outputs.
    """
    if not isinstance(schema, Mapping):
        return
    if "properties" in schema or schema.get("type") == "object":
        properties = keyword_object(schema, "properties")
        if schema.get("additionalProperties") is not False:
            raise _not_strict(path, "'additionalProperties' is required to be supplied and false.")
        required = {name for name in keyword_list(schema, "required") if isinstance(name, str)}
        absent = [name for name in properties if name not in required]
        if absent:
            raise _not_strict(
                path, f"'required' is required to include every key. Missing '{absent[0]}'."
            )
    for where, inner in _inner(schema):
        check_strict(inner, f"{path}.{where}")


def _not_strict(path: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid schema: {why}", param=path, code="invalid_json_schema")


def _inner(schema: Schema) -> list[tuple[str, Any]]:
    """Return the schemas that stand directly inside a schema. Each comes with its path relative to
    ``schema``, such as ``properties.city``."""
    found: list[tuple[str, Any]] = []
    for key in ("properties", "$defs", "definitions"):
        group = schema.get(key)
        if isinstance(group, Mapping):
            found += [(f"{key}.{name}", inner) for name, inner in group.items()]
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        group = schema.get(key)
        if isinstance(group, list):
            found += [(f"{key}[{n}]", inner) for n, inner in enumerate(group)]
    if isinstance(schema.get("items"), Mapping):
        found.append(("items", schema["items"]))
    return found


def require_all_properties(schema: Schema) -> dict[str, Any]:
    """Return the schema that the grammar enforces for a strict function. It is a copy of
    ``schema`` in which each object with properties requires all of its properties. Such an object
    also excludes additional properties, unless its schema states ``additionalProperties``."""
    return _closed(schema, required=True)


def forbid_extra_properties(schema: Schema) -> dict[str, Any]:
    """Return the schema with ``additionalProperties: false`` in each object that has properties and
    no ``additionalProperties``. Without this, a small model may invent properties endlessly."""
    return _closed(schema, required=False)


def _closed(schema: Schema, *, required: bool) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    _close(copy, required)
    return copy


def _close(schema: object, required: bool) -> None:
    if not isinstance(schema, dict):
        return
    if properties := keyword_object(schema, "properties"):
        schema.setdefault("additionalProperties", False)
        if required:
            schema["required"] = list(properties)
    for _, inner in _inner(schema):
        _close(inner, required)


_REFERENCE = re.compile(r"#/(\$defs|definitions)/([^/]+)\Z")


def bundle_definitions(schemas: Sequence[Schema]) -> dict[str, Any]:
    """Combine several schemas into one mapping, which becomes the value of ``$defs`` in a new
    schema. There, the schemas in ``schemas`` have the paths ``#/$defs/0``, ``#/$defs/1`` and so on.

    The definitions inside each of ``schemas`` are moved to the same mapping and get new names.
    """
    shared: dict[str, Any] = {}
    for number, schema in enumerate(schemas):
        moved = _moved({k: v for k, v in schema.items() if k != "x-guidance"}, f"{number}")
        for section in ("$defs", "definitions"):
            group = moved.pop(section, {})
            shared |= {f"{number}.{section[0]}.{name}": inner for name, inner in group.items()}
        shared[f"{number}"] = moved
    return shared


def _moved(value: object, to: str) -> Any:
    """Return ``value`` with its references changed to the paths that ``bundle_definitions`` uses.
    ``to``: the number of the schema to which ``value`` belongs."""
    if isinstance(value, list):
        return [_moved(inner, to) for inner in value]
    if not isinstance(value, Mapping):
        return value
    moved = {key: _moved(inner, to) for key, inner in value.items()}
    reference = value.get("$ref")
    if reference == "#":
        moved["$ref"] = f"#/$defs/{to}"
    elif isinstance(reference, str) and (found := _REFERENCE.match(reference)):
        section, name = found.groups()
        moved["$ref"] = f"#/$defs/{to}.{section[0]}.{name}"
    return moved
