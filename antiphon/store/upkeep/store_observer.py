"""A wrapper of a store that reports what the store does: the duration of each operation, the events
that were appended, and the usage records that were stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Protocol, cast

from antiphon.errors import StoreError
from antiphon.store.base import Store
from antiphon.store.common.subscriptions import Subscription
from antiphon.store.usage import UsageRecord

#: Parts of a store. Their names are prefixes of the names of their operations.
_PARTS = ("runs", "files", "skills", "vectors", "usage_log", "journal")


class StoreObserver(Protocol):
    """Receives reports about store operations. Its methods must not raise. They are called only on
    the event loop."""

    def on_operation(self, operation: str, seconds: float, *, failed: bool) -> None:
        """Called at the end of an operation, such as ``save`` or ``runs.append``. ``seconds``:
        duration of the operation. ``failed``: whether the operation raised ``StoreError``."""

    def on_append(self, batches: int, events: int) -> None:
        """Called when batches of events have been appended to event logs. ``batches``: number of
        batches. ``events``: number of events in all batches."""

    def on_usage(self, records: Sequence[UsageRecord]) -> None:
        """Called when records of the usage log have been stored."""

    def on_follower(self, subscription: Subscription) -> None:
        """Called when a reader subscribes to the events of a run."""


def observe_store(store: Store, observer: StoreObserver, clock: Callable[[], float]) -> Store:
    """Return a wrapper of ``store`` that reports its operations to ``observer``. ``clock`` returns
    monotonic seconds."""
    wrapper = _ObservedStore(store, "", observer, clock)
    for name in _PARTS:
        setattr(wrapper, name, _ObservedStore(getattr(store, name), f"{name}.", observer, clock))
    return cast(Store, wrapper)


class _ObservedStore:
    """A wrapper that reports the operations of a store, or of a part of a store such as ``runs``.
    ``prefix``: the text before the name of each operation in the reports, such as ``runs.``."""

    def __init__(
        self, inner: object, prefix: str, observer: StoreObserver, clock: Callable[[], float]
    ) -> None:
        self._inner = inner
        self._prefix = prefix
        self._observer = observer
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if self._prefix + name == "runs.subscribe":
            value = self._observed_subscribe(value)
        elif iscoroutinefunction(value):
            value = self._timed(self._prefix + name, value)
        else:
            return value  # may be an attribute that changes
        setattr(self, name, value)
        return value

    def _timed(
        self, operation: str, call: Callable[..., Awaitable[object]]
    ) -> Callable[..., Awaitable[object]]:
        observer, clock = self._observer, self._clock

        async def timed(*arguments: Any, **options: object) -> object:
            started, failed = clock(), False
            try:
                result = await call(*arguments, **options)
            except StoreError:
                failed = True
                raise
            finally:
                observer.on_operation(operation, clock() - started, failed=failed)
            self._report(operation, arguments, options, result)
            return result

        return timed

    def _report(
        self, operation: str, arguments: Sequence[Any], options: dict[str, Any], result: object
    ) -> None:
        """Report to the observer how many events, or which usage records, an operation has stored.
        ``result``: the operation's result, which is False if it stored nothing."""
        if operation == "runs.append":
            batches = [append.batch for append in arguments[0]]
            self._observer.on_append(len(batches), sum(batch.count for batch in batches))
        elif operation == "usage_log.add":
            self._observer.on_usage(arguments[0])
        elif result is not False:
            end = arguments[1] if operation == "runs.end" else None
            usage = options.get("usage") if end is None else end.usage
            if usage is not None:
                self._observer.on_usage((usage,))

    def _observed_subscribe(
        self, subscribe: Callable[[str, str], Subscription]
    ) -> Callable[[str, str], Subscription]:
        def observed(tenant: str, response_id: str) -> Subscription:
            subscription = subscribe(tenant, response_id)
            self._observer.on_follower(subscription)
            return subscription

        return observed
