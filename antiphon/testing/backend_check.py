"""Checks of the contract of a backend, for authors of backends.

Each check is a coroutine function that takes a backend and raises ``AssertionError``. The model
must answer with a few sentences, in more than one delta. The content of the sentences does not
matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing

from antiphon.backends.base import Backend, Reply
from antiphon.errors import InvalidRequest, RunError
from antiphon.inference.conversation import Conversation, Options
from antiphon.stream.deltas import Finish, Text
from antiphon.testing.replies import deltas_of
from antiphon.wire.items import InputImage, InputText, Message, OutputText

from .checks import checks_of
from .delta_reader import ReplyRecord

__all__ = ["CHECKS", "Check", "check_backend"]

Check = Callable[[Backend], Awaitable[None]]

TIMEOUT_S = 120
#: Number of attempts of ``streams_in_pieces``. If the reply arrives in one piece every time, it
#: counts as not streamed.
STREAM_ATTEMPTS = 8

#: A blue square of 28 x 28 pixels, in PNG.
_SQUARE = (
    "iVBORw0KGgoAAAANSUhEUgAAABwAAAAcCAIAAAD9b0jDAAAAJElEQVR4nGPgTD5BdcQwauiooaOGjho6auiooaOGjho6"
    "MgwFAGStr25xewu2AAAAAElFTkSuQmCC"
)


def _user(text: str) -> Message:
    return Message(role="user", content=(InputText(text=text),))


CONVERSATION = Conversation(
    items=(
        _user("Hello!"),
        Message(role="assistant", content=(OutputText(text="Hello. What shall I tell you?"),)),
        _user("Tell me a story of three sentences."),
    ),
    instructions="You tell stories.",
)
OPTIONS = Options(max_output_tokens=200)


async def _prepared(backend: Backend, conversation: Conversation = CONVERSATION) -> Reply:
    async with asyncio.timeout(TIMEOUT_S):
        return await backend.prepare(conversation, OPTIONS)


async def _read(reply: Reply) -> ReplyRecord:
    """Read the whole reply. Check that the order of its deltas is legal and that it ends with
    ``Finish``."""
    record = ReplyRecord()
    async with asyncio.timeout(TIMEOUT_S), aclosing(deltas_of(reply)) as deltas:
        async for delta in deltas:
            record.add(delta)
    assert record.finish is not None, "a reply ends with Finish"
    return record


async def answers_a_plain_conversation(backend: Backend) -> None:
    record = await _read(await _prepared(backend))
    assert record.text.strip(), "the reply has no text"
    assert record.finish is not None and record.finish.reason in ("stop", "length")


async def reports_usage(backend: Backend) -> None:
    reply = await _prepared(backend)
    before = reply.input_tokens
    record = await _read(reply)
    assert record.finish is not None
    usage = record.finish.usage
    exact = reply.prompt_tokens is not None
    known = usage.input_tokens == before if exact else usage.input_tokens > 0
    assert before > 0 and known, "input_tokens must be known before the reply starts"
    assert usage.output_tokens > 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 <= usage.input_tokens_details.cached_tokens <= usage.input_tokens
    assert 0 <= usage.output_tokens_details.reasoning_tokens <= usage.output_tokens
    if record.sampled_tokens:
        assert usage.output_tokens == len(record.sampled_tokens), (
            "every sampled token must be reported once"
        )
    if reply.prompt_tokens is not None:
        assert len(reply.prompt_tokens.ids) == before, "prompt_tokens must be the whole prompt"


async def longer_conversations_have_more_tokens(backend: Backend) -> None:
    longer = Conversation(
        items=(*CONVERSATION.items, _user("And then?")), instructions=CONVERSATION.instructions
    )
    first, second = await _prepared(backend), await _prepared(backend, longer)
    assert second.input_tokens > first.input_tokens


async def streams_in_pieces(backend: Backend) -> None:
    """Check that text arrives in pieces before the reply is complete.

    On a busy machine, a short reply may arrive in one piece although it was streamed. Then the
    check requests another reply. It fails only after several attempts.
    """
    for _ in range(STREAM_ATTEMPTS):
        async with (
            asyncio.timeout(TIMEOUT_S),
            aclosing(deltas_of(await _prepared(backend))) as deltas,
        ):
            pieces = [delta async for delta in deltas if isinstance(delta, Text)]
        if len(pieces) > 1:
            return
    raise AssertionError("the whole text arrived in one piece")


async def preparing_starts_no_generation(backend: Backend) -> None:
    for _ in range(40):  # more than can run concurrently
        await _prepared(backend)
    await _read(await _prepared(backend))


async def closing_stops_generation(backend: Backend) -> None:
    for _ in range(20):  # more than can run concurrently: replies that do not stop would block
        deltas = deltas_of(await _prepared(backend))
        async with asyncio.timeout(TIMEOUT_S):
            first = await anext(deltas)
            assert not isinstance(first, Finish)
            await deltas.aclose()
            await deltas.aclose()
            assert await anext(deltas, None) is None, "a delta came after the iterator was closed"
    await _read(await _prepared(backend))


async def cancelling_stops_generation(backend: Backend) -> None:
    for patience in range(4):
        replies = [await _prepared(backend) for _ in range(4)]
        tasks = [asyncio.create_task(_read(reply)) for reply in replies]
        for _ in range(patience):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=TIMEOUT_S)
        assert all(task.done() for task in tasks)
    await _read(await _prepared(backend))


async def concurrent_replies_are_independent(backend: Backend) -> None:
    """Check that closing one of several concurrent replies does not affect the other replies."""
    replies = [await _prepared(backend) for _ in range(3)]
    closed = deltas_of(replies[0])
    async with asyncio.timeout(TIMEOUT_S):
        await anext(closed)
        record = [asyncio.create_task(_read(reply)) for reply in replies[1:]]
        await asyncio.sleep(0)
        await closed.aclose()
        for each in await asyncio.gather(*record):
            assert each.text.strip()


async def accepts_or_rejects_images(backend: Backend) -> None:
    image = InputImage(image_url=f"data:image/png;base64,{_SQUARE}")
    shown = Message(role="user", content=(InputText(text="What is this?"), image))
    try:
        reply = await _prepared(backend, Conversation(items=(shown,)))
    except InvalidRequest as refused:
        assert not backend.capabilities.images, "an image was rejected despite the capability"
        assert refused.param == "input[0].content[1]", "param must name the part"
        return
    try:
        assert (await _read(reply)).finish is not None
    except RunError as error:  # an upstream can reject images only after the request is sent
        assert error.message


async def rejects_long_conversations(backend: Backend) -> None:
    size = backend.context_size
    if size is None:
        return
    long = Conversation(items=(_user(" ".join(map(str, range(size)))),))
    try:
        await _prepared(backend, long)
    except InvalidRequest as error:
        assert error.code == "context_length_exceeded", error.code
        assert error.param == "input", error.param
    else:
        raise AssertionError("a conversation beyond the context size was accepted")


CHECKS: Mapping[str, Check] = checks_of(globals(), "backend")


async def check_backend(backend: Backend) -> None:
    """Run all checks on a backend, one after the other. The backend stays open."""
    for check in CHECKS.values():
        await check(backend)
