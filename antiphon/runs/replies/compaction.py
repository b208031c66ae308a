"""Compaction: a summary in place of what came before, written by the model that goes on from it.

``Compacting`` is a reply like any other: one compaction item, and behind it, where an answer was
asked for, that of the model which sees the shrunk conversation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import ASSUMED_CONTEXT_SIZE, Backend, Reply, add_usage, flatten
from antiphon.backends.truncation import droppable_groups
from antiphon.conversation import Conversation, Options, PromptTokens, ResumePoint, ToolChoice
from antiphon.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    CannotContinue,
    InvalidRequest,
    RunError,
    context_length_exceeded,
)
from antiphon.runs.history.context import ConversationContext
from antiphon.runs.history.encrypted_items import TenantSealer
from antiphon.runs.history.visible_history import VisibleHistory, is_persistent, is_user_message
from antiphon.stream.deltas import Close, Delta, Finish, NewPrompt, Open, Progress, Text
from antiphon.wire import items as it
from antiphon.wire.response import (
    CompactedResponse,
    ContextManagement,
    ReasoningConfig,
    Response,
    TextConfig,
    Usage,
)

__all__ = [
    "CompactingReply",
    "ReplyRequest",
    "compacted_response",
    "prepare_compaction",
    "prepare_reply",
]


#: The part of the context that a summary may fill, and what stays as it was at its end; and the
#: most tokens of a summary, whatever the context holds.
_SHARE = 4
_MOST_SUMMARY = 4096
#: Part of the context after which is compacted if the request leaves that to the server.
_FULL = 3 / 4

_ASK = """\
Stop here: this conversation is now compacted. Write a summary of all of it, so that an assistant \
who sees nothing but your summary can carry on where it stops. Say:
- what the user wants, and every wish, rule and limit they named;
- what has been done and found so far, with the exact names, paths, numbers, code and errors that \
matter;
- what was decided, and why;
- what is open, and what comes next.
Do not answer the conversation or go on with it, and call no tools. Write only the summary, in at \
most {words} words."""


class ReplyRequest(Struct, frozen=True, kw_only=True):
    """A conversation that is to be answered, by whom, and how."""

    context: ConversationContext
    backend: Backend
    options: Options
    #: Wraps the reply to the conversation that the model sees, such as in the tool loop.
    wrap: Callable[[Reply, Conversation], Reply] = lambda reply, conversation: reply

    async def prepare(self) -> Reply:
        """Prepare the reply to the conversation. Raises what ``Backend.prepare`` raises."""
        conversation = self.context.conversation
        return self.wrap(await self.backend.prepare(conversation, self.options), conversation)


async def prepare_reply(
    question: ReplyRequest, sealed: TenantSealer, management: Sequence[ContextManagement]
) -> Reply:
    """The reply, with a compaction before it where the context is longer than ``management``
    allows and compacting helps. Raises what ``Backend.prepare`` raises."""
    backend, conversation = question.backend, question.context.conversation
    if not management:
        return await question.prepare()
    size = backend.context_size
    limit = _threshold(management, size)
    whole = replace(question.options, truncate=False)  # rather compacted than cut
    reply = await _prepared(backend, conversation, whole)
    if reply is not None and (limit is None or reply.input_tokens <= limit):
        return question.wrap(reply, conversation)
    size = min(limit or size or ASSUMED_CONTEXT_SIZE, size or ASSUMED_CONTEXT_SIZE)
    bound = size if reply is not None else backend.context_size or ASSUMED_CONTEXT_SIZE
    rest = size // _SHARE
    if await _helps(question, rest, _summary_tokens(size), bound):
        return await _compacting(question, sealed, size, rest=rest, answered=True)
    return await question.prepare() if reply is None else question.wrap(reply, conversation)


async def prepare_compaction(question: ReplyRequest, sealed: TenantSealer) -> CompactingReply:
    """The reply that is a compaction and nothing more. Raises ``InvalidRequest`` where there is
    nothing to compact, or where not even a summary of its end fits the context."""
    size = question.backend.context_size or ASSUMED_CONTEXT_SIZE
    return await _compacting(question, sealed, size, rest=0, answered=False)


def compacted_response(context: ConversationContext, response: Response) -> CompactedResponse:
    """The conversation as it is to be sent from now on: what the user said, as it was, and what
    holds on, then the one compaction item that ``response`` is."""
    recalled = context.visible
    kept = (
        item
        for item in (*recalled.before, *recalled.after)
        if is_user_message(item) or is_persistent(item)
    )
    return CompactedResponse(
        id=response.id,
        created_at=response.created_at,
        output=(*kept, *response.output),
        usage=response.usage or Usage(),
    )


def _threshold(management: Sequence[ContextManagement], size: int | None) -> int | None:
    """The tokens over which is compacted; None: only where the context is full."""
    given = [entry.compact_threshold for entry in management if entry.compact_threshold]
    if given:
        return min(given)
    return None if size is None else int(size * _FULL)


async def _helps(question: ReplyRequest, rest: int, summary: int, bound: int) -> bool:
    """Whether the context would be within ``bound`` after it: what is to be said again each time
    may alone be too long, and then there would be no end to compacting."""
    if not question.context.visible.items_to_summarize(keep_tokens=rest):
        return False
    shrunk = _shrunk(question, question.context.visible.compact("", keep_tokens=rest))
    reply = await _prepared(question.backend, shrunk, question.options)
    return reply is not None and reply.input_tokens + summary <= bound


def _summary_tokens(size: int) -> int:
    return min(_MOST_SUMMARY, size // _SHARE)


def _shrunk(question: ReplyRequest, recalled: VisibleHistory) -> Conversation:
    """The tokens kept stand for what is gone."""
    return replace(question.context, visible=recalled, prompt_tokens=None).conversation


async def _prepared(backend: Backend, conversation: Conversation, options: Options) -> Reply | None:
    """The reply, or None for a conversation that is too long."""
    try:
        return await backend.prepare(conversation, options)
    except InvalidRequest as error:
        if error.code != CONTEXT_LENGTH_EXCEEDED:
            raise
        return None


# --- the summary ---------------------------------------------------------------------------------


async def _compacting(
    question: ReplyRequest, sealed: TenantSealer, size: int, *, rest: int, answered: bool
) -> CompactingReply:
    items = question.context.visible.items_to_summarize(keep_tokens=rest)
    if not items:
        raise InvalidRequest("There is nothing to compact.", param="input")
    summary = await _summarising(question, items, _summary_tokens(size))
    return CompactingReply(question, sealed, summary, rest=rest, answered=answered)


async def _summarising(question: ReplyRequest, items: tuple[it.Item, ...], tokens: int) -> Reply:
    """The call that writes the summary of ``items``: without the oldest of them, calls with their
    outputs, where the context does not hold them all."""
    ask = it.Message(
        role="user", content=(it.InputText(text=_ASK.format(words=max(20, tokens // 2))),)
    )
    options = _plainly(question.options, tokens)
    groups = droppable_groups((*items, ask))

    async def without(count: int) -> Reply | None:
        out = {index for group in groups[:count] for index in group}
        left = (item for index, item in enumerate(items) if index not in out)
        conversation = replace(
            question.context.conversation, items=(*question.context.prompt_items, *left, ask)
        )
        reply = await _prepared(question.backend, conversation, options)
        size = question.backend.context_size
        fits = reply is not None and (size is None or reply.input_tokens + tokens <= size)
        return reply if fits else None

    best = await without(0)
    low, high = 1, 0 if best is not None else len(groups)
    while low <= high:
        count = (low + high) // 2
        found = await without(count)
        best = found or best
        low, high = (low, count - 1) if found is not None else (count + 1, high)
    if best is None:
        raise context_length_exceeded(", and its instructions alone leave no room for a summary")
    return best


def _plainly(options: Options, tokens: int) -> Options:
    """How a summary is asked for: in words, no tools, no thinking, the request's sampling."""
    return replace(
        options,
        tools=(),
        tool_choice=ToolChoice(),
        text=TextConfig(),
        reasoning=ReasoningConfig(effort="none"),
        max_output_tokens=tokens,
        stop=(),
        logit_bias={},
        logprobs=None,
        truncate=False,
    )


