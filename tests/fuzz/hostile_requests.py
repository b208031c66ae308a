"""Requests of every endpoint with one hostile value each, made from the OpenAPI document.

A body has the required fields of its schema and one field more. At one place in it, a value is
replaced by another one that no client sends by intention.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from msgspec import Struct

#: What takes the place of a value, as JSON.
VALUES: dict[str, str] = {
    "integer with 400 digits": "9" * 400,
    "integer above 64 bits": str(2**64),
    "integer above 63 bits": str(2**63),
    "negative integer": "-1",
    "negative huge integer": str(-(2**70)),
    "huge float": "1e308",
    "overflowing float": "1e999",
    "tiny float": "5e-324",
    "fraction": "0.5",
    "negative zero": "-0.0",
    "NaN": "NaN",
    "Infinity": "-Infinity",
    "null": "null",
    "true": "true",
    "empty text": '""',
    "NUL": '"a\\u0000b"',
    "lone surrogate": '"\\ud800"',
    "reversed surrogates": '"\\udc00\\ud800"',
    "control characters": '"\\u001b[2J\\u202e\\r\\nx: y"',
    "long text": '"%s"' % ("x" * 300_000),
    "text of a number": '"1e400"',
    "base64 beyond ASCII": '"é"',
    "image beyond ASCII": '"data:image/png;base64,é"',
    "empty array": "[]",
    "array of arrays": "[[[]]]",
    "long array": f"[{','.join(['0'] * 20_000)}]",
    "nested array": "[" * 500 + "]" * 500,
    "empty object": "{}",
    "object": '{"\\u0000": {"a": [1e308, "\\ud800"]}}',
    "nested object": '{"a":' * 500 + "1" + "}" * 500,
}
#: What takes the place of a parameter in the URL.
TEXTS = (
    "9" * 400, "-1", "1e999", "NaN", "0.5", "", "\0", "a\0b", "%00", "\ud800", "../../x",
    "x" * 20_000, "\x1b[2J\r\nx: y", "\u202e", "true", "null", "[]", "{}", "٣", "1_000", " 1", "+1",
)  # fmt: skip

#: What takes the place of a field of a form.
FORM_TEXTS = (
    *TEXTS, "x" * 5_000, "[" * 500, '{"a":' * 500, "data:image/png;base64,é", "1e400", "\r\n--",
    *(value for value in VALUES.values() if len(value) < 4_000),
)  # fmt: skip
_BOUNDARY = "limit-7"
#: Parameters of the content type of a form.
_FORM_PARAMETERS = (
    "", ";", "; boundary", "; boundary=", '; boundary="', "; boundary=other", "; boundary=é",
    f"; boundary={_BOUNDARY}; boundary=b", f'; boundary="{_BOUNDARY}"; charset=none',
    "; boundary=" + "b" * 5_000, "; boundary=limit-7; charset=utf-16", "/x; boundary=limit-7",
)  # fmt: skip
#: What is done to the bytes of a form.
_FORM_EDITS: dict[str, Callable[[bytes], bytes]] = {
    "no bytes": lambda form: b"",
    "one byte": lambda form: b"-",
    "JSON": lambda form: b"{}",
    "no end": lambda form: form[: -len(_BOUNDARY) - 6],
    "half": lambda form: form[: len(form) // 2],
    "no line ends": lambda form: form.replace(b"\r\n", b""),
    "other line ends": lambda form: form.replace(b"\r\n", b"\n"),
    "text before": lambda form: b"hello\r\n" * 100 + form,
    "text after": lambda form: form + b"hello" * 100,
    "twice": lambda form: form * 2,
    "many parts": lambda form: form.replace(
        b"--limit-7\r\n", b"--limit-7\r\n\r\n\r\n--limit-7\r\n" * 99
    ),
    "only ends": lambda form: b"--limit-7--\r\n" * 1_000,
    "NUL": lambda form: form.replace(b"form-data", b"form\0data"),
    "long": lambda form: form.replace(b"tiny", b"x" * 300_000),
}
_PLACE = "\0place"
#: How deep fields are replaced.
_DEPTH = 5


class HostileRequest(Struct, frozen=True):
    """A request.

    - ``operation``: its method and the template of its path.
    - ``body``: its JSON, with ``_PLACE`` at the place of the value; None if it has no body.
    - ``place``, ``value``: where the hostile value is, and its name.
    """

    operation: str
    path: str
    body: Any
    place: str
    value: str

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.operation.partition(" ")[0]

    @property
    def content(self) -> bytes | None:
        """The body as it is sent."""
        if self.body is None:
            return None
        return (
            json.dumps(self.body).replace(json.dumps(_PLACE), VALUES.get(self.value, "")).encode()
        )

    @property
    def content_type(self) -> str:
        """The type of the body."""
        return "application/json"

    def __str__(self) -> str:
        return f"{self.operation} with {self.value} at {self.place}"


class HostileForm(HostileRequest, frozen=True):
    """A request with a form. ``body``: the bytes of the form."""

    parameters: str = f"; boundary={_BOUNDARY}"

    @property
    def content(self) -> bytes | None:
        return bytes(self.body)

    @property
    def content_type(self) -> str:
        return "multipart/form-data" + self.parameters


def hostile_requests(document: dict[str, Any], ids: dict[str, str]) -> Iterator[HostileRequest]:
    """Yield requests of each operation. ``ids``: values of path parameters."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method in ("get", "post", "delete"):
                name = f"{method.upper()} {path}"
                yield from _in_url(name, path, operation, ids)
                contents = operation.get("requestBody", {}).get("content", {})
                url = _filled(path, ids)
                if (body := contents.get("application/json")) is not None:
                    yield from _in_body(document, name, url, body["schema"])
                if (form := contents.get("multipart/form-data")) is not None:
                    yield from _in_form(document, name, url, form["schema"])


