"""Convert the OpenAPI document to rows of tables, for the pages that show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.wire.json_types import JsonObject

#: Keyword of a schema → how its bound is written.
_BOUNDS: Mapping[str, str] = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "matches `{}`",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
}


#: Operation → an example of its body. "MODEL" stands for a model that the server has.
_SAMPLES: Mapping[str, JsonObject] = {
    "createResponse": {"model": "MODEL", "input": "Name three colours.", "max_output_tokens": 60},
    "createChatCompletion": {
        "model": "MODEL",
        "messages": [{"role": "user", "content": "Name three colours."}],
        "max_completion_tokens": 60,
    },
}
_SAMPLE_FIELDS: Mapping[str, Any] = {"model": "MODEL", "max_tokens": 60}
_SAMPLE_DEPTH = 4


class TextSpan(Struct, frozen=True):
    """A piece of a type's description. ``ref``: the name of the OpenAPI component to which the
    piece refers; None for plain text."""

    text: str
    ref: str | None = None


class FieldRow(Struct, frozen=True, kw_only=True):
    """A row of a table in the API reference. It describes a field, a parameter or a header.
    ``spans``: pieces of text that describe the type of the field. ``location``: the part of the
    request that contains the field, such as ``body`` or ``query``."""

    name: str
    spans: tuple[TextSpan, ...]
    required: bool = False
    default: Any = None
    description: str = ""
    location: str = "body"


class OperationView(Struct, frozen=True, kw_only=True):
    """An operation, ready for display. ``bodies``: media type → request type. ``answers``: status
    and media type → response type. ``form``: the fields of the form that the operation accepts.
    ``sample``: an example of a JSON body; None if the operation takes none. ``headers``: header of
    a successful response → meaning. ``x-request-id`` is left out, because every response has it."""

    method: str
    path: str
    id: str
    tag: str
    summary: str
    params: tuple[FieldRow, ...]
    bodies: Mapping[str, tuple[TextSpan, ...]]
    form: tuple[FieldRow, ...]
    answers: Mapping[str, tuple[TextSpan, ...]]
    sample: Any
    headers: Mapping[str, str]
    errors: tuple[str, ...]


def operations(document: JsonObject) -> Iterator[OperationView]:
    """Yield the operations of an OpenAPI document, in the order of the document."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield _view(method.upper(), path, operation, document["components"])


def _view(method: str, path: str, operation: JsonObject, components: JsonObject) -> OperationView:
    content = operation.get("requestBody", {}).get("content", {})
    form = content.get("multipart/form-data", {}).get("schema")
    answers, own_headers, errors = {}, {}, []
    for status, answer in operation["responses"].items():
        if "$ref" in answer:
            errors.append(status)
            continue
        for name in answer.get("headers", {}).keys() - {"x-request-id"}:
            own_headers[name] = components["headers"][name]["description"]
        for kind, each in answer.get("content", {}).items():
            answers[f"{status} {kind}"] = type_spans(each["schema"])
        if "content" not in answer:
            answers[status] = (TextSpan(answer["description"]),)
    return OperationView(
        method=method,
        path=path,
        id=operation["operationId"],
        tag=operation["tags"][0],
        summary=operation["summary"],
        params=tuple(_param(each) for each in operation.get("parameters", ())),
        bodies={
            kind: type_spans(each["schema"])
            for kind, each in content.items()
            if kind != "multipart/form-data"
        },
        form=rows(form) if form else (),
        sample=_sample(operation, content, components),
        answers=answers,
        headers=dict(sorted(own_headers.items())),
        errors=tuple(errors),
    )


def _sample(operation: JsonObject, content: JsonObject, components: JsonObject) -> Any:
    """Return an example of the JSON body of an operation, with its required fields."""
    schema = content.get("application/json", {}).get("schema")
    if schema is None:
        return None
    return _SAMPLES.get(operation["operationId"]) or _example(schema, components, depth=0)


def _example(schema: JsonObject, components: JsonObject, depth: int) -> Any:
    if "$ref" in schema:
        schema = components["schemas"][schema["$ref"].rpartition("/")[2]]
    if depth > _SAMPLE_DEPTH:
        return None
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], components, depth)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "array":
        return [_example(schema.get("items", {}), components, depth + 1)]
    if schema.get("type") == "object":
        required = schema.get("required", ())
        return {
            name: _SAMPLE_FIELDS.get(name) or _example(each, components, depth + 1)
            for name, each in schema.get("properties", {}).items()
            if name in required
        }
    return {"string": "text", "integer": 1, "number": 1, "boolean": True}.get(
        schema.get("type", "")
    )


def _param(param: JsonObject) -> FieldRow:
    return FieldRow(
        name=param["name"],
        spans=type_spans(param["schema"]),
        required=param.get("required", False),
        default=param["schema"].get("default"),
        description=param.get("description", ""),
        location=param["in"],
    )


def rows(schema: JsonObject) -> tuple[FieldRow, ...]:
    """Return one row for each field of an object. ``schema``: the schema of the object."""
    required = schema.get("required", ())
    return tuple(
        FieldRow(
            name=name,
            spans=type_spans(each, nullable=name in required),
            required=name in required,
            default=each.get("default"),
            description=each.get("description", ""),
        )
        for name, each in schema.get("properties", {}).items()
    )


def type_spans(schema: JsonObject, *, nullable: bool = True) -> tuple[TextSpan, ...]:
    """Describe the type of a schema in words. ``nullable``: whether the description mentions
    null."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return (TextSpan(name, name),)
    if "anyOf" in schema:
        arms = [arm for arm in schema["anyOf"] if nullable or arm != {"type": "null"}]
        return _join([type_spans(arm) for arm in arms], " or ")
    if "enum" in schema:
        return (TextSpan(" or ".join(f"`{_literal(value)}`" for value in schema["enum"])),)
    kind = schema.get("type", "any")
    bounds = ", ".join(_bound(key, schema[key]) for key in _BOUNDS if key in schema)
    tail = (TextSpan(f" ({bounds})"),) if bounds else ()
    if kind == "array":
        return (TextSpan("array of "), *type_spans(schema.get("items", {})), *tail)
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return (TextSpan("object of "), *type_spans(schema["additionalProperties"]), *tail)
    if "contentMediaType" in schema:
        kind = "file"
    return (TextSpan(kind), *tail)


def _bound(keyword: str, value: object) -> str:
    """Describe a bound as text, such as "≥ 1". ``keyword``: the schema keyword of the bound, such
    as ``minimum``. ``value``: the value of this keyword."""
    text = _BOUNDS[keyword].format(value)
    if value == 1:
        text = text.replace("characters", "character").replace("entries", "entry")
    return text


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _join(pieces: Sequence[tuple[TextSpan, ...]], between: str) -> tuple[TextSpan, ...]:
    joined: list[TextSpan] = []
    for piece in pieces:
        joined += [TextSpan(between), *piece] if joined else piece
    return tuple(joined)