class CompactingReply(Reply):
    """``Reply`` with a compaction item, and where ``answered`` with the answer behind it."""

    def __init__(
        self,
        question: ReplyRequest,
        sealed: TenantSealer,
        summary: Reply,
        *,
        rest: int,
        answered: bool,
    ) -> None:
        self._question = question
        self._sealed = sealed
        self._summary = summary
        self._rest = rest
        self._answered = answered
        self._answer: Reply | None = None

    @property
    def input_tokens(self) -> int:
        return self._summary.input_tokens + (self._answer.input_tokens if self._answer else 0)

    @property
    def prompt_tokens(self) -> PromptTokens | None:
        """Those of the answer: the summary's own prompt is nobody's past."""
        return self._answer.prompt_tokens if self._answer is not None else None

    def resume(self, point: ResumePoint) -> Reply:
        raise CannotContinue("its conversation was being compacted")

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        """Compact, and answer."""
        yield Open(it.Compaction(encrypted_content="")), Progress("compacting")
        summary, usage = await _read(self._summary)
        recalled = self._question.context.visible.compact(summary, keep_tokens=self._rest)
        assert recalled.compaction is not None
        closed = Close({"encrypted_content": self._sealed.encrypt_compaction(recalled.compaction)})
        if not self._answered:
            yield closed, Finish("stop", usage)
            return
        yield (closed,)
        self._answer = await self._prepared(recalled)
        if (prompt := self._answer.prompt_tokens) is not None:
            yield (NewPrompt(prompt.ids),)
        async with aclosing(self._answer.deltas()) as deltas:
            async for known in deltas:
                if isinstance(last := known[-1], Finish):
                    known = (*known[:-1], Finish(last.reason, add_usage(usage, last.usage)))
                yield known

    async def _prepared(self, recalled: VisibleHistory) -> Reply:
        question = self._question
        shrunk = _shrunk(question, recalled)
        try:
            reply = await question.backend.prepare(shrunk, question.options)
            return question.wrap(reply, shrunk)
        except InvalidRequest as error:  # the run has begun
            raise RunError(error.message, code=error.code or "server_error") from None


async def _read(reply: Reply) -> tuple[str, Usage]:
    """What the model said, without what it thought, and what that took. It may say nothing."""
    texts: list[str] = []
    usage = Usage()
    speaks = False
    async with aclosing(flatten(reply.deltas())) as deltas:
        async for delta in deltas:
            match delta:
                case Open():
                    speaks = isinstance(delta.item, it.Message)
                case Text() if speaks:
                    texts.append(delta.text)
                case Finish():
                    usage = delta.usage
    return "".join(texts).strip(), usage
