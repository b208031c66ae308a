"""The contract of a dialect: how one model family writes prompts, and how its output is read.

Render and parse live together because they are inverses. Sans-IO: no clock, no randomness, so a
call's ``call_id`` is left empty for the run to give, unless the model wrote one itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.conversation import Conversation, Options
from antiphon.stream.deltas import Delta, FinishReason
from antiphon.tokens import Chunk, Constraint, Prompt

__all__ = ["Dialect", "Parser", "ReasoningRetention", "Rendered"]

#: Which thinking a model is shown again: that of the tool loop it is in, or that of all turns.
ReasoningRetention = Literal["current_turn", "all_turns"]


class Parser(Protocol):
    """Reads one reply. Any chunking of the same output means the same items; no text is lost.

    Never raises, whatever the model writes; linear in the length of the output.
    """

    def feed(self, chunk: Chunk) -> Iterable[Delta]:
        """The deltas that ``chunk`` completes; ``Sampled`` first where it carries ids."""

    def finish(self, reason: FinishReason) -> Iterable[Delta]:
        """What was held back, and the end of what is open. Not ``Finish``: the backend knows the
        usage. After ``length`` an unfinished item is left open, for the run to close as cut."""

    def set_unconstrained(self) -> None:
        """Before the first chunk: nothing holds the reply to the constraint it was rendered with,
        so that strings in it may end where only its markup says so."""

    @property
    def reasoning_tokens(self) -> int:
        """How many of the sampled tokens so far were thinking."""

    @property
    def is_thinking(self) -> bool:
        """True while the open item is thinking."""

    @property
    def done(self) -> bool:
        """True once the rest of the output cannot matter (one call was allowed, and it is over):
        the backend then stops the engine."""


class Rendered(Struct, frozen=True, kw_only=True):
    """A prompt and how to read what follows it."""

    prompt: Prompt
    parser: Parser
    constraint: Constraint | None = None
    #: Where the model's turn ends besides the tokenizer's own end ids.
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    #: What ends thinking and begins the answer, put behind what was sampled where a budget is used
    #: up. Empty: this model's thinking cannot be ended.
    reasoning_end_ids: tuple[int, ...] = ()
    #: What the answer behind ``unthink`` must obey: the constraint, its thinking left out.
    answer_constraint: Constraint | None = None


class Dialect(Protocol):
    """One model's way of writing, made from its files."""

    @property
    def supports_images(self) -> bool:
        """The prompt can contain images."""

    def render(self, conversation: Conversation, options: Options) -> Rendered:
        """The prompt for the next turn. ``conversation.kept`` is extended where the rendering
        begins with it. Raises ``InvalidRequest`` for what this model cannot be asked."""

    def reasoning_retention(self, options: Options) -> ReasoningRetention:
        """Which thinking the model would be shown again, whatever is asked."""
