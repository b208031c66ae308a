"""The contract of a dialect: how one model family writes prompts, and how its output is parsed.

Rendering and parsing are one contract because they are inverses of each other. Sans-IO: no clock
and no randomness. A parser leaves a call's ``call_id`` empty unless the model wrote an id; the run
assigns it.

Another package adds a dialect or formats through an entry point of the group
``antiphon.dialects``; see ``DialectPlugin``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct

from antiphon.conversation import Conversation, Options
from antiphon.stream.deltas import Delta, FinishReason
from antiphon.tokens import Chunk, Constraint, ModelCard, Prompt, Tokenizer

from .formats.registry import SHIPPED, Formats
from .images import Unreadable

__all__ = [
    "Dialect",
    "DialectFactory",
    "DialectOptions",
    "DialectPlugin",
    "Parser",
    "ReasoningRetention",
    "Rendered",
]

#: Which reasoning later prompts contain: that of the current tool loop, or that of all turns.
ReasoningRetention = Literal["current_turn", "all_turns"]


class Parser(Protocol):
    """Parses one reply. The resulting items do not depend on how the output is split into chunks,
    and no text is lost.

    A parser never raises an exception, whatever the model writes. It takes time linear in the
    output's length.
    """

    def feed(self, chunk: Chunk) -> Iterable[Delta]:
        """Return the deltas that ``chunk`` completes. If the chunk has ids, ``SampledTokens`` is
        the first delta."""

    def finish(self, reason: FinishReason) -> Iterable[Delta]:
        """Return the deltas at the end of the output: text that was held back, and the end of the
        open item.

        The deltas do not include ``Finish``, because the backend emits it with the usage. If
        ``reason`` is ``length``, an unfinished item stays open, and the run closes it as
        incomplete.
        """

    def set_unconstrained(self) -> None:
        """Tell the parser, before the first chunk, that the engine does not enforce the constraint.

        Then strings in the reply end only where the dialect's markup ends them.
        """

    @property
    def reasoning_tokens(self) -> int:
        """How many of the sampled tokens so far were reasoning."""

    @property
    def is_thinking(self) -> bool:
        """True while the open item is reasoning."""

    @property
    def done(self) -> bool:
        """Whether the rest of the output will be ignored, for example after the only call that is
        allowed.

        If True, the backend stops the engine.
        """


class Rendered(Struct, frozen=True, kw_only=True):
    """A prompt, the parser of its reply, and how to sample the reply.

    - ``constraint``: the format that the engine enforces.
    - ``stop``, ``stop_ids``: strings and token ids that end the model's turn, in addition to the
      tokenizer's end ids.
    - ``reasoning_end_ids``: the tokens that end the reasoning and start the answer. The backend
      appends them to the sampled tokens when the reasoning budget is used up. Empty if this model's
      reasoning cannot be ended.
    - ``answer_constraint``: ``constraint`` without the reasoning, for the answer that follows
      ``reasoning_end_ids``.
    """

    prompt: Prompt
    parser: Parser
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    reasoning_end_ids: tuple[int, ...] = ()
    answer_constraint: Constraint | None = None


class Dialect(Protocol):
    """How one model writes, built from the model's files."""

    @property
    def supports_images(self) -> bool:
        """Whether the prompt can contain images."""

    def render(self, conversation: Conversation, options: Options) -> Rendered:
        """Render the prompt of the next turn.

        If the prompt's text begins with the text of ``conversation.stored_tokens``, the stored ids
        are used for this beginning. Raises ``InvalidRequest`` for requests that this model cannot
        serve.
        """

    def reasoning_retention(self, options: Options) -> ReasoningRetention:
        """Return whose reasoning later prompts contain: only the current turn's, or all turns'.
        This is a property of the model's own prompt format, independent of what the request asks
        for."""


class DialectOptions(Struct, frozen=True, kw_only=True):
    """The settings of one model that concern its dialect.

    - ``template``: the source of a chat template that replaces the model's own.
    - ``reasoning_format``, ``tool_format``: names of rows in ``formats``. "" means no format. None
      means that the dialect detects the format.
    - ``template_kwargs``: variables for the chat template.
    - ``images``: how the engine learns the position of an image: ``apart`` from the text, or from
      the
      text that the ``template`` writes for the image. None: the model has no vision.
    - ``unreadable``: what happens to images if the model has no vision.
    """

    template: str | None = None
    reasoning_format: str | None = None
    tool_format: str | None = None
    formats: Formats = SHIPPED
    template_kwargs: Mapping[str, Any] = {}
    images: Literal["apart", "template"] | None = None
    unreadable: Unreadable = "note"


class DialectFactory(Protocol):
    """Builds the dialect of one model. Runs in a worker thread, so it may read files."""

    def __call__(
        self, card: ModelCard, tokenizer: Tokenizer, options: DialectOptions, /
    ) -> Dialect:
        """Return the dialect. Raises ``SetupError`` if the dialect cannot serve the model or its
        settings are invalid."""


#: What an entry point of the group ``antiphon.dialects`` refers to. One of:
#:
#: - A ``DialectFactory``. A model whose setting ``dialect`` is the entry point's name uses it.
#: - ``Formats``, further rows for models with a chat template. The settings ``reasoning_format``
#:   and ``tool_format`` name them, and a model whose template matches a row's ``mark`` uses them
#:   by default. A row replaces ours of the same name.
#:   ``format_check.round_trip_failure`` tests a row.
#:
#: In a package's ``pyproject.toml``::
#:
#:     [project.entry-points."antiphon.dialects"]
#:     quill = "quill_antiphon:create_dialect"
#:     quill_formats = "quill_antiphon:FORMATS"
DialectPlugin = DialectFactory | Formats
