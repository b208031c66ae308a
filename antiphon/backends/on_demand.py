"""A backend that is there while it is needed: loaded by its first request, closed when idle.

Works with whatever makes a backend. A request waits a little for the load, so that it can still be
refused before its run; beyond that its run begins, and whoever reads it hears that it is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import structlog

from antiphon.backends.base import (
    Backend,
    Detokenizes,
    Reply,
    Status,
    TextCompletion,
    may_be_refused,
    recall_of,
    spells,
    tools_of,
)
from antiphon.backends.local.text_completion import cannot_continue
from antiphon.conversation import Conversation, Options, PromptTokens, ResumePoint
from antiphon.dialects.base import ReasoningRetention
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


class OnDemandBackend:
    """``Backend`` over the one that ``make`` makes, again and again.

    ``idle_s``: seconds without a request after which it is closed; 0 for never. ``context_size`` is
    what is told while nothing was ever loaded. Concurrent requests load it once; a load that fails
    is tried again by the next request. Belongs to the event loop that uses it first.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[Progress], Awaitable[Backend]],
        *,
        idle_s: float = 0,
        context_size: int | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._name = name
        self._make = make
        self._idle_s = idle_s
        self._patience_s = patience_s
        self._context_size = context_size
        self._recommended: Mapping[str, Any] = {}
        #: Until it is known: what is checked in vain costs less than what is not.
        self.sees_images = True
        self.tool_types: frozenset[str] = frozenset()
        #: How far the load is, and whether there is one to wait for.
        self.status = Status(value="unloaded")
        self._told = 0.0
        self._backend: Backend | None = None
        self._loading: asyncio.Task[Backend] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._users = 0
        self._closed = False

    @property
    def context_size(self) -> int | None:
        return self._context_size

    @property
    def recommended(self) -> Mapping[str, Any]:
        return self._recommended

    def reasoning_retention(self, options: Options) -> ReasoningRetention | None:
        """Not known before it is loaded."""
        return None if self._backend is None else recall_of(self._backend, options)

    async def load(self) -> None:
        """Load it now. Raises ``SetupError``."""
        async with self._used():
            await self._load()

    async def ready(self) -> bool:
        """Begin to load and wait a little; whether it is there. Raises ``Overloaded`` where it
        cannot be loaded."""
        async with self._used():
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
        """Check and render, where it is there in time. A request that cannot be honoured is refused
        before its run then, and fails in its run otherwise."""
        async with self._used():
            return await self._reply(lambda backend: backend.prepare(conversation, options))

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> OnDemandReply:
        """Go on with a text, likewise. Raises ``InvalidRequest`` where the model cannot."""

        async def prepare(backend: Backend) -> Reply:
            if not isinstance(backend, TextCompletion):
                raise cannot_continue(self._name)
            return await backend.complete(prompt, options)

        async with self._used():
            return await self._reply(prepare)

    @property
    def spells(self) -> bool:
        """Until it is known: yes."""
        return self._backend is None or spells(self._backend)

    def spell(self, ids: Sequence[int]) -> str:
        """``Spelling``, of a reply that has just been read. Raises ``BackendError`` where its
        tokens are not known."""
        if not isinstance(self._backend, Detokenizes):
            raise BackendError("The tokens of this model are not known here.")
        return self._backend.spell(ids)

    async def _reply(self, prepare: Prepare) -> OnDemandReply:
        if not await self.ready():
            return OnDemandReply(self, prepare)
        backend = await self._load()
        return OnDemandReply(self, prepare, backend, await prepare(backend))

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Backend]:
        """It stays loaded within. Raises ``BackendError`` where it cannot be loaded."""
        async with self._used():
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
        if self._backend is not None:
            return self._backend
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
            self._told = loop.time()
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
        self._backend = backend
        self.status = Status(value="loaded")
        self._context_size = backend.context_size
        self._recommended = backend.recommended
        self.sees_images = backend.sees_images
        self.tool_types = tools_of(backend)
        return backend

    def _progress(
        self, clock: Callable[[], float], stage: str, there: int, total: int | None
    ) -> None:
        self.status = Status(value="loading", stage=stage, bytes=there, total_bytes=total)
        if (now := clock()) >= self._told + _LOG_S:
            self._told = now
            share = f"{100 * there // total} %" if total else f"{there >> 20} MiB"
            _log.info("model is being loaded", model=self._name, stage=stage, there=share)

    # --- unloading -------------------------------------------------------------------------------

    @asynccontextmanager
    async def _used(self) -> AsyncIterator[None]:
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
        backend, self._backend = self._backend, None
        if backend is not None:
            self.status = Status(value="unloaded")
            self._closing = asyncio.create_task(self._close(backend))

    async def _close(self, backend: Backend) -> None:
        try:
            await backend.close()
        except Exception:
            _log.exception("model could not be closed", model=self._name)
        _log.info("model is unloaded", model=self._name)
        self._closing = None


class OnDemandReply:
    """``Reply`` of a backend that may not be there yet, or no more by the time it is wanted."""

    dropped: tuple[str, ...] = ()

    def __init__(
        self,
        lazy: OnDemandBackend,
        prepare: Prepare,
        backend: Backend | None = None,
        reply: Reply | None = None,
    ) -> None:
        self._lazy = lazy
        self._prepare = prepare
        self._backend = backend
        self._reply = reply
        self._begun: ResumePoint | None = None
        if reply is not None:
            self.dropped = reply.dropped

    @property
    def input_tokens(self) -> int:
        """0 until it is known."""
        return 0 if self._reply is None else self._reply.input_tokens

    @property
    def kept(self) -> PromptTokens | None:
        return None if self._reply is None else self._reply.kept

    @property
    def may_be_refused(self) -> bool:
        """Not while it is being loaded: that takes its time."""
        return self._reply is not None and may_be_refused(self._reply)

    def resumed(self, begun: ResumePoint) -> OnDemandReply:
        reply = None if self._reply is None else self._reply.resumed(begun)
        again = OnDemandReply(self._lazy, self._prepare, self._backend, reply)
        again._begun = begun
        return again

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        async with self._lazy.use() as backend:
            reply = await self._on(backend)
            async with aclosing(reply.deltas()) as deltas:
                async for known in deltas:
                    yield known

    async def _on(self, backend: Backend) -> Reply:
        """The reply, made by the backend that is there now."""
        if self._reply is not None and self._backend is backend:
            return self._reply
        try:
            reply = await self._prepare(backend)
        except RequestError as error:  # it comes too late to be refused
            raise BackendError(error.message, code="invalid_prompt") from None
        if self._begun is not None:
            reply = reply.resumed(self._begun)
        self._backend, self._reply = backend, reply
        return reply


def _unavailable(name: str) -> str:
    return f"The model '{name}' could not be loaded; the server's log says why."


def _heard(task: asyncio.Task[Backend]) -> None:
    """What failed was logged; nobody may be left to hear it."""
    if not task.cancelled():
        task.exception()
