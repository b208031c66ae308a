"""``POST /v1/responses/compact``: a run whose whole result is a shorter conversation.

It knows no models and not what compaction is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from antiphon.wire.decode import compact

from . import bodies
from .errors import failure_reply
from .exchange import exchange_of
from .gate import Gate
from .guard import Limits
from .metrics import Metrics, Observed
from .presence import Presence
from .replies import json_reply
from .responses import account

if TYPE_CHECKING:
    from antiphon.runs.service import Service

__all__ = ["Compact"]


class Compact:
    """The endpoint, as an ASGI app: its client may leave while the model writes."""

    def __init__(
        self,
        service: Service,
        gate: Gate,
        metrics: Metrics,
        clock: Callable[[], float],
        limits: Limits,
    ) -> None:
        self._service = service
        self._gate = gate
        self._metrics = metrics
        self._clock = clock
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        body = await bodies.read(scope, receive, self._limits.max_body_bytes)
        request = compact(body, self._limits.body)
        observed = Observed(exchange.started, self._clock)
        async with Presence(receive), self._gate.slot(exchange.tenant):
            asked = await self._service.compact(exchange.tenant, request)
            run = asked.run
            exchange.model, exchange.response_id = run.response.model, run.id
            try:
                response = await run.drive()
            finally:
                account(exchange, observed, run, self._metrics, self._clock())
        failed = response.status == "failed"
        reply = failure_reply(response) if failed else json_reply(asked.result)
        await reply(scope, receive, send)
