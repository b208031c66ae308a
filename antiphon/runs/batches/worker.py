"""The worker for batches. It claims batches from the store, executes their requests, and writes the
result files.

A batch belongs to one server at a time, which renews its lease. If the server dies, another one
continues with the lines that have no stored result. So each line has exactly one result. A line
that generates text is a run in the store (``line_runs.py``), so it is also executed only once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
)
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import sha256
from itertools import count
from tempfile import SpooledTemporaryFile
from typing import Any, Literal, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from antiphon.errors import AccessRevoked, RequestError, StoreError
from antiphon.limits.clients import Client
from antiphon.limits.key_ring import KeyRing
from antiphon.resources.batches import Batches, has_ended
from antiphon.resources.file_storage.files import Files
from antiphon.store.batches import BatchRecord
from antiphon.support.disk import disk_obstacle
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.tasks import BackgroundTasks, repeat, running
from antiphon.wire.resources.batches import Batch, BatchFault, BatchFaults

from .idle_gate import IdleGate
from .line_runs import LineRuns
from .lines import (
    BatchLine,
    LinePlace,
    LineReply,
    failed_result,
    find_lines,
    read_line,
    result_of,
)
from .results import BatchResults, LeaseLost

_log = structlog.get_logger(__name__)

#: Maximum number of lines: OpenAI's limit.
_MAX_LINES = 50_000
#: Maximum number of faults that are reported.
_MAX_FAULTS = 100
#: The event loop gets a turn after this many lines.
_LINES_PER_TURN = 64
#: Statuses of a server that is too busy, and how often the request is repeated then.
_BUSY, _MAX_TRIES = (429, 503), 5
#: How many of the lines without a result can have begun, at most.
_MAX_BEGUN = 256
#: How many batches of a tenant this process executes at a time.
_BATCHES_PER_TENANT = 2
#: The input of a batch is a temporary file while its lines are read. If it has at most this many
#: bytes, it is in memory. Bytes that are read from it at a time.
_MAX_SPOOLED, _PIECE_BYTES = 2**16, 2**16
#: Bytes of the lines that are in memory, of all batches and of one tenant. A longer line is alone.
_MAX_BYTES, _MAX_TENANT_BYTES = 2**27, 2**25
#: Seconds between two attempts to claim batches.
_PAUSE_S = 0.05
#: Seconds before a batch that could not be executed is claimed again.
_FAILURE_S = 1.0
#: Seconds by which the clocks of two servers may differ. A lease that lasts longer was made before
#: the clock was set back.
_MAX_CLOCK_ERROR_S = 60.0
#: Seconds between two looks at the state of a batch, which clients change.
_CHECK_S = 0.25
_T = TypeVar("_T")
_State = Literal["in_progress", "cancelling", "expired"]
_NOT_RUN = {
    "cancelling": ("batch_cancelled", "This request was not executed: the batch was cancelled."),
    "expired": ("batch_expired", "This request was not executed before the batch expired."),
}


class LineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that the HTTP layer executes for a batch. ``key``: the name of the line. An answer
    that is stored under this name is not generated again."""

    tenant: str
    client: Client
    url: str
    body: bytes
    key: str


#: Executes a request and returns its answer. Never raises ``RequestError``.
ExecuteLine = Callable[[LineRequest], Awaitable[LineReply]]


