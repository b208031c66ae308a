"""Build the OpenAPI 3.1 document from routes, operations and wire types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from msgspec import Struct
from starlette.routing import Route

from antiphon.compat.embeddings import EmbeddingsRequest
from antiphon.compat.request_bodies import AnyTextInput
from antiphon.http.requests.query import QueryParam, params_of
from antiphon.wire import items, parts, tools
from antiphon.wire.error_reply import ErrorReply
from antiphon.wire.events import EVENTS, StreamEvent
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.accepted_forms import ACCEPTED_FORMS, UNTAGGED
from antiphon.wire.parsing.ids import ID_TYPES
from antiphon.wire.request import FIELDS, CreateResponse

from .operation import Form, Operation, operation_of
from .schemas import (
    AcceptedForms,
    accepted_schemas,
    merge_schemas,
    rename_components,
    sent_schemas,
    used_components,
)
from .shapes import SHAPES

_UNIONS: Mapping[str, Any] = {
    "StreamEvent": StreamEvent,
    "Item": items.Item,
    "Tool": tools.Tool,
    "Part": parts.Part,
    "Annotation": parts.Annotation,
}
_FORMS: AcceptedForms = {**ACCEPTED_FORMS, (EmbeddingsRequest, "input"): AnyTextInput}

_HEAD = """\
The OpenAI Responses API for the models you run yourself, and related APIs.

