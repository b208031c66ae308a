"""The simulated server processes: each is a ``Service`` with its own clock and network."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any, TypeVar

import structlog
from msgspec import Struct

from antiphon.backends.base import Backend
from antiphon.errors import NotFound
from antiphon.limits.key_ring import KeyRing
from antiphon.limits.quotas import TenantQuotas
from antiphon.resources.admin.api_keys import ApiKeys
from antiphon.runs.background.worker import LeaseConfig
from antiphon.runs.dependencies import OptionalFeatures, RunDependencies
from antiphon.runs.policy import Policy
from antiphon.runs.service import Service
from antiphon.store.base import Retention
from antiphon.store.upkeep.sweeper import Sweeper
from antiphon.tools.programs.provider import ProgramProvider
from tests.golden.programs import PlainEncryptor

from .crash_points import CrashPoint, crash_points
from .database import Connection, Database, NetworkConditions
from .engine import SimulatedBackend, SimulatedJavaScript, Toolbox, Tools

_T = TypeVar("_T")
#: The tenant and the name of an API key.
Key = tuple[str, str]

#: Unix time at the start of a simulation.
EPOCH = 1_700_000_000
LEASE_S = 2.0
#: Longer than any simulation: nothing may expire.
_RETENTION = Retention(max_age_s=86_400)
#: Attempts to end the tasks of a crashed process.
_MAX_CANCELS = 200

#: The process that the current task belongs to; None: a client, or the world.
current_process: ContextVar[Process | None] = ContextVar("current_process", default=None)


class ConnectionLost(Exception):
    """Error for a request whose server process has ended."""


class _OneModel(Struct):
    """A catalog with one model."""

    backend: Backend
    name: str = "simulated"
    aliases: tuple[str, ...] = ()
    created: int = EPOCH
    instructions: str | None = None
    defaults: Mapping[str, Any] = {}
    thinking_budgets: Mapping[str, int] = {}

    def find(self, name: str | None) -> _OneModel:
        if name in (None, self.name):
            return self
        raise NotFound(f"no {name}", param="model")

    def all(self) -> tuple[_OneModel, ...]:
        return (self,)


class Process:
    """One process of a server, from its start to its end."""

    def __init__(self, server: Server) -> None:
        self.is_alive = True
        self.network = server.network
        self.crash_points = server.crash_points
        self.tasks: list[asyncio.Task[Any]] = []
        self._context = copy_context()
        self._context.run(current_process.set, self)
        self.store: Connection = server.database.connect(self)
        self.keys = KeyRing()
        timer = asyncio.get_running_loop().time
        stored_keys = ApiKeys(self.store.keys, clock=server.clock, timer=timer)
        self.keys.configure(
            (), tenants={}, roles={}, requests_per_minute=None, stored_keys=stored_keys
        )
        self.service: Service = self._context.run(self._build, server)
        self._context.run(self.service.start)
        self.spawn(self._sweep(server))

    def _build(self, server: Server) -> Service:
        numbers = server.id_numbers
        return Service(
            RunDependencies(
                models=_OneModel(SimulatedBackend(server.random, server.broken)),  # type: ignore[arg-type]
                store=self.store,
                clock=server.clock,
                keys=self.keys,
                ids=lambda prefix: f"{prefix}_{server.number}x{next(numbers)}",
                policy=Policy(
                    keepalive_s=0,
                    lease=LeaseConfig(lease_s=LEASE_S, flush_s=0.01, max_runs=3),
                    quotas=server.quotas,
                ),
            ),
            OptionalFeatures(
                providers={
                    "mcp": Tools(server.random, server.toolbox),
                    "programmatic_tool_calling": ProgramProvider(
                        SimulatedJavaScript(server.random), PlainEncryptor(), clock=server.clock
                    ),
                }
            ),
        )

    async def _sweep(self, server: Server) -> None:
        """Delete expired data as long as the process lives."""
        log = structlog.get_logger(__name__)
        async with Sweeper(
            self.store, _RETENTION, read_clock=lambda: self.store.clock(server.clock()), log=log
        ):
            await asyncio.Event().wait()

    async def request(
        self, operation: Callable[[Service], Coroutine[Any, Any, _T]], key: Key | None = None
    ) -> _T:
        """Run an operation in this process for a client. A client that is cancelled disconnects.
        Raises ``ConnectionLost`` if the process is gone, and ``AccessRevoked`` if ``key`` is no
        longer valid."""
        if not self.is_alive:
            raise ConnectionLost
        task = self.spawn(self._answer(operation, key))
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not self.is_alive or task.cancelled():
            raise ConnectionLost
        return task.result()

    async def _answer(
        self, operation: Callable[[Service], Coroutine[Any, Any, _T]], key: Key | None
    ) -> _T:
        if key is not None:
            await self.keys.check(*key)
        return await operation(self.service)

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start a task of this process."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    async def crash(self) -> None:
        """End at once. Its tasks unwind, but nothing that they still do reaches the world."""
        self.is_alive = False
        self.crash_points.update(crash_points(self.tasks))
        for _ in range(_MAX_CANCELS):
            pending = [task for task in self.tasks if not task.done()]
            if not pending:
                return
            for task in pending:
                task.cancel()
            await asyncio.sleep(0)
        raise AssertionError(f"tasks of a crashed process do not end: {pending}")

    async def drain(self, grace_s: float) -> None:
        """Stop as on SIGTERM."""
        try:
            await self.request(lambda service: service.drain(grace_s))
        except ConnectionLost:
            return
        await self.crash()


class Server:
    """A place for processes, one after another. Its clock may be wrong by ``clock_error_s``."""

    def __init__(
        self,
        number: int,
        database: Database,
        random: Random,
        toolbox: Toolbox,
        broken: list[str],
        quotas: TenantQuotas,
    ) -> None:
        self.number = number
        self.database = database
        self.random = random
        self.toolbox = toolbox
        self.broken = broken
        self.quotas = quotas
        self.network = NetworkConditions()
        self.clock_error_s = 0.0
        self.crash_points: set[CrashPoint] = set()
        self.id_numbers = itertools.count(1)
        self.process: Process | None = Process(self)

    def clock(self) -> float:
        return EPOCH + asyncio.get_running_loop().time() + self.clock_error_s

    async def request(
        self, operation: Callable[[Service], Coroutine[Any, Any, _T]], key: Key | None = None
    ) -> _T:
        """Run an operation in the current process. Raises as ``Process.request`` does."""
        if self.process is None:
            raise ConnectionLost
        return await self.process.request(operation, key)

    async def stop(self, end: Callable[[Process], Awaitable[None]]) -> None:
        """End the current process by ``Process.crash`` or ``drain``."""
        process, self.process = self.process, None
        if process is not None:
            await end(process)

    def start(self) -> None:
        """Start a new process if there is none."""
        if self.process is None:
            self.process = Process(self)
