"""Count the instructions of a running Antiphon server with valgrind's callgrind.

Counts do not depend on the load of the machine, so small changes can be seen. They depend on the
version of Python and on the processor's architecture.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

_START_S, _CONTROL_S, _ANSWER_S = 120, 60, 120
_DATABASE = "bench.db"
#: With random hashes, the number of collisions in dicts would vary. Above the thresholds, the C
#: library copies and clears memory with a single instruction, which callgrind counts once per byte.
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "GLIBC_TUNABLES": ":".join(
        f"glibc.cpu.x86_rep_{name}_threshold={2**30}" for name in ("movsb", "stosb")
    ),
}
_TOTAL = re.compile(r"^totals: (\d+)$", re.MULTILINE)


def is_installed() -> bool:
    """Return whether valgrind is installed."""
    return all(map(shutil.which, ("valgrind", "callgrind_control")))


class MeasuredServer:
    """A server under callgrind and one connection to it. ``key``: the API key of the requests."""

    def __init__(self, pid: int, port: int, folder: Path, key: str | None) -> None:
        self.pid, self._folder, self._key = pid, folder, key
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._dumps = 0

    def request(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Send a request in one write and return the body of the answer. The method is POST if
        ``body`` is given. Raises ``RuntimeError`` if the answer is an error."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        head += "content-type: application/json\r\n"
        if self._key:
            head += f"authorization: Bearer {self._key}\r\n"
        head += f"content-length: {len(content)}\r\n\r\n"
        self._socket.sendall(head.encode() + content)
        answer = HTTPResponse(self._socket)
        answer.begin()
        received = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {received[:500]!r}")
        return received

    def start_counting(self) -> None:
        """Start to count. Before this call, the server runs several times faster."""
        self._control("-i", "on")

    def take_count(self) -> int:
        """Return the instructions of all threads since the last call."""
        total = _TOTAL.search(self.take_profile())
        assert total is not None
        return int(total[1])

    def take_profile(self) -> str:
        """Return what callgrind has counted since the last call, in its own format."""
        self._dumps += 1
        self._control("-d")
        path = self._folder / f"callgrind.{self._dumps}"
        profile = path.read_text()
        path.unlink()
        return profile

    def shorten_log(self) -> None:
        """Let SQLite copy its log into the database. The server does so itself when the log has
        4 MiB, in the middle of some request."""
        with closing(sqlite3.connect(self._folder / _DATABASE)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _control(self, *arguments: str) -> None:
        command = ["callgrind_control", *arguments, str(self.pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=_CONTROL_S)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


@contextmanager
def measured_server(
    config: str,
    folder: Path,
    *flags: str,
    key: str | None = None,
    python_options: Sequence[str] = (),
) -> Iterator[MeasuredServer]:
    """Start ``antiphon serve`` under callgrind, wait until it answers, and stop it on exit.

    ``config``: the settings file. ``folder``: an empty folder for the server's files.
    ``python_options``: options of the interpreter. Raises ``RuntimeError`` with the end of the
    server's log if the server does not start.
    """
    settings, port = folder / "antiphon.toml", _free_port()
    settings.write_text(config)
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
    command += [f"--callgrind-out-file={folder}/callgrind"]
    command += [sys.executable, *python_options, "-m", "antiphon"]
    command += ["serve", "--config", str(settings), "--port", str(port)]
    command += ["--store", f"sqlite:{folder / _DATABASE}", *flags]
    environment = os.environ | _ENVIRONMENT
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        _wait_until_up(process, port, folder)
        server = MeasuredServer(process.pid, port, folder, key)
        try:
            yield server
        finally:
            server.close()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=_CONTROL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=_CONTROL_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        time.sleep(0.2)
    raise RuntimeError((folder / "log.txt").read_text(errors="replace")[-2000:])
