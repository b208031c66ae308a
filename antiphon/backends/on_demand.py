"""A backend that loads its model at the first request and unloads the model when it is idle.

It can wrap any kind of backend. A request waits at most ``ready_timeout_s`` seconds for the model.
If loading fails in this time, the request gets an HTTP error. If loading needs more time, the run
starts, and the client gets keepalives until the model is loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
)
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import structlog
from msgspec.structs import replace

from antiphon.backends.base import (
    Backend,
    BackendCapabilities,
    DeltaSink,
    Reply,
    Status,
    text_completion_unsupported_error,
)
from antiphon.backends.memory_budget import MemoryBudget
from antiphon.backends.wrapper import BackendWrapper, ReplyWrapper
from antiphon.errors import BackendError, Overloaded, RequestError, SetupError
from antiphon.inference.conversation import Conversation, Options, ResumePoint
from antiphon.inference.sampling import SessionSignal
from antiphon.stream.deltas import NewPrompt
from antiphon.support.push import send
from antiphon.support.tasks import BackgroundTasks

_log = structlog.get_logger(__name__)

#: Seconds that a request waits for the model before its run starts.
READY_TIMEOUT_S = 5.0
_RETRY_AFTER_S = 10
#: Error code if a model could not be loaded.
_LOAD_FAILED = "model_not_loaded"
#: Seconds between two log lines about the progress of a load.
_LOG_INTERVAL_S = 10.0


#: Callback for the progress of a load. Its arguments are the stage, the bytes loaded so far, and
#: the total bytes or None. It is called on any thread, but never on two threads at the same time.
ProgressCallback = Callable[[str, int, int | None], None]
#: Function that prepares the reply to one request with a given backend.
Prepare = Callable[[Backend], Awaitable[Reply]]


class _Skipped(SetupError):
    """Raised if the model does not fit into the free memory, and the caller of ``load`` does not
    allow other models to be unloaded (``evict=False``)."""


class _Unloaded(Backend):
    """Placeholder for the model's backend while the model is not loaded.

    The placeholder has those properties of the model that are already known. It cannot prepare
    replies.
    """

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    #: Until the first load, all features are assumed to work, so no request is rejected by mistake.
    #: Images are checked even if the model turns out not to accept images.
    capabilities = BackendCapabilities(
        images=True, audio_video=True, completes_text=True, detokenizes=True
    )

    def __init__(self, context_size: int | None) -> None:
        self.context_size = context_size

    @classmethod
    def after(cls, backend: Backend) -> _Unloaded:
        """Return the placeholder for ``backend``, which is being unloaded. The placeholder has no
        references to functions of ``backend``, because they would keep the model in memory."""
        unloaded = cls(backend.context_size)
        unloaded.recommended_options = backend.recommended_options
        unloaded.capabilities = replace(backend.capabilities, reasoning_retention=None)
        return unloaded

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        raise BackendError("The model is not loaded.")


class _Instance:
    """One copy of the model, from the start of its loading until its backend is closed.

    An instance counts the requests that use it. A retired instance gets no new requests and is
    closed when its last request ends.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.backend: Backend | None = None
        #: Gets the backend as its result, or the exception that explains why loading failed.
        self.loaded: asyncio.Future[Backend] = asyncio.get_running_loop().create_future()
        self.loaded.add_done_callback(_retrieve_exception)
        self.users = 0
        self.last_used = now()
        self.memory_bytes = 0
        self.is_retired = False
        #: Whether the backend is being created, which cannot be interrupted.
        self.is_building = False
        self.on_retire: Callable[[_Instance], None] = lambda instance: None

    @property
    def is_evictable(self) -> bool:
        return self.backend is not None and not self.is_retired

    @property
    def is_in_use(self) -> bool:
        return self.users > 0

    def retire(self) -> None:
        if not self.is_retired:
            self.is_retired = True
            self.on_retire(self)

    def join(self) -> None:
        self.users += 1

    def leave(self) -> None:
        self.users -= 1
        self.last_used = self._now()

    def fail(self, error: Exception) -> None:
        if not self.loaded.done():
            self.loaded.set_exception(error)


