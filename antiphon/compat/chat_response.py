"""Answers of the Chat Completions API, and how a response of ours becomes one.

Texts, thinking and calls of all its items stand in one message. What is ``None`` is null on the
wire; what is ``UNSET`` is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.wire import items as it
from antiphon.wire.response import Response

from .usage import Usage, usage

__all__ = [
    "ChatCompletion",
    "Choice",
    "Custom",
    "FinishReason",
    "Function",
    "Logprobs",
    "Message",
    "ToolCall",
    "answer_id",
    "chat_completion",
    "finish_reason",
]

Json = dict[str, Any]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class Function(Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class Custom(Struct, frozen=True, kw_only=True):
    name: str
    input: str


class ToolCall(Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function", "custom"]
    function: Function | UnsetType = UNSET
    custom: Custom | UnsetType = UNSET


class Message(Struct, frozen=True, kw_only=True):
    """``reasoning_content``: thinking, by the name that servers of open-weight models share."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET
    function_call: Function | UnsetType = UNSET


class Logprobs(Struct, frozen=True, kw_only=True):
    content: tuple[it.Logprob, ...]
    refusal: None = None


class Choice(Struct, frozen=True, kw_only=True):
    message: Message
    finish_reason: FinishReason
    index: int = 0
    logprobs: Logprobs | None = None


class ChatCompletion(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    service_tier: str = "default"


def chat_completion(responses: Sequence[Response], *, legacy: bool) -> ChatCompletion:
    """Responses to the same messages that are over, none of which failed."""
    first = responses[0]
    return ChatCompletion(
        id=answer_id(first.id),
        created=first.created_at,
        model=first.model,
        choices=tuple(_choice(at, each, legacy=legacy) for at, each in enumerate(responses)),
        usage=usage(responses, len(responses)),
    )


def _choice(index: int, response: Response, *, legacy: bool) -> Choice:
    logprobs = [logprob for part in _parts(response.output) for logprob in _logprobs(part)]
    return Choice(
        index=index,
        message=_message(response.output, legacy=legacy),
        finish_reason=finish_reason(response, legacy=legacy),
        logprobs=Logprobs(content=tuple(logprobs)) if logprobs else None,
    )


def answer_id(response_id: str) -> str:
    """The id of the answer that a response becomes."""
    return "chatcmpl-" + response_id.partition("_")[2]


def finish_reason(response: Response, *, legacy: bool) -> FinishReason:
    """Why the answer ends. A limit that strikes in a call is said before the call is."""
    if response.incomplete_details is not None:
        reason = response.incomplete_details.reason
        return "content_filter" if reason == "content_filter" else "length"
    if any(isinstance(item, it.FunctionCall | it.CustomToolCall) for item in response.output):
        return "function_call" if legacy else "tool_calls"
    return "stop"


def _parts(output: Iterable[it.Item]) -> Iterable[it.Part]:
    for item in output:
        if isinstance(item, it.Message):
            yield from item.content


def _logprobs(part: it.Part) -> tuple[it.Logprob, ...]:
    return part.logprobs if isinstance(part, it.OutputText) else ()


def _message(output: tuple[it.Item, ...], *, legacy: bool) -> Message:
    parts = tuple(_parts(output))
    texts = [part.text for part in parts if isinstance(part, it.OutputText)]
    refusals = [part.refusal for part in parts if isinstance(part, it.Refusal)]
    thoughts = [_thought(item) for item in output if isinstance(item, it.Reasoning)]
    calls = tuple(call for item in output for call in _call(item))
    thought = "\n".join(filter(None, thoughts))
    message: Json = {
        "content": "".join(texts) if texts or not (calls or refusals) else None,
        "refusal": "".join(refusals) if refusals else None,
        "reasoning_content": thought or UNSET,
    }
    if calls:
        message |= {"function_call": calls[0].function} if legacy else {"tool_calls": calls}
    return Message(**message)


def _thought(item: it.Reasoning) -> str:
    return "".join(part.text for part in item.content or item.summary)


def _call(item: it.Item) -> Iterable[ToolCall]:
    match item:
        case it.FunctionCall(call_id=id, name=name, arguments=arguments):
            said = Function(name=name, arguments=arguments)
            yield ToolCall(id=id, type="function", function=said)
        case it.CustomToolCall(call_id=id, name=name, input=text):
            yield ToolCall(id=id, type="custom", custom=Custom(name=name, input=text))