class BatchWorker:
    """Executes the batches of a store between ``start`` and ``drain``. One instance per process.

    - ``owner``: the name of this process.
    - ``lease_s``: seconds without a renewal after which another process takes over a batch.
    - ``lines_at_a_time``: how many lines this process executes at a time.
    - ``clock`` returns Unix seconds.
    - ``on_ended`` is called when a batch has ended; again if its server dies at this moment.
    """

    def __init__(
        self,
        batches: Batches,
        files: Files,
        keys: KeyRing,
        runs: LineRuns,
        *,
        owner: str,
        lease_s: float,
        lines_at_a_time: int,
        clock: Callable[[], float],
        on_ended: Callable[[str, Batch], Awaitable[None]],
    ) -> None:
        self._on_ended = on_ended
        self._store = batches.store
        self._files = files
        self._keys = keys
        self._runs = runs
        self._owner = owner
        self._lease_s = lease_s
        self._lines_at_a_time = lines_at_a_time
        self._gate = IdleGate(lambda: self._others(), lines_at_a_time)
        #: Input and result files that this process transfers between the store and the disk. In
        #: the store, a content is one value, so one of them is in memory at a time.
        self._transfers = FairLimiter(1)
        self._line_bytes = FairLimiter(_MAX_BYTES, max_per_tenant=_MAX_TENANT_BYTES)
        self._clock = clock
        self._tasks = BackgroundTasks("batches")
        self._wake_up = asyncio.Event()
        self._execute: ExecuteLine | None = None
        self._others: Callable[[], int] = lambda: 0

    def serve(self, execute: ExecuteLine, others: Callable[[], int]) -> None:
        """Set the function that executes requests. Before this call, no batch is executed.
        ``others``: returns how many other requests run or wait."""
        self._execute, self._others = execute, others
        self.wake_up()

    def start(self) -> None:
        """Begin to execute batches."""
        self._tasks.start(repeat(self._claim, _PAUSE_S, failure="cannot claim batches"))

    @property
    def interruptions(self) -> int:
        """How often other requests have interrupted a request of a batch."""
        return self._gate.interruptions

    def wake_up(self) -> None:
        """Look for new batches at once."""
        self._wake_up.set()

    async def drain(self, grace_s: float = 0.0) -> None:
        """Stop. Other servers can continue the batches of this one at once. Tool calls get
        ``grace_s`` seconds to end."""
        self._runs.stop_after(grace_s)
        await self._tasks.close()

    async def _claim(self) -> None:
        """Claim the batches that nobody executes, and wait until the next look."""
        self._wake_up.clear()
        active = {} if self._execute is None else await self._store.active()
        running = Counter(tenant for batch_id, tenant in active.items() if batch_id in self._tasks)
        for batch_id, tenant in active.items():
            if batch_id in self._tasks:
                continue
            if running[tenant] >= _BATCHES_PER_TENANT and not await self._is_over(tenant, batch_id):
                continue
            if await self._take(tenant, batch_id):
                running[tenant] += 1
                task = self._tasks.start(self._run(tenant, batch_id), key=batch_id)
                task.add_done_callback(lambda _: self.wake_up())
        try:
            async with asyncio.timeout(self._lease_s):
                await self._wake_up.wait()
        except TimeoutError:
            return

    async def _is_over(self, tenant: str, batch_id: str) -> bool:
        """Return whether no further line of a batch will be executed."""
        record = await self._store.load(tenant, batch_id)
        if record is None or record.batch.status == "cancelling":
            return True
        return self._clock() >= record.batch.expires_at

    async def _take(self, tenant: str, batch_id: str) -> bool:
        """Claim a batch. Returns False if another server has it. Forgets a batch that was
        deleted."""

        def change(record: BatchRecord) -> bool:
            now = self._clock()
            is_leased = now < record.lease_until < now + self._lease_s + _MAX_CLOCK_ERROR_S
            if is_leased and record.owner not in ("", self._owner):
                return False
            record.owner, record.lease_until = self._owner, now + self._lease_s
            return True

        taken = await self._store.update(tenant, batch_id, change)
        if taken is None:
            await self._store.end(tenant, batch_id)
        return bool(taken)

    async def _change(
        self, tenant: str, batch_id: str, change: Callable[[Batch], Batch] = lambda batch: batch
    ) -> BatchRecord:
        """Change a batch of this server, and renew its lease. Raises ``LeaseLost``."""

        def apply(record: BatchRecord) -> BatchRecord | None:
            if record.owner != self._owner:
                return None
            record.lease_until = self._clock() + self._lease_s
            record.batch = change(record.batch)
            return record

        changed = await self._store.update(tenant, batch_id, apply)
        if changed is None:
            raise LeaseLost
        return changed

    async def _run(self, tenant: str, batch_id: str) -> None:
        """Execute a batch to its end, or until another server has taken it over."""
        try:
            async with running(self._renew(tenant, batch_id)) as renewal:
                async with running(self._work(tenant, batch_id)) as work:
                    await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
                    if work.done():
                        work.result()
        except LeaseLost:
            return
        except StoreError as error:
            _log.warning("a batch is interrupted", batch=batch_id, error=error.message)
            await asyncio.sleep(_FAILURE_S)
        except asyncio.CancelledError:
            await self._release(tenant, batch_id)
            raise
        except Exception:
            _log.exception("a batch is interrupted", batch=batch_id)
            await asyncio.sleep(_FAILURE_S)

    async def _renew(self, tenant: str, batch_id: str) -> None:
        """Renew the lease until it is lost."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await self._change(tenant, batch_id)
            except LeaseLost:
                return
            except StoreError as error:
                _log.warning("cannot renew a batch", batch=batch_id, error=error.message)

    async def _release(self, tenant: str, batch_id: str) -> None:
        def change(record: BatchRecord) -> None:
            if record.owner == self._owner:
                record.owner, record.lease_until = "", 0

        await self._store.update(tenant, batch_id, change)

    # --- the steps of a batch --------------------------------------------------------------------

    async def _work(self, tenant: str, batch_id: str) -> None:
        record = await self._change(tenant, batch_id)
        try:
            if record.batch.status == "validating":
                record = await self._validate(tenant, record)
            if not has_ended(record.batch):
                await self._execute_lines(tenant, record)
        except RequestError as error:
            fault = BatchFault(code=error.code or "invalid_request", message=error.message)
            await self._fail(tenant, batch_id, (fault,))
        await self._on_ended(tenant, (await self._change(tenant, batch_id)).batch)
        await self._store.end(tenant, batch_id)

    async def _fail(
        self, tenant: str, batch_id: str, faults: tuple[BatchFault, ...]
    ) -> BatchRecord:
        return await self._change(
            tenant,
            batch_id,
            lambda batch: replace(
                batch,
                status="failed",
                failed_at=int(self._clock()),
                errors=BatchFaults(data=faults),
            ),
        )

    async def _validate(self, tenant: str, record: BatchRecord) -> BatchRecord:
        """Check all lines before the first one is executed."""
        batch = record.batch
        faults: list[BatchFault] = []
        seen: set[bytes] = set()
        total, model = 0, None
        async with self._input(tenant, batch) as input:
            async for place in input.lines():
                total += 1
                async with self._line(tenant, input, place) as line:
                    if isinstance(line, BatchFault):
                        faults.append(replace(line, line=place.number))
                    elif fault := _fault_of(line, batch.endpoint, seen):
                        faults.append(replace(fault, line=place.number))
                    elif model is None:
                        model = _model_of(line)
                if total > _MAX_LINES:
                    message = f"A batch has at most {_MAX_LINES} lines."
                    faults.append(BatchFault(code="too_many_tasks", message=message))
                if len(faults) >= _MAX_FAULTS or total > _MAX_LINES:
                    break
        if not total:
            faults.append(BatchFault(code="empty_file", message="The input file has no lines."))
        if faults:
            return await self._fail(tenant, batch.id, tuple(faults))
        return await self._change(
            tenant,
            batch.id,
            lambda batch: replace(
                batch,
                status="in_progress" if batch.status == "validating" else batch.status,
                in_progress_at=int(self._clock()),
                model=model,
                request_counts=replace(batch.request_counts, total=total),
            ),
        )

    @asynccontextmanager
    async def _input(self, tenant: str, batch: Batch) -> AsyncIterator[_Spool]:
        """Yield the input of a batch, as a temporary file."""
        with _Spool() as spool:
            async with self._transfers.slot(tenant):
                file = await self._files.open(tenant, batch.input_file_id)
                await spool.fill(file.read())
            yield spool

    @asynccontextmanager
    async def _line(
        self, tenant: str, input: _Spool, place: LinePlace
    ) -> AsyncIterator[BatchLine | BatchFault]:
        """Yield a line as soon as there is memory for it. It counts until the block ends."""
        await self._line_bytes.acquire(tenant, amount=place.size)
        try:
            yield read_line(await input.read(place))
        finally:
            self._line_bytes.release(tenant, place.size)

    async def _execute_lines(self, tenant: str, record: BatchRecord) -> None:
        """Execute the lines that have no result yet, and write the result files."""
        batch = record.batch
        client = msgspec.json.decode(record.client, type=Client)
        results = BatchResults(
            self._store,
            self._files,
            tenant,
            batch.id,
            record.output_expires_after,
            renew=lambda change: self._change(tenant, batch.id, change),
            on_stored=lambda number: self._runs.forget(tenant, _line_id(batch.id, number)),
            transfers=self._transfers,
        )
        await results.load()
        async with self._input(tenant, batch) as input:
            ended = await self._execute_open_lines(tenant, batch, client, input, results)
            if ended != "in_progress":
                await self._end_open_lines(tenant, batch.id, input, results, ended)
        await results.finish(_END_STATES[ended], int(self._clock()))

    async def _execute_open_lines(
        self, tenant: str, batch: Batch, client: Client, input: _Spool, results: BatchResults
    ) -> _State:
        """Execute the lines that have no result, as long as the batch executes lines. Return its
        state."""
        tasks = _LineTasks()
        state = _StateCheck(lambda: self._state(tenant, batch, client))
        try:
            async for place in _open_lines(input, results):
                while len(tasks) >= self._lines_at_a_time and await state.is_running():
                    await tasks.next_end()
                if not await state.is_running():
                    break
                tasks.start(self._execute_line(tenant, batch.id, client, input, place, results))
            while len(tasks) and await state.is_running():
                await tasks.next_end()
            tasks.check()
        finally:
            await tasks.close()
        return state.value

    async def _end_open_lines(
        self, tenant: str, batch_id: str, input: _Spool, results: BatchResults, ended: _State
    ) -> None:
        """Give the lines that have no result the result that they were not executed."""
        code, message = _NOT_RUN[ended]
        may_run = _MAX_BEGUN  # lines begin in order, so only the first ones can have begun
        async for place in _open_lines(input, results):
            id = _line_id(batch_id, place.number)
            if may_run:
                may_run -= 1
                await self._runs.abandon(tenant, id)
            async with self._line(tenant, input, place) as line:
                assert isinstance(line, BatchLine)
                result = failed_result(id, line.custom_id, code, message)
            await results.add(place.number, result, succeeded=False)

    async def _state(self, tenant: str, batch: Batch, client: Client) -> _State:
        """Return whether a batch still executes lines."""
        if self._clock() >= batch.expires_at:
            return "expired"
        record = await self._store.load(tenant, batch.id)
        if record is None or record.owner != self._owner:
            raise LeaseLost
        if record.batch.status == "cancelling":
            return "cancelling"
        try:
            await self._keys.check(tenant, client.key)
        except AccessRevoked:
            return "cancelling"
        return "in_progress"

    async def _execute_line(
        self,
        tenant: str,
        batch_id: str,
        client: Client,
        input: _Spool,
        place: LinePlace,
        results: BatchResults,
    ) -> None:
        async with self._line(tenant, input, place) as line:
            assert isinstance(line, BatchLine)
            line_id = _line_id(batch_id, place.number)
            reply = await self._reply(tenant, client, line_id, line)
            result = result_of(line_id, line.custom_id, reply)
            await results.add(place.number, result, succeeded=reply.succeeded, answer=reply.body)

    async def _reply(self, tenant: str, client: Client, line_id: str, line: BatchLine) -> LineReply:
        """Execute a line, again if the server is too busy. Return the answer."""
        execute = self._execute
        assert execute is not None
        for attempt in count(1):
            request = LineRequest(
                tenant=tenant,
                client=await self._keys.limited_now(tenant, client),
                url=line.url,
                body=bytes(line.body),
                key=line_id if attempt == 1 else f"{line_id} {attempt}",
            )
            reply = await self._gate.run(tenant, partial(_as_coroutine, execute, request))
            if reply.status not in _BUSY or attempt == _MAX_TRIES or not reply.may_retry:
                break
            await self._runs.forget(tenant, request.key)
            await asyncio.sleep(2.0**attempt)
        return reply


class _Spool:
    """A temporary file for the input of a batch. Its methods raise ``StoreError`` if the system
    cannot write or read it."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile[bytes](max_size=_MAX_SPOOLED)
        #: Held from a seek to the read. A cancelled read goes on in its thread.
        self._moving = threading.Lock()

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(OSError):  # raised again if the last write failed
            self._file.close()

    async def fill(self, chunks: AsyncIterable[bytes]) -> None:
        """Write the whole content."""
        async for chunk in chunks:
            await self._call(self._file.write, chunk)

    async def read(self, place: LinePlace) -> bytes:
        """Return a line."""
        return await self._call(self._read, place.start, place.size)

    async def lines(self) -> AsyncGenerator[LinePlace, None]:
        """Yield the places of the lines that are not blank."""
        async for place in find_lines(self._pieces()):
            if place.number % _LINES_PER_TURN == 0:
                await asyncio.sleep(0)
            yield place

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        position = 0
        while piece := await self._call(self._read, position, _PIECE_BYTES):
            yield piece
            position += len(piece)

    def _read(self, position: int, size: int) -> bytes:
        with self._moving:
            self._file.seek(position)
            return self._file.read(size)

    async def _call(self, method: Callable[..., _T], *arguments: object) -> _T:
        try:
            return await asyncio.to_thread(method, *arguments)
        except OSError as error:
            reason = disk_obstacle(error) or f"{error.strerror}"
            raise StoreError(f"The folder for temporary files: {reason}.") from None