Optional fields of requests may be null, which means "not given". Unknown fields of requests are \
ignored unless ignoring them would change the answer. New fields and events may be added at any \
time."""

#: Start of a path → tag, and description of the tag. The first entry that matches a path counts.
_TAGS: Mapping[str, tuple[str, str]] = {
    "/v1/responses": ("Responses", "Create, retrieve, follow and cancel responses."),
    "/v1/conversations": ("Conversations", "Lists of items that responses read and extend."),
    "/v1/prompts": ("Prompts", "Stored prompts of the operator."),
    "/v1/files": ("Files", "Uploaded files."),
    "/v1/batches": ("Batches", "Files of requests that run when the server is idle."),
    "/v1/uploads": ("Uploads", "Files uploaded in parts."),
    "/v1/vector_stores": ("Vector stores", "Collections of files that can be searched."),
    "/v1/containers": ("Containers", "Sandboxes in which code written by the model runs."),
    "/v1/skills": ("Skills", "Folders of instructions for the shell."),
    "/v1/webhook": ("Webhooks", "URLs to which the server reports the ends of responses."),
    "/v1/models": ("Models", "The served models."),
    "/v1/embeddings": ("Embeddings", "Embedding vectors of texts."),
    "/v1/audio": ("Audio", "OpenAI's Audio API."),
    "/v1/images": ("Images", "OpenAI's Images API."),
    "/v1/chat": ("Chat Completions", "OpenAI's older APIs."),
    "/v1/completions": ("Chat Completions", ""),
    "/v1/messages": ("Messages", "Anthropic's Messages API."),
    "/api": ("Ollama", "Ollama's API."),
    "/v1/organization": ("Usage", "The usage of all tenants, for operators."),
    "/v1": ("Other", "Further endpoints."),
    "/antiphon": ("Administration", "Endpoints of this server that OpenAI's API does not have."),
    "": ("Operations", "Endpoints for monitoring, and vLLM's endpoints about tokens."),
}

_STATUS_TEXTS: Mapping[int, str] = {
    400: "The request is invalid or asks for something unsupported. `param` names the field.",
    401: "The API key is missing or unknown.",
    403: "The API key may not do this.",
    404: "The object does not exist, or belongs to another tenant.",
    405: "The endpoint does not support this method. A WebSocket needs an upgrade request.",
    409: "The request conflicts with the current state.",
    413: "The body is too large, or this object alone exceeds a quota.",
    416: "The range is outside the file.",
    424: "The tools of an MCP server cannot be listed.",
    426: "The server cannot upgrade the connection to a WebSocket.",
    429: "A rate limit or a quota is reached. `retry-after` says when to try again.",
    500: "The server failed.",
    502: "The model or its upstream failed, or its output is not in the requested format.",
    503: "The server or its store is overloaded or stopping. `retry-after` says when to try again.",
}
_PATH_PARAM = re.compile(r"\{(\w+)(?::\w+)?\}")
_FIELD_TREATMENTS: Mapping[str, str] = {
    "echoed": "Returned in the response.",
    "hint": "May change the speed, never the answer.",
    "refused": "Not supported: only null is accepted.",
}
#: Refused field → description, if the field accepts other values than null.
_ACCEPTED_VALUES: Mapping[str, str] = {
    "image": (
        "Not supported: only null is accepted, and an object whose `context_compression` is"
        " missing, `auto` or `disabled`."
    ),
    "multi_agent": (
        "Not supported: only null is accepted, and an object whose `enabled` is missing or false."
    ),
    "skip_special_tokens": "Only null and true are accepted.",
}


class Endpoint(Struct, frozen=True, kw_only=True):
    """An endpoint of the API: one HTTP method of a route. ``operation``: the description of the
    endpoint, from which its part of the OpenAPI document is made."""

    method: str
    path: str
    operation: Operation
    summary: str

    @property
    def tag(self) -> str:
        return next(tag for start, (tag, _) in _TAGS.items() if self.path.startswith(start))

    @property
    def path_params(self) -> tuple[str, ...]:
        return tuple(_PATH_PARAM.findall(self.path))

    @property
    def document_path(self) -> str:
        """The path as the OpenAPI document shows it, without Starlette's converters:
        ``{model:path}`` becomes ``{model}``."""
        return _PATH_PARAM.sub(r"{\1}", self.path)


def endpoints(routes: Iterable[Any]) -> Iterator[Endpoint]:
    """Yield the endpoints that declare an operation, in the order of the routes."""
    for route in routes:
        found = operation_of(route.endpoint) if isinstance(route, Route) else None
        if found is None:
            continue
        summary = found.summary or _first_sentence(
            inspect.getdoc(inspect.unwrap(route.endpoint)) or ""
        )
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield Endpoint(method=method, path=route.path, operation=found, summary=summary)


def _first_sentence(text: str) -> str:
    line = " ".join(text.partition("\n\n")[0].split()).replace("``", "`")
    return line.partition(". ")[0].rstrip(".") + "."


def make_document(routes: Iterable[object]) -> JsonObject:
    """Build the OpenAPI document of the routes. This takes about a tenth of a second."""
    every = list(endpoints(routes))
    types = _Types(every)
    paths: JsonObject = {}
    for endpoint in every:
        described = _operation(endpoint, types)
        paths.setdefault(endpoint.document_path, {})[endpoint.method.lower()] = described
    tags = dict.fromkeys(endpoint.tag for endpoint in every)
    about = {tag: text for tag, text in _TAGS.values() if text}
    document: JsonObject = {
        "openapi": "3.1.0",
        "info": {
            "title": "Antiphon",
            "version": version("antiphon"),
            "description": _HEAD,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"apiKey": []}, {}],
        "tags": [{"name": tag, "description": about[tag]} for tag in tags],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "apiKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Required on a server with keys.",
                }
            },
            "headers": _HEADERS,
            "responses": _error_components(every, types),
        },
    }
    document["components"]["schemas"] = used_components(document, types.components)
    return document


# --- operations ----------------------------------------------------------------------------------

_HEADERS: JsonObject = {
    "x-request-id": {
        "description": "The id of the request in the server's log.",
        "schema": {"type": "string"},
    },
    "accept-ranges": {"description": "`bytes`.", "schema": {"type": "string"}},
    "etag": {
        "description": "Identifies the content, for `if-range`.",
        "schema": {"type": "string"},
    },
    "retry-after": {
        "description": "Seconds after which a retry may succeed.",
        "schema": {"type": "integer"},
    },
    "x-should-retry": {
        "description": "`false`: a retry would fail again.",
        "schema": {"enum": ["false"]},
    },
    "x-antiphon-ignored-tools": {
        "description": "Tools of the request that this server does not run.",
        "schema": {"type": "string"},
    },
    "idempotent-replayed": {
        "description": "`true`: the response belongs to an earlier request with this "
        "`Idempotency-Key`.",
        "schema": {"const": "true"},
    },
}
_HEADER_REF = "#/components/headers/"


def _operation(endpoint: Endpoint, types: _Types) -> JsonObject:
    operation = endpoint.operation
    described: JsonObject = {
        "operationId": operation.id,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "responses": _responses(endpoint, types),
    }
    if parameters := _parameters(endpoint, types):
        described["parameters"] = parameters
    if content := _request_content(operation, types):
        described["requestBody"] = {"content": content, "required": operation.body_required}
    if operation.security == "open":
        described["security"] = []
    return described


def _parameters(endpoint: Endpoint, types: _Types) -> list[JsonObject]:
    operation = endpoint.operation
    path: list[JsonObject] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": types.request_schema(ID_TYPES.get(name, str)),
        }
        for name in endpoint.path_params
    ]
    headers: list[JsonObject] = [
        {
            "name": header.name,
            "in": "header",
            "description": header.description,
            "schema": {"type": "string"},
        }
        for header in operation.request_headers
    ]
    return [*path, *(_query_param(param, types) for param in _query_params(operation)), *headers]


def _query_params(operation: Operation) -> tuple[QueryParam, ...]:
    return () if operation.query is None else params_of(operation.query)


def _query_param(param: QueryParam, types: _Types) -> JsonObject:
    schema = dict(types.request_schema(param.type))
    if param.default is not None:
        schema["default"] = param.default
    return {
        "name": param.name,
        "in": "query",
        "description": param.description,
        "required": param.is_required,
        "allowEmptyValue": True,  # an empty value counts as a missing parameter
        "schema": schema,
        **({"style": "deepObject"} if schema.get("type") == "object" else {}),
    }


def _request_content(operation: Operation, types: _Types) -> JsonObject:
    content: JsonObject = {}
    if operation.body is not None:
        content["application/json"] = {"schema": types.request_schema(operation.body)}
    if operation.form is not None:
        content["multipart/form-data"] = {"schema": _form(operation.form, types)}
    return content


def _form(form: Form, types: _Types) -> JsonObject:
    """Return the schema of a form. The schema contains the form field for the file, and one form
    field for each field of the struct type ``form.fields``."""
    file: JsonObject = {"type": "string", "contentMediaType": "application/octet-stream"}
    if form.has_many_files:
        file = {"type": "array", "items": file, "minItems": 1}
    own: JsonObject = {"properties": {}, "required": []}
    if form.fields is not None:
        own = types.components[types.request_schema(form.fields)["$ref"].rpartition("/")[2]]
    return {
        "type": "object",
        "properties": {form.file: file, **own["properties"]},
        "required": [form.file, *own["required"]],
    }


def _responses(endpoint: Endpoint, types: _Types) -> JsonObject:
    operation = endpoint.operation
    success: JsonObject = {
        "description": HTTPStatus(operation.status).phrase,
        "headers": {
            name: {"$ref": _HEADER_REF + name}
            for name in ("x-request-id", *operation.response_headers)
        },
    }
    content: JsonObject = {}
    if operation.answer is not None:
        forms = [
            types.response_schema(each)
            for each in (operation.answer, operation.messages_answer)
            if each
        ]
        content["application/json"] = {"schema": forms[0] if len(forms) == 1 else {"anyOf": forms}}
    elif operation.media_type:
        content[operation.media_type] = {"schema": {"type": "string"}}
    if operation.events is not None:
        schema = types.response_schema(operation.events)
        content[operation.events_media_type] = {"schema": schema}
    if content:
        success["content"] = content
    responses: JsonObject = {str(operation.status): success}
    for status, answer in operation.other_responses.items():
        described: JsonObject = {"description": HTTPStatus(status).phrase}
        if answer is not None:
            described["content"] = {"application/json": {"schema": types.response_schema(answer)}}
        elif status < 300:
            described["content"] = content
        responses[str(status)] = described
    for status in _error_statuses(endpoint):
        name = _error_name(operation.error_body, status)
        responses.setdefault(str(status), {"$ref": f"#/components/responses/{name}"})
    return responses


def _error_statuses(endpoint: Endpoint) -> list[int]:
    """Return the error statuses of an endpoint. Some are declared in ``endpoint.operation``. Others
    follow from properties of the endpoint: for example, an endpoint with path parameters can return
    404."""
    operation = endpoint.operation
    found = {500, *operation.errors}
    if operation.security != "open":
        found |= {400, 401, 429, 503}
    if operation.permission is not None:
        found.add(403)
    if endpoint.path_params:
        found.add(404)
    if operation.body is not None or operation.form is not None:
        found.add(413)
    return sorted(found)


def _error_components(every: Sequence[Endpoint], types: _Types) -> JsonObject:
    """Return the components of the OpenAPI document that describe error responses. Each
    error status has one component for each error format that the endpoints use. ``every``: all
    endpoints of the document."""
    forms = dict.fromkeys((None, *(endpoint.operation.error_body for endpoint in every)))
    return {
        _error_name(form, status): _error(status, types.response_schema(form or ErrorReply))
        for form in forms
        for status in sorted(_STATUS_TEXTS)
    }


def _error_name(form: Any, status: int) -> str:
    return f"{'' if form is None else form.__name__}{status}"


def _error(status: int, schema: JsonObject) -> JsonObject:
    headers = {"x-request-id": {"$ref": _HEADER_REF + "x-request-id"}}
    if status in (429, 503):
        headers["retry-after"] = {"$ref": _HEADER_REF + "retry-after"}
    if status in (400, 429, 500):
        headers["x-should-retry"] = {"$ref": _HEADER_REF + "x-should-retry"}
    return {
        "description": _STATUS_TEXTS[status],
        "headers": headers,
        "content": {"application/json": {"schema": schema}},
    }


# --- types ---------------------------------------------------------------------------------------


#: Component → its name in the document. Generated clients have classes ``File`` and ``Response`` of
#: their own.
_OWN_NAMES = {"File": "FileObject", "Response": "ResponseObject"}


class _Types:
    """The schemas of all types that the operations of the endpoints use."""

    def __init__(self, every: Sequence[Endpoint]) -> None:
        operations = [endpoint.operation for endpoint in every]
        sent = [ErrorReply]
        accepted = []
        for one in operations:
            own = (
                one.answer,
                one.messages_answer,
                one.events,
                one.error_body,
                *one.other_responses.values(),
            )
            sent += [each for each in own if each]
            fields = one.form.fields if one.form is not None else None
            accepted += [each for each in (one.body, fields) if each is not None]
            accepted += [param.type for param in _query_params(one)]
        accepted += [str, *ID_TYPES.values()]
        self._sent_types, self._accepted_types = sent, accepted
        self._sent, self._accepted = merge_schemas(
            sent_schemas(sent, _UNIONS, SHAPES),
            accepted_schemas(accepted, _UNIONS, SHAPES, _FORMS, UNTAGGED),
        )
        names = {cls.__name__: cls.__name__ + "Event" for cls in EVENTS.values()}
        names |= _OWN_NAMES
        self._sent = rename_components(self._sent, names)
        self._accepted = rename_components(self._accepted, names)
        self.components = _with_treatments(self._sent.components)

    def response_schema(self, type: Any) -> JsonObject:
        return self._sent.roots[self._sent_types.index(type)]

    def request_schema(self, type: object) -> JsonObject:
        return self._accepted.roots[self._accepted_types.index(type)]


def _with_treatments(components: Mapping[str, JsonObject]) -> dict[str, JsonObject]:
    """Add a description to each request field that does not have its full effect. There are three
    kinds of these fields: the server returns the field unchanged and does not use it, it uses the
    field as a hint, or it refuses the field."""
    name = CreateResponse.__name__
    request = components[name]
    properties = {
        field: {**schema, "description": _ACCEPTED_VALUES.get(field, text)}
        if (text := _FIELD_TREATMENTS.get(FIELDS[field]))
        else schema
        for field, schema in request["properties"].items()
        if field in FIELDS  # clients cannot set the others
    }
    return {**components, name: {**request, "properties": properties}}
