"""``include``: every value adds the fields it names; other fields are absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.tools.web_search.index import PageDocument, PageIndex
from antiphon.tools.web_search.provider import WebSearchProvider
from antiphon.wire.request import INCLUDES
from tests.conformance.conftest import Clients, Serve
from tests.conformance.fake_containers import code_interpreter_options, containers
from tests.conformance.server import Ask, engine, local
from tests.conformance.test_file_search import create_searchable_store
from tests.conformance.test_tool_search import tool_call

SEARCH = [tool_call("browser__search", {"query": "fjord"}), "Well."]
FILES = [tool_call("file_search", {"queries": ["longest fjord"]}), "Well."]
CODE = [tool_call("python", {"input": "say hello"}), "Well."]
PICTURE = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"

#: Value → the model's replies, and a function that reads the named field.
NAMED: dict[str, tuple[list[str], Callable[[Any], Any]]] = {
    "web_search_call.action.sources": (SEARCH, lambda a: a.output[0]["action"].get("sources")),
    "web_search_call.results": (SEARCH, lambda a: a.output[0].get("results")),
    "file_search_call.results": (FILES, lambda a: a.output[0]["results"]),
    "code_interpreter_call.outputs": (CODE, lambda a: a.output[0]["outputs"]),
    "reasoning.encrypted_content": (
        ["<think>\nHm.\n</think>\n\nWell."],
        lambda a: a.output[0].get("encrypted_content"),
    ),
    "message.output_text.logprobs": (
        ["Well."],
        lambda a: a.output[0]["content"][0].get("logprobs"),
    ),
}
#: These name fields of the client's input, which listed input always has.
OWN = ("message.input_image.image_url", "computer_call_output.output.image_url")


def test_include_values_are_complete() -> None:
    assert set(INCLUDES) == {*NAMED, *OWN}


@pytest.mark.requirement("D-65")
@pytest.mark.parametrize("value", NAMED)
async def test_include_adds_the_named_fields(
    serve: Serve, ask: Ask, client_of: Clients, value: str
) -> None:
    script, found = NAMED[value]
    index = PageIndex(":memory:")
    await index.add([PageDocument(url="https://a.example/", title="A", text="A fjord.")])
    registry = code_interpreter_options(containers())
    registry["providers"]["web_search"] = WebSearchProvider(index, is_external=False)
    server = serve(local(engine(script * 2)), **registry)
    tools: list[Any] = [
        {"type": "web_search"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    if value.startswith("file"):
        store = await create_searchable_store(server, client_of)
        tools = [{"type": "file_search", "vector_store_ids": [store]}]
    with_it = await ask(server, tools=tools, include=[value], store=True)
    without = await ask(server, tools=tools, store=True)
    assert found(with_it) and not found(without)
    others = [each for each, (words, _) in NAMED.items() if words == script and each != value]
    assert not any(NAMED[each][1](with_it) for each in others)
    await index.close()


@pytest.mark.requirement("D-65")
@pytest.mark.parametrize("include", [[], list(OWN)])
async def test_input_images_are_listed_unchanged(
    serve: Serve, ask_foreground: Ask, include: list[str]
) -> None:
    message = {
        "role": "user",
        "content": [{"type": "input_image", "image_url": PICTURE, "detail": "auto"}],
    }
    call = {"type": "computer_call", "call_id": "call_1", "actions": [{"type": "screenshot"}]}
    output = {
        "type": "computer_call_output",
        "call_id": "call_1",
        "output": {"type": "computer_screenshot", "image_url": PICTURE},
    }
    server = serve(["Well."])
    answer = await ask_foreground(server, input=[message, call, output], include=include)
    listed = await server.get(
        f"responses/{answer.terminal_response['id']}/input_items", include=include, order="asc"
    )
    result, _, shot = listed.json()["data"]
    assert result["content"][0]["image_url"] == PICTURE
    assert shot["output"]["image_url"] == PICTURE
