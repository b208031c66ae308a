"""Ends the requests in progress whose client has lost its access, such as streams, downloads and
slow uploads. Their API key was revoked or rotated, or their tenant was deleted."""

from __future__ import annotations

import asyncio
from types import TracebackType

from antiphon.errors import RunError
from antiphon.runs.execution.supervisor import AccessWatch

from .request_context import RequestContext


class OpenRequest:
    """Context manager around the handling of a request, which it cancels when the client has lost
    its access. The error is then raised. The runs of the request are stopped before, so that
    its client learns the reason."""

    __slots__ = ("_cancelling", "_context", "_failure", "_is_warned", "_task", "_watch")

    def __init__(self, watch: AccessWatch, context: RequestContext) -> None:
        self._watch = watch
        self._context = context
        self._is_warned = False
        self._failure: RunError | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watch.enter(self)

    async def check_access(self) -> None:
        """Raise ``Unauthorized`` if the client has lost its access."""
        await self._context.check_access()

    def fail(self, error: RunError) -> None:
        """Stop the runs of the request, and at the second call cancel it."""
        if not self._is_warned:
            for run in self._context.runs:
                run.fail(error)
        elif self._failure is None:
            self._failure = error
            self._task.cancel()
        self._is_warned = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.open.discard(self)
        if (
            self._failure is not None
            and self._task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise self._failure from None
