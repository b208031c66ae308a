"""The OpenAPI document: every route declares what it takes and returns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route

from antiphon.compat import chat_messages, chat_request, completion_request
from antiphon.compat.messages import content
from antiphon.compat.messages.bodies import (
    CountTokensFields,
    MessageBlock,
    MessageInput,
    MessagesFields,
    MessageTool,
)
from antiphon.compat.messages.client_tools import CLIENT_TOOLS
from antiphon.compat.messages.request import MESSAGE_FIELDS
from antiphon.compat.messages.toolsets import TOOLSETS
from antiphon.compat.request_bodies import ChatFields, ChatInputMessage, ChatPart, CompletionFields
from antiphon.http.openapi.document import endpoints
from antiphon.http.openapi.operation import operation_of

Json = dict[str, Any]


def test_every_route_declares_its_operation(routes: list[Any]) -> None:
    silent = [
        route.path
        for route in routes
        if isinstance(route, Route) and operation_of(route.endpoint) is None
    ]
    assert silent == [], "add @operation(...) to the handler"


def test_document_is_valid(document: Json) -> None:
    plain = json.loads(json.dumps(document))
    assert list(OpenAPIV31SpecValidator(plain).iter_errors()) == []


def test_operations_have_unique_ids_and_summaries(routes: list[Any]) -> None:
    found = list(endpoints(routes))
    ids = [endpoint.operation.id for endpoint in found]
    assert len(ids) == len(set(ids))
    for endpoint in found:
        assert re.fullmatch(r"[A-Z].{3,120}\.", endpoint.summary), endpoint


def test_only_the_endpoint_that_sends_a_header_documents_it(document: Json) -> None:
    documenting = [
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
        if "x-antiphon-ignored-tools" in operation["responses"].get("200", {}).get("headers", {})
    ]
    assert documenting == ["createResponse", "createMessage"]


def test_operations_that_create_something_take_a_body(routes: list[Any]) -> None:
    without = {
        endpoint.operation.id
        for endpoint in endpoints(routes)
        if endpoint.method == "POST"
        and endpoint.operation.body is None
        and endpoint.operation.form is None
    }
    assert all(re.match("cancel|load|unload|pull|rotate|signOut", id) for id in without), without


def test_components_are_described_in_public_words(document: Json) -> None:
    texts = [
        str(schema.get("description", "")) for schema in document["components"]["schemas"].values()
    ]
    assert not [text for text in texts if "``" in text or "msgspec" in text]


def test_fields_of_answers_are_required_unless_they_may_be_absent(document: Json) -> None:
    schemas = document["components"]["schemas"]
    assert "usage" in schemas["ResponseObject"]["required"]
    assert "conversation" not in schemas["ResponseObject"]["required"]
    assert "status" not in schemas["MessageParam"]["required"]
    assert {"type": "null"} in schemas["MessageParam"]["properties"]["type"]["anyOf"]
    assert {"type": "null"} in schemas["CreateResponse"]["properties"]["store"]["anyOf"]


def test_clients_may_send_annotations_of_any_type(document: Json) -> None:
    schemas = document["components"]["schemas"]
    accepted = schemas["OutputTextParam"]["properties"]["annotations"]
    free = {"type": "object", "additionalProperties": True}
    assert {"type": "array", "items": free} in accepted["anyOf"]


def _schemas(found: Any, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield the path and the schema of each object and array of the document."""
    if isinstance(found, dict):
        if found.get("type") in ("object", "array", "boolean") or "default" in found:
            yield path, found
        found = {name: each for name, each in found.items() if name not in ("enum", "example")}
        for name, each in found.items():
            yield from _schemas(each, f"{path}/{name}")
    elif isinstance(found, list):
        for index, each in enumerate(found):
            yield from _schemas(each, f"{path}/{index}")


