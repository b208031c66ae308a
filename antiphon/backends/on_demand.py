"""A backend that is there while it is needed: loaded by its first request, closed when idle.

Works with whatever makes a backend. A request waits a little for the load, so that it can still be
refused before its run; beyond that its run begins, and whoever reads it hears that it is alive.
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

#: Seconds a request waits for the load before its run begins.
PATIENCE_S = 5.0
_RETRY_S = 10
#: Seconds between two lines of the log on how far a load is.
_LOG_S = 10.0


#: Told what is fetched or read, how many bytes of it are there, and of how many, if that is known.
#: May be called by any thread.
Progress = Callable[[str, int, int | None], None]
#: Has a backend prepare what was asked.
Prepare = Callable[[Backend], Awaitable[Reply]]


class _Unloaded(Backend):
    """Stands in for the inner backend while none is loaded. It describes the model as far as that
    is known; nobody may prepare a reply with it."""

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    #: Until the first load everything is assumed to work: a request is rejected only for what is
    #: known to fail, and images are checked in vain rather than not at all.
    capabilities = BackendCapabilities(images=True, completes_text=True, detokenizes=True)

    def __init__(self, context_size: int | None) -> None:
        self.context_size = context_size

    @classmethod
    def after(cls, backend: Backend) -> _Unloaded:
        """What is still known of ``backend`` after it was unloaded. Its functions are dropped: they
        would keep the model in memory."""
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
    is reported until the first load. ``patience_s``: seconds that ``ready`` and ``prepare`` wait
    for a load. Concurrent requests share one load; after a failed load the next request tries
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
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__(_Unloaded(context_size))
        self._name = name
        self._make = make
        self._idle_s = idle_s
        self._patience_s = patience_s
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
        """Start loading and wait for ``patience_s``. Returns whether the model is loaded. Raises
        ``Overloaded`` if it cannot be loaded."""
        async with self._in_use():
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._load()
            except TimeoutError:
                return False
            except (SetupError, BackendError):
                raise Overloaded(
                    _unavailable(self._name),
                    retry_after_s=_RETRY_S,
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
                raise BackendError(_unavailable(self._name)) from None
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
            self._loading = asyncio.create_task(self._loaded())
            self._loading.add_done_callback(_heard)
        try:
            # Whoever leaves does not take the load away from the others.
            return await asyncio.shield(self._loading)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise BackendError("The model is closed.") from None
            raise

    async def _loaded(self) -> Backend:
        loop = asyncio.get_running_loop()
        begun = loop.time()
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
        _log.info("model is ready", model=self._name, seconds=round(loop.time() - begun, 2))
        self._inner = backend
        self.status = Status(value="loaded")
        return backend

    def _progress(
        self, clock: Callable[[], float], stage: str, there: int, total: int | None
    ) -> None:
        self.status = Status(value="loading", stage=stage, bytes=there, total_bytes=total)
        if (now := clock()) >= self._logged_at + _LOG_S:
            self._logged_at = now
            share = f"{100 * there // total} %" if total else f"{there >> 20} MiB"
            _log.info("model is being loaded", model=self._name, stage=stage, there=share)

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
        again = OnDemandReply(self._on_demand, self._prepare, self._backend, reply)
        again._resume_point = point
        return again

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        async with self._on_demand.use() as backend:
            reply = await self._prepared_by(backend)
            async with aclosing(reply.deltas()) as deltas:
                async for known in deltas:
                    yield known

    async def _prepared_by(self, backend: Backend) -> Reply:
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


def _unavailable(name: str) -> str:
    return f"The model '{name}' could not be loaded; the server's log says why."


def _heard(task: asyncio.Task[Backend]) -> None:
    """What failed was logged; nobody may be left to hear it."""
    if not task.cancelled():
        task.exception()
