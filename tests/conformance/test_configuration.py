"""Changes of settings in the middle of a conversation: ``configuration_update``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.wire.response import JsonSchemaFormat, PlainFormat
from tests.conformance.conftest import Serve
from tests.conformance.server import Answer, Ask, Json
from tests.conformance.test_harmony_chain import chat, harmony

pytestmark = pytest.mark.requirement("API-CONFIGURATION")

SCHEMA: Json = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "name": "sum", "schema": SCHEMA, "strict": True}
JSON = {"type": "configuration_update", "text": {"format": FORMAT}}
PLAIN = {"type": "configuration_update", "text": {"format": {"type": "text"}}}


def effort(level: str) -> Json:
    return {"type": "configuration_update", "reasoning": {"effort": level}}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def settings(backend: ScriptedBackend) -> list[tuple[Any, type]]:
    """Return effort and format of each model call."""
    return [
        (options.reasoning.effort if options.reasoning else None, type(options.text.format))
        for _, options in backend.requests
    ]


async def test_settings_hold_until_the_next_update(serve: Serve, ask: Ask) -> None:
    backend = ScriptedBackend(["a", '{"sum": 1}', '{"sum": 2}', "d"])
    server = serve(backend)
    turns: list[list[Json]] = [
        [user("Hi")],
        [effort("low"), JSON, user("1")],
        [user("2")],
        [PLAIN, effort("high"), user("3")],
    ]
    answer: Answer | None = None
    for turn in turns:
        previous = None if answer is None else answer.terminal_response["id"]
        answer = await ask(
            server, input=turn, previous_response_id=previous, reasoning={"effort": "medium"}
        )
    assert settings(backend) == [
        ("medium", PlainFormat),
        ("low", JsonSchemaFormat),
        ("low", JsonSchemaFormat),
        ("high", PlainFormat),
    ]
    assert answer is not None
    assert answer.terminal_response["reasoning"]["effort"] == "medium"  # the request's own
    told = [
        item.content[0].text
        for item in backend.requests[-1][0].items
        if item.type == "message" and item.role == "developer"
    ]
    assert len(told) == 4 and "effort: low" in told[0] and '"sum"' in told[1]


async def test_conversation_keeps_its_updates(serve: Serve, ask: Ask) -> None:
    backend = ScriptedBackend(["a"])
    server = serve(backend)
    created = await server.client.post("/v1/conversations", json={"items": [effort("low")]})
    conversation = created.json()["id"]
    await ask(server, input="Hi", conversation=conversation)
    assert settings(backend) == [("low", PlainFormat)]
    listed = (await server.get(f"conversations/{conversation}/items", order="asc")).json()["data"]
    assert listed[0] == {**effort("low"), "id": listed[0]["id"]}


@pytest.mark.parametrize("model", [chat, harmony])
async def test_update_changes_nothing_before_it(
    serve: Serve, ask: Ask, model: Callable[..., LocalBackend]
) -> None:
    backend = model("2", '{"sum": 4}')
    server, scripted_engine = serve(backend), cast(Any, backend.engine)
    body: Json = {"reasoning": {"effort": "high"}, "instructions": "Add numbers."}
    first = await ask(server, input="1 + 1", **body)
    assert first.text == "2", first.output
    second = await ask(
        server,
        input=[effort("low"), JSON, user("2 + 2")],
        previous_response_id=first.terminal_response["id"],
        **body,
    )
    assert second.text == '{"sum": 4}'
    before, after = getattr(scripted_engine, "prompts", None) or [
        scripted_engine.text(prompt) for prompt, _ in scripted_engine.requests
    ]
    assert after.startswith(before)
    assert "effort: low" in after[len(before) :] and '"sum"' in after[len(before) :]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "configuration_update"}, "input[0].reasoning"),
        (effort("huge"), "input[0].reasoning.effort"),
        ({"type": "configuration_update", "text": {}}, "input[0].text.format"),
        (
            {"type": "configuration_update", "text": {"format": {"type": "json_object"}}},
            "input[0].text.format.type",
        ),
    ],
)
async def test_invalid_update_names_its_field(
    serve: Serve, ask: Ask, item: Json, param: str
) -> None:
    server = serve()
    assert (await ask(server, input=[item])).rejection["param"] == param
    reply = await server.client.post("/v1/conversations", json={"items": [item]})
    assert reply.json()["error"]["param"] == param.replace("input", "items")