class OnDemandBackend(BackendWrapper):
    """``Backend`` that loads its inner backend at the first request.

    The inner backend is unloaded when it is idle, when ``unload`` is called, or when another model
    needs the memory. Requests that arrive while the model loads wait for the same load. After a
    failed load, the next request tries again. Use an instance on one event loop only.

    ``make``: creates the inner backend. ``unload`` cannot interrupt this function. ``fetch``:
    downloads missing files and returns the estimated memory in bytes. ``budget``: the memory that
    several models share. ``idle_s``: the inner backend is unloaded after this number of seconds
    without a request; 0 means never. ``context_size``: the value to report until the first load.
    ``ready_timeout_s``: seconds that ``ready`` and ``prepare`` wait for the model.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[ProgressCallback], Awaitable[Backend]],
        *,
        fetch: Callable[[ProgressCallback], Awaitable[int]] | None = None,
        budget: MemoryBudget | None = None,
        idle_s: float = 0,
        context_size: int | None = None,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        super().__init__(_Unloaded(context_size))
        self._status = Status(value="unloaded")
        self._name = name
        self._make = make
        self._fetch = fetch
        self._budget = budget or MemoryBudget()
        self._idle_s = idle_s
        self._ready_timeout_s = ready_timeout_s
        #: Time of the last log line about the progress, by the clock of the event loop.
        self._logged_at = 0.0
        self._current: _Instance | None = None
        self._loads: dict[_Instance, asyncio.Task[None]] = {}
        self._load_tasks = BackgroundTasks("load of a model")
        #: Retired instance that requests still use → future that is done after the last request.
        self._retired: dict[_Instance, asyncio.Future[None]] = {}
        #: Tasks that close retired instances.
        self._closings = BackgroundTasks("end of a model")
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def status(self) -> Status:
        """The state of the model, with the progress while it loads."""
        backend = None if self._current is None else self._current.backend
        if backend is None or self._status.value != "loaded":
            return self._status
        return backend.status

    async def on_session(self, signal: SessionSignal) -> None:
        """Tell the engine, if the model is loaded."""
        if self._current is not None and self._current.backend is not None:
            await self._current.backend.on_session(signal)

    @property
    def users(self) -> int:
        """The number of requests that use the model or wait for it."""
        current = 0 if self._current is None else self._current.users
        return current + sum(instance.users for instance in self._retired)

    @property
    def memory_bytes(self) -> int | None:
        """The estimated memory of the loaded model, or None if the model is not loaded or there is
        no estimate."""
        return (self._current and self._current.memory_bytes) or None

    async def load(self, progress: ProgressCallback | None = None, *, evict: bool = True) -> None:
        """Load the model now. Raises ``SetupError`` if the model cannot be loaded.

        ``progress``: callback for the progress. If it is given, the progress is not logged.
        ``evict``: whether other models may be unloaded to free memory. If ``evict`` is False and
        there is too little memory, the call returns without loading the model.
        """
        async with self._in_use(progress, evict=evict) as instance:
            with suppress(_Skipped):
                await self._wait(instance)

    async def unload(self) -> None:
        """Unload the model when its running requests have ended. Later requests load the model
        again.

        If the model is still being loaded, the load is cancelled, and the requests that wait for
        the model fail.
        """
        current = self._current
        if current is not None:
            if current.backend is None:
                self._cancel_load(current)
            current.retire()
        # Only those that run now: later requests may load the model again.
        if loads := self._load_tasks.tasks:
            await asyncio.wait(loads)
        if self._retired:
            await asyncio.wait(list(self._retired.values()))
        if closings := self._closings.tasks:
            await asyncio.wait(closings)

    async def ready(self) -> bool:
        """Start loading the model if necessary, and wait at most ``ready_timeout_s``. Return
        whether the model is loaded. Raises ``Overloaded`` if the model cannot be loaded."""
        async with self._in_use() as instance:
            return await self._is_ready(instance)

    async def prepare(self, conversation: Conversation, options: Options) -> OnDemandReply:
        """Load the model if necessary. If it is loaded within ``ready_timeout_s``, check the
        request and render the prompt.

        If the model needs more time, the returned reply checks the request when the model is
        loaded. At that time, the run has already started. So an invalid request makes the run fail
        and does not cause an HTTP error.
        """
        return await self._reply(lambda backend: backend.prepare(conversation, options))

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> OnDemandReply:
        """Prepare a text completion, in the same way as ``prepare``. Raises ``InvalidRequest`` if
        the model does not support text completion."""

        async def prepare(backend: Backend) -> Reply:
            if not backend.capabilities.completes_text:
                raise text_completion_unsupported_error(self._name)
            return await backend.complete(prompt, options)

        return await self._reply(prepare)

    async def _reply(self, prepare: Prepare) -> OnDemandReply:
        async with self._in_use() as instance:
            if not await self._is_ready(instance):
                return OnDemandReply(self, prepare)
            backend = await self._wait(instance)
            return OnDemandReply(self, prepare, backend, await prepare(backend))

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Backend]:
        """Async context manager. Load the model if necessary, and yield its backend. The model
        stays loaded until the ``async with`` block ends. Raises ``BackendError`` if the model
        cannot be loaded."""
        async with self._in_use() as instance:
            try:
                backend = await self._wait(instance)
            except SetupError:
                raise _load_failure(self._name) from None
            yield backend

    async def close(self) -> None:
        self._closed = True
        self._stop_timer()
        for instance in self._loads:
            instance.fail(BackendError("The model is closed."))
        await self._load_tasks.close()
        if self._current is not None:
            self._current.retire()
        for instance in list(self._retired):  # the owner has waited for the requests
            self._close_retired(instance)
        await self._closings.wait()

    # --- use -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _in_use(
        self, progress: ProgressCallback | None = None, *, evict: bool = True
    ) -> AsyncIterator[_Instance]:
        """Async context manager that yields the current instance, which is one copy of the model.
        The instance is not closed before the ``async with`` block ends. If there is no instance,
        start loading a new instance."""
        instance = self._current or self._start_load(progress, evict=evict)
        instance.join()
        self._stop_timer()
        try:
            yield instance
        finally:
            instance.leave()
            if not instance.is_in_use:
                self._on_idle(instance)

    async def _wait(self, instance: _Instance) -> Backend:
        """Wait until the instance is loaded, and return its backend. If the caller is cancelled,
        the load continues."""
        return await asyncio.shield(instance.loaded)

    async def _is_ready(self, instance: _Instance) -> bool:
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                await self._wait(instance)
        except TimeoutError:
            return False
        except (SetupError, BackendError) as error:
            is_public = isinstance(error, BackendError)
            raise Overloaded(
                str(error) if is_public else _unavailable_message(self._name),
                retry_after_s=_RETRY_AFTER_S,
                status=503,
                code=_LOAD_FAILED,
            ) from None
        return True

    def _on_idle(self, instance: _Instance) -> None:
        if instance in self._retired:
            self._close_retired(instance)
        elif instance is self._current and instance.backend and self._idle_s and not self._closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._idle_s, instance.retire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- loading ---------------------------------------------------------------------------------

    def _start_load(self, progress: ProgressCallback | None, *, evict: bool) -> _Instance:
        instance = _Instance(asyncio.get_running_loop().time)
        if self._closed:
            instance.fail(BackendError("The model is closed."))
            return instance
        instance.on_retire = self._on_retire
        others = [*self._loads.values(), *self._retired.values(), *self._closings.tasks]
        task = self._load_tasks.start(self._load(instance, others, progress, evict=evict))
        task.add_done_callback(lambda _: self._loads.pop(instance))
        self._loads[instance] = task
        self._current = instance
        return instance

    async def _load(
        self,
        instance: _Instance,
        others: Collection[asyncio.Future[None]],
        progress: ProgressCallback | None,
        *,
        evict: bool,
    ) -> None:
        """Load the model, and pass the backend or the error to all requests that wait for
        ``instance``.

        ``others``: futures of earlier instances. Loading starts when all of them are done, because
        then the earlier instances have freed their memory.
        """
        try:
            if others:
                await asyncio.wait(others)
            backend = await self._create(instance, progress, evict=evict)
        except asyncio.CancelledError:
            self._budget.release(instance)
            self._drop(instance, "unloaded")
            raise
        except Exception as error:
            self._budget.release(instance)
            self._drop(instance, "unloaded" if isinstance(error, _Skipped) else "failed")
            instance.fail(self._load_error(error, is_logged=progress is None))
        else:
            self._finish_load(instance, backend)

    async def _create(
        self, instance: _Instance, progress: ProgressCallback | None, *, evict: bool
    ) -> Backend:
        loop = asyncio.get_running_loop()
        started = self._logged_at = loop.time()
        report = partial(self._progress, instance, loop.time) if progress is None else progress
        if progress is None:
            _log.info("model is being loaded", model=self._name)
        self._status = Status(value="loading")
        if self._fetch is not None:
            instance.memory_bytes = await self._fetch(report)
            self._status = Status(value="loading", stage="waiting for memory")
        if not await self._budget.reserve(self._name, instance, evict=evict):
            raise _Skipped
        self._status = Status(value="loading")
        instance.is_building = True
        backend = await self._make(report)
        if progress is None:
            _log.info("model is ready", model=self._name, seconds=round(loop.time() - started, 2))
        return backend

    def _finish_load(self, instance: _Instance, backend: Backend) -> None:
        if instance.is_retired:  # the load was cancelled while the engine was created
            self._start_closing(instance, backend)
            return
        instance.backend = self._inner = backend
        instance.last_used = asyncio.get_running_loop().time()
        self._status = Status(value="loaded")
        if not instance.loaded.done():
            instance.loaded.set_result(backend)
        self._budget.notify()
        if not instance.is_in_use:
            self._on_idle(instance)

    def _load_error(self, error: BaseException, *, is_logged: bool) -> Exception:
        """Return the exception for the requests that wait for the model, and log unexpected errors.
        ``is_logged``: whether ``SetupError`` is logged too."""
        if isinstance(error, _Skipped):
            return error
        if isinstance(error, SetupError):
            if is_logged:
                _log.error("model could not be loaded", model=self._name, reason=str(error))
            return error
        _log.error("model could not be loaded", model=self._name, exc_info=error)
        return SetupError(f"model {self._name}: {error or type(error).__name__}")

    def _cancel_load(self, instance: _Instance) -> None:
        """Stop the load of an instance. If its backend is already being created, the backend is
        closed as soon as it exists."""
        message = f"The model '{self._name}' was unloaded before it was ready."
        instance.fail(BackendError(message, code=_LOAD_FAILED, retry_after_s=_RETRY_AFTER_S))
        self._drop(instance, "unloaded")
        if not instance.is_building:
            self._loads[instance].cancel()

    def _drop(self, instance: _Instance, status: str) -> None:
        if self._current is instance:
            self._current = None
            self._status = Status(value=status)

    def _progress(
        self,
        instance: _Instance,
        clock: Callable[[], float],
        stage: str,
        loaded: int,
        total: int | None,
    ) -> None:
        if self._current is not instance:
            return
        self._status = Status(value="loading", stage=stage, bytes=loaded, total_bytes=total)
        if (now := clock()) >= self._logged_at + _LOG_INTERVAL_S:
            self._logged_at = now
            loaded_share = f"{100 * loaded // total} %" if total else f"{loaded >> 20} MiB"
            _log.info("model is being loaded", model=self._name, stage=stage, loaded=loaded_share)

    # --- unloading -------------------------------------------------------------------------------

    def _on_retire(self, instance: _Instance) -> None:
        self._stop_timer()
        backend = instance.backend
        if backend is None:
            return
        self._inner = _Unloaded.after(backend)
        self._drop(instance, "unloading")
        if not instance.is_in_use:
            self._start_closing(instance, backend)
        else:
            self._retired[instance] = asyncio.get_running_loop().create_future()

    def _close_retired(self, instance: _Instance) -> None:
        """Close a retired instance that no request uses any more."""
        assert instance.backend is not None
        self._start_closing(instance, instance.backend)
        self._retired.pop(instance).set_result(None)

    def _start_closing(self, instance: _Instance, backend: Backend) -> None:
        self._closings.start(self._close(instance, backend))

    async def _close(self, instance: _Instance, backend: Backend) -> None:
        try:
            await backend.close()
        except Exception:
            _log.exception("model could not be closed", model=self._name)
        self._budget.release(instance)
        if self._current is None and self._status.value == "unloading":
            self._status = Status(value="unloaded")
        if not self._closed:
            _log.info("model is unloaded", model=self._name)


class _UnpreparedReply(Reply):
    """Placeholder for a reply of the model's backend. While the model is not loaded, there is no
    backend that could prepare the reply."""

    input_tokens = 0

    def resume(self, point: ResumePoint) -> Reply:
        return self

    async def pump(self, sink: DeltaSink) -> None:
        raise BackendError("The model is not loaded.")


class OnDemandReply(ReplyWrapper):
    """``Reply`` of a model that is loaded on demand.

    The model may still be unloaded when the reply is created, and it may be unloaded before the
    reply is generated. ``pump`` loads the model if necessary.

    If the model is not loaded when the reply is created, ``input_tokens`` is 0 and
    ``may_fail_early`` is False until the model is loaded. Because ``may_fail_early`` is False, the
    run sends its first events to the client at once, and does not wait for the first delta.
    """

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

    async def pump(self, sink: DeltaSink) -> None:
        async with self._on_demand.use() as backend:
            is_late = isinstance(self._reply, _UnpreparedReply) and self._resume_point is None
            reply = await self._ensure_prepared(backend)
            if is_late:
                # The run has started before the prompt was rendered, so send the prompt's ids now.
                prompt = reply.prompt_tokens
                await send(sink, () if prompt is None else (NewPrompt(prompt.ids),))
            await reply.pump(sink)

    async def _ensure_prepared(self, backend: Backend) -> Reply:
        """Return the reply that ``backend`` prepared for the request. If the current reply comes
        from another backend or is the placeholder, let ``backend`` prepare a new one."""
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


def _load_failure(name: str) -> BackendError:
    """Return the error for a run whose model could not be loaded. It tells the client to retry,
    because the next request tries to load the model again."""
    return BackendError(_unavailable_message(name), code=_LOAD_FAILED, retry_after_s=_RETRY_AFTER_S)


def _unavailable_message(name: str) -> str:
    return f"The model '{name}' could not be loaded; the server's log says why."


def _retrieve_exception(loaded: asyncio.Future[Backend]) -> None:
    """Mark the exception of a failed load as retrieved. Otherwise, asyncio would log the exception
    a second time if no request waits for the load."""
    if not loaded.cancelled():
        loaded.exception()
