"""Registry of containers by id. A container belongs to one tenant and expires when it is not used
for some time.

A container consists of processes and memory of one machine, so each container has one owner: the
process that created it. The container directory in Antiphon's store records the owner of each
container. Other processes send RPC calls to the owner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from antiphon.errors import InvalidRequest, NotFound, RequestError, RunError, ToolError
from antiphon.store.containers import ContainerRecord, mark_expired
from antiphon.wire.cursors import PageParams, make_page
from antiphon.wire.items import Item
from antiphon.wire.pagination import Page
from antiphon.wire.resources import containers as wc

from .container import Container, ContainerPolicy, ContainerServices
from .handle import ContainerHandle, container_expired, container_not_found
from .network import network_key
from .remote import RemoteContainers
from .skills import ContainerSkill, SkillSummary, check_inline_skills, resolve_skills

#: How a tool chooses its container: the id of one, or what a container that the server chooses must
#: have.
ContainerChoice = str | wc.AutoContainer


class ContainerMaker(Protocol):
    """Makes new containers. They are made either in this process or in the process that owns the
    containers of all workers.

    ``find``, ``resources`` and ``delete`` apply only to containers that this process itself owns.
    """

    def find(self, tenant: str, container_id: str) -> Container | None:
        """Return the container with this id. Return None if this process has no such container."""

    def resources(self, tenant: str) -> Mapping[str, wc.ContainerResource]:
        """Return those containers of a tenant that belong to this process, as the API shows them.
        The key of each container is its id."""

    async def delete(self, tenant: str, container_id: str) -> bool:
        """Delete a container that this process owns, and the files in it. Return False if this
        process has no such container."""

    async def create(self, tenant: str, request: wc.CreateContainer) -> wc.ContainerResource:
        """Create a container for a client, with the requested files and skills. Raises
        ``InvalidRequest``, ``NotFound``, ``QuotaExceeded``, ``ToolError``."""

    async def reserve(self, tenant: str, request: wc.CreateContainer) -> ContainerHandle:
        """Create a container for a response. Its sandbox environment is started on first use.
        Raises ``QuotaExceeded``."""


class ContainerRegistry:
    """The containers of all processes that use the same store. ``maker``: makes new containers.
    ``remote``: the containers of other processes. ``uploads``: the uploaded files."""

    def __init__(
        self,
        maker: ContainerMaker,
        policy: ContainerPolicy,
        services: ContainerServices,
        remote: RemoteContainers,
    ) -> None:
        self.policy = policy
        self.quotas = services.quotas
        self._maker = maker
        self._library = services.library
        self.uploads = services.uploads
        self._directory = services.directory
        self._remote = remote

    # --- containers ------------------------------------------------------------------------------

    async def create(self, tenant: str, request: wc.CreateContainer) -> wc.ContainerResource:
        """Create a container for a client, with the requested files and skills. Raises
        ``InvalidRequest``, ``NotFound``, ``QuotaExceeded``, ``ToolError``, and ``Overloaded`` if
        the process that makes containers cannot be reached."""
        return await self._maker.create(tenant, request)

    async def get_active(self, tenant: str, container_id: str) -> ContainerHandle:
        """Return the container with this id if the container can be used.

        Raises ``NotFound`` for an unknown id and for a container of another tenant. Raises
        ``InvalidRequest`` for an expired container. Raises ``Overloaded`` if the process that owns
        the container cannot be reached.
        """
        if (container := self._maker.find(tenant, container_id)) is not None:
            if container.is_active:
                return container
            raise container_expired(container_id)
        record = await self._record(tenant, container_id)
        if record.is_active:
            remote = self._remote.handle_for(record)
            if (await remote.load()).status == "active":
                return remote
        raise container_expired(container_id)

    async def retrieve(self, tenant: str, container_id: str) -> wc.ContainerResource:
        """Return a container in the form of the API. Expired containers are returned too. Raises
        ``NotFound`` for an unknown id."""
        if (container := self._maker.find(tenant, container_id)) is not None:
            return container.resource
        record = await self._record(tenant, container_id)
        try:
            return (
                await self._remote.handle_for(record).load()
                if record.is_active
                else record.resource
            )
        except (InvalidRequest, NotFound):
            return mark_expired(record.resource)

    async def list(
        self, tenant: str, page_params: PageParams, name: str | None = None
    ) -> Page[wc.ContainerResource]:
        """Return one page of a tenant's containers. The data of containers that other processes own
        may be a few seconds old. ``name``: only containers with this name. Raises
        ``InvalidRequest`` for an unknown cursor."""
        resources = await self._resources(tenant)
        return make_page(
            tuple(each for each in resources if name is None or each.name == name), page_params
        )

    async def count_active(self, tenant: str) -> int:
        """Return the number of a tenant's active containers."""
        return sum(each.status == "active" for each in await self._resources(tenant))

    async def delete(self, tenant: str, container_id: str) -> None:
        """Delete a container and its files. If the process that owns the container cannot be
        reached now, it closes the container's sandbox environment later, when it renews its lease.
        Raises ``NotFound``."""
        if await self._maker.delete(tenant, container_id):
            return
        record = await self._record(tenant, container_id)
        await self._directory.delete(tenant, container_id)
        if record.is_active:
            with suppress(RequestError, ToolError):
                await self._remote.handle_for(record).close()

    # --- use by responses ------------------------------------------------------------------------

    @asynccontextmanager
    async def used(
        self, tenant: str, choice: ContainerChoice, items: Iterable[Item]
    ) -> AsyncIterator[ContainerHandle]:
        """Let a response use a container, and release it at the end. See ``acquire``. Raises
        ``RunError`` if the container cannot be used, and ``QuotaExceeded``."""
        try:
            container = await self.acquire(tenant, choice, items)
        except (NotFound, InvalidRequest) as error:
            raise RunError(error.message, code="invalid_prompt") from None
        try:
            yield container
        finally:
            await container.release()

    async def acquire(
        self, tenant: str, choice: ContainerChoice, items: Iterable[Item] = ()
    ) -> ContainerHandle:
        """Return a container, and register that a response uses it.

        ``items``: the items of the conversation. If ``choice`` names no container, the container
        that the conversation used last is reused if it is still active and has the requested
        network policy. Otherwise, a new container is created. It gets the requested files and
        skills. Raises the errors of ``get_active``, and ``QuotaExceeded``.
        """
        if isinstance(choice, str):
            container = await self.get_active(tenant, choice)
            await container.acquire()
            return container
        skills = await self._requested_skills(tenant, choice)
        last = await self._last_active(tenant, items)
        if last is not None and last.network_key == network_key(choice.network_policy):
            with suppress(NotFound, InvalidRequest):  # raised if its owner has just ended
                await last.acquire(choice.file_ids, skills)
                return last
        creation = wc.CreateContainer(
            name="auto",
            memory_limit=choice.memory_limit,
            network_policy=choice.network_policy,
        )
        container = await self._maker.reserve(tenant, creation)
        await container.acquire(choice.file_ids, skills)
        return container

    async def describe(
        self, tenant: str, choice: ContainerChoice, items: Iterable[Item]
    ) -> tuple[tuple[SkillSummary, ...], wc.NetworkPolicy | None]:
        """Return what the model is told about the container that ``used`` will give: its skills and
        its network policy. Nothing is known of a container that cannot be used."""
        container: ContainerHandle | None = None
        requested: tuple[ContainerSkill, ...] = ()
        if isinstance(choice, str):
            with suppress(RequestError):
                container = await self.get_active(tenant, choice)
        else:
            container = await self._last_active(tenant, items)
            requested = await self._requested_skills(tenant, choice)
        # The requested skills replace those of the same name.
        skills = () if container is None else container.skills
        named = {each.name: each for each in (*skills, *(each.summary for each in requested))}
        return tuple(named.values()), network_policy(choice, container)

    async def _last_active(self, tenant: str, items: Iterable[Item]) -> ContainerHandle | None:
        """Return the container that a conversation used last. Return None if the conversation has
        used no container, or if this container cannot be used any more. ``items``: the items of the
        conversation."""
        ids = (item.container_id for item in reversed(tuple(items)))
        container_id = next(filter(None, ids), None)
        with suppress(RequestError):
            return None if container_id is None else await self.get_active(tenant, container_id)
        return None

    async def _requested_skills(
        self, tenant: str, request: wc.AutoContainer, path: str = "container"
    ) -> tuple[ContainerSkill, ...]:
        return await resolve_skills(self._library, tenant, request.skills, f"{path}.skills")

    async def check_access(self, tenant: str, choice: ContainerChoice, path: str) -> None:
        """Raise ``InvalidRequest`` if the container that a request names cannot be used, or if the
        request names a file or skill that does not exist, or contains an invalid skill. ``path``:
        path of the container in the request."""
        if not isinstance(choice, str):
            await self._check_auto(tenant, choice, path)
            return
        try:
            await self.get_active(tenant, choice)
        except (NotFound, InvalidRequest) as error:
            raise InvalidRequest(error.message, param=path, code=error.code) from None

    async def _check_auto(self, tenant: str, request: wc.AutoContainer, path: str) -> None:
        for index, file_id in enumerate(request.file_ids):
            if await self.uploads.get_name(tenant, file_id) is None:
                raise InvalidRequest(
                    f"No such File object: {file_id}", param=f"{path}.file_ids[{index}]"
                )
        skills = await self._requested_skills(tenant, request, path)
        await check_inline_skills(request.skills, skills, f"{path}.skills")

    # --- private ---------------------------------------------------------------------------------

    async def _record(self, tenant: str, container_id: str) -> ContainerRecord:
        record = await self._directory.find(tenant, container_id)
        if record is None:
            raise container_not_found(container_id)
        return record

    async def _resources(self, tenant: str) -> tuple[wc.ContainerResource, ...]:
        records = await self._directory.list(tenant)
        local = self._maker.resources(tenant)
        return tuple(local.get(each.resource.id, each.resource) for each in records)


def network_policy(
    choice: ContainerChoice, container: ContainerHandle | None
) -> wc.NetworkPolicy | None:
    """Return the network policy that a request sets, or that of the container that it names."""
    if not isinstance(choice, str):
        return choice.network_policy
    return None if container is None else container.network_policy
