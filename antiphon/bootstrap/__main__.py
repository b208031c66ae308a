"""The program of a child process of the supervisor. It reads its setup, serves requests, and ends
when its supervisor ends.

The first argument is the file descriptor of the socket to the supervisor. The second argument is
the name of the process. The program does not use the name. It only shows what the process is in
lists of processes, such as the output of ``ps``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial

from antiphon.errors import SetupError
from antiphon.ipc.frames import FrameConnection
from antiphon.workers.setup import (
    ChildReport,
    ChildSetup,
    ProcessRole,
    ReloadReport,
    StartFailure,
    decode_setup,
    encode,
)


def run_child(descriptor: int) -> int:
    """Run this process as a child of the supervisor, and return its exit code. ``descriptor``: the
    file descriptor of the socket to the supervisor."""
    from antiphon.http.server.serve import run

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server handles it
    return run(_run(socket.socket(fileno=descriptor)))


async def _run(to_supervisor: socket.socket) -> int:
    from antiphon.bootstrap.processes import serve_containers, serve_host, serve_worker

    loop = asyncio.get_running_loop()
    setup: asyncio.Future[ChildSetup] = loop.create_future()
    control = FrameConnection(lambda frame: setup.set_result(decode_setup(frame)), _end_process)
    await loop.create_connection(lambda: control, sock=to_supervisor)

    def report(what: ChildReport) -> None:
        control.send(encode(what))

    serve: dict[ProcessRole, Callable[..., Awaitable[None]]] = {
        "worker": serve_worker,
        "containers": serve_containers,
        "host": partial(serve_host, on_reloaded=lambda is_valid: report(ReloadReport(is_valid))),
    }
    try:
        await serve[(await setup).role](await setup, report)
    except SetupError as error:
        report(StartFailure(str(error)))
        return 2
    return 0


def _end_process() -> None:
    """Finish the running requests and end this process. Called when the supervisor has ended. If
    the process kept running, the port would stay open."""
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run_child(int(sys.argv[1])))
