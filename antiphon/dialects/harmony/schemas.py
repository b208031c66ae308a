"""Simplify JSON schemas for OpenAI's harmony library, which shows them to the model as TypeScript.

For ``$ref``, ``anyOf``, ``allOf``, ``const`` and enums of numbers, the library writes only ``any``.
So this module replaces these keywords with others that the library can write. The result is only
for the prompt and is not enforced. Keywords that TypeScript lacks are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.dialects.grammar.schema_types import (
    resolve_pointer,
    stated_types,
    stated_values,
    type_name,
)

Schema = dict[str, Any]

#: Maximum number and nesting depth of simplified schemas for one tool. The limit is needed because
#: references can make a small schema huge.
_MAX_SCHEMAS, _MAX_DEPTH = 2_000, 24
#: Keyword → the type that a schema with this keyword has if it states no type.
_IMPLIED_TYPES: Mapping[str, str] = {
    "properties": "object",
    "additionalProperties": "object",
    "items": "array",
    "prefixItems": "array",
}


def plain_schema(schema: Mapping[str, object]) -> Schema | None:
    """Simplify the schema of a function's arguments, so that the harmony library can show it.
    Return None if the function has no arguments."""
    plain = _Simplifier(schema).simplify(schema, ())
    for key in ("description", "examples", "default", "nullable"):
        plain.pop(key, None)
    if "oneOf" in plain:
        return plain
    properties = plain.get("properties")
    return {"type": "object", **plain} if properties else None


class _Simplifier:
    """Simplifies one JSON schema for the harmony library, which writes it as a TypeScript type.
    ``whole``: the complete schema. References (``$ref``) are looked up in it."""

    def __init__(self, whole: Mapping[str, object]) -> None:
        self._whole = whole
        self._left = _MAX_SCHEMAS

    def simplify(self, schema: object, within: tuple[str, ...], depth: int = 0) -> Schema:
        """Simplify the complete schema or a subschema. ``within``: the references that were
        followed on the way to this schema. ``depth``: the nesting depth of this schema.

        Returns an empty schema if this schema is nested too deeply, or if the complete schema has
        too many subschemas.
        """
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0 or depth > _MAX_DEPTH:
            return {}
        schema, within = self._resolved(schema, within)
        if (parts := schema.get("allOf")) and isinstance(parts, list):
            schema, within = self._merged(schema, parts, within)
        out = _tool_description(schema)
        kinds, is_nullable = _kinds(schema)
        arms = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(arms, list):
            found = [self.simplify(arm, within, depth + 1) for arm in arms if not _is_null(arm)]
            is_nullable |= len(found) < len(arms)
            if len(found) == 1:
                out = {**found[0], **out}
            elif found:
                out["oneOf"] = found
        elif len(kinds) > 1:
            out |= self._one_of(schema, kinds, within, depth)
        else:
            out |= self._of_type(schema, kinds[0] if kinds else None, within, depth)
        return _nullable(out) if is_nullable else out

    def _one_of(
        self, schema: Schema, kinds: list[str], within: tuple[str, ...], depth: int
    ) -> Schema:
        """Simplify a schema that allows several types. ``kinds``: these types. ``within``,
        ``depth``: as in ``simplify``."""
        if not {"object", "array"} & set(kinds) and "enum" not in schema:
            return {"type": kinds}
        return {"oneOf": [self._of_type(schema, kind, within, depth + 1) for kind in kinds]}

    def _of_type(
        self, schema: Schema, kind: str | None, within: tuple[str, ...], depth: int
    ) -> Schema:
        """Simplify a schema for values of one type. ``kind``: the type, or None if it is unknown.
        ``within``, ``depth``: as in ``simplify``."""
        out: Schema = {} if kind is None else {"type": kind}
        if kind == "object":
            properties = schema.get("properties")
            if isinstance(properties, Mapping):
                out["properties"] = {
                    name: self.simplify(inner, within, depth + 1)
                    for name, inner in properties.items()
                }
            if isinstance(schema.get("required"), list):
                out["required"] = [name for name in schema["required"] if isinstance(name, str)]
        elif kind == "array":
            items = schema.get("items")
            if items is None and isinstance(schema.get("prefixItems"), list):
                items = {"anyOf": schema["prefixItems"]}
            if plain := self.simplify(items, within, depth + 1):
                out["items"] = plain
        elif kind == "string" and (words := _words(schema)):
            out["enum"] = words
        return out

    def _resolved(self, schema: Any, within: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """Follow the ``$ref`` of a schema, and the ``$ref`` of the schema found there, until a
        schema has none. ``within``: the references that were followed before this call. Returns the
        last schema, and ``within`` extended by the references that this call has followed.

        If a reference is circular or leads to no schema, the returned schema has only a description
        with the reference's name.
        """
        schema = dict(schema)
        while isinstance(reference := schema.pop("$ref", None), str):
            found = None if reference in within else self._found(reference)
            if found is None:
                name = reference.rpartition("/")[2].lstrip("#") or "the whole"
                return {"description": f"{schema.get('description', '')} ({name})".strip()}, within
            schema, within = {**found, **schema}, (*within, reference)
        return schema, within

    def _found(self, reference: str) -> Mapping[str, Any] | None:
        """Return the schema to which ``reference`` leads, or None if it leads to no schema."""
        value = resolve_pointer(self._whole, reference)
        return value if isinstance(value, Mapping) else None

    def _merged(
        self, schema: Schema, parts: Iterable[object], within: tuple[str, ...]
    ) -> tuple[Schema, tuple[str, ...]]:
        """Merge all schemas in ``parts`` with the keywords of ``schema`` other than ``allOf``.
        ``parts``: the value of ``allOf``. ``within``: the references that were followed before this
        call. Returns the merged schema, and ``within`` extended by the references that this call
        has followed."""
        out: Schema = {}
        own = {key: value for key, value in schema.items() if key != "allOf"}
        for part in (*parts, own):
            if not isinstance(part, Mapping):
                continue
            self._left -= 1
            plain, within = self._resolved(part, within)
            inner = plain.get("allOf")
            if isinstance(inner, list) and self._left > 0:
                plain, within = self._merged(plain, inner, within)
            for key, value in plain.items():
                before = out.get(key)
                if isinstance(before, Mapping) and isinstance(value, Mapping):
                    value = {**before, **value}
                elif key == "required" and isinstance(before, list) and isinstance(value, list):
                    value = [*before, *value]
                out[key] = value
        return out, within


def _kinds(schema: Schema) -> tuple[list[str], bool]:
    """Return the types that a schema allows, without ``null``, and whether it allows null."""
    values = stated_values(schema)
    kinds = stated_types(schema) or [*map(type_name, values)]
    if not kinds:
        kinds = [_IMPLIED_TYPES[key] for key in _IMPLIED_TYPES if key in schema][:1]
    is_nullable = "null" in kinds or schema.get("nullable") is True or None in values
    return list(dict.fromkeys(kind for kind in kinds if kind != "null")), is_nullable


def _words(schema: Schema) -> list[str]:
    """Return the strings among the values of ``enum`` or ``const``."""
    return [value for value in stated_values(schema) if isinstance(value, str)]


def _is_null(schema: object) -> bool:
    return isinstance(schema, Mapping) and (
        schema.get("type") == "null" or ("const" in schema and schema["const"] is None)
    )


def _nullable(schema: Schema) -> Schema:
    """Return the schema with ``null`` as an additional allowed value."""
    arms = schema.get("oneOf")
    if isinstance(arms, list):
        return {**schema, "oneOf": [*arms[:-1], {**arms[-1], "nullable": True}]}
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return {**schema, "type": [*kinds, "null"]}
    return {**schema, "nullable": True}


def _tool_description(schema: Schema) -> Schema:
    """Return the schema's description and default value.

    The description is extended with facts that TypeScript cannot express. It lists the values of
    an ``enum`` if some values are not strings. For an object without fixed properties, it says that
    the object may have any keys. All text is on one line, because the library writes the
    description of a property as a comment of one line.
    """
    plain = schema.get("description")
    words = [" ".join(plain.split())] if isinstance(plain, str) else []
    found = stated_values(schema)
    if any(not isinstance(value, str | None) for value in found):
        words.append(f"One of: {', '.join(json.dumps(value) for value in found)}.")
    free = schema.get("additionalProperties")
    if isinstance(free, Mapping) and not schema.get("properties"):
        kind = free.get("type")
        words.append(f"Any keys{f', with values of type {kind}' if isinstance(kind, str) else ''}.")
    out: Schema = {"description": " ".join(words)} if any(words) else {}
    default = schema.get("default")
    if default is not None:
        out["default"] = " ".join(default.split()) if isinstance(default, str) else default
    return out
