"""Tell which values a JSON schema allows: their types, their strings, and the forms of objects.

The schema may be one that nothing has checked yet. Its invalid keywords count as missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice, product
from typing import Any

Schema = Mapping[str, Any]

_DEPTH = 8
#: Python type of a JSON value → its JSON type.
_TYPE_NAMES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}
_NO_STRINGS = ("object", "array", "number", "boolean", "null")
_STRING_KEYWORDS = ("minLength", "maxLength", "pattern", "format")
#: Keywords whose schemas are alternatives.
_ARMS = ("anyOf", "oneOf")
#: Maximum number of alternatives of one object. A limit is needed because the number of
#: combinations grows exponentially.
_MAX_FORMS = 64


def type_name(value: object) -> str:
    """Return the JSON type of a JSON value."""
    return _TYPE_NAMES.get(type(value), "object")


def has_type(value: object, types: Collection[str]) -> bool:
    """Return whether a JSON value has one of these JSON types."""
    name = type_name(value)
    return name in types or (name == "integer" and "number" in types)


class SchemaTypes:
    """Tells which JSON types, strings and forms of objects the schemas inside ``root`` allow.
    References to schemas in ``root`` are followed. Each result is computed only once."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self._properties: dict[str, frozenset[str]] = {}
        self._computed: dict[tuple[int, int], frozenset[str]] = {}
        self._forms: dict[tuple[int, int], list[Schema]] = {}

    def of_property(self, key: str) -> frozenset[str]:
        """Return the types of the property ``key`` of ``root``. Empty if no type is stated."""
        if key not in self._properties:
            members = self._members(self.root, key)
            self._properties[key] = frozenset[str]().union(*map(self.of, members))
        return self._properties[key]

    @property
    def property_names(self) -> Collection[str]:
        """The names of the properties of ``root``, in all its forms."""
        forms = (keyword_object(form, "properties") for form in self.forms(self.root))
        return dict.fromkeys(name for properties in forms for name in properties).keys()

    def member(self, schema: Schema, key: str) -> Schema:
        """Return the schema of the property ``key`` of an object. ``schema``: the object's schema.
        The result is empty if this schema does not describe the property."""
        return self.resolved(next(filter(None, self._members(schema, key)), {}))

    def items(self, schema: Schema) -> Schema:
        """Return the schema of the items of an array. ``schema``: the array's schema. The result is
        empty if this schema does not describe the items."""
        found = (keyword_object(form, "items") for form in self.forms(schema))
        return self.resolved(next(filter(None, found), {}))

    def _members(self, schema: Schema, key: str) -> Iterator[Schema]:
        for form in self.forms(schema):
            named = keyword_object(form, "properties")
            at = (named, key) if key in named else (form, "additionalProperties")
            yield keyword_object(*at)

    def forms(self, schema: Schema) -> list[Schema]:
        """Return the alternative schemas of objects or arrays that ``schema`` allows. The list has
        at least 1 and at most ``_MAX_FORMS`` entries. A value is valid if it matches one of them.

        For example, each entry of ``anyOf`` and ``oneOf`` becomes one alternative. The parts of
        ``allOf`` are merged into one.
        """
        return self._forms_of(schema, _DEPTH) or [{}]

    def _forms_of(self, schema: object, depth: int) -> list[Schema]:
        if not isinstance(schema, Mapping) or not depth:
            return []
        if not schema:
            return [schema]
        key = (id(schema), depth)
        if key not in self._forms:
            self._forms[key] = self._combine_forms(schema, depth)
        return self._forms[key]

    def _combine_forms(self, schema: Schema, depth: int) -> list[Schema]:
        groups: list[list[Schema]] = [[{key: schema[key] for key in _INNER if key in schema}]]
        groups.append(self._forms_of(_referenced(schema, self.root), depth - 1))
        groups += (self._forms_of(arm, depth - 1) for arm in keyword_list(schema, "allOf"))
        for key in _ARMS:
            arms = (
                each for arm in keyword_list(schema, key) for each in self._forms_of(arm, depth - 1)
            )
            groups.append(list(islice(arms, _MAX_FORMS)))
        combinations = product(*(group for group in groups if group))
        return [_merged(each) for each in islice(combinations, _MAX_FORMS)]

    def of(self, schema: object, depth: int = _DEPTH) -> frozenset[str]:
        """Return the types that a schema allows. Empty if it states none. ``depth``: how many more
        levels of references and alternatives are followed."""
        if not isinstance(schema, Mapping) or not schema or not depth:
            return frozenset()
        key = (id(schema), depth)
        if key not in self._computed:
            self._computed[key] = self._combine(schema, depth)
        return self._computed[key]

    def _combine(self, schema: Schema, depth: int) -> frozenset[str]:
        types = set(stated_types(schema))
        types |= self.of(_referenced(schema, self.root), depth - 1)
        for key in (*_ARMS, "allOf"):
            for arm in keyword_list(schema, key):
                types |= self.of(arm, depth - 1)
        return frozenset(types or map(type_name, stated_values(schema)))

    def allows_string(self, schema: object) -> bool:
        """Return whether a schema allows strings."""
        types = self.of(schema)
        return not types or "string" in types

    def strings(self, schema: object) -> list[str] | None:
        """Return the strings that a schema lists, or None if it lists none. It must be a schema
        that allows strings."""
        schema = self.resolved(schema)
        arms = [arm for key in _ARMS for arm in keyword_list(schema, key)]
        if not arms:
            values = stated_values(schema)
            return [each for each in values if isinstance(each, str)] if values else None
        found: list[str] = []
        for arm in filter(self.allows_string, arms):
            values = stated_values(self.resolved(arm))
            if not values:
                return None
            found += [each for each in values if isinstance(each, str)]
        return found

    def without_strings(self, schema: object) -> Schema | None:
        """Return a schema for those values of a schema that are not strings. Returns None if there
        are none, or if only alternatives of alternatives allow them. It can be that no value
        matches the result, because the keywords of a schema can exclude each other."""
        schema = self.resolved(schema)
        if values := stated_values(schema):
            others = [value for value in values if not isinstance(value, str)]
            return {"enum": others} if others else None
        for key in _ARMS:
            if key in schema:
                arms = [arm for arm in keyword_list(schema, key) if not self.allows_string(arm)]
                return {**schema, key: arms} if arms else None
        kinds = [each for each in stated_types(schema) or _NO_STRINGS if each != "string"]
        rest = {key: value for key, value in schema.items() if key not in _STRING_KEYWORDS}
        return {**rest, "type": kinds} if kinds else None

    def resolved(self, schema: object) -> Schema:
        """Follow the references of a schema to one without ``$ref``. Empty if there is none."""
        for _ in range(_DEPTH):
            if not isinstance(schema, Mapping):
                return {}
            if "$ref" not in schema:
                return schema
            schema = _referenced(schema, self.root)
        return {}


