"""The contract of a dialect. A dialect renders prompts in the syntax of one model family, and
parses that family's output.

Rendering and parsing are one contract because they are inverses of each other. A dialect does no
I/O (sans-IO) and uses no random numbers. Some models write no id for a tool call. The parser then
leaves ``call_id`` empty, and the run (one attempt to produce a response) assigns an id.

Another package can add a dialect, or formats for reasoning and tool calls, through an entry point
of the group ``antiphon.dialects``; see ``DialectPlugin``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import Chunk, Constraint, ModelCard, Prompt, Tokenizer
from antiphon.stream.deltas import Delta, FinishReason

from .formats.registry import SHIPPED, Formats
from .images import Unreadable

__all__ = [
    "DescribedDialect",
    "Dialect",
    "DialectFactory",
    "DialectOptions",
    "DialectPlugin",
    "MessageDialect",
    "Parser",
    "ReasoningRetention",
    "Rendered",
]

#: Which reasoning later prompts contain: only the reasoning of the current tool loop, or the
#: reasoning of all turns.
ReasoningRetention = Literal["current_turn", "all_turns"]


class Parser(Protocol):
    """Parses one reply of the model into items. The items do not depend on how the output is split
    into chunks, and no text is lost.

    A parser never raises an exception, whatever the model writes. It takes time linear in the
    output's length.
    """

    def feed(self, chunk: Chunk) -> Iterable[Delta]:
        """Return the deltas that ``chunk`` completes. If the chunk contains token ids, the first
        delta is ``SampledTokens``."""

    def finish(self, reason: FinishReason) -> Iterable[Delta]:
        """End the output and return the last deltas. They contain the text that the parser held
        back.

        If ``reason`` is ``stop``, the deltas also close the open item. For any other reason, the
        parser leaves an unfinished item open, and the run closes it as incomplete. The deltas do
        not include ``Finish``, because the backend emits it with the token usage.
        """

    def set_unconstrained(self) -> None:
        """Tell the parser that the engine does not enforce the requested format. Must be called
        before the first chunk.

        Without this call, the parser assumes that the engine enforces a requested format, and reads
        a control token inside a JSON string as text. After this call, such a token keeps its
        meaning as a control token.
        """

    @property
    def reasoning_tokens(self) -> int:
        """The number of sampled tokens so far that were reasoning."""

    @property
    def is_thinking(self) -> bool:
        """Whether the model is writing reasoning at this point of the output."""

    @property
    def done(self) -> bool:
        """Whether the parser ignores all further output, for example after the first tool call if
        the request forbids parallel calls. If so, the backend stops the engine."""


class Rendered(Struct, frozen=True, kw_only=True):
    """A rendered prompt, the parser of the reply to it, and how the engine must sample the reply.

    - ``constraint``: the format that the engine enforces; None if any text is valid.
    - ``stop``, ``stop_ids``: strings and token ids that end the model's turn, in addition to the
      tokenizer's end ids.
    - ``reasoning_end_ids``: the tokens that end the reasoning and start the answer. The backend
      appends them to the sampled tokens when the reasoning budget is used up. The tuple is empty if
      this model's reasoning cannot be ended early.
    - ``answer_constraint``: ``constraint`` without its part for the reasoning. It applies to the
      answer that follows ``reasoning_end_ids``.
    """

    prompt: Prompt
    parser: Parser
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    reasoning_end_ids: tuple[int, ...] = ()
    answer_constraint: Constraint | None = None


class Dialect(Protocol):
    """Renders prompts for one model and parses its replies. A ``DialectFactory`` builds the dialect
    from the model's files."""

    @property
    def supports_images(self) -> bool:
        """Whether the model's prompts can contain images."""

    def render(self, conversation: Conversation, options: Options) -> Rendered:
        """Render the prompt of the next turn.

        ``conversation.stored_tokens`` are the token ids of an earlier prompt and its reply. If the
        text of the new prompt starts with the text of these ids, the new prompt starts with the
        same ids. The engine then finds these ids in its prefix cache. Raises ``InvalidRequest`` for
        requests that this model cannot serve.
        """

    def reasoning_retention(self, options: Options) -> ReasoningRetention:
        """Return which reasoning later prompts will contain: only the reasoning of the current
        turn, or the reasoning of all turns."""


@runtime_checkable
class DescribedDialect(Protocol):
    """A dialect that tells clients about its model. A dialect need not implement this."""

    @property
    def thinks(self) -> bool:
        """Whether the model can reason before it answers."""

    @property
    def template_source(self) -> str:
        """The source of the chat template. Returns "" if the dialect has none."""


@runtime_checkable
class MessageDialect(Protocol):
    """A dialect whose prompts and replies consist of messages. A dialect need not implement
    this."""

    def split_messages(self, ids: Sequence[int]) -> list[tuple[Sequence[int], Mapping[str, Any]]]:
        """Divide the ids of a prompt or of a reply into messages. Returns the ids of each message,
        and its fields, such as its role."""


class DialectOptions(Struct, frozen=True, kw_only=True):
    """The settings of one model that concern its dialect.

    - ``template``: the source of a chat template that replaces the model's own.
    - ``reasoning_format``, ``tool_format``: names of formats in ``formats``. ``""`` means no
      format. None means that the dialect detects the format.
    - ``formats``: the known formats.
    - ``template_kwargs``: variables for the chat template.
    - ``images``: how the engine gets the position of an image. With ``apart``, it gets the position
      as a number, and the prompt contains no text for the image. With ``template``, the prompt
      contains the text that the template writes for an image, and this text marks the position.
      None means that the model has no vision.
    - ``unreadable``: what happens to an image if the model has no vision. With ``describe``, a note
      replaces the image. With ``refuse``, the request is rejected.
    """

    template: str | None = None
    reasoning_format: str | None = None
    tool_format: str | None = None
    formats: Formats = SHIPPED
    template_kwargs: Mapping[str, Any] = {}
    images: Literal["apart", "template"] | None = None
    unreadable: Unreadable = "refuse"


class DialectFactory(Protocol):
    """Builds the dialect of one model. Antiphon calls it in a worker thread, so it may read
    files."""

    def __call__(
        self, card: ModelCard, tokenizer: Tokenizer, options: DialectOptions, /
    ) -> Dialect:
        """Return the dialect of the model ``card``. Raises ``SetupError`` if the dialect cannot
        serve the model or its settings are invalid."""


#: The object that an entry point of the group ``antiphon.dialects`` names. It is one of:
#:
#: - A ``DialectFactory``. A model whose setting ``dialect`` is the entry point's name uses it.
#: - ``Formats``: further formats for models with a chat template. The settings
#:   ``reasoning_format`` and ``tool_format`` select a format by its name. By default, a model uses
#:   a format whose ``mark`` matches the model's template. A format replaces the built-in format of
#:   the same name. ``format_check.round_trip_failure`` tests a tool format.
#:
#: In a package's ``pyproject.toml``::
#:
#:     [project.entry-points."antiphon.dialects"]
#:     quill = "quill_antiphon:create_dialect"
#:     quill_formats = "quill_antiphon:FORMATS"
DialectPlugin = DialectFactory | Formats
