"""Decide how a request to an upstream is retried: the number of attempts, the waits between them,
and the final error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from math import ceil

import structlog
from msgspec import Struct

from antiphon.errors import BackendError
from antiphon.inference.sampling import Session

from .replicas import Replica, ReplicaPool

_log = structlog.get_logger(__name__)

_ATTEMPTS = 4
#: Behind a router: the maximum number of attempts after a wait, and the number of retries without a
#: wait. There are fewer attempts because the router may retry as well. Retries have another session
#: key, so the router can choose another engine.
_ROUTED_ATTEMPTS, _ROUTED_QUICK_RETRIES = 3, 1
#: Seconds before the second attempt, without and with a router. Each later wait is twice as long.
#: With a router, the wait is longer because the router needs time to notice that an engine is up
#: again.
_FIRST_PAUSE_S, _ROUTED_PAUSE_S = 0.25, 2.0
#: Maximum sum of the waits of one request, in seconds. If the next wait exceeds it, for example
#: because of a long ``Retry-After``, the request fails.
_PATIENCE_S = 20.0
#: Maximum number of times that one reply is continued after a failure. Without a limit, a request
#: that crashes its server could crash all servers, one after the other.
_MAX_CONTINUATIONS = 10


class RetryState(Struct):
    """Shows whether the request that a task sends to an upstream is being retried. ``is_retrying``:
    true from the first wait between two attempts until the upstream accepts the request or the
    request finally fails. A retry without a wait does not count."""

    is_retrying: bool = False


_state: ContextVar[RetryState | None] = ContextVar("retry_state", default=None)


def track_retries() -> RetryState:
    """Return an object that shows whether a request of the current task is being retried. It is
    updated for all requests that the task sends after this call."""
    state = RetryState()
    _state.set(state)
    return state


class UpstreamHealth(Struct):
    """The health of one upstream, shared by all requests to it.

    ``is_failing``: a request has failed in all its attempts, and no request has succeeded since
    then. In this state, each request is sent only once, because the clients already retry.
    """

    is_failing: bool = False


class RetryPolicy:
    """Decides how one request to an upstream is retried. After a failure, the request is sent to
    another replica without a wait. When no other replica is left, there is a wait before each
    attempt.

    ``pool``: the replicas of the upstream. ``pause``: function that sleeps. ``health``: the health
    of the upstream. ``session`` identifies the conversation of the request. ``is_routed``: the
    upstream is a router, which may retry as well.
    """

    def __init__(
        self,
        pool: ReplicaPool,
        pause: Callable[[float], Awaitable[object]],
        health: UpstreamHealth,
        *,
        session: Session | None = None,
        is_routed: bool = False,
    ) -> None:
        self._pool = pool
        self._pause = pause
        self._health = health
        self._current: Replica | None = None
        #: Replicas that have failed the request.
        self._tried: list[Replica] = []
        #: Number of times that the request was sent again without a wait.
        self._quick_retries = 0
        self._attempt = 0
        self._waited_s = 0.0
        self._is_over = False
        self._is_routed = is_routed
        #: How often the request failed after a new part of the reply had arrived. The client has
        #: this part, so it cannot repeat the request.
        self._continuations = 0
        attempts = _ROUTED_ATTEMPTS if is_routed else _ATTEMPTS
        self._max_attempts = 1 if health.is_failing else attempts
        self.session = session

    @property
    def is_retry(self) -> bool:
        """Whether an earlier attempt of the request has failed."""
        return bool(self._tried)

    def next_replica(self) -> Replica:
        """Choose and return the replica for the next attempt."""
        has_choice = len(self._pool) > 1
        key = self.session.key if has_choice and self.session is not None else None
        self._current = self._pool.choose(key, self._tried)
        return self._current

    def accept(self) -> None:
        """Report that the upstream has accepted the request."""
        if self._current is not None:
            self._pool.report_success(self._current)
        self._health.is_failing = False
        self._set_retrying(is_retrying=False)

    def restart(self, error: BackendError) -> None:
        """Forget the earlier failures and waits. Call this method if the request fails after a part
        of the reply has arrived. Raises ``error`` if this has happened too often.

        From now on, the number of attempts is not limited; only the total waiting time is limited.
        The client already has a part of the reply, so the client cannot repeat the request itself.
        """
        self._continuations += 1
        if self._continuations > _MAX_CONTINUATIONS:
            raise error
        self._tried.clear()
        self._quick_retries = self._attempt = 0
        self._waited_s, self._is_over = 0.0, False

    async def wait_before_retry(self, error: BackendError) -> None:
        """Count a failed attempt, and wait before the next attempt. If another replica can be
        tried, return without a wait.

        Raises ``error`` if it is permanent. Also raises ``error`` if no attempt is left, or if the
        waits would become too long. In these two cases, the error is changed first: its
        ``retry_after_s`` tells clients how long to wait, and the code ``server_error`` becomes
        ``server_is_overloaded``. Without this change, coding agents would repeat the request up to
        30 times.
        """
        root = self._count_failure(error)
        if error.permanent or self._is_over:
            self._set_retrying(is_retrying=False)
            raise error
        if self._has_quick_retry():
            self._quick_retries += 1
            _log.warning("upstream failed, trying another", upstream=root, error=str(error))
            return
        self._attempt += 1
        _log.warning("upstream failed", upstream=root, attempt=self._attempt, error=str(error))
        wait_s = error.retry_after_s
        if wait_s is None:
            pause_s = _ROUTED_PAUSE_S if self._is_routed else _FIRST_PAUSE_S
            wait_s = pause_s * 2 ** (self._attempt - 1)
        is_last = self._attempt >= self._max_attempts and not self._continuations
        self._is_over = is_last or self._waited_s + wait_s > _PATIENCE_S
        if self._is_over:
            self._health.is_failing = True
            self._set_retrying(is_retrying=False)
            raise _final_error(error, wait_s)
        self._waited_s += wait_s
        self._set_retrying(is_retrying=True)
        await self._pause(wait_s)

    def _has_quick_retry(self) -> bool:
        """Return whether the next attempt can start without a wait. This is the case if another
        replica is available, or if a router can choose another engine."""
        if self._is_routed:
            return self._quick_retries < _ROUTED_QUICK_RETRIES
        return self._quick_retries < len(self._pool) and self._pool.has_others(self._tried)

    def report(self, error: BackendError) -> None:
        """Count and log the failure of the current attempt. Callers use this method in place of
        ``wait_before_retry`` if they make no further attempt."""
        _log.warning("upstream failed", upstream=self._count_failure(error), error=str(error))

    def _count_failure(self, error: BackendError) -> str | None:
        """Count the failure of the current attempt. Returns the address of the replica that failed,
        or None if no attempt is running."""
        if self._current is None:
            return None
        root = self._current.root
        self._pool.report_failure(self._current, error)
        self._tried.append(self._current)
        self._current = None
        return root

    def _set_retrying(self, *, is_retrying: bool) -> None:
        if (state := _state.get()) is not None:
            state.is_retrying = is_retrying


def _final_error(error: BackendError, wait_s: float) -> BackendError:
    """Return the error that is raised after the last attempt. ``wait_s``: seconds after which a
    client may try again."""
    seconds = max(1, ceil(wait_s))
    if error.code == "rate_limit_exceeded":
        error.message = f"{error.message} Please try again in {seconds}s."
        error.args = (error.message,)
    elif error.code == "server_error":
        # Coding agents repeat a ``server_error`` up to 30 times.
        error.code = "server_is_overloaded"
    error.retry_after_s = seconds
    return error
