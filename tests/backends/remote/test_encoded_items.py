"""The items of earlier turns are encoded once for a chain, and the upstream gets the same bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import count

import pytest
from msgspec.structs import replace

from antiphon.backends.remote.chat_completions import servers as chat_servers
from antiphon.backends.remote.chat_completions.backend import ChatCompletionsBackend
from antiphon.backends.remote.responses import servers as responses_servers
from antiphon.backends.remote.responses.backend import ResponsesBackend
from antiphon.inference.conversation import Conversation, Options, ToolChoice
from antiphon.inference.encoded_items import EncodedItems, select
from antiphon.upstream.client import Upstream
from antiphon.wire import items as it
from antiphon.wire.request import CreateResponse
from antiphon.wire.request_shapes import RequestShape
from antiphon.wire.response import JsonObjectFormat, TextConfig
from antiphon.wire.tools import Function

_ADDRESS = "http://127.0.0.1:1"
_LONG = 'A "long" text, 日本語. ' * 20
_TOOL = Function(name="look", parameters={"type": "object"}, strict=False)


def _message(role: str, *texts: str) -> it.Message:
    part = it.OutputText if role == "assistant" else it.InputText
    content = tuple(part(text=text) for text in texts)
    return it.Message(id="msg_1", role=role, content=content)


PAST: tuple[it.Item, ...] = (
    _message("system", _LONG),
    _message("user", _LONG),
    _message("user", _LONG, "and another part"),
    it.Message(
        id="msg_2",
        role="user",
        content=(it.InputText(text=_LONG), it.InputImage(image_url="data:image/png;base64,AA==")),
    ),
    it.Reasoning(id="rs_1", summary=(), content=(it.ReasoningText(text=_LONG),)),
    _message("assistant", _LONG),
    it.FunctionCall(id="fc_1", call_id="call_1", name="look", arguments=json.dumps({"a": _LONG})),
    it.FunctionCallOutput(call_id="call_1", output=_LONG),
    it.FunctionCall(id="fc_2", call_id="call_2", name="look", arguments="{}", namespace="n"),
    it.FunctionCallOutput(call_id="call_2", output=(it.InputText(text=_LONG),)),
    it.CustomToolCall(id="ctc_1", call_id="call_3", name="patch", input=_LONG),
    it.CustomToolCallOutput(call_id="call_3", output=_LONG),
)
INPUT = (_message("user", _LONG),)


def _backends() -> Sequence[ChatCompletionsBackend | ResponsesBackend]:
    upstream = Upstream("http://127.0.0.1:1")
    return (
        ChatCompletionsBackend(upstream, "m", chat_servers.FLAVOURS["vllm"]),
        ResponsesBackend(upstream, "m", responses_servers.FLAVOURS["vllm"]),
        ResponsesBackend(upstream, "m", responses_servers.FLAVOURS["antiphon"]),
    )


@pytest.mark.parametrize("number", range(3))
async def test_upstream_gets_the_same_request(number: int) -> None:
    backend = _backends()[number]
    options = Options(tools=(_TOOL,))
    plain = Conversation(items=(*PAST, *INPUT), past_count=len(PAST), instructions="Be brief.")
    kept = Conversation(
        items=plain.items,
        past_count=plain.past_count,
        instructions=plain.instructions,
        encoded=EncodedItems(PAST),
    )
    tools = backend.visible_tools(plain, options)
    expected = backend.encode_request(plain, options, tools)
    for _ in range(2):
        assert backend.encode_request(kept, options, tools) == expected
    await backend.close()


def _pieces(number: int, state: str) -> Sequence[tuple[it.Item, ...]]:
    """Return what conversations consist of. ``number``: for ids that occur once. ``state``: the
    state of an upstream."""
    call, *others = (
        it.FunctionCall(call_id=f"call_{number}_{index}", name="look", arguments="{}")
        for index in range(4)
    )
    image = it.InputImage(image_url="data:image/png;base64,AA==")
    return (
        (_message("user", f"question {number}"),),
        (_message("assistant", f"answer {number}"),),
        (_message("assistant", ""),),
        (_message("system", f"rule {number}"),),
        (_message("developer", f"rule {number}"),),
        (it.Reasoning(content=(it.ReasoningText(text=f"thought {number}"),)),),
        (it.Reasoning(encrypted_content=f"{_ADDRESS}\n{state}"),),
        (call, it.FunctionCallOutput(call_id=call.call_id, output=f"result {number}")),
        (others[0], it.FunctionCallOutput(call_id=others[0].call_id, output=(image,))),
        (replace(others[1], status="incomplete"),),
        (replace(others[2], async_=True),),
        (it.WebSearchCall(id=f"ws_{number}", status="completed"),),
        (it.McpListTools(id=f"mcpl_{number}", server_label="s", tools=()),),
        (
            it.ToolSearchCall(call_id=f"search_{number}", arguments={}),
            it.ToolSearchOutput(call_id=f"search_{number}", tools=()),
        ),
        (
            it.Program(id=f"prog_{number}", call_id=f"prog_{number}", code="1", fingerprint="f"),
            replace(
                others[2],
                caller=it.ProgramCaller(caller_id=f"prog_{number}"),
                call_id=f"p_{number}",
            ),
            it.FunctionCallOutput(call_id=f"p_{number}", output="2"),
            it.ProgramOutput(call_id=f"prog_{number}", result="3", status="completed"),
        ),
        (it.McpApprovalRequest(id=f"ask_{number}", name="n", server_label="s", arguments="{}"),),
        (it.McpApprovalResponse(approval_request_id=f"ask_{number - 1}", approve=False),),
    )


@pytest.mark.parametrize("seed", (18, 136, 165, *range(3)))
async def test_turns_are_encoded_as_in_the_whole_conversation(seed: int) -> None:
    """Each turn is encoded once, without the items around it."""
    chance = random.Random(seed)
    upstream = Upstream(_ADDRESS)
    for backend in (
        ChatCompletionsBackend(upstream, "m", chat_servers.FLAVOURS["vllm"]),
        ChatCompletionsBackend(upstream, "m", chat_servers.FLAVOURS["openrouter"]),
        ResponsesBackend(upstream, "m", responses_servers.FLAVOURS["vllm"]),
        ResponsesBackend(upstream, "m", responses_servers.FLAVOURS["antiphon"]),
    ):
        state = '{"id": "rs_1"}' if isinstance(backend, ResponsesBackend) else '[{"id": "rs_1"}]'
        items: tuple[it.Item, ...] = ()
        encoded = EncodedItems()
        for number in range(8):
            past_count = len(items)
            kinds = chance.sample(_pieces(number, state), k=chance.randrange(1, 4))
            items += sum(([*kinds] if number else [_pieces(0, state)[0]]), ())
            plain = Conversation(
                items=items,
                past_count=past_count,
                instructions=chance.choice(("Be brief.", "Be long.")),
            )
            tools = backend.visible_tools(plain, Options())
            expected = backend.encode_request(plain, Options(), tools)
            kept = replace(plain, encoded=encoded)
            assert backend.encode_request(kept, Options(), tools) == expected
            encoded.extend(items[past_count:])
    await upstream.close()


@pytest.mark.parametrize("number", range(3))
async def test_models_of_one_chain_do_not_share_encoded_items(number: int) -> None:
    encoded = EncodedItems(PAST)
    kept = Conversation(items=(*PAST, *INPUT), past_count=len(PAST), encoded=encoded)
    plain = Conversation(items=kept.items, past_count=kept.past_count)
    for backend in _backends()[number:]:
        tools = backend.visible_tools(plain, Options())
        expected = backend.encode_request(plain, Options(), tools)
        assert backend.encode_request(kept, Options(), tools) == expected
        await backend.close()


def test_items_of_the_chain_are_encoded_once() -> None:
    encode = count(1).__next__
    encoded = EncodedItems(PAST[:2])
    assert [encoded.get(PAST[:2], (), encode) for _ in range(2)] == [1, 1]
    assert encoded.get(PAST[:2], ("another fact",), encode) == 2
    assert encoded.get(PAST[:1], (), encode) == 3
    encoded.extend(PAST[2:3])
    assert [encoded.get(PAST[1:3], (), encode) for _ in range(2)] == [4, 4]


def test_a_beginning_is_found_only_for_its_items() -> None:
    encoded = EncodedItems(PAST)
    encoded.keep_beginning(2, PAST[:5], ("fact",), b"[...]")
    assert encoded.beginning(PAST, ("fact",)) == (2, 5, b"[...]")
    nothing = (0, 0, b"")
    assert encoded.beginning(PAST, ("another fact",)) == nothing
    assert encoded.beginning(PAST[:4], ("fact",)) == nothing
    assert encoded.beginning((*PAST[:4], *INPUT), ("fact",)) == nothing
    encoded.keep_beginning(2, (*PAST[:5], *INPUT), ("fact",), b"other")  # not all of the chain
    assert encoded.beginning((*PAST[:5], *INPUT), ("fact",)) == (2, 5, b"[...]")


def test_each_item_of_the_chain_is_tested_once() -> None:
    encoded = EncodedItems(PAST)
    tested = list[it.Item]()

    def is_call(item: it.Item) -> bool:
        tested.append(item)
        return isinstance(item, it.FunctionCall)

    items = (*PAST, *INPUT)
    assert select(items, is_call, encoded) == select(items, is_call, None) == [6, 8]
    tested.clear()
    assert select(items, is_call, encoded) == [6, 8]
    assert tested == [PAST[6], PAST[8], *INPUT]


def test_other_items_are_not_kept() -> None:
    """Their identity may be that of a later object."""
    encoded = EncodedItems(PAST)
    copy = _message("user", _LONG)
    assert encoded.get((copy,), (), lambda: 1) == 1
    assert encoded.get((copy,), (), lambda: 2) == 2


@pytest.mark.parametrize("number", range(3))
async def test_requests_of_one_shape_keep_their_own_fields(number: int) -> None:
    """The head of the body is encoded once for equal options, and for no others."""
    backend = _backends()[number]
    request = CreateResponse(model="m", instructions="Be brief.", tools=(_TOOL,))
    shape = RequestShape(request)
    conversation = Conversation(items=INPUT, instructions=shape.template.instructions)
    first = Options(tools=(_TOOL,), cache_scope="scope 1", cache_key="key 1")
    others = (
        replace(first, cache_scope="scope 2"),
        replace(first, cache_key="key 2"),
        replace(first, tool_choice=ToolChoice(mode="required")),
        replace(first, max_output_tokens=7),
        replace(first, text=TextConfig(format=JsonObjectFormat())),
        replace(first, text=TextConfig(verbosity="low")),
    )
    bodies = set()
    for options in (first, *others, first):
        tools = backend.visible_tools(conversation, options)
        expected = backend.encode_request(conversation, options, tools)
        shaped = replace(options, shape=shape)
        assert backend.encode_request(conversation, shaped, tools) == expected
        assert json.loads(expected)["stream"] is True
        bodies.add(expected)
    sees_key = b"key 1" in expected
    assert b"scope 1" in expected and len(bodies) == (7 if sees_key else 6)
    await backend.close()
