"""The contract of a backend: a conversation in, deltas out. It knows no events and no HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeGuard, runtime_checkable

from msgspec import Struct

from antiphon.conversation import Conversation, Options, PromptTokens, ResumePoint
from antiphon.dialects.base import ReasoningRetention
from antiphon.stream.deltas import Delta
from antiphon.wire.response import InputTokensDetails, OutputTokensDetails, Usage

__all__ = [
    "ASSUMED_CONTEXT_SIZE",
    "Backend",
    "Detokenizes",
    "Equipped",
    "Refusable",
    "Reply",
    "Status",
    "TextCompletion",
    "add_usage",
    "flatten",
    "may_be_refused",
    "recall_of",
    "spells",
    "tools_of",
    "upstream_usage",
]

#: More tokens than anybody has.
_MOST = 2**40
#: Context size in tokens that is assumed for a backend that does not know its own.
ASSUMED_CONTEXT_SIZE = 32_768


class Reply(Protocol):
    """One model call, checked and ready: nothing has been generated yet."""

    @property
    def input_tokens(self) -> int:
        """How many tokens the model will see; without ``kept`` it may be an estimate, where only an
        upstream counts them."""

    @property
    def kept(self) -> PromptTokens | None:
        """The prompt as token ids, if there is one: with what is sampled, the next turn's start."""

    @property
    def dropped(self) -> tuple[str, ...]:
        """Ids of the items that truncation left out."""

    def resumed(self, begun: ResumePoint) -> Reply:
        """This reply, to be continued where it was interrupted: its deltas are those behind the
        tokens still to be sampled, its usage that of the whole. Raises ``CannotContinue``."""

    def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        """Generate. The deltas that become known at one time come together, the ids sampled behind
        them first; they are recorded, kept and sent as one. Closing the iterator stops the model
        within one token. Raises ``RunError``."""


class Status(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a model can answer at once. ``value``: ``loaded``, ``loading``, ``unloaded`` or,
    after a load that failed, ``failed``. While it loads: what is fetched or read, how many bytes of
    it are there, and how many there are, where that is known."""

    value: str
    stage: str = ""
    bytes: int = 0
    total_bytes: int | None = None


class Backend(Protocol):
    """Answers conversations. One a served model."""

    @property
    def context_size(self) -> int | None:
        """Tokens of prompt and answer together; None if only an upstream knows."""

    @property
    def recommended(self) -> Mapping[str, Any]:
        """Sampling values that the model's makers recommend, by the names of ``Options``."""

    @property
    def sees_images(self) -> bool:
        """It can be shown images. Otherwise they are left as the client sent them, and what takes
        their place is up to the backend: a note, or a refusal."""

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        """Check and render. Raises ``InvalidRequest`` with the path of the field for whatever
        cannot be honoured, ``context_length_exceeded`` among it."""

    async def close(self) -> None: ...


@runtime_checkable
class TextCompletion(Protocol):
    """A backend that can also go on with a text that is no conversation."""

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> Reply:
        """Check ``prompt``, a text or its token ids; the reply is one message. Of the options none
        that is about conversations has a meaning. Raises ``InvalidRequest``, with the param
        ``input`` for the prompt."""


@runtime_checkable
class Detokenizes(Protocol):
    """A backend that knows the tokens of its model."""

    def spell(self, ids: Sequence[int]) -> str:
        """What the ids stand for, control tokens by their literals."""


class Refusable(Protocol):
    """A reply that whoever generates it may yet refuse: only when it is asked it is known."""

    @property
    def may_be_refused(self) -> bool:
        """Its first deltas may be a refusal, which a client had better hear as such."""


class Equipped(Protocol):
    """A backend whose upstream runs tools itself: their items come with the reply."""

    @property
    def tool_types(self) -> frozenset[str]:
        """Of tools, as requests name them: ``web_search`` …"""


def spells(backend: Backend) -> TypeGuard[Detokenizes]:
    """Whether the backend knows its tokens. One around another (``spells``) may have to look."""
    return isinstance(backend, Detokenizes) and getattr(backend, "spells", True)


def tools_of(backend: Backend) -> frozenset[str]:
    """The types of the tools that the upstream of a backend runs, if there is one that does."""
    # asked for every request: to check a protocol would cost as much as to read a short one
    types: frozenset[str] = getattr(backend, "tool_types", frozenset())
    return types


def recall_of(backend: Backend, options: Options) -> ReasoningRetention | None:
    """Which thinking the model is shown again, where a backend knows it (``recalls``)."""
    recalls: Callable[[Options], ReasoningRetention | None] | None = getattr(
        backend, "reasoning_retention", None
    )
    return None if recalls is None else recalls(options)


def may_be_refused(reply: Reply) -> bool:
    """Whether the reply may fail before it begins because of what is asked (``Refusable``)."""
    refusable: bool = getattr(reply, "may_be_refused", False)
    return refusable


async def flatten(deltas: AsyncGenerator[tuple[Delta, ...], None]) -> AsyncGenerator[Delta, None]:
    """The deltas of a reply one by one, for who does not care what came together. Whoever closes
    this closes the reply."""
    async with aclosing(deltas):
        async for known in deltas:
            for delta in known:
                yield delta


def upstream_usage(given: int, said: int, *, cached: int = 0, thought: int = 0) -> Usage:
    """What an upstream says it used, brought into bounds: it may say anything."""
    given, said, cached, thought = (max(0, min(n, _MOST)) for n in (given, said, cached, thought))
    return Usage(
        input_tokens=given,
        input_tokens_details=InputTokensDetails(cached_tokens=min(cached, given)),
        output_tokens=said,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=min(thought, said)),
        total_tokens=given + said,
    )


def add_usage(one: Usage, other: Usage) -> Usage:
    """What two calls of a model used together: what was asked again is input again."""
    first, second = one.input_tokens_details, other.input_tokens_details
    return Usage(
        input_tokens=one.input_tokens + other.input_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=first.cached_tokens + second.cached_tokens,
            cache_write_tokens=first.cache_write_tokens + second.cache_write_tokens,
        ),
        output_tokens=one.output_tokens + other.output_tokens,
        output_tokens_details=OutputTokensDetails(
            reasoning_tokens=one.output_tokens_details.reasoning_tokens
            + other.output_tokens_details.reasoning_tokens
        ),
        total_tokens=one.total_tokens + other.total_tokens,
    )
