"""The API reference as one HTML page, made from the OpenAPI document.

The page contains its style and its script, so it loads no other files. Its content security policy
allows only this style and this script, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

import jinja2
from markupsafe import Markup, escape
from msgspec import Struct

from antiphon.wire.json_types import JsonObject

from .describe import OperationView, operations, rows, type_spans

_CODE = re.compile(r"`([^`]*)`")


class ReferencePage(Struct, frozen=True):
    """The API reference as an HTML page. ``policy``: the value of the response header
    ``content-security-policy`` for this page."""

    html: bytes
    policy: str


def make_page(document: JsonObject) -> ReferencePage:
    """Render the API reference of an OpenAPI document."""
    # The colours, type and controls are those of the web page.
    shared = (files("antiphon.http.ui") / "static/css/base.css").read_text(encoding="utf-8")
    style, script = shared + _resource("reference.css"), _resource("reference.js")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    html = environment.from_string(_resource("reference.html.jinja")).render(
        document=document,
        views=tuple(operations(document)),
        schemas=document["components"]["schemas"],
        rows=rows,
        type_spans=type_spans,
        inputs=_inputs,
        code=_code,
        style=Markup(style),
        script=Markup(script),
    )
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)};"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return ReferencePage(html.encode(), policy)


def _inputs(operation: OperationView) -> list[JsonObject]:
    """Return the inputs with which a reader tries an operation: its parameters and its form."""
    fields = (
        {
            "name": each.name,
            "in": each.location,
            "required": each.required,
            "file": any(span.text == "file" for span in each.spans),
        }
        for each in (*operation.params, *operation.form)
    )
    return [field for field in fields if field["in"] != "header"]


def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _code(text: str) -> Markup:
    """Return text as HTML. Text between backticks becomes code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
