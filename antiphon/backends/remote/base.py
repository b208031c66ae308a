"""What the backends of other people's APIs share: a conversation is written as a body, and what the
upstream streams back is read as deltas. It knows neither API.

Tokens are the upstream's own affair: counts before the answer are estimates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Container, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Protocol

from msgspec.structs import replace

from antiphon.backends.base import Backend, BackendCapabilities, Reply
from antiphon.backends.truncation import shorten_conversation
from antiphon.backends.validation.answer_format import answer_format, trusted_answer_format
from antiphon.backends.validation.grammar_matcher import GrammarCache
from antiphon.backends.validation.retry import ValidationPlan, validate_reply
from antiphon.backends.validation.tool_calls import tool_call_rules
from antiphon.conversation import Conversation, Options, ResumePoint
from antiphon.dialects.tools import PromptTools
from antiphon.errors import CONTEXT_LENGTH_EXCEEDED, BackendError, CannotContinue, InvalidRequest
from antiphon.stream.deltas import Delta, Finish, Open, Text
from antiphon.upstream.client import Upstream
from antiphon.upstream.sse import MOST
from antiphon.wire.items import CustomToolCall, FunctionCall

from .image_conversion import convert_images

__all__ = [
    "RemoteBackend",
    "StreamParser",
    "UpstreamReply",
    "check_server_options",
    "unsupported",
    "with_instructions",
]

#: Bytes of a body that are taken for one token.
_TOKEN_BYTES = 4
#: Bytes of what is kept besides a text, as an item or a log-probability, roughly.
_KEPT = 200
#: Option → the field of the request that it came from, where that is called otherwise.
_FIELDS: Mapping[str, str] = {
    "adapter": "model",
    "include_stop_text": "include_stop_str_in_output",
    "thinking_budget": "thinking_token_budget",
}


class StreamParser(Protocol):
    """Reads one answer. Sans-IO."""

    def feed(self, payloads: Sequence[bytes]) -> tuple[Delta, ...]:
        """What these mean. Raises ``BackendError``."""

    def taken(self) -> tuple[Delta, ...]:
        """What was read before an error."""

    def finish(self, *, done: bool) -> tuple[Delta, ...]:
        """The stream is over; ``done``: it said so. Raises ``BackendError`` for half an answer."""


class RemoteBackend(Backend, ABC):
    """``Backend`` over one model of an upstream, which it owns. ``body``: fields that every request
    gets besides, over ours. ``template``: arguments of the chat template."""

    #: Where conversations are answered, below the version.
    path: ClassVar[str]
    #: Formats of images that this kind of server cannot read.
    unread: Collection[str] = ()
    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    #: Only the upstream knows whether its model sees images; it rejects them itself.
    capabilities = BackendCapabilities(images=True)

    def __init__(
        self,
        upstream: Upstream,
        model: str,
        *,
        context_size: int | None = None,
        body: Mapping[str, Any] | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        self.upstream = upstream
        self.url = f"{upstream.versioned}/{self.path}"
        self.context_size = context_size
        self._model = model
        self._body = body or {}
        self._template = template or {}
        self._grammars = GrammarCache()

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        """Checked and written. Raises ``InvalidRequest`` with the path of the field for what this
        kind of server does not know."""
        conversation = await convert_images(conversation, self.unread)
        shown = self.visible_tools(conversation, options)
        reply = UpstreamReply(self, conversation, options, shown)
        holds, grammars = self.enforces_format(options), self._grammars
        plan = ValidationPlan(
            answer_format=await (trusted_answer_format if holds else answer_format)(
                options, grammars
            ),
            tool_calls=tool_call_rules(
                shown,
                grammars,
                is_enforced=self.enforces_calls,
                accept_strays=options.accept_stray_calls,
            ),
            enforces_format=holds,
            enforces_calls=self.enforces_calls,
            allows_text_with_calls=bool(shown.tools or options.tools),
            has_stop_strings=bool(options.stop),
        )

        async def retry(corrected: Conversation) -> Reply:
            return UpstreamReply(self, corrected, options, shown)

        return validate_reply(reply, plan, conversation, retry)

    @abstractmethod
    def visible_tools(self, conversation: Conversation, options: Options) -> PromptTools:
        """What the model is shown of tools. Raises ``InvalidRequest`` for options that this kind of
        server does not know."""

    @abstractmethod
    def enforces_format(self, options: Options) -> bool:
        """The form of the answer need not be checked here."""

    @property
    @abstractmethod
    def enforces_calls(self) -> bool:
        """Nor need the calls."""

    @abstractmethod
    def encode_request(
        self, conversation: Conversation, options: Options, shown: PromptTools
    ) -> bytes:
        """The body of the request."""

    @abstractmethod
    def stream_parser(
        self, conversation: Conversation, options: Options, shown: PromptTools, given: int
    ) -> StreamParser:
        """Reads the answer. ``given``: the tokens of the prompt, roughly."""

    async def close(self) -> None:
        await self.upstream.close()


class UpstreamReply(Reply):
    """``Reply`` of an upstream: nothing has been asked yet."""

    input_tokens = 0
    dropped_ids: tuple[str, ...] = ()
    may_fail_early = True

    def __init__(
        self,
        backend: RemoteBackend,
        conversation: Conversation,
        options: Options,
        shown: PromptTools,
    ) -> None:
        self._backend = backend
        self._conversation = conversation
        self._options = options
        self._shown = shown
        self._body = backend.encode_request(conversation, options, shown)
        self.input_tokens = _weight(self._body)

    def resume(self, point: ResumePoint) -> UpstreamReply:
        if point.sampled_ids:
            raise CannotContinue("its model is elsewhere")
        return self

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        """Ask, and pass on what is answered. Where the upstream finds the conversation too long and
        it may be cut, it is asked again with less of it, unless it has said something already."""
        may_be_cut = self._options.truncate
        while True:
            first = None if self._options.parallel_tool_calls else _FirstCall()
            try:
                async with aclosing(self._answered()) as answered:
                    async for known in answered:
                        may_be_cut = False
                        yield known if first is None else first.of(known)
                return
            except BackendError as error:
                if error.code != CONTEXT_LENGTH_EXCEEDED or not may_be_cut or not self._shorten():
                    raise

    async def _answered(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        """Asked again until something of an answer can be read; none may go on without end."""
        backend, begun, weight = self._backend, False, 0
        patience = backend.upstream.patience()
        while True:
            reading = backend.stream_parser(
                self._conversation, self._options, self._shown, self.input_tokens
            )
            trace, done = self._options.trace, False
            stream = backend.upstream.stream(backend.url, self._body, trace, patience)
            try:
                async with aclosing(stream) as batches:
                    async for payloads in batches:
                        done = not payloads
                        if known := reading.feed(payloads):
                            begun = True
                            weight += sum(map(_size, known))
                            yield known
                        if weight > MOST:
                            raise BackendError("The upstream's answer is too long.")
                yield reading.finish(done=done)
                return
            except BackendError as error:
                if before := reading.taken():
                    begun = True
                    yield before
                if begun:
                    raise
                await patience.again(error)

    def _shorten(self) -> bool:
        """A quarter less; False if that cannot be."""
        room = self.input_tokens * 3 // 4
        found = shorten_conversation(
            self._conversation,
            lambda shorter: (
                shorter,
                self._backend.encode_request(shorter, self._options, self._shown),
            ),
            lambda formed: _weight(formed[1]) <= room,
        )
        if found is None:
            return False
        (self._conversation, self._body), dropped = found
        self.dropped_ids += dropped
        self.input_tokens = _weight(self._body)
        return True


class _FirstCall:
    """Of the calls of the client's tools in a reply lets one through: not every server keeps to
    one. The rest is read all the same, for what was used is told at its end."""

    def __init__(self) -> None:
        self._has_come = self._is_over = False

    def of(self, deltas: Sequence[Delta]) -> tuple[Delta, ...]:
        return tuple(filter(self._passes, deltas))

    def _passes(self, delta: Delta) -> bool:
        if isinstance(delta, Open):
            is_call = isinstance(delta.item, FunctionCall | CustomToolCall)
            self._is_over = is_call and self._has_come
            self._has_come = self._has_come or is_call
        return not self._is_over or isinstance(delta, Finish)


def check_server_options(
    options: Options, particular: Iterable[str], known: Container[str]
) -> None:
    """Raise ``InvalidRequest`` for an option that the server does not know and that has an effect.
    ``particular``: options that only some servers of the API know, ``known``: those that this one
    knows."""
    for option in particular:
        if option not in known and options.requests(option):
            raise unsupported(_FIELDS.get(option, option))


def with_instructions(conversation: Conversation, words: Sequence[str]) -> Conversation:
    """With this behind the instructions."""
    if not words:
        return conversation
    said = (conversation.instructions, *words)
    return replace(conversation, instructions="\n\n".join(each for each in said if each))


def unsupported(field: str) -> InvalidRequest:
    """The refusal of a field that this kind of server does not know."""
    return InvalidRequest(
        f"Unsupported parameter: '{field}' is not supported with this model.",
        param=field,
        code="unsupported_parameter",
    )


def _size(delta: Delta) -> int:
    """Bytes that it takes to keep, roughly."""
    if isinstance(delta, Text):
        return len(delta.text) + _KEPT * len(delta.logprobs)
    return _KEPT


def _weight(body: bytes) -> int:
    """Tokens, roughly."""
    return max(1, len(body) // _TOKEN_BYTES)
