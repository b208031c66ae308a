"""Prompt caching: options, warm-ups, and the comparison with an earlier response."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response as SdkResponse

from antiphon.backends.scripted_backend import ScriptedBackend
from tests.conformance.conftest import Serve
from tests.conformance.scripts import TOOL
from tests.conformance.server import Answer, Ask, Json, Server, engine, local

pytestmark = pytest.mark.requirement("API-PROMPT-CACHE")

LONG = "Answer in one short sentence, and name the source of each fact that you state."
IMPLICIT = {"mode": "implicit", "ttl": "30m"}


@pytest.fixture
async def server(serve: Serve) -> Server:
    """A server with a local engine, whose token ids are known."""
    return serve(local(engine(["Fine."] * 3)))


async def compare(ask: Ask, server: Server, earlier: str, **body: Any) -> Json:
    """Return the diagnostics of a request that is compared with an earlier response."""
    answer = await ask(server, prompt_cache_options={"comparison_response_id": earlier}, **body)
    response = answer.terminal_response
    assert response["prompt_cache_options"] == {**IMPLICIT, "comparison_response_id": earlier}
    diagnostics: Json = response["prompt_cache_diagnostics"]
    return diagnostics


def identifier(answer: Answer) -> str:
    return str(answer.terminal_response["id"])


@pytest.mark.parametrize(
    ("options", "effective"),
    [
        (None, IMPLICIT),
        ({}, IMPLICIT),
        ({"mode": "explicit", "prewarm": False}, {"mode": "explicit", "ttl": "30m"}),
        ({"ttl": "12h", "comparison_response_id": None}, {"mode": "implicit", "ttl": "12h"}),
    ],
)
async def test_response_shows_the_effective_options(
    ask: Ask, server: Server, options: Json | None, effective: Json
) -> None:
    answer = await ask(server, input="Hello", prompt_cache_options=options)
    assert answer.terminal_response["prompt_cache_options"] == effective
    assert "prompt_cache_diagnostics" not in answer.terminal_response


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt_cache_options": {"mode": "eager"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"ttl": "24h"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"prewarm": "yes"}}, "prompt_cache_options.prewarm"),
        (
            {
                "input": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "input_text",
                                "text": "x",
                                "prompt_cache_breakpoint": {"mode": "implicit"},
                            }
                        ],
                    }
                ]
            },
            "input[0].content[0].prompt_cache_breakpoint.mode",
        ),
    ],
)
async def test_unknown_option_names_its_field(
    ask: Ask, server: Server, body: Json, param: str
) -> None:
    rejection = (await ask(server, **{"input": "x", **body})).rejection
    assert (rejection["http"], rejection["param"]) == (400, param)


async def test_continued_response_is_a_hit(ask: Ask, server: Server) -> None:
    first = await ask(server, input="Hello", instructions=LONG)
    diagnostics = await compare(
        ask,
        server,
        identifier(first),
        input="More",
        instructions=LONG,
        previous_response_id=identifier(first),
    )
    assert diagnostics == {"type": "cache_hit"}


async def test_repeated_history_is_a_hit(ask: Ask, server: Server) -> None:
    first = await ask(server, input="Hello", instructions=LONG)
    history = [
        {"role": "user", "content": "Hello"},
        *first.output,
        {"role": "user", "content": "More"},
    ]
    diagnostics = await compare(
        ask, server, identifier(first), input=history, instructions=LONG, store=False
    )
    assert diagnostics == {"type": "cache_hit"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tools": [TOOL]}, "tools_changed"),
        ({"instructions": "Be brief."}, "input_changed"),
        ({"input": "Another question"}, "input_changed"),
    ],
)
async def test_miss_has_its_reason_and_tokens(
    ask: Ask, server: Server, change: Json, reason: str
) -> None:
    body = {"input": "Hello", "instructions": LONG}
    first = await ask(server, **body)
    diagnostics = await compare(ask, server, identifier(first), **{**body, **change})
    assert (diagnostics["type"], diagnostics["reason"]) == ("cache_miss", reason)
    tokens = first.terminal_response["usage"]["input_tokens"]
    missed, reusable = (
        diagnostics["cache_missed_tokens"],
        diagnostics["comparison_reusable_tokens"],
    )
    assert missed > 0 and missed + reusable == tokens


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tools": [TOOL]}, "tools_changed"),
        ({"reasoning": {"effort": "low"}}, "reasoning_effort_changed"),
        ({"text": {"verbosity": "low"}}, "verbosity_changed"),
        ({"text": {"format": {"type": "json_object"}}}, "text_format_changed"),
        ({"prompt_cache_key": "other"}, "prompt_cache_key_changed"),
        ({"input": "Another question"}, "input_changed"),
    ],
)
async def test_items_are_compared_if_token_ids_are_unknown(
    serve: Serve, ask: Ask, change: Json, reason: str
) -> None:
    server = serve(ScriptedBackend(["{}", "{}", "{}"]))
    first = await ask(server, input="Hello")
    same = await compare(ask, server, identifier(first), input="Hello")
    assert same == {"type": "cache_hit"}
    diagnostics = await compare(ask, server, identifier(first), **{"input": "Hello", **change})
    assert (diagnostics["type"], diagnostics["reason"]) == ("cache_miss", reason)
    assert "comparison_reusable_tokens" not in diagnostics


async def test_unknown_comparison_is_no_error(ask: Ask, server: Server) -> None:
    unstored = await ask(server, input="Hello", store=False)
    for earlier in ("resp_unknown", "no id at all", identifier(unstored)):
        diagnostics = await compare(ask, server, earlier, input="Hello")
        if diagnostics != {"type": "cache_hit"}:  # a connection knows its own responses
            assert diagnostics == {"type": "comparison_response_not_found"}


async def test_explicit_mode_without_breakpoint_cannot_be_compared(
    ask: Ask, server: Server
) -> None:
    explicit = {"mode": "explicit"}
    first = await ask(server, input="Hello", prompt_cache_options=explicit)
    assert await compare(ask, server, identifier(first), input="Hello") == {"type": "unavailable"}
    part = {"type": "input_text", "text": "Hello", "prompt_cache_breakpoint": explicit}
    body = {"input": [{"role": "user", "content": [part]}]}
    second = await ask(server, prompt_cache_options=explicit, **body)
    assert await compare(ask, server, identifier(second), **body) == {"type": "cache_hit"}


async def test_prewarm_generates_nothing(server: Server) -> None:
    reply = await server.post(
        input="Hello", background=True, prompt_cache_options={"prewarm": True}
    )
    response = SdkResponse.model_validate_json(reply.content, strict=True)
    assert (response.status, response.output, response.background) == ("completed", [], False)
    assert response.usage is not None and response.usage.output_tokens == 0
    assert response.usage.input_tokens > 0


def _written(answer: Answer) -> tuple[int, int]:
    """Return the tokens that a request has written into the cache, and those of its prompt that
    were not there before."""
    usage = answer.terminal_response["usage"]
    details = usage["input_tokens_details"]
    return details["cache_write_tokens"], usage["input_tokens"] - details["cached_tokens"]


async def test_written_tokens_are_counted_up_to_the_newest_breakpoint(
    ask: Ask, server: Server
) -> None:
    explicit = {"mode": "explicit"}
    marked = {"type": "input_text", "text": LONG, "prompt_cache_breakpoint": explicit}
    content = [marked, {"type": "input_text", "text": LONG}]
    body = {"input": [{"role": "user", "content": content}]}
    written, size = _written(await ask(server, prompt_cache_options=explicit, **body))
    assert 0 < written < size
    written, size = _written(await ask(server, **body))  # the implicit mode marks the end, too
    assert written == size
    nothing = await ask(server, prompt_cache_options=explicit, input=LONG)
    assert _written(nothing)[0] == 0


async def test_prewarming_counts_what_it_writes(ask_foreground: Ask, server: Server) -> None:
    warm = await ask_foreground(server, input="Hello", prompt_cache_options={"prewarm": True})
    written, size = _written(warm)
    assert written == size > 0


async def test_prewarmed_response_can_be_continued(ask_foreground: Ask, server: Server) -> None:
    warm = await ask_foreground(server, input="Hello", prompt_cache_options={"prewarm": True})
    assert warm.output == []
    answer = await ask_foreground(server, input="More", previous_response_id=identifier(warm))
    assert answer.text == "Fine."


async def test_prewarming_without_a_prompt_computes_nothing(
    ask_foreground: Ask, server: Server
) -> None:
    warm = await ask_foreground(server, input=[], prompt_cache_options={"prewarm": True})
    assert (warm.output, warm.terminal_response["usage"]["total_tokens"]) == ([], 0)


async def test_compaction_takes_fewer_options(server: Server) -> None:
    for options, param in (
        ({"ttl": "12h"}, "prompt_cache_options.ttl"),
        ({"prewarm": True}, "prompt_cache_options.prewarm"),
    ):
        body = {"model": "tiny", "input": "x", "prompt_cache_options": options}
        reply = await server.client.post("/v1/responses/compact", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
