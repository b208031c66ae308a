"""A child process of the supervisor. The supervisor starts the child, watches it, and starts it
again when it dies."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import structlog

from antiphon.config.load import child_environment
from antiphon.ipc.frames import FrameConnection
from antiphon.support.processes import describe_end
from antiphon.wire.admin.server_info import ProcessHealth

from .setup import ChildReport, ChildSetup, StartFailure, decode_report, encode

_log = structlog.get_logger(__name__)

#: A child that lived for less than this many seconds is started again after a pause. The pause
#: doubles each time.
_STABLE_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
#: The program of a child process. It is named, not imported, because it knows the whole server.
_PROGRAM = "antiphon.bootstrap"
#: linux/prctl.h
_PR_SET_PDEATHSIG = 1


def _detacher(platform: str = sys.platform) -> Callable[[], None]:
    """Return the function that a new child calls before it executes its program.

    It moves the child to a process group of its own, so that Ctrl-C in a terminal goes to the
    supervisor alone. The child stays in the session, since a session of its own would be a separate
    autogroup, in which the low priority of sandboxes means nothing to other processes (sched(7)).
    On Linux, the child is killed when the supervisor dies: otherwise it would keep the port and the
    store, and the server could not be started again.
    """
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl if platform == "linux" else None

    def detach() -> None:
        os.setpgid(0, 0)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before the call
                os._exit(1)

    return detach


class Child:
    """A child process, as the supervisor sees it.

    - ``setup``: creates the setup message for each start of the process.
    - ``on_report``: called with each report of the child, for example that it has started or cannot
      start.
    - ``on_end``: called each time the process has ended.
    """

    def __init__(
        self,
        name: str,
        setup: Callable[[], ChildSetup],
        on_report: Callable[[ChildReport], None] = lambda report: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._setup = setup
        self._on_report = on_report
        self._on_end = on_end
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False
        self._stop = asyncio.Event()
        self.has_started = asyncio.Event()
        self._is_ready = False
        self._restarts = 0

    @property
    def health(self) -> ProcessHealth:
        """The state of the child: whether it has started, and how often it was started again."""
        status: Literal["running", "starting"] = "running" if self._is_ready else "starting"
        return ProcessHealth(name=self.name, status=status, restarts=self._restarts)

    @property
    def pid(self) -> int | None:
        """The process id of the child. None if the child does not run."""
        return self._process.pid if self._process is not None else None

    async def run(self) -> None:
        """Start the child, and start it again whenever it ends, until ``stop`` is called."""
        loop = asyncio.get_running_loop()
        pause_s = 0.0
        while not self._is_stopping:
            started = loop.time()
            returncode = await self._run_once()
            self._process, self._is_ready = None, False
            self._on_end()
            if self._is_stopping:
                return
            self._restarts += 1
            if loop.time() - started >= _STABLE_S:
                pause_s = 0.0
            else:
                pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            _log.error(
                "a process of the server has ended and is started again",
                process=self.name,
                reason=describe_end(returncode),
                in_s=pause_s,
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s)

    def signal(self, number: int) -> None:
        """Send a signal to the child, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def stop(self) -> None:
        """Tell the child to finish its work and end. If this is called a second time, the child
        ends without finishing its work."""
        self._is_stopping = True
        self._stop.set()
        self.signal(signal.SIGTERM)

    async def _run_once(self) -> int:
        ours, theirs = socket.socketpair()
        with theirs:
            setup = self._setup()
            path = os.pathsep.join(each for each in sys.path if each)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _PROGRAM, str(theirs.fileno()), self.name),
                pass_fds=(theirs.fileno(), *setup.listeners),
                env=child_environment({"PYTHONPATH": path}),
                stdin=asyncio.subprocess.DEVNULL,
                preexec_fn=_detacher(),
            )
        control = FrameConnection(self._on_frame)
        await asyncio.get_running_loop().create_connection(lambda: control, sock=ours)
        control.send(encode(setup))
        if self._is_stopping:  # ``stop`` was called meanwhile
            self.signal(signal.SIGTERM)
        try:
            return await self._process.wait()
        finally:
            control.close()

    def _on_frame(self, frame: bytes) -> None:
        report = decode_report(frame)
        if not isinstance(report, StartFailure):
            self.has_started.set()
            self._is_ready = True
        self._on_report(report)
