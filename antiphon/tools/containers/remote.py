"""Containers of other processes. Each operation is an RPC call to the process that owns the
container."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from antiphon.errors import BackendError, Overloaded, PeerLost, ToolError
from antiphon.ipc.calls import Calls
from antiphon.sandbox.base import ExecutionResult, OutputCallback
from antiphon.store.containers import ContainerDirectory, ContainerRecord
from antiphon.wire.resources import containers as wc

from .handle import CommandEvent, ContainerView, PythonOutcome, container_expired
from .skills import ContainerSkill, SkillSummary


class RemoteContainer:
    """The ``ContainerHandle`` of a container in another process, the owner.

    - ``calls``: the client for RPC calls to the owner's ``ContainerSession``.
    - ``on_gone``: a function that is called if a call fails because the owner has ended. The
      owner's containers have then ended too.
    """

    def __init__(
        self,
        record: ContainerRecord,
        calls: Calls,
        on_gone: Callable[[ContainerRecord], Awaitable[None]],
    ) -> None:
        self._record = record
        self._calls = calls
        self._on_gone = on_gone
        self._view = ContainerView(record.resource)
        #: Running calls of ``ContainerSession.use``. Each call runs for as long as one response
        #: uses the container.
        self._uses: list[AsyncGenerator[Any, None]] = []

    @property
    def id(self) -> str:
        return self._record.resource.id

    @property
    def skills(self) -> tuple[SkillSummary, ...]:
        return self._view.skills

    @property
    def network_policy(self) -> wc.NetworkPolicy:
        return self._view.resource.network_policy

    @property
    def network_key(self) -> str:
        return self._view.network_key

    async def load(self) -> wc.ContainerResource:
        """Fetch the container's state and the list of its skills from the process that owns the
        container. Return the state as the API shows it."""
        self._view = await self._call("view", returns=ContainerView)
        return self._view.resource

    async def acquire(
        self, file_ids: Iterable[str] = (), skills: Iterable[ContainerSkill] = ()
    ) -> None:
        sources = tuple(skill.source for skill in skills)
        key = (self._record.tenant, self.id)
        use = self._calls.stream("use", *key, tuple(file_ids), sources, returns=bool)
        async with self._translating():
            await anext(use)
        self._uses.append(use)

    async def release(self) -> None:
        await self._uses.pop().aclose()

    async def run_python(self, code: str) -> tuple[ExecutionResult, tuple[wc.ContainerFile, ...]]:
        outcome: PythonOutcome = await self._call("run_python", code, returns=PythonOutcome)
        return outcome.result, outcome.files

    async def ensure_ready(self) -> None:
        await self._call("ensure_ready")

    async def run_command(
        self,
        command: str,
        *,
        timeout_s: float,
        max_output: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        arguments = (self._record.tenant, self.id, command, timeout_s, max_output)
        stream = self._calls.stream("run_command", *arguments, returns=CommandEvent)
        async with self._translating(), aclosing(stream) as events:
            async for event in events:
                if event.result is not None:
                    result: ExecutionResult = event.result
                    return result
                if on_output is not None:
                    on_output(event.stdout, event.stderr)
        raise ToolError("The command has no result.")

    async def write_file(self, name: str, content: bytes) -> wc.ContainerFile:
        written: wc.ContainerFile = await self._call(
            "write_file", name, content, returns=wc.ContainerFile
        )
        return written

    async def list_files(self) -> tuple[wc.ContainerFile, ...]:
        files: tuple[wc.ContainerFile, ...] = await self._call(
            "list_files", returns=tuple[wc.ContainerFile, ...]
        )
        return files

    async def get_file(self, file_id: str) -> wc.ContainerFile:
        file: wc.ContainerFile = await self._call("get_file", file_id, returns=wc.ContainerFile)
        return file

    async def read_file(self, file_id: str) -> bytes:
        content: bytes = await self._call("read_file", file_id, returns=bytes)
        return content

    async def delete_file(self, file_id: str) -> None:
        await self._call("delete_file", file_id)

    async def expire_if_replaceable(self) -> bool:
        """Let the container expire if it was created for a response and no response uses it now.
        Return whether the container has expired."""
        return bool(await self._call("expire_if_replaceable", returns=bool))

    async def close(self) -> None:
        """Close the container's sandbox environment. Everything in it is lost."""
        await self._call("close")

    async def _call(self, method: str, *arguments: object, returns: object = None) -> Any:
        async with self._translating():
            key = (self._record.tenant, self.id)
            return await self._calls.call(method, *key, *arguments, returns=returns)

    @asynccontextmanager
    async def _translating(self) -> AsyncIterator[None]:
        """Translate the errors of an RPC call to the owner into the errors of
        ``ContainerHandle``."""
        try:
            yield
        except PeerLost as error:
            if error.is_gone:
                await self._on_gone(self._record)
                raise container_expired(self.id) from None
            raise Overloaded(
                f"Container '{self.id}' cannot be reached now.",
                status=503,
                code="container_unreachable",
            ) from None
        except BackendError as error:
            raise ToolError(f"Container '{self.id}': {error.message}") from None


class RemoteContainers:
    """The containers of other processes. ``connect``: returns the client for RPC calls to another
    process, given the id and the URL of that process."""

    def __init__(self, directory: ContainerDirectory, connect: Callable[[str, str], Calls]) -> None:
        self._directory = directory
        self._connect = connect

    def handle_for(self, record: ContainerRecord) -> RemoteContainer:
        """Return the ``ContainerHandle`` of the container that a record of the container directory
        describes."""
        return RemoteContainer(record, self._connect(record.owner, record.url), self._expire)

    async def _expire(self, record: ContainerRecord) -> None:
        """Mark the container as expired in the container directory. Antiphon tells the client now
        that the container has expired, so the container must stay expired even if its owner can be
        reached again later."""
        await self._directory.expire(record.owner, [record.resource.id])
