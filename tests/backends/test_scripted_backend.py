"""The backend that plays scripts."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from antiphon.backends.scripted_backend import Script, ScriptedBackend
from antiphon.errors import BackendError, InvalidRequest
from antiphon.inference.conversation import Conversation, Options
from antiphon.stream.deltas import Close, Delta, Finish, Open, Text
from antiphon.testing.replies import deltas_of
from antiphon.wire.items import FunctionCall, InputText, Message
from antiphon.wire.response import Usage

CONVERSATION = Conversation(
    items=(Message(role="user", content=(InputText(text="one two three"),)),), instructions="four"
)


async def play(backend: ScriptedBackend) -> list[Delta]:
    reply = await backend.prepare(CONVERSATION, Options())
    return [delta async for delta in deltas_of(reply)]


async def test_text_is_sent_word_by_word() -> None:
    deltas = await play(ScriptedBackend(["Hello  wide\nworld. "]))
    assert isinstance(deltas[0], Open) and isinstance(deltas[0].item, Message)
    words = [delta.text for delta in deltas if isinstance(delta, Text)]
    assert words == ["Hello", "  wide", "\nworld.", " "]
    assert deltas[-2] == Close()
    usage = Usage(input_tokens=4, output_tokens=4, total_tokens=8)
    assert deltas[-1] == Finish("stop", usage)


async def test_deltas_are_sent_unchanged() -> None:
    call = FunctionCall(call_id="c", name="f", arguments="")
    finish = Finish("length", Usage())
    script = [Open(call), Text("{}"), finish]
    assert await play(ScriptedBackend([script])) == script


async def test_scripts_are_played_in_turn_and_repeat() -> None:
    backend = ScriptedBackend(["a", "b"])
    texts = [(await play(backend))[1] for _ in range(3)]
    assert texts == [Text("a"), Text("b"), Text("a")]
    assert len(backend.requests) == 3


async def test_only_the_latest_requests_are_recorded() -> None:
    backend = ScriptedBackend(["a", "b", "c"])
    for number in range(1_500):
        await backend.prepare(Conversation(items=(), instructions=str(number)), Options())
    assert len(backend.requests) == 1_000
    assert backend.requests[-1][0].instructions == "1499"
    assert (await play(backend))[1] == Text("a")


async def test_function_script_gets_the_request() -> None:
    def script(conversation: Conversation, options: Options) -> Script:
        return conversation.instructions or ""

    assert (await play(ScriptedBackend(script)))[1] == Text("four")


async def test_errors_before_and_inside_a_run() -> None:
    backend = ScriptedBackend([InvalidRequest("no"), BackendError("broken")])
    with pytest.raises(InvalidRequest):
        await backend.prepare(CONVERSATION, Options())
    reply = await backend.prepare(CONVERSATION, Options())
    with pytest.raises(BackendError):
        await anext(deltas_of(reply))


async def test_early_close_is_counted() -> None:
    backend = ScriptedBackend(["a b c"])
    reply = await backend.prepare(CONVERSATION, Options())
    async with aclosing(deltas_of(reply)) as deltas:
        await anext(deltas)
    assert backend.aborted == 1
    await play(backend)
    assert backend.aborted == 1
    await backend.close()
    assert backend.closed
