"""Compaction replaces the beginning of a conversation with a summary. The model itself writes the
summary.

``CompactingReply`` writes one compaction item. If the request wants an answer, it then answers the
compacted conversation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.backends.base import ASSUMED_CONTEXT_SIZE, Backend, DeltaSink, Reply, read_text
from antiphon.backends.truncation import droppable_groups
from antiphon.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    CannotContinue,
    InvalidRequest,
    RunError,
    context_length_exceeded,
    invalid_field,
)
from antiphon.inference.conversation import (
    Conversation,
    Options,
    PromptTokens,
    ResumePoint,
    ToolChoice,
)
from antiphon.runs.history.context import ConversationContext
from antiphon.runs.history.encrypted_items import TenantSealer
from antiphon.runs.history.visible_history import (
    VisibleHistory,
    estimate_tokens,
    is_persistent,
    is_user_message,
)
from antiphon.stream.deltas import Close, Delta, Finish, NewPrompt, Open, Progress, finish_of
from antiphon.support.push import send
from antiphon.wire import items as it
from antiphon.wire.response import (
    CompactedResponse,
    ContextManagement,
    ReasoningConfig,
    Response,
    TextConfig,
    Usage,
    sum_usage,
)

#: A summary may fill this fraction (1/n) of the context or of the threshold.
_SUMMARY_FRACTION = 4
#: Fractions (1/n) of the context or of the threshold, tried in order until the prompt is short
#: enough. The recent items that stay may fill one such fraction, and the user's earlier messages
#: another. None: no items stay.
_KEPT_FRACTIONS = (4, 8, 16, 32, None)
_MAX_SUMMARY_TOKENS = 4096
#: The token limit of a summary is the size of the items that it replaces, but at least this.
_MIN_SUMMARY_TOKENS = 256
#: Share of the context above which a conversation is compacted if the request sets no threshold.
_FULL_FRACTION = 3 / 4

_INSTRUCTIONS = """\
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
    """A conversation to answer, the backend that answers it, and the options for the answer."""

    context: ConversationContext
    backend: Backend
    options: Options
    #: Wraps the prepared reply, for example in the tool loop. Gets the reply and its conversation.
    wrap: Callable[[Reply, Conversation], Reply] = lambda reply, conversation: reply
    #: Called when a compaction has replaced the beginning of the conversation.
    on_compacted: Callable[[], None] = lambda: None
    #: Receives the usage of each model call, if there are several.
    turn_usages: list[Usage] = field(default_factory=list)

    async def prepare(self) -> Reply:
        """Prepare the reply to the conversation. Raises the errors of ``Backend.prepare``."""
        conversation = self.context.conversation
        return self.wrap(await self.backend.prepare(conversation, self.options), conversation)


async def prepare_reply(
    request: ReplyRequest, sealer: TenantSealer, management: Sequence[ContextManagement]
) -> Reply:
    """Prepare the reply. If the prompt is longer than ``management`` allows, the reply starts with
    a compaction.

    ``sealer``: encrypts the compaction item. ``management``: the request's ``context_management``.
    Raises the errors of ``Backend.prepare``. Raises ``InvalidRequest`` if the request sets a
    threshold and even a compacted prompt would exceed it.
    """
    if not management:
        return await request.prepare()
    backend, conversation = request.backend, request.context.conversation
    size = backend.context_size
    limit = _threshold(management, size)
    untruncated = replace(request.options, truncate=False)  # compaction instead of truncation
    reply = await _prepare_or_none(backend, conversation, untruncated)
    if reply is not None and (limit is None or reply.input_tokens <= limit):
        return request.wrap(reply, conversation)
    explicit = _explicit_threshold(management)
    size = min(limit or size or ASSUMED_CONTEXT_SIZE, size or ASSUMED_CONTEXT_SIZE)
    max_tokens = backend.context_size or ASSUMED_CONTEXT_SIZE
    if reply is not None or explicit is not None:
        max_tokens = size
    for fraction in _KEPT_FRACTIONS:
        keep_tokens = size // fraction if fraction is not None else 0
        reduced = _with_user_budget(request, keep_tokens)
        keep_tokens = max(keep_tokens, _question_tokens(request))
        if await _compaction_fits(reduced, keep_tokens, _summary_tokens(size), max_tokens):
            form = _form(management)
            return await _prepare_compacting(reduced, sealer, size, form, keep_tokens=keep_tokens)
    if explicit is not None:
        raise _threshold_too_low(*explicit)
    return await request.prepare() if reply is None else request.wrap(reply, conversation)


