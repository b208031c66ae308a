"""Translate responses to answers of the Chat Completions API.

The texts, reasoning and tool calls of all items become one message. Fields with ``None`` are
encoded as null. Fields with ``UNSET`` are omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.moderation import ModerationFailure, ModerationResult
from antiphon.wire.object_ids import STORED_CHAT_ID
from antiphon.wire.response import OmittedPart, Response

from .usage import CompletionUsage, total_usage

ChatFinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class ChatFunctionCall(Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class ChatCustomCall(Struct, frozen=True, kw_only=True):
    """A call of a custom tool: the tool's name and the input that the model wrote."""

    name: str
    input: str


class ChatToolCall(Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function", "custom"]
    function: ChatFunctionCall | UnsetType = UNSET
    custom: ChatCustomCall | UnsetType = UNSET


class ChatMessage(Struct, frozen=True, kw_only=True):
    """The message of a choice. OpenAI's API has no field for reasoning. ``reasoning_content`` is
    the name that other servers of open-weight models use.
    """

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ChatToolCall, ...] | UnsetType = UNSET
    function_call: ChatFunctionCall | UnsetType = UNSET


class ChatLogprobs(Struct, frozen=True, kw_only=True):
    content: tuple[it.Logprob, ...]
    refusal: None = None


class ChatChoice(Struct, frozen=True, kw_only=True):
    message: ChatMessage
    finish_reason: ChatFinishReason
    index: int = 0
    logprobs: ChatLogprobs | None = None


class ChatModerationResults(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="moderation_results"
):
    """The verdicts about the input, or about each choice."""

    model: str
    results: tuple[ModerationResult, ...]


class ChatModeration(Struct, frozen=True, kw_only=True):
    """The moderation of an answer."""

    input: ChatModerationResults | ModerationFailure
    output: ChatModerationResults | ModerationFailure


class ChatCompletion(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: CompletionUsage
    object: Literal["chat.completion"] = "chat.completion"
    service_tier: str = "default"
    metadata: dict[str, str] | UnsetType = UNSET
    moderation: ChatModeration | UnsetType = UNSET
    omitted_parts: tuple[OmittedPart, ...] | UnsetType = UNSET


def chat_completion(
    responses: Sequence[Response], *, legacy: bool, omitted_parts: Sequence[OmittedPart] = ()
) -> ChatCompletion:
    """Translate finished responses to one answer with one choice per response. All responses must
    have the same input messages, because the tokens of the input are counted once. Call this only
    if no response failed. ``legacy``: return calls in the deprecated field ``function_call``. The
    answer has metadata if it is stored. ``omitted_parts``: the parts of the request that the model
    could not read."""
    first = responses[0]
    return ChatCompletion(
        id=chat_completion_id(first.id),
        created=first.created_at,
        model=first.model,
        choices=tuple(_choice(at, each, legacy=legacy) for at, each in enumerate(responses)),
        usage=total_usage(responses, len(responses)),
        metadata=first.metadata if first.store else UNSET,
        moderation=chat_moderation(responses),
        omitted_parts=tuple(omitted_parts) or UNSET,
    )


def chat_moderation(responses: Sequence[Response]) -> ChatModeration | UnsetType:
    """Return the moderation of an answer with one choice for each response."""
    reports = [each.moderation for each in responses if each.moderation is not UNSET]
    if not reports:
        return UNSET
    return ChatModeration(
        input=_results([reports[0].input]), output=_results([each.output for each in reports])
    )


def _results(
    outcomes: Sequence[ModerationResult | ModerationFailure],
) -> ChatModerationResults | ModerationFailure:
    results: list[ModerationResult] = []
    for outcome in outcomes:
        if isinstance(outcome, ModerationFailure):
            return outcome
        results.append(outcome)
    return ChatModerationResults(model=results[0].model, results=tuple(results))


def _choice(index: int, response: Response, *, legacy: bool) -> ChatChoice:
    logprobs = [logprob for part in _parts(response.output) for logprob in _logprobs(part)]
    return ChatChoice(
        index=index,
        message=ChatMessage(**message_fields(response.output, legacy=legacy)),
        finish_reason=finish_reason(response, legacy=legacy),
        logprobs=ChatLogprobs(content=tuple(logprobs)) if logprobs else None,
    )


def chat_completion_id(response_id: str) -> str:
    """Return the Chat Completions id for the id of a response."""
    return "chatcmpl-" + response_id.removeprefix(f"{STORED_CHAT_ID}_").removeprefix("resp_")


def finish_reason(response: Response, *, legacy: bool) -> ChatFinishReason:
    """Return the finish reason of a response. It is ``length`` for a response that reached a limit,
    even if the response contains tool calls."""
    if response.incomplete_details is not None:
        reason = response.incomplete_details.reason
        return "content_filter" if reason == "content_filter" else "length"
    if any(map(it.is_model_call, response.output)):
        return "function_call" if legacy else "tool_calls"
    return "stop"


def _parts(output: Iterable[it.Item]) -> Iterator[it.Part]:
    for item in output:
        yield from item.message_parts


def _logprobs(part: it.Part) -> tuple[it.Logprob, ...]:
    return part.logprobs if isinstance(part, it.OutputText) else ()


def message_fields(output: Sequence[it.Item], *, legacy: bool = False) -> JsonObject:
    """Translate items of the model to the fields of one message."""
    parts = tuple(_parts(output))
    texts = [part.text for part in parts if isinstance(part, it.OutputText)]
    refusals = [part.refusal for part in parts if isinstance(part, it.Refusal)]
    reasoning_texts = ["".join(part.text for part in item.reasoning_parts) for item in output]
    calls = tuple(call for item in output for call in _call(item))
    reasoning = "\n".join(filter(None, reasoning_texts))
    fields: JsonObject = {
        "content": "".join(texts) if texts or not (calls or refusals) else None,
        "refusal": "".join(refusals) if refusals else None,
        "reasoning_content": reasoning or UNSET,
    }
    if calls:
        fields |= {"function_call": calls[0].function} if legacy else {"tool_calls": calls}
    return fields


def _call(item: it.Item) -> Iterable[ChatToolCall]:
    match item:
        case it.FunctionCall(call_id=id, name=name, arguments=arguments):
            function = ChatFunctionCall(name=name, arguments=arguments)
            yield ChatToolCall(id=id, type="function", function=function)
        case it.CustomToolCall(call_id=id, name=name, input=text):
            yield ChatToolCall(id=id, type="custom", custom=ChatCustomCall(name=name, input=text))
