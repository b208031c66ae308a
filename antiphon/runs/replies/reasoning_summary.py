"""Reasoning summaries that a model writes. The summary is written after the model has reasoned and
before it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import ASSUMED_CONTEXT_SIZE, Backend, DeltaSink, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import InvalidRequest, RequestError, RunError
from antiphon.inference.conversation import Conversation, Options
from antiphon.stream.deltas import Delta, Open, SampledTokens, Summary, Text
from antiphon.stream.fold import Fold
from antiphon.support.push import Guard, Sink, send
from antiphon.support.text import truncate_middle
from antiphon.wire.items import InputText, Item, Message
from antiphon.wire.response import ReasoningConfig

_log = structlog.get_logger(__name__)

#: Level → maximum tokens of the summary, and its style as the instructions name it.
_LEVELS: Mapping[str, tuple[int, str]] = {
    "concise": (96, "in one or two sentences"),
    "auto": (192, "in one short paragraph"),
    "detailed": (512, "in a paragraph for each step"),
}
#: Tokens for the summarizing model's own reasoning, if it cannot be turned off.
_REASONING_TOKENS = 512
_INSTRUCTIONS = """\
Below are an assistant's notes from working on a reply. Say {how} what the assistant considered \
and decided, in the present participle ("Checking the units …"). Begin with a title of two to five \
words in bold, on a line of its own. Do not answer the notes, and do not mention that they are \
notes.

<notes>
{thought}
</notes>"""


def summary_level(reasoning: ReasoningConfig | None) -> str | None:
    """Return the level of the reasoning summary that the request asks for. Returns None if the
    request asks for no summary."""
    if reasoning is None:
        return None
    return reasoning.summary or reasoning.generate_summary or None


def interrupted_in_summary(log: Fold) -> bool:
    """Whether a run was interrupted while a reasoning summary was written. ``log``: the response,
    rebuilt from the event log.

    Such a run cannot be continued, because its two logs do not match: the token log may already
    contain ids whose text was to be sent after the summary. The event log lacks this text.
    """
    return any(
        draft.shell.is_reasoning
        and "summary" in draft.part_drafts
        and ((index, "content") not in log.open_parts or (index, "summary") in log.open_parts)
        for index, draft in log.open_items.items()
    )


class Summarizer(Struct, frozen=True, kw_only=True):
    """Summarizes reasoning with the model of ``backend``. ``level``: how detailed the summary is
    (``concise``, ``auto`` or ``detailed``). ``defaults``: the model's sampling defaults.
    ``cache_scope``, ``tenant``: each model call gets these two values as the options with the same
    names."""

    backend: Backend
    level: str
    defaults: Mapping[str, Any] = {}
    cache_scope: str | None = None
    tenant: str = ""

    async def summarize(self, reasoning: str, sink: Sink[str]) -> None:
        """Give the summary of ``reasoning`` in pieces to ``sink``. Raises ``RequestError`` and
        ``RunError``."""
        reply = await self._prepare(reasoning)
        item: Item | None = None

        def read(batch: tuple[Delta, ...]) -> Awaitable[None] | None:
            nonlocal item
            pieces: list[str] = []
            for delta in batch:
                if isinstance(delta, Open):
                    item = delta.item
                elif isinstance(delta, Text) and item is not None and item.is_message:
                    pieces.append(delta.text)
            return sink("".join(pieces)) if pieces else None

        await reply.pump(read)

    async def _prepare(self, reasoning: str) -> Reply:
        """Prepare the model call that writes the summary. In this call, reasoning is turned off. If
        the backend cannot turn it off, the call gets a higher token limit. The model then has
        enough tokens for both its reasoning and the summary."""
        max_tokens, style = _LEVELS[self.level]
        instructions = _INSTRUCTIONS.format(how=style, thought=self._truncate(reasoning))
        conversation = Conversation(
            (Message(id="", role="user", content=(InputText(text=instructions),)),)
        )
        options = Options(
            reasoning=ReasoningConfig(effort="none"),
            cache_scope=self.cache_scope,
            tenant=self.tenant,
            **{**self.defaults, "max_output_tokens": max_tokens, "thinking_budget": 0},
        )
        try:
            return await self.backend.prepare(conversation, options)
        except InvalidRequest:
            max_tokens += _REASONING_TOKENS
            options = replace(options, max_output_tokens=max_tokens, thinking_budget=None)
            return await self.backend.prepare(conversation, options)

    def _truncate(self, reasoning: str) -> str:
        # As many characters as the context has tokens: short enough in every script.
        half_context = (self.backend.context_size or ASSUMED_CONTEXT_SIZE) // 2
        return truncate_middle(reasoning, 2 * half_context, unit="characters")


class SummarizedReply(ReplyWrapper):
    """``Reply`` with summaries of its reasoning. If a summary cannot be written, it is left out. A
    resumed reply has none, because the reasoning from before the interruption is unknown."""

    def __init__(self, reply: Reply, summarizer: Summarizer) -> None:
        super().__init__(reply)
        self._summarizer = summarizer
        #: The text of the open reasoning item, in pieces. None if no reasoning item is open, or if
        #: its summary exists already.
        self._reasoning: list[str] | None = None

    async def pump(self, sink: DeltaSink) -> None:
        self._reasoning = None
        await self._reply.pump(partial(self._add_summary, sink))

    def _add_summary(
        self, sink: DeltaSink, batch: tuple[Delta, ...], first: int = 0
    ) -> Awaitable[None] | None:
        """Push a batch, and the summary of the reasoning that ends in it. ``first``: the index of
        the first delta that was not read before."""
        for at in range(first, len(batch)):
            delta = batch[at]
            if self._reasoning and not isinstance(delta, Text | Summary | SampledTokens):
                return self._summarize(sink, batch[:at], batch[at:])
            self._read(delta)
        return sink(batch)

    def _read(self, delta: Delta) -> None:
        if isinstance(delta, Open):
            self._reasoning = [] if delta.item.is_reasoning else None
        elif is_summary(delta):
            self._reasoning = None  # the upstream sends a summary
        elif isinstance(delta, Text) and self._reasoning is not None:
            self._reasoning.append(delta.text)

    async def _summarize(
        self, sink: DeltaSink, before: tuple[Delta, ...], after: tuple[Delta, ...]
    ) -> None:
        """Push the deltas of a batch and, between them, the summary of the reasoning.

        Token ids in ``before`` may also belong to the next item, so they are sent with the first
        piece of the summary. If the run is interrupted before that piece, the ids are not stored.
        ``interrupted_in_summary`` detects a later interruption. If ``before`` has no ids, it is
        sent at once.
        """
        reasoning, self._reasoning = "".join(self._reasoning or ()), None
        if before and not _has_ids(before):
            await send(sink, before)
            before = ()

        def add_piece(piece: str) -> Awaitable[None] | None:
            nonlocal before
            batch, before = (*before, Text(piece, channel="summary")), ()
            return sink(batch)

        guard = Guard(add_piece)
        try:
            await self._summarizer.summarize(reasoning, guard)
        except (RequestError, RunError) as error:
            if error is guard.error:
                raise
            _log.warning("cannot summarize reasoning", why=error.message)
        read = len(before)
        await send(partial(self._add_summary, sink, first=read), (*before, *after))


def is_summary(delta: Delta) -> bool:
    """Whether the delta is part of a summary of the reasoning."""
    return isinstance(delta, Summary) or (isinstance(delta, Text) and delta.channel == "summary")


def _has_ids(deltas: Iterable[Delta]) -> bool:
    return any(isinstance(delta, SampledTokens) for delta in deltas)