async def prepare_compaction(
    request: ReplyRequest, sealer: TenantSealer, management: Sequence[ContextManagement] = ()
) -> CompactingReply:
    """Prepare a reply that consists of a compaction item only. ``sealer``: encrypts this item.
    ``management``: the request's ``context_management``.

    Raises ``InvalidRequest`` in two cases: there is nothing to compact, or the context has no space
    for a summary even without the older items.
    """
    size = request.backend.context_size or ASSUMED_CONTEXT_SIZE
    form = replace(_form(management), pause=True)
    return await _prepare_compacting(request, sealer, size, form, keep_tokens=0)


class _Form(Struct, frozen=True, kw_only=True):
    """What a request demands of a compaction. ``instructions``: what the summary has to contain
    besides. ``shows_summary``: whether the item contains the summary as readable text. ``pause``:
    whether no answer follows."""

    instructions: str = ""
    shows_summary: bool = False
    pause: bool = False


def _form(management: Sequence[ContextManagement]) -> _Form:
    return _Form(
        instructions="\n".join(each.instructions for each in management if each.instructions),
        shows_summary=any(each.show_summary is True for each in management),
        pause=any(each.pause is True for each in management),
    )


def compacted_response(context: ConversationContext, response: Response) -> CompactedResponse:
    """Return the answer to a compaction request. From now on, the client sends the output of this
    answer instead of the conversation so far. The output contains:

    - the user's messages, unchanged,
    - the persistent items, which apply to the whole conversation, unchanged,
    - the compaction item of ``response``.
    """
    visible = context.visible
    retained_items = (
        item
        for item in (*visible.before, *visible.after)
        if is_user_message(item) or is_persistent(item)
    )
    return CompactedResponse(
        id=response.id,
        created_at=response.created_at,
        output=(*retained_items, *response.output),
        usage=response.usage or Usage(),
    )


def _explicit_threshold(management: Sequence[ContextManagement]) -> tuple[int, int] | None:
    """Return the smallest threshold for compaction that the request sets, and the index of its
    entry in ``context_management``. Returns None if the request sets no threshold."""
    thresholds = [
        (entry.compact_threshold, index)
        for index, entry in enumerate(management)
        if entry.compact_threshold
    ]
    return min(thresholds) if thresholds else None


def _threshold_too_low(threshold: int, index: int) -> InvalidRequest:
    path = f"context_management[{index}].compact_threshold"
    return invalid_field(
        path,
        f"{threshold} tokens cannot hold what a compaction keeps: the"
        " instructions, the tools, the newest message and a summary.",
    )


def _with_user_budget(request: ReplyRequest, max_tokens: int) -> ReplyRequest:
    """Return the request with its ``user_token_budget`` set to ``max_tokens``. This budget limits
    the tokens of the user's messages that a compaction keeps before its summary. If the budget of
    the request is already lower, the request is returned with this lower budget."""
    visible = request.context.visible
    visible = replace(visible, user_token_budget=min(visible.user_token_budget, max_tokens))
    return replace(request, context=replace(request.context, visible=visible))


def _question_tokens(request: ReplyRequest) -> int:
    """Return the estimated number of tokens of the newest item if this item is a user message.
    Otherwise, return 0. The model has to answer this user message, so a compaction must keep it."""
    after = request.context.visible.after
    return estimate_tokens(after[-1]) if after and is_user_message(after[-1]) else 0


