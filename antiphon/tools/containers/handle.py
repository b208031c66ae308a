"""The interface to a container for tools and endpoints. It is independent of the process that owns
the container."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from antiphon.errors import InvalidRequest, NotFound
from antiphon.sandbox.base import ExecutionResult, OutputCallback
from antiphon.wire.resources import containers as wc

from .skills import ContainerSkill, SkillSummary

__all__ = [
    "CommandEvent",
    "ContainerHandle",
    "ContainerView",
    "PythonOutcome",
    "container_expired",
    "container_not_found",
]


class ContainerView(Struct, frozen=True):
    """A container in the form of the API, with its skills and its ``network_key``."""

    resource: wc.ContainerResource
    skills: tuple[SkillSummary, ...] = ()
    network_key: str = ""


class PythonOutcome(Struct, frozen=True):
    """The result of Python code, and the files it wrote."""

    result: ExecutionResult
    files: tuple[wc.ContainerFile, ...]


class CommandEvent(Struct, frozen=True):
    """New output of a command, or its result at the end."""

    stdout: str = ""
    stderr: str = ""
    result: ExecutionResult | None = None


class ContainerHandle(Protocol):
    """A container of this process or of another one.

    Methods raise ``NotFound`` for unknown files and ``ToolError`` if the box fails. If the
    container no longer exists, they raise the errors of ``ContainerRegistry.get_active``.
    """

    @property
    def id(self) -> str:
        """The container's id."""

    @property
    def skills(self) -> tuple[SkillSummary, ...]:
        """The container's skills."""

    @property
    def network_policy(self) -> wc.NetworkPolicy:
        """The network policy, without its secrets."""

    @property
    def network_key(self) -> str:
        """A hash that is equal for containers with the same network policy and secrets."""

    async def acquire(
        self, file_ids: Iterable[str] = (), skills: Iterable[ContainerSkill] = ()
    ) -> None:
        """Register one more response that uses the container, until ``release``. Add files and
        skills."""

    async def release(self) -> None:
        """Register that one response no longer uses the container."""

    async def run_python(self, code: str) -> tuple[ExecutionResult, tuple[wc.ContainerFile, ...]]:
        """Run Python code. Returns its result and the files it wrote."""

    async def ensure_ready(self) -> None:
        """Open the box if it is not open."""

    async def run_command(
        self,
        command: str,
        *,
        timeout_s: float,
        max_output: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        """Run a command in a shell. ``on_output`` receives its output while it runs."""

    async def write_file(self, name: str, content: bytes) -> wc.ContainerFile:
        """Write a file on the user's behalf."""

    async def list_files(self) -> tuple[wc.ContainerFile, ...]:
        """Return all files, ordered by path."""

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
