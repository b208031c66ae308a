"""The RPC methods that other processes call to use the containers of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from antiphon.wire.resources import containers as wc
from antiphon.wire.resources.skills import ShellSkill

from .container import Container
from .handle import CommandEvent, ContainerView, PythonOutcome, command_events
from .local import LocalContainers
from .skills import resolve_skills


class ContainerSession:
    """The RPC methods that ``RemoteContainer`` calls from another process. Each method raises
    ``NotFound`` if the container is not in this process or belongs to another tenant."""

    def __init__(self, local: LocalContainers) -> None:
        self._local = local

    async def view(self, tenant: str, container_id: str) -> ContainerView:
        """Return a container in the form of the API, with its skills. The container may be
        expired."""
        container = self._local.get(tenant, container_id)
        return ContainerView(container.resource, container.skills, container.network_key)

    async def use(
        self,
        tenant: str,
        container_id: str,
        file_ids: tuple[str, ...],
        skills: tuple[ShellSkill, ...],
    ) -> AsyncGenerator[bool, None]:
        """Register that a response uses the container, and add files and skills to the container.
        Yield True once, when this is done. The response uses the container until the caller cancels
        this RPC call or disconnects."""
        container = self._active(tenant, container_id)
        resolved = await resolve_skills(self._local.library, tenant, skills, "skills")
        await container.acquire(file_ids, resolved)
        try:
            yield True
            await asyncio.get_running_loop().create_future()
        finally:
            await container.release()

    async def ensure_ready(self, tenant: str, container_id: str) -> None:
        """Start the container's sandbox environment if it is not running yet."""
        await self._active(tenant, container_id).ensure_ready()

    async def run_python(self, tenant: str, container_id: str, code: str) -> PythonOutcome:
        """Run Python code in a container. Returns the result and the files that the code wrote."""
        return PythonOutcome(*await self._active(tenant, container_id).run_python(code))

    async def run_command(
        self, tenant: str, container_id: str, command: str, timeout_s: float, max_output: int
    ) -> AsyncGenerator[CommandEvent, None]:
        """Run a shell command in a container. Yields the output while the command runs, then the
        result."""
        container = self._active(tenant, container_id)
        run = partial(container.run_command, command, timeout_s=timeout_s, max_output=max_output)
        async with aclosing(command_events(run)) as events:
            async for event in events:
                yield event

    async def write_file(
        self, tenant: str, container_id: str, name: str, content: bytes
    ) -> wc.ContainerFile:
        """Write a file that the user provides."""
        return await self._active(tenant, container_id).write_file(name, content)

    async def list_files(self, tenant: str, container_id: str) -> tuple[wc.ContainerFile, ...]:
        """Return the metadata of all files in a container, ordered by path."""
        return await self._active(tenant, container_id).list_files()

    async def get_file(self, tenant: str, container_id: str, file_id: str) -> wc.ContainerFile:
        """Return a file's metadata."""
        return await self._active(tenant, container_id).get_file(file_id)

    async def read_file(self, tenant: str, container_id: str, file_id: str) -> bytes:
        """Return a file's content."""
        return await self._active(tenant, container_id).read_file(file_id)

    async def delete_file(self, tenant: str, container_id: str, file_id: str) -> None:
        """Delete a file."""
        await self._active(tenant, container_id).delete_file(file_id)

    async def expire_if_replaceable(self, tenant: str, container_id: str) -> bool:
        """Let a container expire if it was created for a response and no response uses it now.
        Returns whether the container has expired."""
        return self._local.get(tenant, container_id).expire_if_replaceable()

    async def close(self, tenant: str, container_id: str) -> None:
        """Close the container's sandbox environment and remove the container from this process. The
        caller must have deleted the container's record in the container directory before."""
        await self._local.close(self._local.get(tenant, container_id))

    def _active(self, tenant: str, container_id: str) -> Container:
        return self._local.get_active(tenant, container_id)