def _threshold(management: Sequence[ContextManagement], size: int | None) -> int | None:
    """Return the number of prompt tokens above which the conversation is compacted. ``size``: the
    size of the context in tokens, if it is known. If the request sets no threshold, the threshold
    is derived from ``size``. Returns None if ``size`` is also unknown. The conversation is then
    compacted only if the backend rejects it as too long."""
    if (explicit := _explicit_threshold(management)) is not None:
        return explicit[0]
    return None if size is None else int(size * _FULL_FRACTION)


async def _compaction_fits(
    request: ReplyRequest, keep_tokens: int, summary_tokens: int, max_tokens: int
) -> bool:
    """Return whether a compaction makes the prompt short enough: the compacted prompt with its
    summary must have at most ``max_tokens`` tokens. ``keep_tokens``: the number of tokens
    at the end of the conversation that stay unchanged. ``summary_tokens``: the maximum length of
    the summary.

    A compaction never summarizes persistent items, which apply to the whole conversation. If they
    alone are too long, a compaction does not help: each turn would compact the conversation again.
    """
    if not request.context.visible.items_to_summarize(keep_tokens=keep_tokens):
        return False
    visible = request.context.visible.compact("", keep_tokens=keep_tokens)
    compacted = _compacted_conversation(request, visible)
    reply = await _prepare_or_none(request.backend, compacted, request.options)
    return reply is not None and reply.input_tokens + summary_tokens <= max_tokens


