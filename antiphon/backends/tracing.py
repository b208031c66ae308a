"""Wrappers that record spans of an OpenTelemetry trace: one for each model call, and one for all
model calls and tool calls of a response with server-side tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

from antiphon.backends.wrapper import BackendWrapper, ReplyWrapper
from antiphon.inference.conversation import Conversation, Options, ResumePoint
from antiphon.stream.deltas import Delta, Finish, NewPrompt, finish_of
from antiphon.tracing.base import PROVIDER_NAME, AttributeValue, Span, Tracer

from .base import Backend, DeltaSink, Reply

#: Attribute of a span → option of the model call. Options that are not set have no attribute.
_REQUEST: Mapping[str, str] = {
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.max_tokens": "max_output_tokens",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.stop_sequences": "stop",
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.top_p": "top_p",
}


class TracedBackend(BackendWrapper):
    """``Backend`` that traces the replies of ``inner``. ``model``: the name of the model."""

    def __init__(self, inner: Backend, tracer: Tracer, model: str) -> None:
        super().__init__(inner)
        self._tracer = tracer
        self._model = model

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        reply = await super().prepare(conversation, options)
        return _TracedReply(reply, self._tracer, self._model, options)

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> Reply:
        reply = await super().complete(prompt, options)
        return _TracedReply(reply, self._tracer, self._model, options)


class _TracedReply(ReplyWrapper):
    """``Reply`` that is recorded as a span, from the start of the model call to its end.

    The attributes follow OpenTelemetry's semantic conventions for generative AI, span ``chat``.
    """

    def __init__(self, reply: Reply, tracer: Tracer, model: str, options: Options) -> None:
        super().__init__(reply)
        self._tracer = tracer
        self._model = model
        self._options = options

    def resume(self, point: ResumePoint) -> Reply:
        self._reply = self._reply.resume(point)
        return self

    async def pump(self, sink: DeltaSink) -> None:
        options = self._options
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDER_NAME,
            "gen_ai.request.model": self._model,
            "gen_ai.usage.input_tokens": self._reply.input_tokens,
            **_request_attributes(options),
        }
        name, has_tokens = f"chat {self._model}", False
        loop = asyncio.get_running_loop()
        started = loop.time()
        with self._tracer.start(name, options.trace, attributes, kind="client") as span:

            def record(batch: tuple[Delta, ...]) -> Awaitable[None] | None:
                nonlocal has_tokens
                if not has_tokens and not all(isinstance(delta, NewPrompt) for delta in batch):
                    has_tokens = True
                    span.event("first token")
                    span.set({"gen_ai.response.time_to_first_chunk": loop.time() - started})
                if (finish := finish_of(batch)) is not None:
                    _record_finish(span, finish)
                return sink(batch)

            await self._reply.pump(record)


class TracedAgentReply(ReplyWrapper):
    """``Reply`` with a tool loop, which is recorded as a span, ``invoke_agent``. The spans of its
    model calls and tool calls become children of this span. ``trace``: the trace headers of the
    parent span; the other spans read this dict when they start. ``conversation_id``: "" if the
    response belongs to no conversation."""

    def __init__(
        self,
        reply: Reply,
        tracer: Tracer,
        trace: dict[str, str],
        model: str,
        conversation_id: str,
    ) -> None:
        super().__init__(reply)
        self._tracer = tracer
        self._trace = trace
        self._attributes: dict[str, AttributeValue | None] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": PROVIDER_NAME,
            "gen_ai.request.model": model,
            "gen_ai.conversation.id": conversation_id or None,
        }

    def resume(self, point: ResumePoint) -> Reply:
        self._reply = self._reply.resume(point)
        return self

    async def pump(self, sink: DeltaSink) -> None:
        parent = dict(self._trace)
        with self._tracer.start("invoke_agent", parent, self._attributes) as span:

            def record(batch: tuple[Delta, ...]) -> Awaitable[None] | None:
                if (finish := finish_of(batch)) is not None:
                    _record_finish(span, finish)
                return sink(batch)

            self._trace |= span.headers
            try:
                await self._reply.pump(record)
            finally:
                self._trace.clear()
                self._trace |= parent


def _request_attributes(options: Options) -> dict[str, AttributeValue]:
    values = ((name, getattr(options, field)) for name, field in _REQUEST.items())
    return {name: value for name, value in values if value not in (None, ())}


def _record_finish(span: Span, finish: Finish) -> None:
    usage = finish.usage
    span.set(
        {
            "gen_ai.response.finish_reasons": (finish.reason,),
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.input_tokens_details.cached_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.output_tokens_details.reasoning_tokens,
        }
    )
