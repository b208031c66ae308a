"""TypeScript declarations of functions, made from the functions' JSON schemas.

When a model writes programs, the declarations tell it how to call these functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*\Z")
_PRIMITIVE_TYPES = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
}
#: Deeper levels of a schema become ``unknown``.
_MAX_DEPTH = 6


def function_declaration(
    path: Sequence[str], description: str, parameters: str, return_type: str
) -> str:
    """Return the TypeScript declaration of a function that is a property of the object ``tools``.
    ``path``: the property names. The description becomes a comment before the declaration."""
    lines = [f"// {line.strip()}" for line in description.splitlines() if line.strip()]
    return "\n".join(
        [*lines, f"tools{property_access(path)}({parameters}): Promise<{return_type}>"]
    )


def property_access(path: Sequence[str]) -> str:
    """Return the code that follows the name of an object to access a nested property, such as
    ``.server["a-tool"]``. ``path``: the property names, outermost first."""
    return "".join(f".{name}" if _NAME.match(name) else f"[{json.dumps(name)}]" for name in path)


def schema_type(schema: object, depth: int = 0) -> str:
    """Return the TypeScript type for a JSON schema. The type is ``unknown`` if the schema does not
    determine a type. ``depth``: nesting level of the schema."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return "unknown"
    if "const" in schema:
        return _literal(schema["const"])
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(_literal, schema["enum"])) or "never"
    for name, sign in (("anyOf", " | "), ("oneOf", " | "), ("allOf", " & ")):
        if isinstance(schema.get(name), list):
            return sign.join(_inner_type(each, depth) for each in schema[name])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_inner_type({**schema, "type": each}, depth) for each in kind)
    if kind == "array":
        return f"{_inner_type(schema.get('items'), depth)}[]"
    if kind == "object" or "properties" in schema:
        return _object_type(schema, depth)
    return _PRIMITIVE_TYPES.get(str(kind), "unknown")


def _inner_type(schema: object, depth: int) -> str:
    text = schema_type(schema, depth + 1)
    return f"({text})" if " | " in text or " & " in text else text


def _object_type(schema: Mapping[str, object], depth: int) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return f"Record<string, {schema_type(schema.get('additionalProperties'), depth + 1)}>"
    required = schema.get("required")
    required_names = set(required) if isinstance(required, list) else set()
    fields = (
        f"{name if _NAME.match(name) else json.dumps(name)}{'' if name in required_names else '?'}:"
        f" {schema_type(each, depth + 1)}{_field_comment(each)}"
        for name, each in properties.items()
    )
    return f"{{ {'; '.join(fields)} }}"


def _field_comment(schema: object) -> str:
    """Return a field's description as a TypeScript comment of limited length."""
    description = schema.get("description") if isinstance(schema, Mapping) else None
    if not isinstance(description, str) or not description.strip():
        return ""
    line = " ".join(description.replace("*/", "").split())
    return f" /* {line if len(line) <= 200 else line[:199] + '…'} */"


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