def hostile_bodies(path: str, body: dict[str, Any]) -> Iterator[HostileRequest]:
    """Yield requests with this body, with a hostile value at one place each."""
    for place, changed in _replaced(body):
        for value in VALUES:
            yield HostileRequest(f"POST {path}", path, changed, place, value)


def _replaced(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a JSON value with ``_PLACE`` in place of each value in it."""
    yield "", _PLACE
    if isinstance(value, dict):
        for name, inner in value.items():
            for place, changed in _replaced(inner):
                yield f"{name}.{place}".strip("."), {**value, name: changed}
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            for place, changed in _replaced(inner):
                items = [*value[:index], changed, *value[index + 1 :]]
                yield f"[{index}].{place}".strip("."), items


def _filled(path: str, ids: dict[str, str]) -> str:
    for name, id in ids.items():
        path = path.replace(f"{{{name}}}", quote(id, safe=""))
    return path.replace("{", "").replace("}", "")


def _in_url(
    operation_name: str, path: str, operation: dict[str, Any], ids: dict[str, str]
) -> Iterator[HostileRequest]:
    body = {} if operation_name.startswith("POST") else None
    for parameter in operation.get("parameters", ()):
        name, where = parameter.get("name"), parameter.get("in")
        for text in TEXTS:
            encoded = quote(text.encode("utf-8", "surrogatepass"), safe="")
            if where == "path":
                url = _filled(path.replace(f"{{{name}}}", encoded or "%20"), ids)
            elif where == "query":
                url = f"{_filled(path, ids)}?{name}={encoded}"
            else:
                continue
            yield HostileRequest(operation_name, url, body, f"{where} {name}", repr(text[:20]))


def _in_body(
    document: dict[str, Any], operation_name: str, url: str, schema: Any
) -> Iterator[HostileRequest]:
    for place, body in _places(document, schema, _DEPTH):
        for value in VALUES:
            yield HostileRequest(operation_name, url, body, place, value)


def _in_form(
    document: dict[str, Any], operation_name: str, url: str, schema: Any
) -> Iterator[HostileRequest]:
    properties, required = schema["properties"], schema.get("required", ())
    parts = {
        name: _part(name, "tiny" if _is_file(inner) else _text(_example(document, inner, 1)), inner)
        for name, inner in properties.items()
        if name in required
    }
    for name, inner in properties.items():
        for text in FORM_TEXTS:
            changed = {**parts, name: _part(name, text, inner)}
            value = repr(text[:20])
            yield HostileForm(operation_name, url, _form(changed.values()), name, value)
        others = [part for key, part in parts.items() if key != name]
        for value, raw in _broken_parts(name):
            yield HostileForm(operation_name, url, _form((*others, raw)), name, value)
    for value, edit in _FORM_EDITS.items():
        yield HostileForm(operation_name, url, edit(_form(parts.values())), "form", value)
    for parameters in _FORM_PARAMETERS:
        body = _form(parts.values())
        yield HostileForm(operation_name, url, body, "content-type", parameters[:40], parameters)


def _is_file(schema: Any) -> bool:
    return "contentMediaType" in schema or "contentMediaType" in schema.get("items", ())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _part(name: str, text: str, schema: Any) -> bytes:
    filename = '; filename="a.png"' if _is_file(schema) else ""
    return _raw_part(f'form-data; name="{name}"{filename}', text)


def _raw_part(disposition: str, text: str = "tiny", more: str = "") -> bytes:
    head = f"content-disposition: {disposition}\r\n{more}\r\n"
    return f"{head}{text}\r\n".encode("utf-8", "surrogatepass")


def _form(parts: Iterable[bytes]) -> bytes:
    line = b"--" + _BOUNDARY.encode()
    return b"".join(line + b"\r\n" + part for part in parts) + line + b"--\r\n"


def _broken_parts(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield parts that stand for a field of this name, with what is wrong with them."""
    field = f'form-data; name="{name}"'
    for filename in (
        "",
        "\0",
        "../../a",
        "a/b\\\\c",
        "x" * 5_000,
        "\ud800",
        '\\"',
        "é\u202e.pdf",
        ".",
    ):
        yield f"file name {filename[:9]!r}", _raw_part(f'{field}; filename="{filename}"')
    yield "encoded file name", _raw_part(f"{field}; filename*=utf-16''%ff%fe%00%d8")
    yield "unknown charset", _raw_part(f"{field}; filename*=none''a")
    yield "index", _raw_part(f'form-data; name="{name}[0][x]"')
    yield "open index", _raw_part(f'form-data; name="{name}["')
    yield "number as index", _raw_part(f'form-data; name="{name}[{"9" * 400}]"')
    yield "no name", _raw_part("form-data")
    yield "other disposition", _raw_part(f'attachment; name="{name}"')
    yield "no disposition", b"x: y\r\n\r\ntiny\r\n"
    yield "no headers", b"\r\ntiny\r\n"
    yield "header without end", b"content-disposition: form-data"
    yield "long header", _raw_part(field, more=f"x: {'y' * 100_000}\r\n")
    yield "many headers", _raw_part(field, more="x: y\r\n" * 5_000)
    yield "part in UTF-16", _raw_part(field, more="content-type: text/plain; charset=utf-16\r\n")
    yield "unknown charset of a part", _raw_part(field, more="content-type: a; charset=none\r\n")
    yield "base64", _raw_part(field, more="content-transfer-encoding: base64\r\n")
    yield "bytes beyond UTF-8", _raw_part(field, "").replace(b"\r\n\r\n", b"\r\n\r\n\xff\xfe\x00")
    yield "twice", _raw_part(field) + b"--" + _BOUNDARY.encode() + b"\r\n" + _raw_part(field, "b")


def _places(document: dict[str, Any], schema: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield examples of a schema with ``_PLACE`` at one place each."""
    yield "", _PLACE
    if not depth:
        return
    for option in _options(document, schema):
        properties = option.get("properties", {})
        if properties:
            base = {
                name: _example(document, properties.get(name, {}), depth)
                for name in option.get("required", ())
            }
            for name, inner in properties.items():
                for place, body in _places(document, inner, depth - 1):
                    yield f"{name}.{place}".strip("."), {**base, name: body}
        if isinstance(items := option.get("items"), dict):
            for place, body in _places(document, items, depth - 1):
                yield f"[0].{place}".strip("."), [body]
        if isinstance(extra := option.get("additionalProperties"), dict) and not properties:
            for place, body in _places(document, extra, depth - 1):
                yield f"key.{place}".strip("."), {"key": body}


def _options(document: dict[str, Any], schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the alternatives of a schema."""
    while isinstance(schema, dict) and "$ref" in schema:
        found: Any = document
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        schema = found
    if not isinstance(schema, dict):
        return
    alternatives = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if not alternatives:
        yield schema
        return
    for each in alternatives:
        yield from _options(document, each)


def _example(document: dict[str, Any], schema: Any, depth: int) -> Any:
    option = next(_options(document, schema), {})
    if "const" in option:
        return option["const"]
    if "enum" in option:
        return option["enum"][0]
    kind = option.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = option.get("properties", {})
        return {
            name: _example(document, properties.get(name, {}), depth - 1)
            for name in option.get("required", ())
            if depth
        }
    if kind == "array":
        return [_example(document, option.get("items", {}), depth - 1)] if depth else []
    return {"integer": 1, "number": 1, "boolean": True, "null": None}.get(str(kind), "tiny")
