"""Anthropic's Messages API.

``start_message`` starts the run of a request to ``POST /v1/messages``. The endpoint itself is in
``completions.py``. ``MessageRoutes`` counts tokens.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request

from antiphon.compat.messages.bodies import CountTokensFields
from antiphon.compat.messages.request import MessagesRequest, parse_count_request
from antiphon.compat.messages.threads import message_id, thread_not_found
from antiphon.compat.messages.types import InputTokens, MessageError
from antiphon.errors import NotFound, RequestError
from antiphon.http.endpoint_context import EndpointDependencies, create_run
from antiphon.http.middleware.request_context import RequestContext, request_context
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies

if TYPE_CHECKING:
    from antiphon.runs.batches.line_runs import LineRun
    from antiphon.runs.execution.run import Run
    from antiphon.runs.service import Service


async def start_message(
    service: Service, context: RequestContext, request: MessagesRequest, index: int
) -> Run | LineRun:
    """Start the run of a request. A request that continues a thread gets the system prompt and the
    tools of the thread. Raises ``RequestError``."""
    if (previous_id := request.previous_response_id) is not None:
        try:
            previous = await service.retrieve(context.tenant, previous_id)
        except NotFound:
            raise thread_not_found(message_id(previous_id)) from None
        request = request.continuing(previous)
    request = await request.with_cited_files(
        partial(service.attachments.document_text, context.tenant)
    )
    return await create_run(service, context, request.request)


class MessageRoutes:
    """The route ``/v1/messages/count_tokens``."""

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps

    @operation(
        "POST /v1/messages/count_tokens",
        "countMessageTokens",
        body=CountTokensFields,
        errors=(404, 502),
        error_body=MessageError,
    )
    async def count_tokens(self, request: Request) -> InputTokens:
        """Count the input tokens of a request of the Messages API."""
        limits = self._deps.limits
        parsed = await bodies.parse(request, limits, parse_count_request)
        context = request_context(request.scope)
        read = partial(self._deps.service.attachments.document_text, context.tenant)
        try:
            parsed = await parsed.with_cited_files(read)
            count = await self._deps.service.count(
                context.tenant, parsed.as_count(), client=context.client
            )
        except RequestError as error:
            parsed.paths.translate(error)
            raise
        return InputTokens.of(count, parsed.form.context_management)
