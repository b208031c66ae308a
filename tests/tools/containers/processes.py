"""Several registries over one directory, each as another process would have it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from msgspec import Struct

from antiphon.http.server.listening import bind
from antiphon.ipc.http_calls import HttpCaller
from antiphon.ipc.http_endpoint import HttpCallEndpoint
from antiphon.ipc.server import CallServer
from antiphon.ipc.signatures import CallSigner
from antiphon.resources.skills import Skills
from antiphon.store.containers import ContainerDirectory
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.sandbox import FakeSandbox
from antiphon.tools.containers.container import ContainerPolicy, ContainerServices
from antiphon.tools.containers.hosted import (
    ContainerHostSession,
    HostedContainers,
    connect_to_host,
)
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.tools.containers.relay import ContainerRelay
from antiphon.tools.containers.remote import RemoteContainers
from tests.conformance.fake_containers import (
    UPLOADS,
    Clock,
    OwnRegistry,
    Uploads,
    containers,
    run_command,
)

SECRET = b"shared"


class Process(Struct, kw_only=True):
    """One process: its boxes, its registry and its relay."""

    sandbox: FakeSandbox
    registry: OwnRegistry
    relay: ContainerRelay
    #: Ends the process: nobody answers at its address any more.
    end: AsyncExitStack


def signer(secret: bytes = SECRET, clock: Clock | None = None) -> CallSigner:
    """Return the signer of a process."""
    numbers = itertools.count()
    prefix = f"{id(numbers)}"
    return CallSigner(secret, clock=clock or Clock(), nonce=lambda: f"{prefix}{next(numbers)}")


async def _process(
    stack: AsyncExitStack, directory: ContainerDirectory, relay: ContainerRelay, **rules: Any
) -> Process:
    """Start a process that owns containers. ``rules``: those of ``containers``."""
    box = FakeSandbox(run_command)
    registry = containers(
        box,
        directory=directory,
        owner=relay.owner,
        connect=relay.connect,
        prefix=relay.owner.id,
        **rules,
    )
    end = await stack.enter_async_context(AsyncExitStack())
    await relay.open(registry.local)
    end.push_async_callback(relay.close)
    return Process(sandbox=box, registry=registry, relay=relay, end=end)


@asynccontextmanager
async def over_sockets(count: int = 2, **rules: Any) -> AsyncIterator[list[Process]]:
    """Yield processes of one machine."""
    directory = MemoryStore().containers
    async with AsyncExitStack() as stack:
        # The path of a socket has at most about 100 characters, which those of pytest exceed.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="antiphon-")))
        yield [
            await _process(stack, directory, ContainerRelay(folder=folder), **rules)
            for _ in range(count)
        ]


class WorkerServer:
    """A server of workers and the host of their containers. Made by ``open``."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self.directory = MemoryStore().containers
        self.host: Process
        self._stack = stack
        self._folder = folder
        self._calls: CallServer

    @classmethod
    @asynccontextmanager
    async def open(cls, **rules: Any) -> AsyncIterator[WorkerServer]:
        """Start the host. ``rules``: those of ``containers``."""
        async with AsyncExitStack() as stack:
            # The path of a socket has at most about 100 characters, which those of pytest exceed.
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="antiphon-")))
            server = cls(stack, folder)
            await server.start_host(**rules)
            yield server

    async def start_host(self, **rules: Any) -> None:
        """Start the host, for the first time or after a crash."""
        relay = ContainerRelay(folder=self._folder)
        predecessors = relay.remove_abandoned()
        self.host = await _process(
            self._stack, self.directory, relay, predecessors=predecessors, **rules
        )
        await self.host.end.enter_async_context(self.host.registry)
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        opened.set_result(self.host.registry.local)
        self._calls = CallServer(lambda: ContainerHostSession(opened))
        await self._calls.open(self._folder / "host")
        self.host.end.push_async_callback(self._calls.close)

    async def kill_host(self) -> None:
        """End the host as in a crash. Its sockets and its lease are not removed."""
        self.host.registry.local._sweeps.cancel_all()
        left = [*self._folder.iterdir()]
        await self.host.relay.close()
        for path in left:
            path.touch()
        await self._calls.close()

    def worker(self) -> ContainerRegistry:
        """Start a worker."""
        relay = ContainerRelay(folder=self._folder)
        host = connect_to_host(self._folder / "host")
        self._stack.push_async_callback(relay.close)
        self._stack.callback(host.close)
        remote = RemoteContainers(self.directory, relay.connect)
        services = ContainerServices(
            uploads=Uploads(UPLOADS),
            library=Skills(MemoryStore(), clock=Clock(), ids=lambda prefix: prefix),
            clock=Clock(),
            ids=lambda prefix: prefix,
            directory=self.directory,
        )
        return ContainerRegistry(
            HostedContainers(host, remote), ContainerPolicy(), services, remote
        )


@asynccontextmanager
async def over_http(
    count: int = 2, secrets: tuple[bytes, ...] = ()
) -> AsyncIterator[list[Process]]:
    """Yield processes of several servers. ``secrets``: those of the processes."""
    directory = MemoryStore().containers
    async with AsyncExitStack() as stack:
        processes = []
        for number in range(count):
            sockets = bind("127.0.0.1", 0)
            url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
            own = signer(secrets[number] if secrets else SECRET)
            caller = HttpCaller(own)
            stack.push_async_callback(caller.close)
            relay = ContainerRelay(url=url, caller=caller)
            process = await _process(stack, directory, relay)
            app = HttpCallEndpoint(own, relay.find, max_bytes=1 << 20)
            await process.end.enter_async_context(listening(app, sockets))
            processes.append(process)
        yield processes


@asynccontextmanager
async def listening(app: Any, sockets: Any = None) -> AsyncIterator[str]:
    """Serve an app and yield its URL."""

    sockets = sockets or bind("127.0.0.1", 0)
    config = uvicorn.Config(
        app, lifespan="off", log_config=None, log_level="error", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=sockets))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
