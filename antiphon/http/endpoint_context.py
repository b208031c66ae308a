"""The dependencies of the endpoints that start runs. They are created once for each app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from antiphon.http.middleware.request_context import RequestContext
from antiphon.limits.admission import Admission
from antiphon.limits.clients import Client
from antiphon.limits.rate_limits import RateLimits
from antiphon.limits.requests import RequestLimits
from antiphon.runs.usage_counter import UsageKind
from antiphon.support.log import Log
from antiphon.tracing.base import Span, TraceHeaders, Tracer
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import Usage

from .metrics import Metrics

if TYPE_CHECKING:
    from antiphon.runs.batches.line_runs import LineRun
    from antiphon.runs.execution.run import Run
    from antiphon.runs.service import Service


class EndpointDependencies(Struct, frozen=True, kw_only=True):
    """The dependencies of the endpoints that start runs. ``clock`` returns monotonic seconds.
    ``log`` is a structlog logger."""

    service: Service
    admission: Admission
    rates: RateLimits
    metrics: Metrics
    clock: Callable[[], float]
    limits: RequestLimits
    log: Log
    tracer: Tracer

    def slot(
        self, context: RequestContext, span: Span | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Return a context manager that waits for a free slot and holds the slot until the block
        ends. There is one slot for each request that the server may process at a time.

        ``span``: the parent of the tracing span that measures the wait for the slot; by default the
        span of ``context``.

        The context manager raises ``Overloaded`` if the queue is full, or if the client has reached
        its maximum number of concurrent requests. A request of a batch takes no slot, because it
        only runs while no other request does.
        """
        if context.line:
            return nullcontext()
        slot: AbstractAsyncContextManager[None] = self.admission.slot(context.tenant)
        if self.tracer.enabled:
            slot = self._traced_slot(slot, span or context.span)
        return self._limited_slot(slot, context.client) if context.client.scopes else slot

    def record_reading(self, context: RequestContext, model: str, tokens: int) -> None:
        """Record the usage of an embeddings request or a rerank request. Such requests read text
        but generate none. ``tokens``: the number of tokens read. The usage log counts both kinds of
        requests as embeddings requests."""
        self.record_task(context, "embedding", model, tokens)
        context.usage = Usage(input_tokens=tokens, total_tokens=tokens)

    def record_task(
        self, context: RequestContext, kind: UsageKind, model: str, quantity: int
    ) -> None:
        """Record the usage of a request to a model for one task. ``quantity``: how many tokens,
        seconds or characters the model read; see ``UsageKind``."""
        latency_s = self.clock() - context.started
        used = Usage(input_tokens=quantity, total_tokens=quantity)
        self.service.usage_counter.add_task(
            context.tenant, context.key, model, used, kind=kind, latency_s=latency_s
        )
        context.model = model

    @asynccontextmanager
    async def _limited_slot(
        self, slot: AbstractAsyncContextManager[None], client: Client
    ) -> AsyncIterator[None]:
        async with self.rates.running(client.scopes), slot:
            yield

    @asynccontextmanager
    async def _traced_slot(
        self, slot: AbstractAsyncContextManager[None], span: Span
    ) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            with self.tracer.start("queue", span.headers):
                await stack.enter_async_context(slot)
            yield


async def create_run(
    service: Service,
    context: RequestContext,
    request: CreateResponse,
    *,
    choice: int = 0,
    id_prefix: str = "resp",
) -> Run | LineRun:
    """Prepare the run of one choice of a request. The run of a request of a batch survives the
    process."""
    if context.line and not service.stores_nothing and not request.only_prewarms:
        return await service.create_line(
            context.tenant,
            request,
            context.line,
            client=context.client,
            choice=choice,
            id_prefix=id_prefix,
        )
    return await service.create(
        context.tenant,
        request,
        client=context.client,
        counts_prompt=choice == 0,
        id_prefix=id_prefix,
    )


def with_trace(request: CreateResponse, headers: TraceHeaders) -> CreateResponse:
    """Return a copy of the request with these trace headers. The spans of the request's run are
    then children of the span that the headers name. If ``headers`` is empty, return the request
    itself."""
    return replace(request, trace=dict(headers)) if headers else request
