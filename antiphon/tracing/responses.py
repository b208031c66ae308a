"""Span attributes for a response."""

from __future__ import annotations

import msgspec

from antiphon.wire.request import CreateResponse
from antiphon.wire.response import ConversationRef, Response

from .base import Span, Tracer


def record_response(span: Span, response: Response) -> None:
    """Set the span attributes of a response that has ended. If the response failed, mark the span
    as failed."""
    if not span.is_recording:
        return
    usage = response.usage
    conversation = response.conversation
    conversation_id = conversation.id if isinstance(conversation, ConversationRef) else None
    span.set(
        {
            "gen_ai.request.model": response.model,
            "gen_ai.response.id": response.id,
            "gen_ai.conversation.id": conversation_id,
            "antiphon.response.status": response.status,
            "antiphon.previous_response.id": response.previous_response_id,
        }
    )
    if usage is not None:
        span.set(
            {
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
            }
        )
    if response.error is not None:
        span.fail(response.error.exact_code)


def record_content(tracer: Tracer, span: Span, request: CreateResponse, response: Response) -> None:
    """Record the request's input and the response's output in the span. Does nothing unless the
    operator has enabled the recording of content."""
    if not tracer.with_content:
        return
    span.set(
        {
            "gen_ai.system_instructions": request.instructions,
            "gen_ai.input.messages": msgspec.json.encode(request.input).decode(),
            "gen_ai.output.messages": msgspec.json.encode(response.output).decode(),
        }
    )