def stated_values(schema: Schema) -> list[Any]:
    """Return the values of the keywords ``enum`` and ``const``."""
    return [*keyword_list(schema, "enum"), *((schema["const"],) if "const" in schema else ())]


def stated_types(schema: Schema) -> list[str]:
    """Return the types in the keyword ``type``."""
    kind = schema.get("type")
    kinds = [kind] if isinstance(kind, str) else keyword_list(schema, "type")
    return [each for each in kinds if isinstance(each, str)]


def keyword_list(schema: Schema, key: str) -> list[Any]:
    """Return the array in a keyword. Empty if the keyword is missing or invalid."""
    value = schema.get(key)
    return value if isinstance(value, list) else []


def keyword_object(schema: Schema, key: str) -> Mapping[str, Any]:
    """Return the object in a keyword. Empty if the keyword is missing or invalid."""
    value = schema.get(key)
    return value if isinstance(value, Mapping) else {}


def resolve_pointer(whole: Schema, reference: str) -> Any:
    """Return the value in ``whole`` to which a JSON pointer (RFC 6901) leads, such as
    ``#/$defs/city``. Returns None if there is no such value."""
    if not reference.startswith("#"):
        return None
    value: Any = whole
    for name in reference[1:].split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _referenced(schema: Schema, whole: Schema) -> Any:
    """Return the value to which ``$ref`` of a schema leads. Returns None if there is none."""
    reference = schema.get("$ref")
    return resolve_pointer(whole, reference) if isinstance(reference, str) else None


#: Keywords that describe what is inside a value.
_INNER = ("properties", "required", "additionalProperties", "items")


def _merged(forms: tuple[Schema, ...]) -> Schema:
    """Return one schema that combines all ``forms``. It contains the properties and the other
    keywords of all of them."""
    if len(forms) == 1:
        return forms[0]
    merged: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required: list[Any] = []
    for form in forms:
        merged |= form
        properties |= keyword_object(form, "properties")
        required += keyword_list(form, "required")
    return {**merged, "properties": properties, "required": required}
