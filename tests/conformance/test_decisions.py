"""Decisions, through the official client."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from openai.types import Decision

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.stream.deltas import Close, Open, Text
from antiphon.wire.items import Message
from antiphon.wire.parts import Logprob, TopLogprob
from tests.conformance.conftest import Clients, Serve
from tests.conformance.server import Server, engine

Json = dict[str, Any]
ANGRY: Json = {"type": "predicate", "name": "angry", "instructions": "The customer is angry."}
TEAM: Json = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team?",
    "choices": [{"value": "shipping", "description": "parcels"}, {"value": "billing"}],
}
URGENT: Json = {
    "type": "score",
    "instructions": "How urgent?",
    "levels": [{"label": "low"}, {"label": "mid"}, {"label": "high"}],
}
#: Beginning of an answer → the tokens that may follow, with their probabilities. The model prefers
#: the first option that is named.
KNOWN: Mapping[str, Mapping[str, float]] = {
    "": {
        " Yes": 0.4,
        "No": 0.2,
        "ship": 0.5,
        "bill": 0.05,
        "low": 0.1,
        "mid": 0.1,
        "high": 0.3,
        "true": 0.2,
    },
    "high": {" priority": 0.3, ".": 0.2, "er": 0.5},
}
BIAS = 2.0


def weigh(conversation: Any, options: Any) -> Any:
    """Play a model that knows the probabilities and prefers the option that is named first."""
    last = conversation.items[-1]
    beginning = last.content[0].text if last.role == "assistant" else ""
    asked = conversation.items[-2 if beginning else -1].content[0].text
    _, _, named = asked.partition("Answer with ")
    weights = dict(KNOWN[beginning])
    places = {named.find(text.strip()): text for text in weights}
    named_places = [place for place in places if place >= 0]
    if named_places and not beginning:
        weights[places[min(named_places)]] *= BIAS
    tops = tuple(
        TopLogprob(token=text, logprob=math.log(weight / 4), bytes=())
        for text, weight in weights.items()
    )
    said = Logprob(token="So", logprob=-9.0, top_logprobs=tops)
    return (Open(Message(role="assistant", content=())), Text("So", logprobs=(said,)), Close())


@pytest.fixture
def script() -> Any:
    return ScriptedBackend(weigh)


async def rejection(server: Server, **body: Any) -> Json:
    body = {"model": "tiny", "input": "My parcel never came.", "questions": [ANGRY], **body}
    reply: httpx.Response = await server.client.post("/v1/decisions", json=body)
    assert reply.status_code == 400, reply.text
    error: Json = reply.json()["error"]
    return error


@pytest.mark.requirement("DE-ANSWER")
async def test_answers_have_probabilities_in_the_order_of_the_questions(
    server: Server, client_of: Clients
) -> None:
    decision = await client_of(server.app).decisions.create(
        model="tiny",
        input="My parcel never came.",
        questions=[ANGRY, TEAM, URGENT],  # type: ignore[list-item]
    )
    Decision.model_validate(decision.model_dump(), strict=True)
    angry, team, urgent = decision.answers
    assert angry.type == "predicate" and angry.name == "angry" and 0.5 < angry.probability < 0.8
    assert team.type == "choice" and team.choice == "shipping" and team.confidence > 0.3
    assert [each.value for each in team.probabilities] == ["shipping", "billing"]
    assert urgent.type == "score" and urgent.name is None
    assert [each.value for each in urgent.probabilities] == [0, 1, 2]
    for answer in (team, urgent):
        assert math.isclose(sum(each.probability for each in answer.probabilities), 1)
    assert math.isclose(
        urgent.score, sum(each.value * each.probability for each in urgent.probabilities)
    )
    assert decision.usage.output_tokens == 6 and decision.model == "tiny"


@pytest.mark.requirement("DE-ORDERS")
async def test_order_of_the_options_does_not_change_the_answer(
    server: Server, client_of: Clients
) -> None:
    turned = {**TEAM, "choices": TEAM["choices"][::-1]}
    decision = await client_of(server.app).decisions.create(
        model="tiny",
        input="My parcel never came.",
        questions=[TEAM, turned],  # type: ignore[list-item]
    )
    one, other = decision.answers
    assert one.type == other.type == "choice"
    found = {each.value: each.probability for each in one.probabilities}
    for each in other.probabilities:
        assert math.isclose(found[each.value], each.probability)


@pytest.mark.requirement("DE-WHOLE")
async def test_option_that_begins_another_is_told_apart(server: Server, client_of: Clients) -> None:
    choices = [{"value": "high"}, {"value": "high priority", "description": "today"}]
    choices += [{"value": f"option {n}"} for n in range(253)]
    decision = await client_of(server.app).decisions.create(
        model="tiny",
        input="My parcel never came.",
        questions=[{**TEAM, "choices": choices}],  # type: ignore[list-item]
    )
    answer = decision.answers[0]
    assert answer.type == "choice" and answer.choice == "high priority"
    probabilities = [each.probability for each in answer.probabilities]
    assert probabilities == pytest.approx([0.4, 0.6] + [0.0] * 253)


@pytest.mark.requirement("DE-INPUT")
async def test_input_may_have_messages_calls_and_json(server: Server, client_of: Clients) -> None:
    items = [
        {"role": "developer", "content": "You sort mail."},
        {"role": "user", "content": [{"type": "input_json", "data": {"parcel": None}}]},
        {"type": "function_call", "call_id": "a", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "lost"},
    ]
    boolean = {**TEAM, "choices": [{"value": True}, {"value": "true"}, {"value": "x"}]}
    decision = await client_of(server.app).decisions.create(
        model="tiny",
        input=items,  # type: ignore[arg-type]
        questions=[boolean],  # type: ignore[list-item]
    )
    answer = decision.answers[0]
    assert answer.type == "choice" and [each.value for each in answer.probabilities] == [
        True,
        "true",
        "x",
    ]
    assert answer.choice is True
    backend = server.backend
    assert isinstance(backend, ScriptedBackend)
    conversation, options = backend.requests[0]
    assert conversation.items[1].content[0].text == '{"parcel":null}'  # type: ignore[union-attr]
    assert options.max_output_tokens == 1


@pytest.mark.requirement("DE-REFUSED")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"questions": []}, "questions"),
        ({"questions": [{"type": "vote", "instructions": "a"}]}, "questions[0].type"),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions"),
        ({"questions": [{**TEAM, "choices": [{"value": "a"}]}]}, "questions[0].choices"),
        ({"questions": [{**TEAM, "choices": [{"value": "a"}] * 2}]}, "questions[0].choices"),
        (
            {"questions": [{**URGENT, "levels": [{"label": str(n)} for n in range(256)]}]},
            "questions[0].levels",
        ),
        ({"input": ""}, "input"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "a"}]}]},
            "input[0].content[0].file_id",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": 1}]}]},
            "input[0].content[0].data",
        ),
    ],
)
async def test_faulty_field_is_named(server: Server, fields: Json, param: str) -> None:
    assert (await rejection(server, **fields))["param"] == param


@pytest.mark.requirement("DE-REFUSED")
async def test_model_that_names_no_option_refuses(serve: Serve, client_of: Clients) -> None:
    client = client_of(serve(engine(lambda prompt: "Well.")).app)
    decision = await client.decisions.create(
        model="tiny",
        input="a",
        questions=[{**TEAM, "choices": [{"value": "(a)"}, {"value": "(b)"}]}],  # type: ignore[list-item]
    )
    assert decision.answers[0].type == "refusal" and decision.answers[0].name == "team"


async def documented_calls(call: Any) -> None:
    await call("createDecision", json={"model": "tiny", "input": "a", "questions": [ANGRY]})