def test_generators_of_clients_understand_the_document(document: Json) -> None:
    """``openapi-python-client`` leaves out what it does not understand."""
    plain = json.loads(json.dumps(document))
    faults = [
        path
        for path, found in _schemas(plain)
        if (found.get("type") == "object" and not found.keys() & {"properties", *_CLOSED})
        or (found.get("type") == "array" and not found.keys() & {"items", "prefixItems"})
        or isinstance(found.get("default"), dict)
        or found.get("enum") in ([True], [False])
    ]
    assert faults == []


_CLOSED = {"additionalProperties", "allOf", "anyOf", "oneOf"}


def test_inner_objects_have_names_of_their_own(document: Json) -> None:
    """Generators name the class of an inner object after its class and field."""
    schemas = document["components"]["schemas"]
    inner = {
        name + "".join(map(str.capitalize, field.split("_")))
        for name, schema in schemas.items()
        for field, one in schema.get("properties", {}).items()
        if '"type": "object"' in json.dumps(one)
    }
    assert inner & schemas.keys() == set()


@pytest.mark.parametrize(
    ("component", "field", "shape"),
    [
        ("ShellCall", "action", "ShellAction"),
        ("McpListTools", "tools", "McpTool"),
        ("FileSearchParam", "filters", "SearchFilterParam"),
        ("MessageTool", "cache_control", "CacheControl"),
    ],
)
def test_objects_of_known_shape_are_described(
    document: Json, component: str, field: str, shape: str
) -> None:
    schemas = document["components"]["schemas"]
    assert f"#/components/schemas/{shape}" in json.dumps(schemas[component]["properties"][field])
    assert schemas[shape]["properties"]


def test_chat_body_has_the_fields_that_the_parser_reads() -> None:
    own = set(ChatFields.__struct_fields__)
    assert own >= chat_request.READERS.keys()
    assert own - chat_request.READERS.keys() == {
        "n",
        "continue_final_message",
        "add_generation_prompt",
    }
    assert not own & chat_request.SHARED_FIELDS


def test_messages_body_has_the_fields_that_the_parser_reads() -> None:
    treated = {name for name, how in MESSAGE_FIELDS.items() if how != "refused"}
    assert set(MessagesFields.__struct_fields__) == treated
    uncounted = {"max_tokens", "stream", "diagnostics", "metadata", "service_tier"}
    uncounted |= {
        "stop_sequences",
        "temperature",
        "top_p",
        "top_k",
        "thread",
        "inference_geo",
        "fallbacks",
    }
    assert set(CountTokensFields.__struct_fields__) == treated - uncounted


def test_messages_have_the_roles_blocks_and_tools_that_the_parser_reads() -> None:
    def values(cls: Any, field: str) -> set[str]:
        named = get_type_hints(cls)[field]
        return {one for each in (named, *get_args(named)) for one in get_args(each)}

    assert set(get_args(get_type_hints(MessageInput)["role"])) == content.BLOCKS.keys()
    kinds = {kind for blocks in content.BLOCKS.values() for kind in blocks}
    assert set(get_args(get_type_hints(MessageBlock)["type"])) == kinds
    types = {one for one in values(MessageTool, "type") if isinstance(one, str)}
    clients = {"custom", *CLIENT_TOOLS, *TOOLSETS}
    assert clients < types
    servers = ("web_search_", "web_fetch_", "code_execution_", "tool_search_", "mcp_toolset")
    assert all(one.startswith(servers) for one in types - clients)


def test_completion_body_has_the_fields_that_the_parser_reads() -> None:
    own = set(CompletionFields.__struct_fields__)
    assert own - completion_request.READERS.keys() == {"prompt", "n", "echo"}
    assert not own & set(completion_request.SHARED_FIELDS)


def test_chat_messages_have_the_roles_and_parts_that_the_parser_reads() -> None:
    def values(cls: Any, field: str) -> set[str]:
        return set(get_args(get_type_hints(cls)[field]))

    assert values(ChatInputMessage, "role") == chat_messages.ROLES.keys()
    kinds = chat_messages.INPUT_PARTS.keys() | chat_messages.OUTPUT_PARTS.keys()
    assert values(ChatPart, "type") == kinds
