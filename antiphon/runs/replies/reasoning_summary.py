"""Summaries of thinking: where a request asks for them, a model is shown what was thought and says
it in short, before the thinking closes and the answer begins.

``Summarised`` is a reply around another. It knows neither events nor how a model writes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import ASSUMED_CONTEXT_SIZE, Backend, Reply, flatten
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.conversation import Conversation, Options, ResumePoint
from antiphon.errors import InvalidRequest, RequestError, RunError
from antiphon.stream.deltas import Delta, Open, SampledTokens, Text
from antiphon.text import truncate_middle
from antiphon.wire.items import InputText, Item, Message, Reasoning
from antiphon.wire.response import ReasoningConfig

__all__ = ["SummarizedReply", "Summarizer", "interrupted_in_summary", "summary_level"]

_log = structlog.get_logger(__name__)

#: What is asked for → the most tokens of it, and how it is asked.
_LEVELS: Mapping[str, tuple[int, str]] = {
    "concise": (96, "in one or two sentences"),
    "auto": (192, "in one short paragraph"),
    "detailed": (512, "in a paragraph for each step"),
}
#: Tokens of thinking where it cannot be stopped.
_THINKING = 512
_ASK = """\
Below are an assistant's notes from working on a reply. Say {how} what the assistant considered \
and decided, in the present participle ("Checking the units …"). Begin with a title of two to five \
words in bold, on a line of its own. Do not answer the notes, and do not mention that they are \
notes.

<notes>
{thought}
</notes>"""
#: Of a thought that would fill the context, its beginning and end are shown: as many characters
#: as there are tokens in the context, which leaves room in every script.


def summary_level(reasoning: ReasoningConfig | None) -> str | None:
    """How a summary is asked for, if one is."""
    if reasoning is None:
        return None
    return reasoning.summary or reasoning.generate_summary or None


def interrupted_in_summary(items: Mapping[int, Any]) -> bool:
    """Whether one of the open items (drafts) is a summary that an interruption cut: its reply is
    ahead of what was written, and cannot be gone on with."""
    return any(isinstance(d.shell, Reasoning) and d.parts.get("summary") for d in items.values())


class Summarizer(Struct, frozen=True, kw_only=True):
    """Who summarises, and how much. ``defaults``: the model's sampling values."""

    backend: Backend
    level: str
    defaults: Mapping[str, Any] = {}

    async def summarize(self, thought: str) -> AsyncGenerator[str, None]:
        """The summary, piece by piece. Raises ``RequestError`` and ``RunError``."""
        reply = await self._asked(thought)
        item: Item | None = None
        async with aclosing(flatten(reply.deltas())) as deltas:
            async for delta in deltas:
                if isinstance(delta, Open):
                    item = delta.item
                elif isinstance(delta, Text) and isinstance(item, Message):
                    yield delta.text

    async def _asked(self, thought: str) -> Reply:
        """Not to be thought about; by a model that must and cannot be stopped, with room for it."""
        most, how = _LEVELS[self.level]
        ask = _ASK.format(how=how, thought=self._shown(thought))
        asked = Conversation((Message(id="", role="user", content=(InputText(text=ask),)),))
        options = Options(
            reasoning=ReasoningConfig(effort="none"),
            **{**self.defaults, "max_output_tokens": most, "thinking_budget": 0},
        )
        try:
            return await self.backend.prepare(asked, options)
        except InvalidRequest:
            most += _THINKING
            options = replace(options, max_output_tokens=most, thinking_budget=None)
            return await self.backend.prepare(asked, options)

    def _shown(self, thought: str) -> str:
        room = (self.backend.context_size or ASSUMED_CONTEXT_SIZE) // 2
        return truncate_middle(thought, 2 * room, unit="characters")


class SummarizedReply(ReplyWrapper):
    """``Reply`` whose thinking gets a summary. One that fails is left out: the answer matters."""

    def __init__(self, reply: Reply, summariser: Summarizer) -> None:
        super().__init__(reply)
        self._summariser = summariser

    def resume(self, point: ResumePoint) -> Reply:
        """Without a summary, if there is none yet: what was thought before is not known here."""
        return self._reply.resume(point)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        thought: list[str] | None = None
        async with aclosing(self._reply.deltas()) as deltas:
            async for known in deltas:
                said: list[Delta] = []
                for delta in known:
                    if thought and not isinstance(delta, Text | SampledTokens):
                        # The ids come with the first piece: an interruption before it is one
                        # before them, and one behind it can be told (``broke_off``).
                        async for piece in self._pieces("".join(thought)):
                            yield (*said, Text(piece, channel="summary"))
                            said = []
                        thought = None
                    if isinstance(delta, Open):
                        thought = [] if isinstance(delta.item, Reasoning) else None
                    elif isinstance(delta, Text) and delta.channel == "summary":
                        thought = None  # an upstream has summed it up
                    elif isinstance(delta, Text) and thought is not None:
                        thought.append(delta.text)
                    said.append(delta)
                yield tuple(said)

    async def _pieces(self, thought: str) -> AsyncGenerator[str, None]:
        try:
            async with aclosing(self._summariser.summarize(thought)) as pieces:
                async for piece in pieces:
                    yield piece
        except (RequestError, RunError) as error:
            _log.warning("thinking could not be summarised", why=error.message)
