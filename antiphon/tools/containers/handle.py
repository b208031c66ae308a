"""The interface through which tools and endpoints use a container. The container may belong to this
process or to another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, Protocol

from msgspec import Struct

from antiphon.errors import InvalidRequest, NotFound
from antiphon.sandbox.base import ExecutionResult, OutputCallback
from antiphon.support.tasks import running
from antiphon.wire.resources import containers as wc

from .skills import ContainerSkill, SkillSummary


class ContainerView(Struct, frozen=True):
    """A container as the API shows it, with its skills and a hash of its network policy
    (``network_key``). The process that owns the container sends this object to other processes."""

    resource: wc.ContainerResource
    skills: tuple[SkillSummary, ...] = ()
    network_key: str = ""


class PythonOutcome(Struct, frozen=True):
    """The result of running Python code, and the files that the code wrote."""

    result: ExecutionResult
    files: tuple[wc.ContainerFile, ...]


class CommandEvent(Struct, frozen=True):
    """An event of a running command: new output, or, as the last event, the result."""

    stdout: str = ""
    stderr: str = ""
    result: ExecutionResult | None = None


async def command_events(
    run: Callable[..., Coroutine[Any, Any, ExecutionResult]],
) -> AsyncGenerator[CommandEvent, None]:
    """Yield the output of a command while it runs, then its result. Closing the generator stops the
    command. ``run`` runs the command, given ``on_output``."""
    events: asyncio.Queue[CommandEvent | None] = asyncio.Queue()
    work = run(on_output=lambda *output: events.put_nowait(CommandEvent(*output)))
    async with running(work) as task:
        task.add_done_callback(lambda _: events.put_nowait(None))
        while (event := await events.get()) is not None:
            yield event
        yield CommandEvent(result=await task)


class ContainerHandle(Protocol):
    """The object through which tools and endpoints use one container. The container belongs to this
    process or to another process.

    Methods raise ``NotFound`` for unknown files and ``ToolError`` if the container's sandbox
    environment fails. If the container no longer exists, they raise the errors of
    ``ContainerRegistry.get_active``.
    """

    @property
    def id(self) -> str:
        """The container's id."""

    @property
    def skills(self) -> tuple[SkillSummary, ...]:
        """Name and description of each skill in the container."""

    @property
    def network_policy(self) -> wc.NetworkPolicy:
        """The network policy of the container, without its secrets."""

    @property
    def network_key(self) -> str:
        """A hash of the network policy and its secrets. Containers with equal hashes have the same
        policy and secrets."""

    async def acquire(
        self, file_ids: Iterable[str] = (), skills: Iterable[ContainerSkill] = ()
    ) -> None:
        """Register that one more response uses the container, and add the given files and skills to
        the container. When the response no longer needs the container, the caller must call
        ``release``."""

    async def release(self) -> None:
        """Register that one response no longer uses the container."""

    async def run_python(self, code: str) -> tuple[ExecutionResult, tuple[wc.ContainerFile, ...]]:
        """Run Python code. Returns the result and the files that the code wrote."""

    async def ensure_ready(self) -> None:
        """Start the container's sandbox environment if it is not running yet."""

    async def run_command(
        self,
        command: str,
        *,
        timeout_s: float,
        max_output: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        """Run a shell command and return its result. ``on_output`` receives the output while the
        command runs."""

    async def write_file(self, name: str, content: bytes) -> wc.ContainerFile:
        """Write a file that the user provides. Only the last part of ``name`` counts."""

    async def list_files(self) -> tuple[wc.ContainerFile, ...]:
        """Return the metadata of all files in the container, ordered by path."""

    async def get_file(self, file_id: str) -> wc.ContainerFile:
        """Return a file's metadata."""

    async def read_file(self, file_id: str) -> bytes:
        """Return a file's content."""

    async def delete_file(self, file_id: str) -> None:
        """Delete a file."""


def container_not_found(container_id: str) -> NotFound:
    """Return the error for a container that does not exist."""
    return NotFound(f"Container with id '{container_id}' not found.", param="container_id")


def container_expired(container_id: str) -> InvalidRequest:
    """Return the error for a container that can no longer be used."""
    return InvalidRequest(f"Container '{container_id}' has expired.", code="container_expired")
