"""Chains over gpt-oss: what a continued conversation takes from its new request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import datetime

import pytest

from antiphon.backends.base import Backend
from antiphon.backends.local.backend import LocalBackend
from antiphon.engines.base import Sampling
from antiphon.inference.tokens import Chunk, Prompt
from tests.conformance.conftest import Serve
from tests.conformance.server import Ask, engine, local
from tests.conformance.test_code_harmony import Turns, final
from tests.dialects import gpt_oss


@pytest.mark.requirement("VN-34")
async def test_continued_chain_uses_the_new_instructions_and_effort(serve: Serve, ask: Ask) -> None:
    scripted_engine = Turns(final("one"), final("two"), final("three"))
    server = serve(
        LocalBackend(scripted_engine, gpt_oss.dialect(today=lambda: datetime(2026, 1, 1)))
    )
    first = await ask(server, instructions="Speak French.", reasoning={"effort": "high"})
    second = await ask(
        server,
        input="And now?",
        instructions="Speak Greek.",
        reasoning={"effort": "low"},
        previous_response_id=first.terminal_response["id"],
    )
    await ask(server, input="Go on.", previous_response_id=second.terminal_response["id"])
    one, two, three = scripted_engine.prompts
    assert "Speak French." in one and "Reasoning: high" in one
    assert "Speak Greek." in two and "French" not in two
    assert "Reasoning: low" in two and "Reasoning: high" not in two
    assert "Greek" not in three and "Reasoning: medium" in three
    assert "one" in two and "two" in three


def harmony(*texts: str) -> LocalBackend:
    """Return a gpt-oss model that answers one of ``texts`` per request."""
    scripted_engine = Turns(*(final(text) for text in texts))
    return LocalBackend(scripted_engine, gpt_oss.dialect(today=lambda: datetime(2026, 1, 1)))


def chat(*texts: str) -> LocalBackend:
    """Return a model with a chat template that answers one of ``texts`` per request."""
    return local(engine(texts))


@pytest.mark.requirement("VO-8")
@pytest.mark.parametrize("model", [chat, harmony])
async def test_a_prompt_beyond_the_context_is_refused_for_every_format(
    serve: Serve, ask: Ask, model: Callable[..., Backend]
) -> None:
    rejection = (await ask(serve(model("ok")), input="word " * 5000)).rejection
    assert (rejection["http"], rejection["code"]) == (400, "context_length_exceeded")


@pytest.mark.requirement("VO-8")
@pytest.mark.parametrize("model", [chat, harmony])
async def test_usage_counts_the_tokens_of_prompt_and_answer(
    monkeypatch: pytest.MonkeyPatch, serve: Serve, ask: Ask, model: Callable[..., LocalBackend]
) -> None:
    backend = model("one", "two two two two")
    scripted_engine = backend.engine
    prompt_sizes: list[int] = []
    output_sizes: list[int] = []
    generate = scripted_engine.generate

    async def counted(prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        prompt_sizes.append(len(prompt.ids))
        output_sizes.append(0)
        async with aclosing(generate(prompt, sampling)) as chunks:
            async for chunk in chunks:
                output_sizes[-1] += len(chunk.ids)
                yield chunk

    monkeypatch.setattr(scripted_engine, "generate", counted)
    server = serve(backend)
    usages = [
        (await ask(server, input=text)).terminal_response["usage"] for text in ("hi", "hi " * 50)
    ]
    assert output_sizes[0] > len("one") and output_sizes[1] > len("two two two two")
    assert [usage["input_tokens"] for usage in usages] == prompt_sizes
    assert [usage["output_tokens"] for usage in usages] == output_sizes
    for usage in usages:
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.requirement("VN-64", "VN-33")
async def test_raw_messages_are_harmony_messages_from_the_first_event(
    serve: Serve, ask: Ask
) -> None:
    scripted_engine = Turns(final("one"), final("two"))
    server = serve(
        LocalBackend(scripted_engine, gpt_oss.dialect(today=lambda: datetime(2026, 1, 1)))
    )
    first = await ask(server, input="Hi", enable_response_messages=True)
    given = first.terminal_response["input_messages"]
    assert [message["role"] for message in given] == ["system", "user"]
    assert given[1]["content"] == [{"type": "text", "text": "Hi"}]
    begun = [event for event in first.events if event["type"].endswith(("created", "in_progress"))]
    assert [event["response"]["input_messages"] for event in begun] == [given] * len(begun)
    (said,) = first.terminal_response["output_messages"]
    assert (said["role"], said["channel"], said["content"][0]["text"]) == (
        "assistant",
        "final",
        "one",
    )
    await ask(server, previous_input_messages=[*given, said], input="And?")
    before, after = scripted_engine.prompts
    assert after.startswith(f"{before}<|channel|>final<|message|>one")
