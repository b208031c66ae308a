"""The contract of a backend as checks: run them over a backend of your own.

Each check is a coroutine function that takes a backend and raises ``AssertionError``. The model is
asked for a few sentences and has to say some, in more than one delta; what it says is its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing

from antiphon.backends.base import Backend, Reply, flatten
from antiphon.conversation import Conversation, Options
from antiphon.errors import InvalidRequest, RunError
from antiphon.stream.deltas import Finish, Text
from antiphon.wire.items import InputImage, InputText, Message, OutputText

from .delta_reader import ReplyRecord

__all__ = ["CHECKS", "Check", "check_backend"]

Check = Callable[[Backend], Awaitable[None]]

PATIENCE_S = 120

#: A blue square of 28 x 28 pixels, in PNG.
_SQUARE = (
    "iVBORw0KGgoAAAANSUhEUgAAABwAAAAcCAIAAAD9b0jDAAAAJElEQVR4nGPgTD5BdcQwauiooaOGjho6auiooaOGjho6"
    "MgwFAGStr25xewu2AAAAAElFTkSuQmCC"
)


def _user(text: str) -> Message:
    return Message(role="user", content=(InputText(text=text),))


TALK = Conversation(
    items=(
        _user("Hello!"),
        Message(role="assistant", content=(OutputText(text="Hello. What shall I tell you?"),)),
        _user("Tell me a story of three sentences."),
    ),
    instructions="You tell stories.",
)
OPTIONS = Options(max_output_tokens=200)


async def _prepared(backend: Backend, conversation: Conversation = TALK) -> Reply:
    async with asyncio.timeout(PATIENCE_S):
        return await backend.prepare(conversation, OPTIONS)


async def _read(reply: Reply) -> ReplyRecord:
    """The whole reply, in order and with an end."""
    reading = ReplyRecord()
    async with asyncio.timeout(PATIENCE_S), aclosing(flatten(reply.deltas())) as deltas:
        async for delta in deltas:
            reading.add(delta)
    assert reading.finish is not None, "a reply ends with Finish"
    return reading


async def answers_a_plain_conversation(backend: Backend) -> None:
    reading = await _read(await _prepared(backend))
    assert reading.text.strip(), "nothing was said"
    assert reading.finish is not None and reading.finish.reason in ("stop", "length")


async def counts_what_it_used(backend: Backend) -> None:
    reply = await _prepared(backend)
    before = reply.input_tokens
    reading = await _read(reply)
    assert reading.finish is not None
    usage = reading.finish.usage
    exact = reply.prompt_tokens is not None
    known = usage.input_tokens == before if exact else usage.input_tokens > 0
    assert before > 0 and known, "input_tokens must be known before"
    assert usage.output_tokens > 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 <= usage.input_tokens_details.cached_tokens <= usage.input_tokens
    assert 0 <= usage.output_tokens_details.reasoning_tokens <= usage.output_tokens
    if reading.sampled_tokens:
        assert usage.output_tokens == len(reading.sampled_tokens), (
            "every sampled token is told once"
        )
    if reply.prompt_tokens is not None:
        assert len(reply.prompt_tokens.ids) == before, "what is kept is the prompt"


async def counts_a_longer_conversation_as_longer(backend: Backend) -> None:
    longer = Conversation(items=(*TALK.items, _user("And then?")), instructions=TALK.instructions)
    first, second = await _prepared(backend), await _prepared(backend, longer)
    assert second.input_tokens > first.input_tokens


async def streams(backend: Backend) -> None:
    """Text comes before all of it is there, and in pieces."""
    async with (
        asyncio.timeout(PATIENCE_S),
        aclosing(flatten((await _prepared(backend)).deltas())) as deltas,
    ):
        pieces = [delta async for delta in deltas if isinstance(delta, Text)]
    assert len(pieces) > 1, "all text came at once"


async def preparing_begins_nothing(backend: Backend) -> None:
    for _ in range(40):  # more than could run at a time
        await _prepared(backend)
    await _read(await _prepared(backend))


async def closing_stops_it(backend: Backend) -> None:
    for _ in range(20):  # more than run at a time: a reply that goes on would block
        deltas = flatten((await _prepared(backend)).deltas())
        async with asyncio.timeout(PATIENCE_S):
            first = await anext(deltas)
            assert not isinstance(first, Finish)
            await deltas.aclose()
            await deltas.aclose()
            assert await anext(deltas, None) is None, "a delta came after the iterator was closed"
    await _read(await _prepared(backend))


async def cancelling_stops_it(backend: Backend) -> None:
    for patience in range(4):
        replies = [await _prepared(backend) for _ in range(4)]
        tasks = [asyncio.create_task(_read(reply)) for reply in replies]
        for _ in range(patience):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert all(task.done() for task in tasks)
    await _read(await _prepared(backend))


async def replies_do_not_mix(backend: Backend) -> None:
    """Two at once, one of them closed in the midst: the others still say all."""
    replies = [await _prepared(backend) for _ in range(3)]
    closed = flatten(replies[0].deltas())
    async with asyncio.timeout(PATIENCE_S):
        await anext(closed)
        reading = [asyncio.create_task(_read(reply)) for reply in replies[1:]]
        await asyncio.sleep(0)
        await closed.aclose()
        for each in await asyncio.gather(*reading):
            assert each.text.strip()


async def takes_an_image_or_says_that_it_cannot(backend: Backend) -> None:
    image = InputImage(image_url=f"data:image/png;base64,{_SQUARE}")
    shown = Message(role="user", content=(InputText(text="What is this?"), image))
    try:
        reply = await _prepared(backend, Conversation(items=(shown,)))
    except InvalidRequest as refused:
        assert not backend.capabilities.images, "an image was refused by a backend that sees"
        assert refused.param == "input[0].content[1]", "the part is named"
        return
    try:
        assert (await _read(reply)).finish is not None
    except RunError as error:  # an upstream that cannot see says so late
        assert error.message


async def refuses_what_is_too_long(backend: Backend) -> None:
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
        raise AssertionError("more than the context holds was taken")


CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        answers_a_plain_conversation,
        counts_what_it_used,
        counts_a_longer_conversation_as_longer,
        streams,
        preparing_begins_nothing,
        closing_stops_it,
        cancelling_stops_it,
        replies_do_not_mix,
        takes_an_image_or_says_that_it_cannot,
        refuses_what_is_too_long,
    )
}


async def check_backend(backend: Backend) -> None:
    """Run every check over a backend, one after the other. Leaves it open."""
    for check in CHECKS.values():
        await check(backend)
