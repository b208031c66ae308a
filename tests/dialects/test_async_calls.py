"""How models are shown asynchronous calls: as pending calls, and again where an output arrives."""

from __future__ import annotations

from typing import Any

from antiphon.dialects.async_calls import shown_items
from antiphon.dialects.messages import build_messages
from antiphon.dialects.tools import PromptTools
from antiphon.wire import items as it


def call(id: str, **more: Any) -> it.FunctionCall:
    return it.FunctionCall(call_id=id, name="f", arguments="{}", **more)


def output(id: str, text: str) -> it.FunctionCallOutput:
    return it.FunctionCallOutput(call_id=id, output=text)


def said(role: Any, text: str) -> it.Message:
    part = it.OutputText(text=text) if role == "assistant" else it.InputText(text=text)
    return it.Message(role=role, content=(part,))


def summary(*items: it.Item) -> list[tuple[int, str, str]]:
    """Return the index, the call id and the output of each shown item."""
    return [
        (index, str(item.call_id), str(getattr(item, "output", ""))[:8])
        for index, item in shown_items(items)
    ]


def test_other_calls_are_shown_unchanged() -> None:
    items = (call("a"), output("a", "x"), call("b", async_=False), output("b", "y"))
    assert list(shown_items(items)) == list(enumerate(items))


def test_outputs_repeat_the_call_where_they_arrive() -> None:
    items = (
        call("a", async_=True),
        call("b", async_=True),
        said("user", "And?"),
        output("b", "1"),
        output("b", "2"),
    )
    assert summary(*items) == [
        (0, "a", ""),
        (1, "b", ""),
        (0, "a", "Pending."),
        (1, "b", "Pending."),
        (2, "None", ""),
        (3, "b_1", ""),
        (3, "b_1", "1"),
        (4, "b_2", ""),
        (4, "b_2", "2"),
    ]


def test_id_of_an_asynchronous_call_may_be_used_again() -> None:
    items = (call("a", async_=True), said("user", "And?"), call("a"), output("a", "1"))
    assert summary(*items)[-2:] == [(2, "a", ""), (3, "a", "1")]


def test_custom_calls_get_custom_outputs() -> None:
    custom = it.CustomToolCall(call_id="a", name="f", input="ls", async_=True)
    late = it.CustomToolCallOutput(call_id="a", output="x")
    shown = [item for _, item in shown_items((custom, said("user", "And?"), late))]
    assert [item.type for item in shown] == [
        "custom_tool_call",
        "custom_tool_call_output",
        "message",
        "custom_tool_call",
        "custom_tool_call_output",
    ]


def test_each_call_of_the_messages_has_one_result_after_it() -> None:
    messages = build_messages(
        (
            call("a", async_=True),
            call("b", async_=True),
            said("assistant", "Asked."),
            said("user", "And?"),
            output("a", "1"),
            said("user", "So?"),
        ),
        PromptTools(),
    )
    assert [message["role"] for message in messages] == [
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert [each["id"] for each in messages[0]["tool_calls"]] == ["a", "b"]
    assert messages[-2]["content"] == "1"
