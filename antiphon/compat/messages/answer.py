"""Translate responses to answers of the Messages API: items become content blocks."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import Response, Usage

from .threads import message_id
from .types import (
    AnswerBlock,
    MessageAnswer,
    MessageEnd,
    MessageUsage,
    ServerToolUsage,
    ServerToolUseBlock,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ThinkingTokens,
    ToolUseBlock,
    WebSearchError,
    WebSearchResult,
    WebSearchResultBlock,
    WebSearchResultLocation,
)

__all__ = [
    "AnswerForm",
    "citation",
    "message_answer",
    "message_end",
    "message_usage",
    "search_blocks",
]


class AnswerForm(Struct, frozen=True, kw_only=True):
    """Options of a request that affect the form of the answer. ``omits_thinking``: thinking blocks
    have a signature but no text. ``generate``: False if the model only caches the prompt."""

    omits_thinking: bool = False
    generate: bool = True


def message_answer(response: Response, form: AnswerForm) -> MessageAnswer:
    """Translate a finished response to an answer of the Messages API. Call this only for a response
    that did not fail."""
    end = message_end(response, form)
    return MessageAnswer(
        id=message_id(response.id),
        model=response.model,
        content=tuple(
            block
            for item in response.output
            if (read := _BLOCKS.get(type(item))) is not None
            for block in read(item, form)
        ),
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        usage=message_usage(response),
    )


def message_end(response: Response, form: AnswerForm) -> MessageEnd:
    """Return the stop reason of a response, and the stop sequence that ended it, if any."""
    if response.matched_stop is not UNSET:
        return MessageEnd(stop_reason="stop_sequence", stop_sequence=response.matched_stop)
    return MessageEnd(stop_reason=_stop_reason(response, form))


def _stop_reason(response: Response, form: AnswerForm) -> StopReason:
    if not form.generate:
        return "max_tokens"
    if response.incomplete_details is not None:
        return _incomplete_reason(response, response.incomplete_details.reason)
    if any(isinstance(item, it.FunctionCall) for item in response.output):
        return "tool_use"
    messages = (item for item in response.output if isinstance(item, it.Message))
    if any(isinstance(part, it.Refusal) for item in messages for part in item.content):
        return "refusal"
    return "end_turn"


def _incomplete_reason(response: Response, reason: str) -> StopReason:
    """Return the stop reason of an incomplete response. ``reason``: the reason in the Responses
    API.

    For a token limit, there are two cases. If the output has fewer tokens than the request allows,
    the context is full. Otherwise the output has reached the request's limit.
    """
    if reason == "content_filter":
        return "refusal"
    if reason == "max_messages":
        return "pause_turn"
    limit, written = response.max_output_tokens, (response.usage or Usage()).output_tokens
    is_full = limit is not None and written < limit
    return "model_context_window_exceeded" if is_full else "max_tokens"


def message_usage(response: Response) -> MessageUsage:
    """Return the token usage of a response. All values are 0 for a response that is still
    running."""
    used = response.usage or Usage()
    cached = used.input_tokens_details.cached_tokens
    written = used.input_tokens_details.cache_write_tokens
    searches = sum(len(search_blocks(item)) // 2 for item in response.output)
    return MessageUsage(
        input_tokens=used.input_tokens - cached - written,
        output_tokens=used.output_tokens,
        cache_creation_input_tokens=written,
        cache_read_input_tokens=cached,
        output_tokens_details=ThinkingTokens(
            thinking_tokens=used.output_tokens_details.reasoning_tokens
        ),
        server_tool_use=ServerToolUsage(web_search_requests=searches) if searches else UNSET,
    )


# --- blocks --------------------------------------------------------------------------------------


def _thinking(item: it.Reasoning, form: AnswerForm) -> Iterable[AnswerBlock]:
    text = "".join(part.text for part in item.content or item.summary)
    signature = item.encrypted_content or ""
    if text or signature:
        yield ThinkingBlock(thinking="" if form.omits_thinking else text, signature=signature)


def _texts(item: it.Message, form: AnswerForm) -> Iterable[AnswerBlock]:
    for part in item.content:
        if isinstance(part, it.Refusal):
            yield TextBlock(text=part.refusal)
        elif isinstance(part, it.OutputText) and part.text:
            cited = [citation(each) for each in part.annotations]
            citations = tuple(each for each in cited if each is not None)
            yield TextBlock(text=part.text, citations=citations or UNSET)


def citation(annotation: it.Annotation) -> WebSearchResultLocation | None:
    """Translate an annotation that cites a web page. Returns None for other annotations."""
    if not isinstance(annotation, it.UrlCitation):
        return None
    return WebSearchResultLocation(url=annotation.url, title=annotation.title)


def _tool_use(item: it.FunctionCall, form: AnswerForm) -> Iterable[AnswerBlock]:
    yield ToolUseBlock(id=item.call_id, name=item.name, input=_input(item.arguments))


def _input(arguments: str) -> JsonObject:
    """Return the arguments of a call as an object. The text may not be a JSON object, because the
    model wrote invalid JSON or because the text was truncated. In this case, return
    ``{"INVALID_JSON": text}``, as Anthropic's documentation recommends."""
    if not arguments:
        return {}
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


def search_blocks(
    item: it.Item,
) -> tuple[ServerToolUseBlock, WebSearchResultBlock] | tuple[()]:
    """Return two blocks for a web search: the search and its results. Returns an empty tuple for
    other items, including web search calls that open a page or find text in a page."""
    action = getattr(item, "action", UNSET)
    if not isinstance(item, it.WebSearchCall) or action is UNSET or action["type"] != "search":
        return ()
    id = "srvtoolu_" + item.id.partition("_")[2]
    found = () if item.results is UNSET else item.results
    results = tuple(
        WebSearchResult(
            url=str(result.get("url", "")),
            title=str(result.get("title", "")),
            encrypted_content=base64.b64encode(str(result.get("text", "")).encode()).decode(),
        )
        for result in found
    )
    return (
        ServerToolUseBlock(id=id, name="web_search", input={"query": action.get("query", "")}),
        WebSearchResultBlock(
            tool_use_id=id, content=WebSearchError() if item.status == "failed" else results
        ),
    )


_BLOCKS: Mapping[type[it.Item], Callable[[Any, AnswerForm], Iterable[AnswerBlock]]] = {
    it.Reasoning: _thinking,
    it.Message: _texts,
    it.FunctionCall: _tool_use,
    it.WebSearchCall: lambda item, form: search_blocks(item),
}
