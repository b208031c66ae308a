"""Moderation of responses, and at ``/v1/moderations``: by a guard model, an upstream, or a tool of
an MCP server."""

from __future__ import annotations

import sys
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response as SdkResponse

from antiphon.backends.base import BackendCapabilities
from antiphon.backends.reading import ModerationBackend
from antiphon.backends.remote.moderations import ModerationsApi
from antiphon.errors import BackendError
from antiphon.tools.mcp.endpoint import McpEndpoint
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.sessions import SessionPool
from tests.attachments.samples import data_url, png
from tests.conformance.conftest import Clients, Serve
from tests.conformance.server import Ask, Json
from tests.tools.mcp.process import TOYS
from tests.upstream.fakes import fake, json_answer

pytestmark = pytest.mark.requirement("API-MODERATION")

LLAMA = {"tiny": "llama_guard"}
SCORE = {"model": "tiny"}
SAFE, HATE = "safe", "unsafe\nS10"


def policy(**modes: str) -> Json:
    return {**SCORE, "policy": {name: {"mode": mode} for name, mode in modes.items()}}


def flagged(response: Json) -> tuple[Any, Any]:
    """Return whether the input and the output were flagged."""
    SdkResponse.model_validate(response, strict=True)
    report = response["moderation"]
    return report["input"].get("flagged"), report["output"].get("flagged")


async def test_input_and_output_are_scored(serve: Serve, ask: Ask) -> None:
    server = serve(["I hate you.", SAFE, HATE], guards=LLAMA)
    answer = await ask(server, input="Who are you?", moderation=SCORE)
    assert answer.text == "I hate you."
    assert flagged(answer.terminal_response) == (False, True)
    result = answer.terminal_response["moderation"]["output"]
    assert (result["type"], result["model"]) == ("moderation_result", "tiny")
    found = [name for name, is_found in result["categories"].items() if is_found]
    assert found == ["hate"] and result["category_scores"]["hate"] == 1.0
    judged = [
        [part.text for item in conversation.items for part in item.content]
        for conversation, _ in list(server.backend.requests)[1:]
    ]
    assert sorted(judged, key=len) == [["Who are you?"], ["Who are you?", "I hate you."]]


async def test_blocked_input_is_refused_before_the_run(serve: Serve, ask: Ask) -> None:
    server = serve(["never", HATE], guards=LLAMA)
    rejection = (await ask(server, moderation=policy(input="block"))).rejection
    assert (rejection["http"], rejection["code"]) == (400, "content_policy_violation")
    assert rejection["param"] == "input" and "hate" in rejection["message"]


async def test_flagged_message_is_withheld(serve: Serve, ask: Ask) -> None:
    server = serve(["I hate you.", HATE, HATE], guards=LLAMA)
    answer = await ask(server, moderation=policy(output="block", input="score"))
    response = answer.terminal_response
    assert response["status"] == "incomplete" and response["output"] == []
    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert "hate you" not in str((answer.events, response))
    assert flagged(response) == (True, True)


async def test_harmless_message_passes(serve: Serve, ask: Ask) -> None:
    server = serve(["Hello.", SAFE, SAFE], guards=LLAMA)
    answer = await ask(server, moderation=policy(output="block", input="block"))
    assert answer.text == "Hello." and flagged(answer.terminal_response) == (False, False)


async def test_guard_without_a_verdict_is_reported(serve: Serve, ask: Ask) -> None:
    server = serve(["Hello.", "What?", "Why?"], guards=LLAMA)
    response = (await ask(server, moderation=SCORE)).terminal_response
    assert response["status"] == "completed" and flagged(response) == (None, None)
    assert response["moderation"]["input"]["type"] == "error"


@pytest.mark.parametrize(
    ("form", "answers", "found"),
    [
        ("llama_guard", ["\n\nunsafe\nS2,S11"], ["illicit", "self-harm"]),
        ("llama_guard", ["unsafe\nS6"], ["specialized-advice"]),
        ("qwen_guard", ["Safety: Unsafe\nCategories: Violent, PII"], ["violence", "privacy"]),
        ("qwen_guard", ["Safety: Safe\nCategories: None"], []),
        ("shield_gemma", ["No", "Yes, it bullies.", "No", "No"], ["harassment"]),
        ("granite_guardian", ["<score> yes </score>", "No", "No", "no", "No"], ["illicit"]),
    ],
)
async def test_official_client_moderates_texts(
    serve: Serve, client_of: Clients, form: str, answers: list[str], found: list[str]
) -> None:
    server = serve(answers, guards={"tiny": form})
    client = client_of(server.app)
    answer = await client.moderations.create(input="text")
    (result,) = answer.results
    type(answer).model_validate(answer.model_dump(by_alias=True), strict=True)
    assert answer.model == "tiny" and result.flagged is bool(found)
    categories = result.categories.model_dump(by_alias=True)
    assert [name for name, is_found in categories.items() if is_found] == found


async def test_each_text_has_a_result_and_parts_are_one(serve: Serve, client_of: Clients) -> None:
    client = client_of(serve([SAFE, HATE, HATE], guards=LLAMA).app)
    results = (await client.moderations.create(input=["one", "two"], model="tiny")).results
    assert [result.flagged for result in results] == [False, True]
    parts: Any = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert len((await client.moderations.create(input=parts)).results) == 1


