"""What scripted models say, in short."""

from __future__ import annotations

from typing import Any

from antiphon.stream.deltas import Close, Delta, Finish, FinishReason, Open, Text
from antiphon.wire.items import CustomToolCall, FunctionCall, Item, Message, Reasoning
from antiphon.wire.response import OutputTokensDetails, Usage

__all__ = ["TOOL", "USAGE", "call", "custom", "finish", "said", "shapes", "thought"]

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


def said(*texts: str) -> list[Delta]:
    """A message."""
    return _item(Message(role="assistant", content=()), texts)


def thought(*texts: str) -> list[Delta]:
    """Thinking."""
    return _item(Reasoning(summary=()), texts)


def call(*texts: str, call_id: str = "", name: str = "get_weather") -> list[Delta]:
    """A call of a function; the run gives a call id where the model wrote none."""
    return _item(FunctionCall(call_id=call_id, name=name, arguments=""), texts)


def custom(*texts: str, name: str = "shell") -> list[Delta]:
    """A call of a custom tool."""
    return _item(CustomToolCall(call_id="", name=name, input=""), texts)


def finish(reason: FinishReason = "stop") -> Finish:
    return Finish(reason, USAGE)


def _item(shell: Item, texts: tuple[str, ...]) -> list[Delta]:
    return [Open(shell), *(Text(text) for text in texts), Close()]


def shapes(events: Any) -> list[str]:
    """The types of events, without the prefix they share."""
    return [event["type"].removeprefix("response.") for event in events]
