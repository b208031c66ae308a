"""The endpoint ``POST /v1/messages/count_tokens`` of Anthropic's Messages API.

The endpoint ``POST /v1/messages`` is in ``completions.py``.
"""

from __future__ import annotations

from starlette.requests import Request

from antiphon.compat.messages.bodies import CountTokensFields
from antiphon.compat.messages.request import parse_count_request
from antiphon.compat.messages.types import InputTokens, MessageError
from antiphon.errors import RequestError
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies

__all__ = ["MessageRoutes"]


class MessageRoutes:
    """The route ``/v1/messages/count_tokens``."""

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps

    @operation(
        "countMessageTokens",
        body=CountTokensFields,
        answer=InputTokens,
        errors=(404, 502),
        error_body=MessageError,
    )
    async def count_tokens(self, request: Request) -> Reply:
        """Count the input tokens of a request of the Messages API."""
        limits = self._deps.limits
        body = await bodies.read(request.scope, request.receive, limits.max_body_bytes)
        parsed = parse_count_request(body, limits.body)
        context = request_context(request.scope)
        try:
            count = await self._deps.service.count(
                context.tenant, parsed.as_count(), client=context.client
            )
        except RequestError as error:
            parsed.paths.translate(error)
            raise
        return json_reply(InputTokens(input_tokens=count))
