"""Reasoning as clients see it: raw, summarized, limited, or excluded."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.errors import InvalidRequest, RunError
from antiphon.inference.conversation import Conversation, Options
from antiphon.stream.deltas import Close, Open, Text
from antiphon.wire.items import Reasoning
from tests.conformance.conftest import Serve
from tests.conformance.scripts import call, message_deltas, reasoning_deltas
from tests.conformance.server import Ask, engine
from tests.dialects.families import source

NOTES = "<notes>"
#: The policy of a server whose summaries a model writes.
BY_MODEL: dict[str, Any] = {"reasoning_summaries": "model"}


def _last(conversation: Conversation) -> str:
    return "".join(getattr(part, "text", "") for part in conversation.items[-1].content)  # type: ignore[union-attr]


def reasoning_model(summary: Any = "**Checking** Twice.", answer: Any = None) -> ScriptedBackend:
    """Return a model that reasons before it answers, and writes ``summary`` for its reasoning."""

    def reply(conversation: Conversation, options: Options) -> Any:
        if NOTES in _last(conversation):
            return summary
        return answer or [*reasoning_deltas("Two and ", "two."), *message_deltas("Four", ".")]

    return ScriptedBackend(reply, tokens=True)


@pytest.mark.requirement("API-SUMMARISED")
async def test_summary_streams_between_reasoning_and_answer(serve: Serve, ask: Ask) -> None:
    server = serve(reasoning_model(), **BY_MODEL)
    answer = await ask(server, reasoning={"effort": "high", "summary": "auto"})
    reasoning, message = answer.output
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Two and two."}]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "**Checking** Twice."}]
    assert message["content"][0]["text"] == "Four."
    assert answer.terminal_response["reasoning"]["summary"] == "auto"
    if answer.events:
        types = [event["type"] for event in answer.events]
        first = types.index("response.reasoning_summary_part.added")
        assert types[first - 2 : first] == [
            "response.reasoning_text.done",
            "response.content_part.done",
        ]
        last = types.index("response.reasoning_summary_part.done")
        assert types[first + 1 : last] == [
            *["response.reasoning_summary_text.delta"] * 2,
            "response.reasoning_summary_text.done",
        ]
        assert types[last + 1] == "response.output_item.done"


async def test_summary_prompt_has_the_reasoning_and_the_detail(
    serve: Serve, ask_foreground: Ask
) -> None:
    backend = reasoning_model()
    server = serve(backend, **BY_MODEL)
    lengths = []
    for level in ("concise", "auto", "detailed"):
        await ask_foreground(server, reasoning={"summary": level})
        request, options = backend.requests[-1]
        assert "Two and two." in _last(request)
        assert options.reasoning is not None and options.reasoning.effort == "none"
        lengths.append(options.max_output_tokens or 0)
    assert lengths == sorted(set(lengths))


async def test_summarizer_does_not_reason_or_has_tokens_for_it(
    serve: Serve, ask_foreground: Ask
) -> None:
    requests: list[Options] = []

    def reply(conversation: Conversation, options: Options) -> Any:
        if NOTES not in _last(conversation):
            return [*reasoning_deltas("Two and two."), *message_deltas("Four.")]
        requests.append(options)
        if options.thinking_budget is not None:
            return InvalidRequest("no", param="thinking_token_budget")
        return "**Checking** Twice."

    answer = await ask_foreground(
        serve(ScriptedBackend(reply), **BY_MODEL), reasoning={"summary": "concise"}
    )
    assert answer.output[0]["summary"][0]["text"] == "**Checking** Twice."
    first, second = requests
    assert (first.thinking_budget, second.thinking_budget) == (0, None)
    assert (second.max_output_tokens or 0) >= (first.max_output_tokens or 0) + 500


async def test_generate_summary_is_accepted(serve: Serve, ask_foreground: Ask) -> None:
    answer = await ask_foreground(
        serve(reasoning_model(), **BY_MODEL), reasoning={"generate_summary": "concise"}
    )
    assert answer.output[0]["summary"][0]["text"] == "**Checking** Twice."


@pytest.mark.parametrize(
    ("level", "parts"),
    [
        ("concise", ["**Check the units**", "**Decide**"]),
        ("auto", ["**Check the units**", "**Decide**"]),
        ("detailed", ["**Check the units**", "Both are metres.", "**Decide**", "It is four."]),
    ],
)
@pytest.mark.requirement("API-SUMMARISED")
async def test_summary_is_taken_from_the_reasoning_as_it_streams(
    serve: Serve, ask: Ask, level: str, parts: list[str]
) -> None:
    words = (
        "## Check the units\n\nBoth are ",
        "metres. No",
        " more.\n\n**Decide**\nIt is ",
        "four.",
    )
    backend = reasoning_model(answer=[*reasoning_deltas(*words), *message_deltas("Four.")])
    answer = await ask(serve(backend), reasoning={"summary": level})
    reasoning, message = answer.output
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "".join(words)}]
    assert [part["text"] for part in reasoning["summary"]] == parts
    assert message["content"][0]["text"] == "Four." and len(backend.requests) == 1
    if answer.events:
        types = [event["type"].removeprefix("response.") for event in answer.events]
        first = types.index("reasoning_summary_part.added")
        assert types[first - 1 : first + 4] == [
            "reasoning_text.delta",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
        ]
        assert types.index("reasoning_text.done") > first + 4  # the model goes on


async def test_excerpt_waits_for_a_backend_that_may_summarize(
    serve: Serve, ask_foreground: Ask
) -> None:
    backend = reasoning_model()
    backend.capabilities = replace(backend.capabilities, summarizes_reasoning=True)
    answer = await ask_foreground(serve(backend), reasoning={"summary": "auto"})
    assert answer.output[0]["summary"] == [{"type": "summary_text", "text": "Two and two."}]


@pytest.mark.parametrize("reasoning", [None, {}, {"effort": "low"}, {"summary": None}])
async def test_no_summary_without_a_request(
    serve: Serve, ask_foreground: Ask, reasoning: Any
) -> None:
    backend = reasoning_model()
    answer = await ask_foreground(serve(backend, **BY_MODEL), reasoning=reasoning)
    assert answer.output[0]["summary"] == [] and len(backend.requests) == 1


@pytest.mark.parametrize("how", ["excerpt", "model"])
async def test_each_reasoning_item_has_its_own_summary(serve: Serve, ask: Ask, how: str) -> None:
    script = [
        *reasoning_deltas("One."),
        *call('{"city": "Oslo"}'),
        *reasoning_deltas("Two."),
        *message_deltas("Done."),
    ]
    server = serve(reasoning_model(answer=script), reasoning_summaries=how)
    answer = await ask(server, reasoning={"summary": "auto"})
    kinds = [item["type"] for item in answer.output]
    assert kinds == ["reasoning", "function_call", "reasoning", "message"]
    assert all(item["summary"] for item in answer.output if item["type"] == "reasoning")


@pytest.mark.parametrize("how", ["excerpt", "model"])
@pytest.mark.parametrize("words", [(), (Text("Two and two. "),)])
async def test_existing_summary_is_kept(
    serve: Serve, ask_foreground: Ask, words: Any, how: str
) -> None:
    result = (Open(Reasoning()), *words, Text("Adding.", channel="summary"), Close())
    backend = reasoning_model(answer=[*result, *message_deltas("Four.")])
    backend.capabilities = replace(backend.capabilities, summarizes_reasoning=True)
    server = serve(backend, reasoning_summaries=how)
    answer = await ask_foreground(server, reasoning={"summary": "auto"})
    assert answer.output[0]["summary"] == [{"type": "summary_text", "text": "Adding."}]
    assert len(backend.requests) == 1


async def test_empty_reasoning_has_no_summary(serve: Serve, ask_foreground: Ask) -> None:
    backend = reasoning_model(answer=[*reasoning_deltas(), *message_deltas("Four.")])
    answer = await ask_foreground(serve(backend), reasoning={"summary": "auto"})
    assert answer.output[0]["summary"] == [] and len(backend.requests) == 1


@pytest.mark.parametrize(
    "failure",
    [RunError("The engine broke."), InvalidRequest("too long", param="input"), ""],
    ids=["run", "request", "silence"],
)
async def test_failed_summary_does_not_fail_the_response(
    serve: Serve, ask: Ask, failure: Any
) -> None:
    answer = await ask(
        serve(reasoning_model(failure), **BY_MODEL), reasoning={"summary": "detailed"}
    )
    assert answer.terminal_response["status"] == "completed" and answer.text == "Four."
    assert answer.output[0]["content"][0]["text"] == "Two and two."
    assert answer.output[0]["summary"] == []


# --- excluded and limited reasoning --------------------------------------------------------------


async def test_reasoning_can_be_excluded_from_the_output(serve: Serve, ask: Ask) -> None:
    backend = reasoning_model()
    answer = await ask(
        serve(backend), include_reasoning=False, reasoning={"effort": "low", "summary": "auto"}
    )
    assert [item["type"] for item in answer.output] == ["message"] and answer.text == "Four."
    assert len(backend.requests) == 1  # nor summarised


@pytest.mark.parametrize(
    ("body", "budget"),
    [
        ({"thinking_token_budget": 7}, 7),
        ({"thinking_token_budget": 0}, 0),
        ({"reasoning": {"effort": "low"}}, 2),
        ({"reasoning": {"effort": "low"}, "thinking_token_budget": 9}, 9),
        ({"reasoning": {"effort": "high"}}, None),
        ({}, None),
    ],
)
async def test_thinking_budget_comes_from_the_request_or_effort(
    serve: Serve, ask_foreground: Ask, body: Any, budget: int | None
) -> None:
    backend = ScriptedBackend()
    server = serve(backend, thinking_budgets={"low": 2})
    await ask_foreground(server, **body)
    assert backend.requests[-1][1].thinking_budget == budget


@pytest.mark.requirement("API-REASONING-CONTEXT")
@pytest.mark.parametrize("fields", ["auto", "current_turn", "all_turns"])
async def test_reasoning_context_echoes_the_effective_value(
    serve: Serve, ask_foreground: Ask, fields: str
) -> None:
    """For most models the chat template decides which reasoning is rendered again."""
    forgets = engine(["Hi."])
    forgets.card = replace(forgets.card, chat_template=source("qwen"))
    for backend, expected in (
        (engine(["Hi."]), "all_turns"),
        (LocalBackend(forgets, ChatDialect(forgets.card, forgets.tokenizer)), "current_turn"),
        (ScriptedBackend(("Hi.",)), fields),  # who does not know
    ):
        answer = await ask_foreground(serve(backend), reasoning={"context": fields})
        assert answer.terminal_response["reasoning"]["context"] == expected
        assert (
            "context" not in (await ask_foreground(serve(backend))).terminal_response["reasoning"]
        )
