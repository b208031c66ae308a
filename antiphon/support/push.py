"""Push: a source calls a sink with each value as soon as the value exists.

Theory. On the way of an answer, the upstream's bytes become payloads, the payloads become deltas,
and the deltas become events, which are bytes for the client again. If each of these steps were an
iterator that waits for the step before it, each token would wake a task and walk back through all
of them. Instead, each step is a *sink*: a plain function that takes a value, and calls the sink
behind it with what it made of the value. So one call goes from the socket of the upstream to the
socket of the client, in the event loop's callback for the received data. The task of the run sleeps
meanwhile: it awaits a *pump*, i.e. a coroutine that gives the values of one source to a sink.

- **Owner.** The task that awaits a pump owns the source: the exchange with the upstream, or the
  generation of an engine. When the pump ends, for whatever reason, the source is closed. A step in
  between owns only its own state. It wraps a source by awaiting the pump of the source with a sink
  of its own.
- **Pause.** A sink returns None if it can take the next value at once. Otherwise it returns an
  awaitable, and the pump must await it before it calls the sink again. Meanwhile the source keeps
  what arrives, and stops reading its socket if that becomes too much. A step passes the awaitable
  of the sink behind it on. So a client that reads slowly slows the model down.
- **Order.** A pump gives a sink one value at a time. It never calls a sink that it is still in, nor
  after it has ended. When a pump returns, the sink has taken the last value, and has waited for it.
  What must be stored before the next step is a pause, too: the sink of a run returns the awaitable
  of the store for a ``Checkpoint``, so a tool starts after its call is stored. The terminal event
  is no value of a source. The run emits it when the pump has returned and the response is stored
  ("persist, then announce").
- **Errors.** If the source fails, the pump raises the error, after the sink has taken all earlier
  values. If the sink or its awaitable raises, the pump closes the source and raises the same
  exception. Therefore a step that needs no further values raises an exception of its own, and
  catches it around the pump. A step that handles errors of its source marks the errors of its sink
  with ``Guard``, because these are not for it.
- **Cancellation.** If the task of a pump is cancelled, the source calls its sink no more, and it is
  closed as soon as the task runs. So the model generates at most one more token.
- **Context.** A sink runs in the context (``contextvars``) of the task that awaits the pump, also
  if the event loop calls it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

__all__ = ["Guard", "Sink", "send"]

_T = TypeVar("_T")

#: Takes a value. Returns None, or an awaitable that the caller awaits before the next call.
Sink = Callable[[_T], Awaitable[None] | None]


async def send(sink: Sink[_T], value: _T) -> None:
    """Give a value to a sink, and wait until it can take the next one."""
    if (rest := sink(value)) is not None:
        await rest


class Guard(Generic[_T]):
    """A sink that passes values to ``sink``. ``error``: the exception that ``sink`` or its
    awaitable has raised; None if it has raised none."""

    __slots__ = ("_sink", "error")

    def __init__(self, sink: Sink[_T]) -> None:
        self._sink = sink
        self.error: BaseException | None = None

    def __call__(self, value: _T) -> Awaitable[None] | None:
        try:
            rest = self._sink(value)
        except BaseException as error:
            self.error = error
            raise
        return None if rest is None else self._wait(rest)

    async def _wait(self, rest: Awaitable[None]) -> None:
        try:
            await rest
        except BaseException as error:
            self.error = error
            raise
