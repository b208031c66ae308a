"""``POST /v1/responses/compact``: a run whose whole result is a shorter conversation.

It knows no models and not what compaction is.
"""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from antiphon.http.endpoint_context import EndpointContext
from antiphon.http.json_response import json_reply
from antiphon.http.metrics import Observed
from antiphon.http.middleware.errors import failure_reply
from antiphon.http.middleware.request_context import exchange_of
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.wire.parsing.requests import compact

from .responses import record_outcome

__all__ = ["Compact"]


class Compact:
    """The endpoint, as an ASGI app: its client may leave while the model writes."""

    def __init__(self, rim: EndpointContext) -> None:
        self._rim = rim

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        body = await bodies.read(scope, receive, self._rim.limits.max_body_bytes)
        request = compact(body, self._rim.limits.body)
        observed = Observed(exchange.started, self._rim.clock)
        async with CancelOnDisconnect(scope, receive), self._rim.gate.slot(exchange.tenant):
            asked = await self._rim.service.compact(exchange.tenant, request)
            run = asked.run
            exchange.model, exchange.response_id = run.response.model, run.id
            try:
                response = await run.drive()
            finally:
                record_outcome(exchange, observed, run, self._rim.metrics, self._rim.clock())
        failed = response.status == "failed"
        reply = failure_reply(response) if failed else json_reply(asked.result)
        await reply(scope, receive, send)
