"""A backend that is loaded by its first request and unloaded when idle.

It works with any kind of backend. A request waits a short time for the load, so that it can still
be rejected with an HTTP error. After that its run starts, and the reader gets keepalives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import structlog
from msgspec.structs import replace

from antiphon.backends.base import (
    Backend,
    BackendCapabilities,
    Reply,
    Status,
    text_completion_unsupported,
)
from antiphon.backends.wrapper import BackendWrapper, ReplyWrapper
from antiphon.conversation import Conversation, Options, ResumePoint
from antiphon.errors import BackendError, Overloaded, RequestError, SetupError
from antiphon.stream.deltas import Delta

__all__ = ["OnDemandBackend", "OnDemandReply", "Progress"]

_log = structlog.get_logger(__name__)

#: Seconds that a request waits for the load before its run starts.
READY_TIMEOUT_S = 5.0
_RETRY_AFTER_S = 10
#: Seconds between two log lines about the progress of a load.
_LOG_INTERVAL_S = 10.0


#: Reports the progress of a load: the stage, the bytes done, and the total bytes if known. May be
#: called by any thread.
Progress = Callable[[str, int, int | None], None]
#: Prepares the request's reply with a backend.
Prepare = Callable[[Backend], Awaitable[Reply]]


class _Unloaded(Backend):
    """Stands in for the inner backend while none is loaded. It describes the model as far as known;
    it cannot prepare replies.
    """

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    #: Until the first load everything is assumed to work: a request is rejected only for what is
    #: known to fail, and images are checked in vain rather than not at all.
    capabilities = BackendCapabilities(images=True, completes_text=True, detokenizes=True)

    def __init__(self, context_size: int | None) -> None:
        self.context_size = context_size

    @classmethod
    def after(cls, backend: Backend) -> _Unloaded:
        """The stand-in for ``backend`` after unloading. It drops the backend's functions: they
        would keep the model in memory.
        """
        unloaded = cls(backend.context_size)
        unloaded.recommended_options = backend.recommended_options
        unloaded.capabilities = replace(backend.capabilities, reasoning_retention=None)
        return unloaded

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        raise BackendError("The model is not loaded.")


class OnDemandBackend(BackendWrapper):
    """``Backend`` that loads its inner backend at the first request, with ``make``, and unloads it
    when idle.

    ``idle_s``: seconds without a request after which it is unloaded; 0 for never. ``context_size``
    is reported until the first load. ``ready_timeout_s``: seconds that ``ready`` and ``prepare``
    wait for a load. Concurrent requests share one load; after a failed load the next request tries
    again. Use it from one event loop only.
    """

    #: The state of the load.
    status = Status(value="unloaded")

    def __init__(
        self,
        name: str,
        make: Callable[[Progress], Awaitable[Backend]],
        *,
        idle_s: float = 0,
        context_size: int | None = None,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        super().__init__(_Unloaded(context_size))
        self._name = name
        self._make = make
        self._idle_s = idle_s
        self._ready_timeout_s = ready_timeout_s
        #: When the progress of the load was last logged, by the clock of the event loop.
        self._logged_at = 0.0
        self._loading: asyncio.Task[Backend] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._users = 0
        self._closed = False

    async def load(self) -> None:
        """Load now. Raises ``SetupError``."""
        async with self._in_use():
            await self._load()

    async def ready(self) -> bool:
        """Start loading and wait for ``ready_timeout_s``. Returns whether the model is loaded.
        Raises ``Overloaded`` if it cannot be loaded."""
        async with self._in_use():
            try:
                async with asyncio.timeout(self._ready_timeout_s):
                    await self._load()
            except TimeoutError:
                return False
            except (SetupError, BackendError):
                raise Overloaded(
                    _unavailable_message(self._name),
                    retry_after_s=_RETRY_AFTER_S,
                    status=503,
                    code="server_error",
                ) from None
        return True

    async def prepare(self, conversation: Conversation, options: Options) -> OnDemandReply:
        """Check and render if the model is loaded in time. Otherwise a request that cannot be
        honoured fails in its run instead of being rejected before it."""
        async with self._in_use():
            return await self._reply(lambda backend: backend.prepare(conversation, options))

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> OnDemandReply:
        """Likewise for a text completion. Raises ``InvalidRequest`` if the model cannot do it."""

        async def prepare(backend: Backend) -> Reply:
            if not backend.capabilities.completes_text:
                raise text_completion_unsupported(self._name)
            return await backend.complete(prompt, options)

        async with self._in_use():
            return await self._reply(prepare)

    async def _reply(self, prepare: Prepare) -> OnDemandReply:
        if not await self.ready():
            return OnDemandReply(self, prepare)
        backend = await self._load()
        return OnDemandReply(self, prepare, backend, await prepare(backend))

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Backend]:
        """Keep the model loaded within the block. Raises ``BackendError`` if it cannot be
        loaded."""
        async with self._in_use():
            try:
                backend = await self._load()
            except SetupError:
                raise BackendError(_unavailable_message(self._name)) from None
            yield backend

    async def close(self) -> None:
        self._closed = True
        self._stop_timer()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        self._unload()
        if self._closing is not None:
            await self._closing

    # --- loading ---------------------------------------------------------------------------------

    async def _load(self) -> Backend:
        if self._closed:
            raise BackendError("The model is closed.")
        if not isinstance(self._inner, _Unloaded):
            return self._inner
        if self._loading is None:
            self._loading = asyncio.create_task(self._run_load())
            self._loading.add_done_callback(_retrieve_exception)
        try:
            # A cancelled request must not cancel the load, which other requests await.
            return await asyncio.shield(self._loading)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise BackendError("The model is closed.") from None
            raise

    async def _run_load(self) -> Backend:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            if self._closing is not None:  # its memory is needed
                await asyncio.shield(self._closing)
            _log.info("model is being loaded", model=self._name)
            self.status = Status(value="loading")
            self._logged_at = loop.time()
            backend = await self._make(partial(self._progress, loop.time))
        except SetupError as error:
            self.status = Status(value="failed")
            _log.error("model could not be loaded", model=self._name, reason=str(error))
            raise
        except Exception as error:
            self.status = Status(value="failed")
            _log.exception("model could not be loaded", model=self._name)
            raise SetupError(f"model {self._name}: {error or type(error).__name__}") from None
        finally:
            self._loading = None
        _log.info("model is ready", model=self._name, seconds=round(loop.time() - started, 2))
        self._inner = backend
        self.status = Status(value="loaded")
        return backend

    def _progress(
        self, clock: Callable[[], float], stage: str, loaded: int, total: int | None
    ) -> None:
        self.status = Status(value="loading", stage=stage, bytes=loaded, total_bytes=total)
        if (now := clock()) >= self._logged_at + _LOG_INTERVAL_S:
            self._logged_at = now
            loaded_share = f"{100 * loaded // total} %" if total else f"{loaded >> 20} MiB"
            _log.info("model is being loaded", model=self._name, stage=stage, loaded=loaded_share)

    # --- unloading -------------------------------------------------------------------------------

    @asynccontextmanager
    async def _in_use(self) -> AsyncIterator[None]:
        self._users += 1
        self._stop_timer()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users and self._idle_s and not self._closed:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._idle_s, self._unload)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _unload(self) -> None:
        backend = self._inner
        if not isinstance(backend, _Unloaded):
            self._inner = _Unloaded.after(backend)
            self.status = Status(value="unloaded")
            self._closing = asyncio.create_task(self._close(backend))

    async def _close(self, backend: Backend) -> None:
        try:
            await backend.close()
        except Exception:
            _log.exception("model could not be closed", model=self._name)
        _log.info("model is unloaded", model=self._name)
        self._closing = None


class _UnpreparedReply(Reply):
    """Stands in for the inner reply until the model is loaded."""

    input_tokens = 0

    def resume(self, point: ResumePoint) -> Reply:
        return self

    def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        raise BackendError("The model is not loaded.")


class OnDemandReply(ReplyWrapper):
    """``Reply`` of a backend that may not be loaded yet, or may be unloaded again before the reply
    is generated. Until the model is loaded, ``input_tokens`` is 0 and ``may_fail_early`` is False:
    clients should not wait silently while a model loads."""

    def __init__(
        self,
        on_demand: OnDemandBackend,
        prepare: Prepare,
        backend: Backend | None = None,
        reply: Reply | None = None,
    ) -> None:
        super().__init__(_UnpreparedReply() if reply is None else reply)
        self._on_demand = on_demand
        self._prepare = prepare
        #: The backend that prepared the inner reply.
        self._backend = backend
        self._resume_point: ResumePoint | None = None

    def resume(self, point: ResumePoint) -> OnDemandReply:
        reply = self._reply.resume(point)
        resumed = OnDemandReply(self._on_demand, self._prepare, self._backend, reply)
        resumed._resume_point = point
        return resumed

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        async with self._on_demand.use() as backend:
            reply = await self._ensure_prepared(backend)
            async with aclosing(reply.deltas()) as deltas:
                async for batch in deltas:
                    yield batch

    async def _ensure_prepared(self, backend: Backend) -> Reply:
        """The inner reply, prepared again unless ``backend`` prepared it."""
        if self._backend is backend:
            return self._reply
        try:
            reply = await self._prepare(backend)
        except RequestError as error:  # too late for an HTTP error: the run has begun
            raise BackendError(error.message, code="invalid_prompt") from None
        if self._resume_point is not None:
            reply = reply.resume(self._resume_point)
        self._backend, self._reply = backend, reply
        return reply


def _unavailable_message(name: str) -> str:
    return f"The model '{name}' could not be loaded; the server's log says why."


def _retrieve_exception(task: asyncio.Task[Backend]) -> None:
    """Mark a failed load's exception as retrieved: it was logged, and perhaps nobody awaits the
    task.
    """
    if not task.cancelled():
        task.exception()
