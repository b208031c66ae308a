"""JSON schemas of the wire types.

msgspec generates the schemas. If requests accept more forms of a type than responses contain, the
type gets one schema for requests and one for responses. In requests, an optional field may be null
or missing, and some fields accept additional types. In responses, every field is present unless it
is ``UNSET``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import fields

from antiphon.wire.json_types import JsonObject

#: (class, field) → the type of the values that clients may send in this field.
AcceptedForms = Mapping[tuple[type[Struct], str], Any]
#: (class, field) → the shape of the objects in this field.
Shapes = Mapping[tuple[type[Struct], str], type[Struct]]

_TEMPLATE = "#/components/schemas/{name}"
_REF = _TEMPLATE.format(name="")
#: Suffix of the name of a type's component for requests, if the type has another schema in
#: responses.
_SUFFIX = "Param"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")


class Schemas(Struct, frozen=True):
    """The schemas of several types. ``roots``: one schema for each type, in the order of the types.
    ``components``: name → schema. The roots refer to these schemas by name."""

    roots: tuple[JsonObject, ...]
    components: Mapping[str, JsonObject]


def sent_schemas(types: Sequence[object], unions: Mapping[str, object], shapes: Shapes) -> Schemas:
    """Return the schemas of ``types`` for responses: they describe the JSON that the server sends.
    ``unions``: component name → union type. Each of these union types becomes a separate component.
    ``shapes``: the shapes of objects that the types leave open.
    """
    return _generate(types, unions, shapes, _describe_sent)


def accepted_schemas(
    types: Sequence[Any],
    unions: Mapping[str, Any],
    shapes: Shapes,
    forms: AcceptedForms,
    untagged: Iterable[Any],
) -> Schemas:
    """Return the schemas of ``types`` for requests: they describe the JSON that the server accepts.

    - ``unions``: component name → union type. Each of these union types becomes a separate
      component.
    - ``shapes``: as in ``sent_schemas``.
    - ``forms``: (class, field) → the type of this field in requests. This type accepts more values
      than the type that the class declares for the field.
    - ``untagged``: classes whose field ``type`` may be missing.
    """
    names = {cls.__name__ for cls in untagged}
    found = _generate([*types, *forms.values()], unions, shapes, _describe_accepted)
    components = {name: {**schema} for name, schema in found.components.items()}
    for name in names & components.keys():
        component = components[name]
        properties = component["properties"]
        component["required"] = [field for field in component["required"] if field != "type"]
        component["properties"] = {**properties, "type": _nullable(properties["type"])}
    for (cls, field), schema in zip(forms, found.roots[len(types) :], strict=True):
        if cls.__name__ in components:
            component = components[cls.__name__]
            old = component["properties"][field]
            new = _nullable(schema) if _accepts_null(old) else schema
            component["properties"] = {**component["properties"], field: new}
            components[cls.__name__] = _close_objects(cls, component, shapes)
    without = {_REF + name for name in names}
    components = {
        name: _drop_discriminators(schema, without) for name, schema in components.items()
    }
    return Schemas(found.roots[: len(types)], components)


def merge_schemas(sent: Schemas, accepted: Schemas) -> tuple[Schemas, Schemas]:
    """Merge the components of the schemas for responses (``sent``) with the components of the
    schemas for requests (``accepted``). Returns ``sent`` and ``accepted`` with the merged
    components.

    If a type has different schemas in responses and in requests, its component for requests gets
    another name."""
    shared = sent.components.keys() & accepted.components.keys()
    differing = {name for name in shared if sent.components[name] != accepted.components[name]}
    while True:
        more = {
            name
            for name in shared - differing
            if any(used in differing for used in _references(accepted.components[name]))
        }
        if not more:
            break
        differing |= more
    names = {_REF + name: _REF + name + _SUFFIX for name in differing}
    renamed = {
        name + _SUFFIX if name in differing else name: _rename(schema, names)
        for name, schema in accepted.components.items()
    }
    components = dict(sorted({**sent.components, **renamed}.items()))
    roots = tuple(_rename(schema, names) for schema in accepted.roots)
    return Schemas(sent.roots, components), Schemas(roots, components)


def rename_components(schemas: Schemas, names: Mapping[str, str]) -> Schemas:
    """Rename components. ``names``: old name → new name."""
    refs = {_REF + old: _REF + new for old, new in names.items()}
    renamed = {
        names.get(name, name): _rename(each, refs) for name, each in schemas.components.items()
    }
    return Schemas(
        tuple(_rename(each, refs) for each in schemas.roots), dict(sorted(renamed.items()))
    )


def used_components(schema: object, components: Mapping[str, JsonObject]) -> dict[str, JsonObject]:
    """Return the components to which a schema refers, directly or through other components."""
    found: set[str] = set()
    names = _references(schema)
    while names:
        found |= names
        names = {other for name in names for other in _references(components[name])} - found
    return {name: components[name] for name in components if name in found}


# --- generation ----------------------------------------------------------------------------------


def _generate(
    types: Sequence[object],
    unions: Mapping[str, object],
    shapes: Shapes,
    describe: Callable[[type[Struct], JsonObject], JsonObject],
) -> Schemas:
    every = [*types, *unions.values(), *shapes.values()]
    classes = {_generated_name(cls): cls for cls in _struct_classes(every)}
    schemas, components = msgspec.json.schema_components(every, ref_template=_TEMPLATE)
    named = {name: _plain(schema) for name, schema in components.items()}
    if unknown := named.keys() - classes.keys():
        raise ValueError(f"two wire types have one name: {sorted(unknown)}")
    described = {
        name: _close_objects(
            get_origin(classes[name]) or classes[name],
            describe(get_origin(classes[name]) or classes[name], schema),
            shapes,
        )
        for name, schema in named.items()
    }
    roots = [
        {**root, "additionalProperties": True} if _is_open(root) else root
        for root in map(_plain, schemas[: len(types) + len(unions)])
    ]
    found = dict(zip(unions, roots[len(types) :], strict=True))
    #: The longest union first, since a union may contain another one.
    ordered = sorted(found.items(), key=lambda each: -len(each[1]["anyOf"]))
    described = {name: _name_unions(schema, ordered) for name, schema in described.items()}
    generated = Schemas(
        tuple(_name_unions(schema, ordered) for schema in roots[: len(types)]),
        {**described, **found},
    )
    names = {
        name: _generic_name(cls, unions)
        for name, cls in classes.items()
        if get_origin(cls) is not None
    }
    return rename_components(generated, names)


def _is_open(schema: JsonObject) -> bool:
    return schema.get("type") == "object" and not (
        schema.keys() & {"properties", "additionalProperties"}
    )


def _close_objects(cls: type[Struct], schema: JsonObject, shapes: Shapes) -> JsonObject:
    """Give each object in the schema of a class a shape, or say that it is free."""

    def closed(field: str, found: JsonObject) -> JsonObject:
        if not _is_open(found):
            return found
        if (shape := shapes.get((cls, field))) is None:
            return {**found, "additionalProperties": True}
        rest = {key: value for key, value in found.items() if key not in ("type", "default")}
        return {**rest, "$ref": _REF + shape.__name__}

    properties = {
        field: _map(one, partial(closed, field)) for field, one in schema["properties"].items()
    }
    return {**schema, "properties": properties}


def _generated_name(cls: Any) -> str:
    """Return the component name that msgspec generates for a type."""
    args = [arg.__name__ if isinstance(arg, type) else repr(arg) for arg in get_args(cls)]
    name = f"{get_origin(cls).__name__}[{', '.join(args)}]" if args else cls.__name__
    return _NOT_IN_NAMES.sub("_", name)


def _generic_name(cls: Any, unions: Mapping[str, object]) -> str:
    """Return a readable name of a generic type: ``ItemPage`` for ``Page[Item]``."""
    names = [
        next((name for name, union in unions.items() if union == arg), None) or arg.__name__
        for arg in get_args(cls)
    ]
    return "".join((*names, get_origin(cls).__name__))


def _plain(schema: object) -> JsonObject:
    """Return the schema in plain JSON types, where tuples become lists, and in forms that
    generators of clients understand: they need the ``items`` of arrays, take an enumeration of one
    boolean for a constant only if it is one, and cannot make a default of an object."""

    def change(found: JsonObject) -> JsonObject:
        if found.get("type") == "array" and not found.keys() & {"items", "prefixItems"}:
            return {**found, "items": {}}
        if found.get("enum") in ([True], [False]):
            rest = {key: value for key, value in found.items() if key != "enum"}
            return {**rest, "type": "boolean", "const": found["enum"][0]}
        if isinstance(found.get("default"), dict):
            return {key: value for key, value in found.items() if key != "default"}
        return found

    plain: JsonObject = _map(json.loads(json.dumps(schema)), change)
    return plain


def _struct_classes(types: Iterable[object]) -> Iterator[type[Struct]]:
    """Yield every struct that the types contain."""
    seen: set[type[Struct]] = set()
    stack: list[Any] = list(msgspec.inspect.multi_type_info(types))
    while stack:
        info = stack.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in seen:
                continue
            seen.add(info.cls)
            yield info.cls
            stack += [field.type for field in info.fields]
        else:
            stack += _inner_types(info)


def _inner_types(info: object) -> list[Any]:
    """Return the types inside a container or a union. ``info``: msgspec's description of the
    container or the union."""
    names = ("type", "item_type", "key_type", "value_type")
    inner = [getattr(info, name) for name in names if hasattr(info, name)]
    for name in ("item_types", "types"):
        inner += getattr(info, name, ())
    return [each for each in inner if isinstance(each, msgspec.inspect.Type)]


def _describe_sent(cls: type[Struct], schema: JsonObject) -> JsonObject:
    """Return the schema of a class as it appears in responses. Every field that is always present
    becomes required."""
    omits = cls.__struct_config__.omit_defaults
    optional = {
        field.encode_name
        for field in fields(cls)
        if field.default is UNSET or (omits and not field.required)
    }
    described = _describe(cls, schema)
    properties = {
        name: {key: value for key, value in one.items() if key != "default"}
        for name, one in described["properties"].items()
    }
    required = [name for name in properties if name not in optional]
    return {**described, "properties": properties, "required": required}


def _describe_accepted(cls: type[Struct], schema: JsonObject) -> JsonObject:
    """Return the schema of a class for the description of requests. In requests, an optional field
    may also be null, which means that the field is not given."""
    described = _describe(cls, schema)
    required = set(described["required"])
    properties = {
        name: one if name in required else _without_null_default(_nullable(one))
        for name, one in described["properties"].items()
    }
    return {**described, "properties": properties}


def _describe(cls: type[Struct], schema: JsonObject) -> JsonObject:
    """Return the schema of a class without its title. The description is the docstring of the
    class, as Markdown."""
    text = " ".join((cls.__doc__ or "").split()).replace("``", "`")
    head: JsonObject = {"description": text} if text else {}
    rest = {key: value for key, value in schema.items() if key not in ("title", "description")}
    return {**head, **rest}


def _accepts_null(schema: JsonObject) -> bool:
    return {"type": "null"} in schema.get("anyOf", ()) or not schema.keys() - {"default"}


def _without_null_default(schema: JsonObject) -> JsonObject:
    """Return the schema without its default if the default is null or an empty string. Such a
    default only means that the field is not given."""
    if schema.get("default", ...) not in (None, ""):
        return schema
    return {key: value for key, value in schema.items() if key != "default"}


def _nullable(schema: JsonObject) -> JsonObject:
    if _accepts_null(schema):
        return schema
    default = {"default": schema["default"]} if "default" in schema else {}
    inner = {key: value for key, value in schema.items() if key != "default"}
    if inner.keys() == {"anyOf"}:
        return {"anyOf": [*inner["anyOf"], {"type": "null"}], **default}
    return {"anyOf": [inner, {"type": "null"}], **default}


# --- references ----------------------------------------------------------------------------------


def _map(schema: object, change: Callable[[JsonObject], JsonObject]) -> Any:
    """Apply ``change`` to every object in a schema, innermost objects first. Returns the changed
    schema."""
    if isinstance(schema, dict):
        return change({key: _map(value, change) for key, value in schema.items()})
    return [_map(value, change) for value in schema] if isinstance(schema, list) else schema


def _name_unions(schema: JsonObject, unions: Sequence[tuple[str, JsonObject]]) -> JsonObject:
    """Replace unions by references to their components. A union in ``schema`` is replaced if
    ``unions`` contains an equal union. ``unions``: the component name and the schema of each
    union."""

    def change(found: JsonObject) -> JsonObject:
        arms = found.get("anyOf")
        if arms is None:
            return found
        for name, union in unions:
            if arms == union["anyOf"]:
                rest = {
                    key: value
                    for key, value in found.items()
                    if key not in ("anyOf", "discriminator")
                }
                return {"$ref": _REF + name, **rest}
        return found

    changed: JsonObject = _map(schema, change)
    return changed


def _drop_discriminators(schema: JsonObject, without: set[str]) -> JsonObject:
    """Remove the discriminator of each union that contains a class whose field ``type`` may be
    missing. A discriminator would require this field. ``without``: references to these classes."""

    def change(found: JsonObject) -> JsonObject:
        arms = {arm.get("$ref") for arm in found.get("anyOf", ())}
        if "discriminator" in found and arms & without:
            return {key: value for key, value in found.items() if key != "discriminator"}
        return found

    changed: JsonObject = _map(schema, change)
    return changed


def _rename(schema: JsonObject, names: Mapping[str, str]) -> JsonObject:
    def change(found: JsonObject) -> JsonObject:
        if "mapping" in found and "propertyName" in found:
            mapping = {tag: names.get(ref, ref) for tag, ref in found["mapping"].items()}
            return {**found, "mapping": mapping}
        if "$ref" in found:
            return {**found, "$ref": names.get(found["$ref"], found["$ref"])}
        return found

    changed: JsonObject = _map(schema, change)
    return changed


def _references(schema: object) -> set[str]:
    """Return the names of the components to which a schema refers."""
    found: set[str] = set()

    def note(each: JsonObject) -> JsonObject:
        if isinstance(ref := each.get("$ref"), str) and ref.startswith(_REF):
            found.add(each["$ref"].removeprefix(_REF))
        return each

    _map(schema, note)
    return found
