"""Counts the usage of requests, and writes it to the usage log in the store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import upstream_usage
from antiphon.errors import StoreError
from antiphon.store.usage import UsageKind, UsageLog, UsageQuery, UsageRecord, UsageTotals
from antiphon.support.tasks import BackgroundTasks
from antiphon.wire.response import InputTokensDetails, Response, Usage

__all__ = [
    "Prices",
    "UsageCounter",
    "UsageKind",
    "UsageMeter",
    "UsageQuery",
    "UsageRecord",
    "UsageTotals",
]

_log = structlog.get_logger(__name__)

#: Seconds that a record waits, so that other records can share its transaction.
_FLUSH_S = 1.0
#: Maximum number of records that are kept while the store does not answer. Later records are
#: dropped.
_MAX_RECORDS = 100_000
#: Maximum number of characters of a name. Databases cannot index much longer names.
_MAX_NAME = 256


#: Types of tools whose calls are counted one by one.
TOOL_KINDS: tuple[UsageKind, ...] = ("web_search", "file_search", "code_interpreter")


class Prices(Struct, frozen=True):
    """Prices in US dollars: of a model for a million tokens, or of a tool for a thousand calls."""

    input: float = 0
    cached: float = 0
    output: float = 0
    calls: float = 0

    def cost(self, totals: UsageTotals) -> float:
        """Return the costs of this usage in US dollars."""
        cached = min(totals.cached_tokens, totals.input_tokens)
        return (
            (totals.input_tokens - cached) * self.input
            + cached * self.cached
            + totals.output_tokens * self.output
        ) / 1_000_000 + totals.requests * self.calls / 1000


class UsageMeter(Struct, frozen=True, kw_only=True):
    """Makes the usage record of one request. ``tenant`` and ``api_key``: who is charged.
    ``model``: the name of the served model, not an alias. ``started``: when the request arrived, in
    Unix seconds. ``clock`` returns Unix seconds. ``counts_prompt``: False if the record of another
    choice with the same prompt contains the input tokens."""

    tenant: str
    api_key: str | None
    model: str
    started: float
    clock: Callable[[], float]
    counts_prompt: bool = True

    def record(self, response: Response, usage: Usage | None = None) -> UsageRecord:
        """Return the usage record of a response that ends now. If ``usage`` is given, it is
        recorded instead of the response's own usage."""
        used = usage or response.usage or Usage()
        return self.record_of(
            response.id,
            used,
            failed=response.status == "failed",
            cancelled=response.status == "cancelled",
            tool_calls=sum(item.tool_type is not None for item in response.output),
        )

    def record_of(
        self,
        id: str,
        used: Usage,
        *,
        kind: UsageKind = "completion",
        failed: bool = False,
        cancelled: bool = False,
        tool_calls: int = 0,
    ) -> UsageRecord:
        """Return the usage record of a request that ends now. ``id``: the id of the record.
        ``used``: the tokens that the request used."""
        now = self.clock()
        if not self.counts_prompt:
            used = replace(used, input_tokens=0, input_tokens_details=InputTokensDetails())
        return UsageRecord(
            id=id,
            start=int(now),
            kind=kind,
            tenant=_name(self.tenant),
            api_key=_name(self.api_key or ""),
            model=_name(self.model),
            failed_requests=int(failed),
            cancelled_requests=int(cancelled),
            input_tokens=used.input_tokens,
            cached_tokens=used.input_tokens_details.cached_tokens,
            output_tokens=used.output_tokens,
            reasoning_tokens=used.output_tokens_details.reasoning_tokens,
            tool_calls=tool_calls,
            latency_ms=max(0, round((now - self.started) * 1000)),
        )


class UsageCounter:
    """Writes usage records to the usage log, and reads sums of records. One instance per process.
    ``clock`` returns Unix seconds.

    It writes only the records of requests whose response is not stored. The record of a stored
    response is written together with the response. Many records share one transaction.
    """

    def __init__(self, log: UsageLog, clock: Callable[[], float]) -> None:
        self._log = log
        self.clock = clock
        self._records: list[UsageRecord] = []
        self._timer: asyncio.TimerHandle | None = None
        self._flushes = BackgroundTasks("usage")
        #: Held while records are being written.
        self._write_lock = asyncio.Lock()

    def add(self, record: UsageRecord) -> None:
        """Queue a record. It is written to the store about a second later."""
        self._records.append(record)
        self._schedule()

    def add_task(
        self,
        tenant: str,
        api_key: str | None,
        model: str,
        used: Usage,
        *,
        kind: UsageKind = "completion",
        latency_s: float,
        tool_calls: int = 0,
    ) -> None:
        """Queue the usage record of a request for one task, such as embeddings or an image. The
        record gets a random id, because the API gives such a request no id."""
        started = self.clock() - latency_s
        meter = UsageMeter(
            tenant=tenant, api_key=api_key, model=model, started=started, clock=self.clock
        )
        used = upstream_usage(used.input_tokens, used.output_tokens)  # reported by an upstream
        id = f"task_{secrets.token_hex(16)}"
        self.add(meter.record_of(id, used, kind=kind, tool_calls=tool_calls))

    def add_tools(self, meter: UsageMeter, response: Response) -> None:
        """Queue one usage record for each of OpenAI's billed tools that a response has called."""
        calls = [item.tool_type for item in response.output]
        for kind in TOOL_KINDS:
            if count := calls.count(kind):
                record = meter.record_of(f"{response.id}_{kind}", Usage(), kind=kind)
                self.add(replace(record, requests=count, tool_calls=count, latency_ms=0))

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self._start_flush)

    def _start_flush(self) -> None:
        self._timer = None
        self._flushes.start(self.flush())

    async def flush(self) -> None:
        """Write the queued records now, and wait for a write that is still running. If the store
        does not answer, the records are written later."""
        async with self._write_lock:
            records, self._records = self._records, []
            if records:
                await self._write(records)

    async def _write(self, records: list[UsageRecord]) -> None:
        try:
            await self._log.add(records)
        except StoreError as error:
            records += self._records
            self._records = records[:_MAX_RECORDS]
            if dropped := len(records) - len(self._records):
                _log.error("usage is not counted", requests=dropped, error=error.message)
            self._schedule()
        except asyncio.CancelledError:
            self._records = records + self._records
            raise

    async def totals(self, query: UsageQuery) -> tuple[UsageTotals, ...]:
        """Return the sums of usage records. Records that this process has not yet written to the
        store are included. Raises ``StoreError``."""
        await self.flush()
        return await self._log.totals(query)

    async def close(self) -> None:
        """Write the queued records."""
        await self._flushes.wait()
        await self.flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._records:
            _log.error("usage is not counted", requests=len(self._records))


def _name(text: str) -> str:
    """Return the form in which a name is stored: shortened, and without U+0000, because PostgreSQL
    cannot store it."""
    return text[:_MAX_NAME].replace("\0", "\ufffd")
