"""Deltas of scripted models, and helpers to read events."""

from __future__ import annotations

from typing import Any

from antiphon.stream.deltas import Close, Delta, Finish, FinishReason, Open, Text
from antiphon.wire.items import CustomToolCall, FunctionCall, Item, Message, Reasoning
from antiphon.wire.response import OutputTokensDetails, Usage

USAGE = Usage(
    input_tokens=5,
    output_tokens=4,
    output_tokens_details=OutputTokensDetails(reasoning_tokens=2),
    total_tokens=9,
)

#: A function tool as requests declare it.
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def message_deltas(*texts: str) -> list[Delta]:
    """Return the deltas of a message."""
    return _item(Message(role="assistant", content=()), texts)


def reasoning_deltas(*texts: str) -> list[Delta]:
    """Return the deltas of a reasoning item."""
    return _item(Reasoning(summary=()), texts)


def call(*texts: str, call_id: str = "", name: str = "get_weather") -> list[Delta]:
    """Return the deltas of a function call. The run creates a call id if ``call_id`` is empty."""
    return _item(FunctionCall(call_id=call_id, name=name, arguments=""), texts)


def custom_call_deltas(*texts: str, name: str = "shell") -> list[Delta]:
    """Return the deltas of a custom tool call."""
    return _item(CustomToolCall(call_id="", name=name, input=""), texts)


def finish(reason: FinishReason = "stop") -> Finish:
    return Finish(reason, USAGE)


def _item(shell: Item, texts: tuple[str, ...]) -> list[Delta]:
    return [Open(shell), *(Text(text) for text in texts), Close()]


def event_types(events: Any) -> list[str]:
    """Return the types of events, without the common prefix."""
    return [event["type"].removeprefix("response.") for event in events]
