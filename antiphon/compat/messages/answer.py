"""Translate responses to answers of the Messages API: items become content blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.request_options import CacheMiss, ComparisonNotFound, ComparisonUnavailable
from antiphon.wire.response import OmittedPart, Response, Usage

from .bodies import MessageSkillReference
from .citations import CitedText, Passages
from .server_blocks import TOOL_SEARCH, call_input, is_fetch, is_search, server_blocks
from .threads import message_id
from .types import (
    AnswerBlock,
    AppliedEdits,
    Citation,
    IterationUsage,
    MessageAnswer,
    MessageCacheMiss,
    MessageContainer,
    MessageDiagnostics,
    MessageEnd,
    MessageUsage,
    MissType,
    RefusalDetails,
    ServerToolUsage,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ThinkingTokens,
    ToolUseBlock,
    WebSearchResultLocation,
    rfc3339,
)

#: Reason in the Responses API → type in the Messages API. All others are ``unavailable``.
_MISSES: Mapping[str, MissType] = {
    "model_changed": "model_changed",
    "tools_changed": "tools_changed",
    "input_changed": "messages_changed",
    "context_compacted": "messages_changed",
}
#: By default, a container exists this many seconds after its last use.
_CONTAINER_S = 1_200


class AnswerForm(Struct, frozen=True, kw_only=True):
    """Options of a request that affect the form of the answer. ``omits_thinking``: thinking blocks
    have a signature but no text. ``generate``: False if the model only caches the prompt.
    ``fetches``: whether the request has the tool ``web_fetch``, so pages that the model opens have
    blocks. ``search_name``: the request's name of the tool search. ``skills``: those of
    the request's container. ``passages``: what the model can cite of the request's documents.
    ``context_management``: the edits that had an effect, if the request asks for edits.
    ``omitted_parts``: the parts of the request that the model cannot read."""

    omits_thinking: bool = False
    fetches: bool = False
    search_name: str = TOOL_SEARCH
    skills: tuple[MessageSkillReference, ...] = ()
    passages: Passages = field(default_factory=Passages)
    generate: bool = True
    context_management: AppliedEdits | UnsetType = UNSET
    omitted_parts: tuple[OmittedPart, ...] = ()


def message_answer(response: Response, form: AnswerForm) -> MessageAnswer:
    """Translate a finished response to an answer of the Messages API. Call this only for a response
    that did not fail."""
    end = message_end(response, form)
    return MessageAnswer(
        id=message_id(response.id),
        model=response.model,
        content=tuple(block for item in response.output for block in _blocks(item, form)),
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        stop_details=end.stop_details,
        usage=message_usage(response),
        diagnostics=message_diagnostics(response),
        container=end.container,
        context_management=form.context_management,
        omitted_parts=form.omitted_parts or UNSET,
    )


def _container(response: Response, form: AnswerForm) -> MessageContainer | UnsetType:
    """Return the container in which the code of the response ran last."""
    ids = [item.container_id for item in response.output if item.container_id is not None]
    if not ids:
        return UNSET
    ended = response.completed_at or response.created_at
    expires_at = rfc3339(ended + _CONTAINER_S)
    return MessageContainer(id=ids[-1], expires_at=expires_at, skills=form.skills or UNSET)


def message_end(response: Response, form: AnswerForm) -> MessageEnd:
    """Return the stop reason of a response, the stop sequence that ended it, if any, and the
    container that it has used, if any."""
    container = _container(response, form)
    if response.matched_stop is not UNSET:
        return MessageEnd("stop_sequence", response.matched_stop, container=container)
    reason = _stop_reason(response, form)
    details = RefusalDetails(explanation=_refusal(response)) if reason == "refusal" else UNSET
    return MessageEnd(reason, stop_details=details, container=container)


def _stop_reason(response: Response, form: AnswerForm) -> StopReason:
    if not form.generate:
        return "max_tokens"
    if response.incomplete_details is not None:
        return _incomplete_reason(response, response.incomplete_details.reason)
    if response.output and all(isinstance(each, it.Compaction) for each in response.output):
        return "compaction"
    if any(map(it.is_model_call, response.output)):
        return "tool_use"
    return "end_turn" if _refusal(response) is None else "refusal"


def _refusal(response: Response) -> str | None:
    """Return the text with which the model refuses to answer."""
    parts = (part for item in response.output for part in item.message_parts)
    return next((part.refusal for part in parts if isinstance(part, it.Refusal)), None)


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
    uses = ServerToolUsage(
        web_search_requests=sum(map(is_search, response.output)),
        web_fetch_requests=sum(map(is_fetch, response.output)),
    )
    return MessageUsage(
        input_tokens=used.input_tokens - cached - written,
        output_tokens=used.output_tokens,
        cache_creation_input_tokens=written,
        cache_read_input_tokens=cached,
        output_tokens_details=ThinkingTokens(
            thinking_tokens=used.output_tokens_details.reasoning_tokens
        ),
        server_tool_use=UNSET if uses == ServerToolUsage() else uses,
        iterations=_iterations(response, used),
    )


def message_diagnostics(response: Response) -> MessageDiagnostics | UnsetType:
    """Return why the prompt did not continue the one that the request compares with it. The value
    is UNSET if it did, and if there is no comparison."""
    match response.prompt_cache_diagnostics:
        case CacheMiss(reason=reason, instructions_changed=changed) as miss:
            kind = "system_changed" if changed is True else _MISSES.get(reason, "unavailable")
            tokens = UNSET if kind == "unavailable" else miss.cache_missed_tokens
            found = MessageCacheMiss(type=kind, cache_missed_input_tokens=tokens)
        case ComparisonNotFound():
            found = MessageCacheMiss(type="previous_message_not_found")
        case ComparisonUnavailable():
            found = MessageCacheMiss(type="unavailable")
        case _:
            return UNSET
    return MessageDiagnostics(found)


def _iterations(response: Response, used: Usage) -> tuple[IterationUsage, ...] | UnsetType:
    """Return the usage of each model call, if it is known. Those that wrote compactions come
    first."""
    compactions = sum(isinstance(item, it.Compaction) for item in response.output)
    read = used.input_tokens_details.input_tokens_per_turn
    cached = used.input_tokens_details.cached_tokens_per_turn
    written = used.output_tokens_details.output_tokens_per_turn
    if read is UNSET or cached is UNSET or written is UNSET:
        if not 0 < compactions == len(response.output):
            return UNSET
        read, written = (used.input_tokens,), (used.output_tokens,)
        cached = (used.input_tokens_details.cached_tokens,)
    return tuple(
        IterationUsage(
            type="compaction" if index < compactions else "message",
            input_tokens=input_tokens - cached_tokens,
            cache_read_input_tokens=cached_tokens,
            output_tokens=output_tokens,
        )
        for index, (input_tokens, cached_tokens, output_tokens) in enumerate(
            zip(read, cached, written, strict=True)
        )
    )


# --- blocks --------------------------------------------------------------------------------------


def _blocks(item: it.Item, form: AnswerForm) -> Iterable[AnswerBlock]:
    read = _BLOCKS.get(type(item))
    return tool_blocks(item, form) if read is None else read(item, form)


def tool_blocks(item: it.Item, form: AnswerForm) -> tuple[AnswerBlock, ...]:
    """Return the blocks for a call that this server has run, or for its result."""
    if is_fetch(item) and not form.fetches:
        return ()
    return server_blocks(item, form.search_name)


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
            if form.passages:
                yield from _cited_blocks(part.text, citations, form.passages)
            else:
                yield TextBlock(text=part.text, citations=citations or UNSET)


def _cited_blocks(
    text: str, pages: tuple[Citation, ...], passages: Passages
) -> Iterable[TextBlock]:
    """Yield the blocks of a text that cites documents. Each ends with its citations. The last one
    also gets those of web pages."""
    blocks: list[tuple[str, list[Citation]]] = []
    for piece in CitedText(passages).feed(text, final=True):
        if isinstance(piece, str) or not blocks:
            blocks.append((piece, []) if isinstance(piece, str) else ("", [piece]))
        else:
            blocks[-1][1].append(piece)
    if blocks:
        blocks[-1][1].extend(pages)
    for piece, citations in blocks:
        yield TextBlock(text=piece, citations=tuple(citations) or UNSET)


def citation(annotation: it.Annotation) -> WebSearchResultLocation | None:
    """Translate an annotation that cites a web page. Returns None for other annotations."""
    if not isinstance(annotation, it.UrlCitation):
        return None
    return WebSearchResultLocation(url=annotation.url, title=annotation.title)


def _tool_use(item: it.FunctionCall, form: AnswerForm) -> Iterable[AnswerBlock]:
    yield tool_use(item, call_input(item.arguments))


def tool_use(item: it.FunctionCall, input: JsonObject) -> ToolUseBlock:
    """Return the block for a call of a client's tool."""
    return ToolUseBlock(id=item.call_id, name=item.name, input=input, toolset_name=item.namespace)


_BLOCKS: Mapping[type[it.Item], Callable[[Any, AnswerForm], Iterable[AnswerBlock]]] = {
    it.Reasoning: _thinking,
    it.Message: _texts,
    it.FunctionCall: _tool_use,
}
