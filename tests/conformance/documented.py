"""A client that calls operations by the OpenAPI document and checks every answer against it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
import jsonschema_rs
import pytest
from msgspec import Struct

from antiphon.http.requests import query

Json = dict[str, Any]


def record_query(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set to which the name of every query parameter is added that a handler reads."""
    names: set[str] = set()
    original = query.read_texts

    def read_texts(pairs: Iterable[tuple[str, str]], cls: type[Struct]) -> Json:
        names.update(cls.__struct_fields__)
        return original(pairs, cls)

    monkeypatch.setattr(query, "read_texts", read_texts)
    return names


#: Objects that all tenants of a server share.
_SHARED = (
    "/antiphon/sign-in",
    "/antiphon/keys",
    "/antiphon/mcp-servers",
    "/antiphon/tenants",
    "/v1/models",
    "/v1/prompts",
)


#: Stands for the document in the references of its schemas.
_DOCUMENT = "urn:document"


class ApiDocument:
    """An OpenAPI document, and validators by its schemas.

    To compile a validator takes longer than all that is validated with it. So clients share them,
    and they look up other schemas of the document instead of containing them.
    """

    def __init__(self, content: Json) -> None:
        self.content = content
        self._registry = jsonschema_rs.Registry([(_DOCUMENT, content)])
        self._validators: dict[str, jsonschema_rs.Validator] = {}

    def validate(self, schema: Json, value: Any) -> None:
        """Raise an exception if ``value`` does not match a schema of the document."""
        text = json.dumps(schema).replace('"#/', f'"{_DOCUMENT}#/')
        if text not in self._validators:
            self._validators[text] = jsonschema_rs.validator_for(
                json.loads(text), registry=self._registry
            )
        self._validators[text].validate(value)


class DocumentedClient:
    """Calls operations by their ids.

    - ``read``: the query parameters that handlers read.
    - ``stranger``: a client of another tenant. It calls each operation on an object first, and must
      be told that there is no such object.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        document: ApiDocument,
        read: set[str],
        stranger: httpx.AsyncClient | None = None,
    ) -> None:
        self._client = client
        self._document = document
        self._read = read
        self._stranger = stranger
        self._operations: dict[str, tuple[str, str, Json]] = {
            operation["operationId"]: (method, path, operation)
            for path, methods in document.content["paths"].items()
            for method, operation in methods.items()
        }
        self.called: set[str] = set()
        #: Ids of the operations that the stranger has called.
        self.refused: set[str] = set()

    @property
    def operation_ids(self) -> set[str]:
        return set(self._operations)

    @property
    def on_objects(self) -> set[str]:
        """The ids of the operations on objects that belong to a tenant."""
        return {
            id
            for id, (_, path, _) in self._operations.items()
            if "{" in path and not path.startswith(_SHARED)
        }

    def using(self, client: httpx.AsyncClient) -> DocumentedClient:
        """Return a client of another server that counts its calls here."""
        other = DocumentedClient(client, self._document, self._read, self._stranger)
        other.called, other.refused = self.called, self.refused
        return other

    async def __call__(self, id: str, *args: str, status: int = 200, **request: Any) -> Any:
        """Call an operation and return its body: JSON, events or bytes.

        ``args``: the path parameters. Fails if the status, the media type or the body is not what
        the document says, or if the handler reads other query parameters.
        """
        method, template, operation = self._operations[id]
        names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]
        path = template.format(**dict(zip(names, args, strict=True)))
        self._check_request(operation, request)
        if self._stranger is not None and status == 200 and args and not path.startswith(_SHARED):
            answer = await self._stranger.request(method, path, **request)
            assert answer.status_code == 404, (id, answer.text)
            self.refused.add(id)
        self._read.clear()
        answer = await self._client.request(method, path, **request)
        assert answer.status_code == status, (id, answer.text)
        if status < 400:
            documented = {
                each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"
            }
            assert self._read == documented, id
            self.called.add(id)
        return self._check_answer(id, operation, answer)

    def _check_request(self, operation: Json, request: Mapping[str, Any]) -> None:
        if (body := request.get("json")) is not None:
            content = operation["requestBody"]["content"]["application/json"]
            self._document.validate(content["schema"], body)

    def _check_answer(self, id: str, operation: Json, answer: httpx.Response) -> Any:
        described = operation["responses"][str(answer.status_code)]
        if "$ref" in described:
            name = described["$ref"].rpartition("/")[2]
            described = self._document.content["components"]["responses"][name]
        for name in described.get("headers", {}):
            if name == "x-request-id":
                assert name in answer.headers
        if "content" not in described:
            assert not answer.content
            return None
        media_type = answer.headers["content-type"].partition(";")[0]
        assert media_type in described["content"], (id, media_type)
        schema = described["content"][media_type]["schema"]
        if media_type == "application/json":
            self._document.validate(schema, answer.json())
            return answer.json()
        if media_type == "text/event-stream":
            return [self._event(schema, frame) for frame in answer.text.split("\n\n") if frame]
        if media_type in ("application/x-ndjson", "application/x-jsonl"):
            lines = [json.loads(line) for line in answer.text.splitlines()]
            for line in lines:
                self._document.validate(schema, line)
            return lines
        return answer.content

    def _event(self, schema: Json, frame: str) -> Any:
        data = frame.partition("data: ")[2]
        if data == "[DONE]":
            return data
        self._document.validate(schema, json.loads(data))
        return json.loads(data)
