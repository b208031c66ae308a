"""Reasoning summaries that a model writes. The summary is written after the model has reasoned and
before it answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import ASSUMED_CONTEXT_SIZE, Backend, Reply, flatten
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import InvalidRequest, RequestError, RunError
from antiphon.inference.conversation import Conversation, Options, ResumePoint
from antiphon.stream.deltas import Delta, Open, SampledTokens, Summary, Text
from antiphon.stream.fold import Fold
from antiphon.support.text import truncate_middle
from antiphon.wire.items import InputText, Item, Message, Reasoning
from antiphon.wire.response import ReasoningConfig

__all__ = [
    "SummarizedReply",
    "Summarizer",
    "interrupted_in_summary",
    "is_summary",
    "summary_level",
]

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
        isinstance(draft.shell, Reasoning)
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

    async def summarize(self, reasoning: str) -> AsyncGenerator[str, None]:
        """Yield the summary of ``reasoning`` in pieces. Raises ``RequestError`` and
        ``RunError``."""
        reply = await self._prepare(reasoning)
        item: Item | None = None
        async with aclosing(flatten(reply.deltas())) as deltas:
            async for delta in deltas:
                if isinstance(delta, Open):
                    item = delta.item
                elif isinstance(delta, Text) and isinstance(item, Message):
                    yield delta.text

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
    """``Reply`` with summaries of its reasoning. If a summary cannot be written, it is left out."""

    def __init__(self, reply: Reply, summarizer: Summarizer) -> None:
        super().__init__(reply)
        self._summarizer = summarizer

    def resume(self, point: ResumePoint) -> Reply:
        """Continue the reply without a summary, because this object does not have the reasoning
        from before the interruption."""
        return self._reply.resume(point)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        reasoning: list[str] | None = None
        async with aclosing(self._reply.deltas()) as deltas:
            async for batch in deltas:
                pending: list[Delta] = []
                for delta in batch:
                    if reasoning and not isinstance(delta, Text | Summary | SampledTokens):
                        # Pending token ids may also belong to the next item, so they are sent with
                        # the first piece of the summary. If the run is interrupted before that
                        # piece, the ids are not stored. ``interrupted_in_summary`` detects a later
                        # interruption. Pending deltas without ids are sent at once.
                        if pending and not _has_ids(pending):
                            yield tuple(pending)
                            pending = []
                        async for piece in self._summary_pieces("".join(reasoning)):
                            yield (*pending, Text(piece, channel="summary"))
                            pending = []
                        reasoning = None
                    if isinstance(delta, Open):
                        reasoning = [] if isinstance(delta.item, Reasoning) else None
                    elif is_summary(delta):
                        reasoning = None  # the upstream sends a summary
                    elif isinstance(delta, Text) and reasoning is not None:
                        reasoning.append(delta.text)
                    pending.append(delta)
                yield tuple(pending)

    async def _summary_pieces(self, reasoning: str) -> AsyncGenerator[str, None]:
        try:
            async with aclosing(self._summarizer.summarize(reasoning)) as pieces:
                async for piece in pieces:
                    yield piece
        except (RequestError, RunError) as error:
            _log.warning("cannot summarize reasoning", why=error.message)


def is_summary(delta: Delta) -> bool:
    """Whether the delta is part of a summary of the reasoning."""
    return isinstance(delta, Summary) or (isinstance(delta, Text) and delta.channel == "summary")


def _has_ids(deltas: Iterable[Delta]) -> bool:
    return any(isinstance(delta, SampledTokens) for delta in deltas)
