"""Serve an ASGI app until a signal stops the server. Open connections are closed gracefully: the
server first waits for the runs to end.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from starlette.types import ASGIApp

from antiphon.support.tasks import running

from .connections import ConnectionLimits, OpenConnections
from .http_protocol import HttpProtocol

T = TypeVar("T")

#: Seconds that readers may take to fetch the end of their streams after all runs have ended.
_FLUSH_S = 5

#: Allocations between garbage collections. Python's default, 700, is reached every few tokens.
_GC_THRESHOLD = 10_000

#: Signals that drain and stop the server. SIGHUP also comes when its terminal is closed.
_STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

#: Waits for the runs to end. Its argument is the number of seconds they may take.
Drain = Callable[[float], Coroutine[Any, Any, None]]


async def serve(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    *,
    drain: Drain,
    grace_s: float = 30.0,
    started: Callable[[], None] = lambda: None,
    on_hangup: Callable[[], None] | None = None,
    max_frame_bytes: int = 64 * 2**20,
    limits: ConnectionLimits | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP (but see ``on_hangup``). Then accept no new
    connections, wait for the runs (responses in progress), close the sockets and return.

    - ``drain``: the function that waits for the runs to end.
    - ``grace_s``: the seconds that runs and other requests may take. A second signal ends this time
      early.
    - ``started`` is called when the server is ready to answer requests and to handle signals.
    - ``on_hangup``: a function that is called at a SIGHUP instead of stopping the server. A SIGHUP
      that is sent because the terminal was closed still stops the server, and the function is not
      called. If ``on_hangup`` is None, every SIGHUP stops the server.
    - ``max_frame_bytes``: maximum size of a WebSocket message.
    - ``limits``: limits of each client's connections.
    """
    connections = OpenConnections(app, limits or ConnectionLimits(), max_frame_bytes)
    loop = asyncio.get_running_loop()
    with frozen_gc(), _stop_signals(on_hangup) as (stopped, forced):
        servers = [
            await loop.create_server(lambda: HttpProtocol(connections), sock=each)
            for each in sockets
        ]
        started()
        await stopped.wait()
        for server in servers:
            server.close()
        connections.finish_requests()
        end = loop.time() + grace_s
        await _until(forced, drain(grace_s))
        if forced.is_set():
            await drain(0)
        connections.shut_down()
        await _until(forced, connections.wait(end - loop.time()))
        await connections.close(_FLUSH_S)


async def _until(forced: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do some work to its end, or until ``forced`` is set."""
    async with running(work) as working, running(forced.wait()) as force:
        await asyncio.wait((working, force), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like ``asyncio.run``, but on uvloop. On Windows, which has no uvloop,
    asyncio's own event loop is used."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


@contextmanager
def frozen_gc() -> Iterator[None]:
    """A context manager. Within its block, objects that existed before are excluded from garbage
    collection, and collections are less frequent.

    A full collection takes tens of milliseconds and would delay the running streams.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@contextmanager
def _stop_signals(
    on_hangup: Callable[[], None] | None,
) -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """A context manager that handles signals. It yields two events: the first signal sets the first
    one, and the next signal sets the second one. Only the main thread can handle signals."""
    stopped, forced = asyncio.Event(), asyncio.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped, forced
        return
    loop = asyncio.get_running_loop()
    had_terminal = has_terminal()

    def handle(number: int, frame: FrameType | None) -> None:
        # A hangup asks to reload the settings, unless it came because the terminal was closed.
        is_hangup = on_hangup is not None and number == getattr(signal, "SIGHUP", None)
        if on_hangup is not None and is_hangup and has_terminal() == had_terminal:
            loop.call_soon_threadsafe(on_hangup)
        else:
            loop.call_soon_threadsafe(stop)

    def stop() -> None:
        (forced if stopped.is_set() else stopped).set()

    before = {number: signal.signal(number, handle) for number in _STOP_SIGNALS}
    try:
        yield stopped, forced
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def has_terminal() -> bool:
    """Return whether the process has a controlling terminal. Returns False after this terminal was
    closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
