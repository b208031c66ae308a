"""Base classes of remote backends. A remote backend encodes a conversation as a request body, and
parses the upstream's answer into deltas.

Only the upstream can count the tokens of a prompt exactly. If a prompt may exceed the context, and
the upstream has an endpoint that counts tokens, Antiphon gets the number from this endpoint.
Otherwise, Antiphon estimates the number until the upstream answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, ClassVar, Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.backends.base import Backend, BackendCapabilities, DeltaSink, Reply, upstream_usage
from antiphon.backends.truncation import shorten_conversation
from antiphon.backends.validation.answer_format import answer_format, trusted_answer_format
from antiphon.backends.validation.grammar_matcher import GrammarCache
from antiphon.backends.validation.retry import ValidationPlan, validate_reply
from antiphon.backends.validation.tool_calls import tool_call_rules
from antiphon.dialects.tools import PromptTools
from antiphon.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    BackendError,
    CannotContinue,
    InvalidRequest,
    context_length_exceeded,
    unsupported_parameter,
)
from antiphon.inference.conversation import Conversation, Options, ResumePoint
from antiphon.inference.encoded_items import EncodedItems
from antiphon.inference.sampling import SessionSignal
from antiphon.stream.deltas import Delta, Finish, FinishReason, Open, Text, finish_of
from antiphon.support.push import Guard, send
from antiphon.upstream.client import Upstream
from antiphon.upstream.sse import MAX_RESPONSE_BYTES
from antiphon.wire.items import is_model_call
from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import Usage

from .context_limit import count_tokens, may_exceed
from .flavours import ServerFlavour
from .image_conversion import convert_images
from .offered_call_filter import OfferedCallFilter
from .turns import ends_for_good, turn_ends

_encode = msgspec.json.Encoder().encode

#: Assumed number of bytes per token, for estimates.
_TOKEN_BYTES = 4
#: Estimated bytes of a stored item or log-probability, besides its text.
_DELTA_BYTES = 200
#: If only one call is allowed, further calls are discarded. At most this number of estimated bytes
#: is discarded: most answers end before that, and the end of an answer contains its usage.
_MAX_DISCARDED_BYTES = 4096
#: Option → the field of the request that sets it, if the names differ.
_OPTION_FIELDS: Mapping[str, str] = {
    "adapter": "model",
    "include_stop_text": "include_stop_str_in_output",
    "logprob_token_ids": "return_tokens_as_token_ids",
    "thinking_budget": "thinking_token_budget",
}


class StreamParser(Protocol):
    """Parses the response stream of one request. Sans-IO."""

    def feed(self, payloads: Sequence[bytes]) -> tuple[Delta, ...]:
        """Parse the ``data`` of several server-sent events. Return their deltas. Raises
        ``BackendError`` if an event reports an error or is unreadable."""

    def pending_deltas(self) -> tuple[Delta, ...]:
        """Return the deltas that the last ``feed`` call parsed before it raised an error."""

    def finish(self, *, done: bool) -> tuple[Delta, ...]:
        """Return the remaining deltas when the stream has ended. ``done``: whether the stream ended
        with ``[DONE]``. Raises ``BackendError`` if the answer is incomplete."""


class RemoteBackend(Backend, ABC):
    """``Backend`` for one model on an upstream. ``close`` also closes the ``Upstream``.

    ``model``: name of the model on the upstream. ``flavour``: the features of this kind of server.
    ``body``: additional fields of every request, which override the fields that Antiphon sets.
    ``template``: arguments for the upstream's chat template.
    """

    #: Path of the endpoint, without the version prefix (``v1``).
    path: ClassVar[str]
    #: Name of the field that contains the conversation.
    items_field: ClassVar[str]
    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    #: Only the upstream knows whether its model accepts images. It rejects images itself.
    capabilities = BackendCapabilities(images=True, audio_video=True, hears=True)

    def __init__(
        self,
        upstream: Upstream,
        model: str,
        flavour: ServerFlavour,
        *,
        context_size: int | None = None,
        body: Mapping[str, object] | None = None,
        template: Mapping[str, object] | None = None,
    ) -> None:
        self.upstream = upstream
        self.flavour = flavour
        self.capabilities = replace(self.capabilities, hears=flavour.hears)
        self.url = f"{upstream.versioned_url}/{self.path}"
        self.context_size = context_size
        self._model = model
        self._body = body or {}
        self._template = template or {}
        self._grammars = GrammarCache()

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        """Check the request and encode it for the upstream.

        Raises ``InvalidRequest``, with the path of the field, if the upstream does not support a
        feature of the request, or if the conversation is certainly too long.
        """
        conversation = await convert_images(conversation, self.flavour.unreadable_formats)
        prompt_tools = self.visible_tools(conversation, options)
        request = await self._fitting_request(conversation, options, prompt_tools)
        reply = UpstreamReply(self, request, options, prompt_tools)
        grammars, enforces_format = self._grammars, self.flavour.enforces_format
        if options.guide is not None:
            enforces_format = self.flavour.accepts_guide(options.guide)
        plan = ValidationPlan(
            answer_format=await (trusted_answer_format if enforces_format else answer_format)(
                options, grammars
            ),
            tool_calls=await tool_call_rules(
                prompt_tools,
                grammars,
                is_enforced=self.flavour.enforces_calls,
                accept_strays=options.accept_stray_calls,
            ),
            enforces_format=enforces_format,
            enforces_calls=self.flavour.enforces_calls,
            allows_text_with_calls=bool(prompt_tools.tools or options.tools),
            has_stop_strings=bool(options.stop),
        )

        async def retry(corrected: Conversation) -> Reply:
            request = await self._fitting_request(corrected, options, prompt_tools)
            return UpstreamReply(self, request, options, prompt_tools)

        return validate_reply(reply, plan, conversation, retry)

    async def _fitting_request(
        self, conversation: Conversation, options: Options, prompt_tools: PromptTools
    ) -> _Request:
        """Encode the conversation. If the prompt exceeds the context and truncation is allowed,
        shorten the conversation and encode it again. Raises ``InvalidRequest`` if the conversation
        is certainly too long."""
        request, size = self._encode(conversation, options, prompt_tools), self.context_size
        endpoint = self.flavour.token_endpoint
        if size is None or not may_exceed(request.max_tokens, size, endpoint):
            return request
        encode = partial(self._encode, options=options, prompt_tools=prompt_tools)
        max_tokens = size - min(options.max_output_tokens or size, size // 4)
        while True:
            count, exact = await count_tokens(self.upstream, request.body, endpoint)
            if exact:
                request = replace(request, input_tokens=count)
            if count < size:
                return request
            max_bytes = len(request.body) * max_tokens // count
            shortened = options.truncate and shorten_conversation(
                request.conversation, encode, _has_at_most(max_bytes)
            )
            if not shortened:
                raise context_length_exceeded()
            shorter, dropped_ids = shortened
            request = replace(shorter, dropped_ids=request.dropped_ids + dropped_ids)

    def _encode(
        self, conversation: Conversation, options: Options, prompt_tools: PromptTools
    ) -> _Request:
        body = self.encode_request(conversation, options, prompt_tools)
        past_tokens, new_bytes = conversation.past_tokens or 0, len(body)
        if past_tokens:
            new_bytes = len(_encode(conversation.items[conversation.past_count :]))
        return _Request(
            conversation=conversation,
            body=body,
            input_tokens=past_tokens + max(1, new_bytes // _TOKEN_BYTES),
            max_tokens=past_tokens + new_bytes,
        )

    @abstractmethod
    def visible_tools(self, conversation: Conversation, options: Options) -> PromptTools:
        """Return the tools that are shown to the model. Raises ``InvalidRequest`` if they are not
        those that the tool choice requires."""

    @property
    def separates_caches(self) -> bool:
        """Whether the upstream uses a salt in the request to separate the prefix caches of
        tenants."""
        return "cache_salt" in self.flavour.option_fields

    def encode_request(
        self, conversation: Conversation, options: Options, prompt_tools: PromptTools
    ) -> bytes:
        """Return the body of the HTTP request, as JSON."""
        head = options.derive(self._encode_head, (prompt_tools,), options.shared)
        conversation = _with_instructions(conversation, head.instructions)
        own = {
            name: value
            for name, value in self.own_fields(conversation, options).items()
            if name and value is not None and name not in self._body
        }
        return _encode_body(
            head.json,
            own,
            self.items_field,
            None
            if self.items_field in self._body
            else self._elements(conversation, options, prompt_tools),
        )

    def _elements(
        self, conversation: Conversation, options: Options, prompt_tools: PromptTools
    ) -> Iterator[JsonObject | Raw]:
        """Return the elements of ``items_field``. The turns of a chain are encoded once."""
        start = 0
        if (kept := conversation.encoded) is not None:
            start, turns = self._kept_turns(kept, conversation, options, prompt_tools)
            yield from map(Raw, filter(None, turns))
        last = _part(conversation, start, len(conversation.items)) if start else conversation
        yield from self.encode_items(last, options, prompt_tools)

    def _kept_turns(
        self,
        kept: EncodedItems,
        conversation: Conversation,
        options: Options,
        prompt_tools: PromptTools,
    ) -> tuple[int, list[bytes]]:
        """Return the turns that precede the request, encoded, and the number of their items. Only
        turns after the last one that ``kept`` has as part of a beginning are looked at."""
        items, facts = conversation.items, (self, prompt_tools.names)
        first, count, beginning = kept.beginning(items, facts)
        ends = [count + end for end in turn_ends(items[count:], conversation.past_count - count)]
        if beginning:
            ends = [first, count, *ends]
        start, settled, turns = 0, 0, list[bytes]()
        for end in ends:
            if start and end == count:
                turns.append(beginning)
            else:
                instructions = None if start else conversation.instructions
                encode = partial(self._encode_turn, conversation, start, end, options, prompt_tools)
                turns.append(kept.get(items[start:end], (*facts, instructions), encode))
            if end > count and ends_for_good(items, end):
                settled = len(turns)
            start = end
        if settled > 1:
            whole = b",".join(filter(None, turns[1:settled]))
            kept.keep_beginning(ends[0], items[: ends[settled - 1]], facts, whole, count)
        return start, turns

    def _encode_turn(
        self,
        conversation: Conversation,
        start: int,
        end: int,
        options: Options,
        prompt_tools: PromptTools,
    ) -> bytes:
        turn = _part(conversation, start, end)
        return b",".join(map(_encode_element, self.encode_items(turn, options, prompt_tools)))

    def _encode_head(self, prompt_tools: PromptTools, options: Options) -> _Head:
        fields = {**self.shared_fields(options, prompt_tools), **self._body}
        return _Head(_encode(fields)[:-1], tuple(self.added_instructions(options)))

    @abstractmethod
    def shared_fields(self, options: Options, prompt_tools: PromptTools) -> JsonObject:
        """Return the fields of the body that requests with equal ``Options.shared`` have in common.
        Raises ``InvalidRequest`` for options that the upstream does not support."""

    @abstractmethod
    def added_instructions(self, options: Options) -> Sequence[str]:
        """Return texts that tell the model how to answer. They replace request fields that the
        upstream does not have or may ignore."""

    @abstractmethod
    def own_fields(self, conversation: Conversation, options: Options) -> JsonObject:
        """Return the fields of the body that belong to one request, without its items. A field
        whose value is None, and one whose name is empty, is not sent."""

    @abstractmethod
    def encode_items(
        self, conversation: Conversation, options: Options, prompt_tools: PromptTools
    ) -> Iterable[JsonObject | Raw]:
        """Return the items of the conversation, or of some of its turns, as elements of the field
        ``items_field``."""

    @abstractmethod
    def stream_parser(
        self,
        conversation: Conversation,
        options: Options,
        prompt_tools: PromptTools,
        input_tokens: int,
    ) -> StreamParser:
        """Return a parser for the answer to one request. ``input_tokens``: the estimated number of
        tokens of the prompt."""

    async def on_session(self, signal: SessionSignal) -> None:
        """Tell the upstream that a conversation has ended, or that its beginning has."""
        if signal.key is not None and signal.event != "waiting":
            await self.upstream.end_session(signal.key)

    async def close(self) -> None:
        await self.upstream.close()


class _Head(Struct, frozen=True):
    """What requests with equal options have in common. ``json``: the beginning of their bodies.
    ``instructions``: texts to append to the instructions of the conversation."""

    json: bytes
    instructions: tuple[str, ...]


class _Request(Struct, frozen=True, kw_only=True):
    """A request to the upstream, ready to send.

    ``conversation``: the conversation that ``body`` contains, perhaps shortened. ``input_tokens``:
    number of tokens of the prompt, which may be an estimate. ``max_tokens``: an upper bound of this
    number. ``dropped_ids``: ids of the items that truncation left out.
    """

    conversation: Conversation
    body: bytes
    input_tokens: int
    max_tokens: int
    dropped_ids: tuple[str, ...] = ()


class UpstreamReply(Reply):
    """``Reply`` that an upstream generates. The request is sent when the caller awaits ``pump``.

    ``prompt_tools``: the tools that are shown to the model.
    """

    input_tokens = 0
    dropped_ids: tuple[str, ...] = ()
    may_fail_early = True

    def __init__(
        self,
        backend: RemoteBackend,
        request: _Request,
        options: Options,
        prompt_tools: PromptTools,
    ) -> None:
        self._backend = backend
        self._conversation = request.conversation
        self._options = options
        self._shown = prompt_tools
        self._body = request.body
        self.input_tokens = request.input_tokens
        self.dropped_ids = request.dropped_ids
        self._answer: _Answer | None = None

    def resume(self, point: ResumePoint) -> UpstreamReply:
        if point.sampled_ids:
            raise CannotContinue("a remote server sampled its tokens")
        return self

    def stop(self) -> None:
        if self._answer is not None:
            self._answer.cut = "length"

    async def pump(self, sink: DeltaSink) -> None:
        """Send the request and push the deltas of the answer.

        If the upstream rejects the conversation as too long, a shorter conversation is sent. This
        is done only if truncation is allowed and no delta was pushed yet. If another error occurs
        before the first delta, the request is sent again, as often as the retry policy allows.
        Raises ``BackendError`` after the last retry, or if the answer is too long.
        """
        while True:
            self._answer = answer = _Answer(self, Guard(sink))
            try:
                await self._pump_with_retries(answer)
                return
            except BackendError as error:
                is_too_long = error.code == CONTEXT_LENGTH_EXCEEDED and not answer.has_output
                if not (is_too_long and self._options.truncate and self._shorten()):
                    raise
            finally:
                self._answer = None  # it refers to the reply

    async def _pump_with_retries(self, answer: _Answer) -> None:
        backend = self._backend
        retry_policy = backend.upstream.retry_policy(self._options.session)
        while True:
            parser = answer.start_parser()
            try:
                done = await backend.upstream.pump(
                    backend.url, self._body, answer.feed, self._options.trace, retry_policy
                )
                await send(answer.push, parser.finish(done=done))
                return
            except _Cut:
                return
            except BackendError as error:
                if error is answer.sink.error:
                    raise
                if deltas := parser.pending_deltas():
                    await send(answer.push, deltas)
                if answer.has_output:
                    retry_policy.report(error)
                    raise
                await retry_policy.wait_before_retry(error)

    def parser(self) -> StreamParser:
        """Return a parser for an answer to the request."""
        return self._backend.stream_parser(
            self._conversation, self._options, self._shown, self.input_tokens
        )

    def filters(self, answer: _Answer) -> list[_Filter]:
        """Return the filters that the deltas of the answer pass."""
        filters: list[_Filter] = []
        if not (self._options.cache_scope is None or self._backend.separates_caches):
            filters.append(_without_shared_cache)
        filters.append(OfferedCallFilter(self._options, self._shown).filter)
        if not self._options.allows_parallel_calls:
            filters.append(_FirstCall(answer).filter)
        return filters

    def _shorten(self) -> bool:
        """Shorten the conversation until the request body has at most three quarters of its present
        size. Return False if this is impossible."""
        max_bytes = len(self._body) * 3 // 4
        shortened = shorten_conversation(
            self._conversation,
            lambda shorter: (
                shorter,
                self._backend.encode_request(shorter, self._options, self._shown),
            ),
            lambda candidate: len(candidate[1]) <= max_bytes,
        )
        if shortened is None:
            return False
        (self._conversation, self._body), dropped_ids = shortened
        self.dropped_ids += dropped_ids
        self.input_tokens = _estimated_tokens(self._body)
        return True


#: Returns the deltas that pass a filter.
_Filter = Callable[[tuple[Delta, ...]], tuple[Delta, ...]]


class _Cut(Exception):
    """Raised in the pump of an upstream if the rest of the answer is not needed."""


class _Answer:
    """The answer to a request, on its way from the parser to the sink. All attempts of the request
    share it. ``sink``: takes the deltas that have passed the filters."""

    __slots__ = (
        "_filters",
        "_output_bytes",
        "_parser",
        "_reply",
        "cut",
        "has_output",
        "sink",
    )

    def __init__(self, reply: UpstreamReply, sink: Guard[tuple[Delta, ...]]) -> None:
        self._reply = reply
        self.sink = sink
        self._filters = reply.filters(self)
        #: Estimated bytes of the deltas that were parsed.
        self._output_bytes = 0
        self.has_output = False
        #: The finish reason, if the rest of the answer is not needed; otherwise None.
        self.cut: FinishReason | None = None

    def start_parser(self) -> StreamParser:
        """Return a new parser, for a new attempt."""
        self._parser = self._reply.parser()
        return self._parser

    def feed(self, payloads: list[bytes]) -> Awaitable[None] | None:
        """Parse payloads, and push their deltas. Raises ``BackendError`` for an unreadable or too
        long answer, and ``_Cut`` at the end of an answer that is cut off."""
        if self._output_bytes > MAX_RESPONSE_BYTES:
            raise BackendError("The upstream's answer is too long.", permanent=True)
        deltas = self._parser.feed(payloads)
        return self.push(deltas) if deltas else None

    def push(self, deltas: tuple[Delta, ...]) -> Awaitable[None] | None:
        """Filter deltas and give them to the sink."""
        self.has_output = True
        for delta in deltas:
            self._output_bytes += _estimated_bytes(delta)
        for each in self._filters:
            deltas = each(deltas)
        rest = self.sink(deltas)
        if rest is None and self.cut is None:
            return None
        return self._settle(rest, is_over=finish_of(deltas) is not None)

    async def _settle(self, rest: Awaitable[None] | None, *, is_over: bool) -> None:
        """Wait for the sink. If the rest of the answer is not needed then, end it before the
        upstream does. The usage in its ``Finish`` is an estimate. ``is_over``: whether the answer
        has ended already."""
        if rest is not None:
            await rest
        if self.cut is None:
            return
        if not is_over:
            usage = upstream_usage(self._reply.input_tokens, self._output_bytes // _TOKEN_BYTES)
            await send(self.sink, (Finish(self.cut, usage),))
        raise _Cut


class _FirstCall:
    """A filter for the deltas of a reply. It discards all calls of the client's tools except the
    first.

    The filter is needed because some servers ignore ``parallel_tool_calls``. The stream is still
    read after the first call, because the last chunk contains the usage. If too much is discarded,
    ``answer`` is cut off.
    """

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._has_seen_call = self._is_skipping = False
        #: Estimated bytes of the deltas that were discarded.
        self._discarded_bytes = 0

    def filter(self, deltas: tuple[Delta, ...]) -> tuple[Delta, ...]:
        """Return the deltas that the filter does not discard."""
        return tuple(filter(self._passes, deltas))

    def _passes(self, delta: Delta) -> bool:
        if isinstance(delta, Open):
            is_call = is_model_call(delta.item)
            self._is_skipping = is_call and self._has_seen_call
            self._has_seen_call = self._has_seen_call or is_call
        if self._is_skipping and not isinstance(delta, Finish):
            self._discarded_bytes += _estimated_bytes(delta)
            if self._discarded_bytes > _MAX_DISCARDED_BYTES:
                self._answer.cut = self._answer.cut or "stop"
            return False
        return True


def _without_shared_cache(deltas: tuple[Delta, ...]) -> tuple[Delta, ...]:
    """Replace the number of cached tokens in the usage by 0, because the upstream may have counted
    cached tokens of another tenant. The number would reveal what other tenants send."""
    finish = finish_of(deltas)
    if finish is None:
        return deltas
    return (*deltas[:-1], replace(finish, usage=_without_cached_tokens(finish.usage)))


def check_server_options(
    options: Options, nonstandard: Iterable[str], supported: Container[str]
) -> None:
    """Raise ``InvalidRequest`` if the request sets an option that the upstream does not support.

    ``nonstandard``: options that are not part of OpenAI's API, so only some upstreams support them.
    ``supported``: the options in ``nonstandard`` that this upstream supports.
    """
    for option in nonstandard:
        if option not in supported and options.requests(option):
            raise unsupported_error(_OPTION_FIELDS.get(option, option))


def _with_instructions(conversation: Conversation, texts: Sequence[str]) -> Conversation:
    """Return the conversation with ``texts`` appended to its instructions."""
    if not texts:
        return conversation
    parts = (conversation.instructions, *texts)
    return replace(conversation, instructions="\n\n".join(part for part in parts if part))


def _part(conversation: Conversation, start: int, end: int) -> Conversation:
    """Return the part of a conversation with the items from ``start`` to ``end``."""
    return replace(
        conversation,
        items=conversation.items[start:end],
        past_count=conversation.past_count - start,
        instructions=None if start else conversation.instructions,
    )


def _encode_body(
    head: bytes, own: JsonObject, field: str, elements: Iterable[JsonObject | Raw] | None
) -> bytes:
    """Return a JSON object. ``head``: its first fields as JSON, without the closing brace.
    ``own``: further fields. ``elements``: the content of its list ``field``; None if ``head`` has
    this field. Elements that are already encoded are copied once: they are nearly the whole body of
    a long conversation."""
    pieces: list[bytes | Raw] = [head]
    if own:
        pieces += (b",", _encode(own)[1:-1])
    if elements is None:
        return b"".join((*pieces, b"}"))
    pieces.append(b',"%b":' % field.encode())
    separator = b"["
    for element in elements:
        pieces += (separator, _encode_element(element))
        separator = b","
    pieces.append(b"]}" if separator == b"," else b"[]}")
    return b"".join(pieces)


def _encode_element(element: JsonObject | Raw) -> bytes | Raw:
    """Return a message as JSON. ``element``: the message. It may be encoded already, or its field
    ``content`` may be."""
    if isinstance(element, Raw):
        return element
    if not isinstance(content := element.get("content"), Raw):
        return _encode(element)
    others = {name: value for name, value in element.items() if name != "content"}
    return b"".join((_encode(others)[:-1], b',"content":', content, b"}"))


def unsupported_error(field: str) -> InvalidRequest:
    """Return the error for a request field that the upstream server does not support."""
    return unsupported_parameter(field, where="with this model")


def _has_at_most(max_bytes: int) -> Callable[[_Request], bool]:
    return lambda request: len(request.body) <= max_bytes


def _without_cached_tokens(usage: Usage) -> Usage:
    return replace(usage, input_tokens_details=replace(usage.input_tokens_details, cached_tokens=0))


def _estimated_bytes(delta: Delta) -> int:
    """Estimate the memory of a delta in bytes, for the limits on the size of an answer."""
    if type(delta) is Text:
        return len(delta.text) + _DELTA_BYTES * len(delta.logprobs)
    return _DELTA_BYTES


def _estimated_tokens(body: bytes) -> int:
    """Estimate the number of tokens of a request body."""
    return max(1, len(body) // _TOKEN_BYTES)