@pytest.mark.parametrize(
    ("guards", "model", "param", "code"),
    [
        ({}, "tiny", "moderation", "unsupported_parameter"),
        (LLAMA, "omni-moderation-latest", "moderation.model", "model_not_found"),
        ({"other": "llama_guard"}, "tiny", "moderation.model", "unsupported_model"),
    ],
)
async def test_model_that_does_not_moderate_is_refused_by_name(
    serve: Serve, ask: Ask, guards: dict[str, str], model: str, param: str, code: str
) -> None:
    answer = await ask(serve(guards=guards), moderation={"model": model})
    assert (answer.rejection["param"], answer.rejection["code"]) == (param, code)


async def test_endpoint_without_a_guard_says_so(serve: Serve, client_of: Clients) -> None:
    with pytest.raises(openai.NotFoundError, match="moderation"):
        await client_of(serve().app).moderations.create(input="text")


# --- chat completions ----------------------------------------------------------------------------


async def test_chat_completion_is_moderated(serve: Serve, client_of: Clients) -> None:
    client = client_of(serve(["I hate you.", SAFE, HATE], guards=LLAMA).app)
    messages: Any = [{"role": "user", "content": "Who are you?"}]
    moderation: Any = SCORE
    answer = await client.chat.completions.create(
        model="tiny", messages=messages, moderation=moderation
    )
    ChatCompletion.model_validate(answer.model_dump(by_alias=True), strict=True)
    report: Any = answer.moderation
    assert report.input.type == "moderation_results"
    assert [report.input.results[0].flagged, report.output.results[0].flagged] == [False, True]


async def test_streamed_chat_completion_ends_with_its_moderation(
    serve: Serve, client_of: Clients
) -> None:
    client = client_of(serve(["Hello.", SAFE, "What?"], guards=LLAMA).app)
    messages: Any = [{"role": "user", "content": "Who are you?"}]
    moderation: Any = SCORE
    chunks = [
        ChatCompletionChunk.model_validate(chunk.model_dump(by_alias=True), strict=True)
        async for chunk in await client.chat.completions.create(
            model="tiny",
            messages=messages,
            moderation=moderation,
            stream=True,
            stream_options={"include_usage": True},
        )
    ]
    report, usage = chunks[-2:]
    assert usage.usage is not None and not report.choices and report.moderation is not None
    assert report.moderation.output.type == "error"


# --- other moderators ----------------------------------------------------------------------------

IMAGE = data_url(png())


async def test_guard_that_sees_no_images_refuses_them_by_name(
    serve: Serve, ask: Ask, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(["never"], guards=LLAMA)
    monkeypatch.setattr(server.backend, "capabilities", BackendCapabilities(), raising=False)
    content = [{"type": "input_image", "image_url": IMAGE}]
    answer = await ask(server, input=[{"role": "user", "content": content}], moderation=SCORE)
    assert answer.rejection["param"] == "moderation.model"
    parts: Any = [{"type": "image_url", "image_url": {"url": IMAGE}}]
    with pytest.raises(openai.BadRequestError, match="'tiny' moderates texts, but no images"):
        await client_of(server.app).moderations.create(input=parts)


async def test_upstream_moderates_texts_and_images(serve: Serve, client_of: Clients) -> None:
    judged = {"flagged": True, "categories": {"hate": True}, "category_scores": {"hate": 0.75}}
    answers = [json_answer({"id": "modr-1", "model": "omni", "results": [judged]}), json_answer({})]
    async with fake(v1__moderations=answers) as upstream:
        url = f"{upstream.url}/v1"
        backend = await ModerationBackend.at_upstream(
            ModerationsApi, "tiny", url, key=None, model="omni", options={}
        )
        server = serve(backend, guards={"tiny": "api"})
        client = client_of(server.app)
        parts: Any = [
            {"type": "text", "text": "Look."},
            {"type": "image_url", "image_url": {"url": IMAGE}},
        ]
        (result,) = (await client.moderations.create(input=parts)).results
        assert result.flagged and result.category_scores.hate == 0.75
        assert upstream.asked[0][1] == {"model": "omni", "input": parts}
        with pytest.raises(openai.InternalServerError, match="not a moderation"):
            await client.with_options(max_retries=0).moderations.create(input="text")
        await backend.close()
        with pytest.raises(BackendError):
            async with backend.use() as moderator:
                await moderator.moderate("text")


async def test_tool_of_an_mcp_server_moderates(serve: Serve, ask: Ask) -> None:
    toys = McpEndpoint(command=sys.executable, args=(str(TOYS), "judge"))
    provider = McpProvider({"toys": toys}, SessionPool())
    server = serve("I hate you.", providers={"mcp": provider}, guards={"toys": "mcp"})
    upload = {"file": ("a.png", png(), "image/png"), "purpose": (None, "vision")}
    file_id = (await server.client.post("/v1/files", files=upload)).json()["id"]
    for image in ({"image_url": IMAGE}, {"file_id": file_id}):
        content = [
            {"type": "input_text", "text": "Who are you?"},
            {"type": "input_image", **image},
        ]
        question = [{"role": "user", "content": content}]
        answer = await ask(server, input=question, moderation={"model": "toys"})
        assert flagged(answer.terminal_response) == (True, True)
        judged = answer.terminal_response["moderation"]["input"]["categories"]
        assert judged["sexual"] and not judged["hate"]
    await provider.close()