class _LineTasks:
    """The tasks of the lines that run. The first failure of a task is raised by ``next_end``."""

    def __init__(self) -> None:
        self._tasks = BackgroundTasks("batch")
        self._failure: BaseException | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start to execute a line."""
        self._tasks.start(work, is_awaited=True).add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and self._failure is None:
            self._failure = task.exception()

    async def next_end(self) -> None:
        """Wait until a line has ended, but not longer than ``_CHECK_S``."""
        if tasks := self._tasks.tasks:
            await asyncio.wait(tasks, timeout=_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
        self.check()

    def check(self) -> None:
        """Raise the failure of a line that has ended."""
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Cancel the lines that run."""
        await self._tasks.close()


class _StateCheck:
    """Reads the state of a batch at intervals. ``value``: the state that was read last."""

    def __init__(self, read: Callable[[], Awaitable[_State]]) -> None:
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._next_at = 0.0
        self.value: _State = "in_progress"

    async def is_running(self) -> bool:
        """Return whether the batch still executes lines."""
        if self.value == "in_progress" and self._loop.time() >= self._next_at:
            self._next_at = self._loop.time() + _CHECK_S
            self.value = await self._read()
        return self.value == "in_progress"


async def _open_lines(input: _Spool, results: BatchResults) -> AsyncGenerator[LinePlace, None]:
    """Yield the places of the lines that have no result."""
    async for place in input.lines():
        if not results.has(place.number):
            yield place


_END_STATES = {"in_progress": "completed", "cancelling": "cancelled", "expired": "expired"}


async def _as_coroutine(execute: ExecuteLine, request: LineRequest) -> LineReply:
    return await execute(request)


def _line_id(batch_id: str, number: int) -> str:
    return f"batch_req_{batch_id.rpartition('_')[2]}_{number}"


def _fault_of(line: BatchLine, endpoint: str, seen: set[bytes]) -> BatchFault | None:
    """Return what is wrong with a line, or None. ``seen``: the digests of the ids of the earlier
    lines. An id may be long, and is not kept."""
    if fault := line.fault(endpoint):
        code, message, param = fault
        return BatchFault(code=code, message=message, param=param)
    digest = sha256(line.custom_id.encode("utf-8", "surrogatepass")).digest()
    if digest in seen:
        message = f"The custom_id '{line.custom_id[:100]}' is used more than once."
        return BatchFault(code="duplicate_custom_id", message=message, param="custom_id")
    seen.add(digest)
    return None


def _model_of(line: BatchLine) -> str | None:
    body: Any = msgspec.json.decode(line.body)
    model = body.get("model")
    return model if isinstance(model, str) else None