def _summary_tokens(size: int) -> int:
    return min(_MAX_SUMMARY_TOKENS, size // _SUMMARY_FRACTION)


def _compacted_conversation(request: ReplyRequest, visible: VisibleHistory) -> Conversation:
    """Return the compacted conversation for the backend. It has no stored prompt tokens, because
    those belong to the items that the summary replaces."""
    return replace(
        request.context, visible=visible, prompt_tokens=None, client_tokens=None, past_tokens=None
    ).conversation


async def _prepare_or_none(
    backend: Backend, conversation: Conversation, options: Options
) -> Reply | None:
    """Prepare the reply to a conversation. Returns None if the conversation is too long."""
    try:
        return await backend.prepare(conversation, options)
    except InvalidRequest as error:
        if error.code != CONTEXT_LENGTH_EXCEEDED:
            raise
        return None


# --- the summary ---------------------------------------------------------------------------------


async def _prepare_compacting(
    request: ReplyRequest, sealer: TenantSealer, size: int, form: _Form, *, keep_tokens: int
) -> CompactingReply:
    items = request.context.visible.items_to_summarize(keep_tokens=keep_tokens)
    if not items:
        raise InvalidRequest("There is nothing to compact.", param="input")
    replaced = max(_MIN_SUMMARY_TOKENS, sum(map(estimate_tokens, items)))
    tokens = min(replaced, _summary_tokens(size))
    summary = await _prepare_summary(request, items, tokens, form.instructions)
    return CompactingReply(request, sealer, summary, form, keep_tokens=keep_tokens)


async def _prepare_summary(
    request: ReplyRequest, items: tuple[it.Item, ...], tokens: int, demand: str
) -> Reply:
    """Prepare the model call that summarizes ``items`` in at most ``tokens`` tokens. If the items
    do not fit the context, the oldest items are left out. A call is left out together with its
    output. ``demand``: what the client wants of the summary besides."""
    text = _INSTRUCTIONS.format(words=max(20, tokens // 2)) + (f"\n\n{demand}" if demand else "")
    instructions = it.Message(role="user", content=(it.InputText(text=text),))
    options = _summary_options(request.options, tokens)
    groups = droppable_groups((*items, instructions))

    async def without(count: int) -> Reply | None:
        dropped = {index for group in groups[:count] for index in group}
        remaining = (item for index, item in enumerate(items) if index not in dropped)
        conversation = replace(
            request.context.conversation,
            items=(*request.context.prompt_items, *remaining, instructions),
        )
        reply = await _prepare_or_none(request.backend, conversation, options)
        size = request.backend.context_size
        fits = reply is not None and (size is None or reply.input_tokens + tokens <= size)
        return reply if fits else None

    best = await without(0)
    low, high = 1, 0 if best is not None else len(groups)
    while low <= high:
        count = (low + high) // 2
        reply = await without(count)
        best = reply or best
        low, high = (low, count - 1) if reply is not None else (count + 1, high)
    if best is None:
        raise context_length_exceeded(", and its instructions alone leave no room for a summary")
    return best


def _summary_options(options: Options, tokens: int) -> Options:
    """Return the options of the model call that writes the summary. The summary is plain text of at
    most ``tokens`` tokens, without tool calls and reasoning. Options that constrain the form or the
    end of the answer are removed, such as a grammar, stop strings or ``logit_bias``. The other
    sampling options are those of the request."""
    return replace(
        options,
        tools=(),
        tool_choice=ToolChoice(),
        text=TextConfig(),
        guide=None,
        reasoning=ReasoningConfig(effort="none"),
        thinking_budget=None,
        max_output_tokens=tokens,
        stop=(),
        include_stop_text=False,
        ignore_eos=False,
        logit_bias={},
        logprobs=None,
        truncate=False,
    )


class CompactingReply(Reply):
    """``Reply`` that writes a compaction item. Unless ``form.pause`` is set, it then answers the
    compacted conversation.

    ``sealer``: encrypts the compaction item. ``summary``: the prepared model call that writes the
    summary. ``keep_tokens``: the number of tokens at the end of the conversation that stay
    unchanged.
    """

    def __init__(
        self,
        request: ReplyRequest,
        sealer: TenantSealer,
        summary: Reply,
        form: _Form,
        *,
        keep_tokens: int,
    ) -> None:
        self._request = request
        self._sealer = sealer
        self._summary = summary
        self._keep_tokens = keep_tokens
        self._form = form
        self._answer: Reply | None = None

    @property
    def input_tokens(self) -> int:
        return self._summary.input_tokens + (self._answer.input_tokens if self._answer else 0)

    @property
    def prompt_tokens(self) -> PromptTokens | None:
        """The token ids of the answer's prompt. None before the answer is prepared. The prompt of
        the summary is not returned, because the next turn does not continue it."""
        return self._answer.prompt_tokens if self._answer is not None else None

    def resume(self, point: ResumePoint) -> Reply:
        raise CannotContinue("its conversation was being compacted")

    async def pump(self, sink: DeltaSink) -> None:
        """Push the deltas of the compaction item, then the deltas of the answer."""
        await send(sink, (Open(it.Compaction(encrypted_content="")), Progress("compacting")))
        text, usage = await read_text(self._summary)
        summary = text.strip()
        visible = self._request.context.visible.compact(summary, keep_tokens=self._keep_tokens)
        assert visible.compaction is not None
        self._request.on_compacted()
        content = {"encrypted_content": self._sealer.encrypt_compaction(visible.compaction)}
        closed = Close(content | ({"summary": summary} if self._form.shows_summary else {}))
        if self._form.pause:
            await send(sink, (closed, Finish("stop", usage, is_answer=False)))
            return
        await send(sink, (closed,))
        self._answer = await self._prepare_answer(visible)
        if (prompt := self._answer.prompt_tokens) is not None:
            await send(sink, (NewPrompt(prompt.ids),))

        def add_summary_usage(batch: tuple[Delta, ...]) -> Awaitable[None] | None:
            if (finish := finish_of(batch)) is not None:
                turns = self._request.turn_usages
                turns[:] = (usage, *(turns or (finish.usage,)))
                batch = (*batch[:-1], replace(finish, usage=sum_usage((usage, finish.usage))))
            return sink(batch)

        await self._answer.pump(add_summary_usage)

    async def _prepare_answer(self, visible: VisibleHistory) -> Reply:
        request = self._request
        compacted = _compacted_conversation(request, visible)
        try:
            reply = await request.backend.prepare(compacted, request.options)
            return request.wrap(reply, compacted)
        except InvalidRequest as error:  # the run has started
            raise RunError(error.message, code=error.code or "server_error") from None
