"""The containers that this process owns. This module creates and closes them, and renews the lease
of the process.

The lease is the process's right to keep its containers. A process that does not renew its lease
loses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import suppress

import structlog
from msgspec import Struct

from antiphon.errors import InvalidRequest, NotFound, RequestError, StoreError, ToolError
from antiphon.limits.refusals import quota_exceeded
from antiphon.sandbox.base import Sandbox
from antiphon.store.containers import ContainerRecord
from antiphon.support.tasks import BackgroundTasks, repeat
from antiphon.wire.resources import containers as wc

from .container import Container, ContainerPolicy, ContainerServices
from .handle import container_expired, container_not_found
from .network import OpenEgress
from .remote import RemoteContainers
from .skills import check_inline_skills, resolve_skills

_log = structlog.get_logger(__name__)

#: The number of expired containers whose status can still be queried.
_MAX_EXPIRED = 1000
_SWEEP_INTERVAL_S = 5.0
#: Lease in seconds. A process that does not renew its lease for this long loses its containers. The
#: value is a compromise. It must be longer than the pauses of a live process. It must be short
#: because other processes cannot always detect at its address that a process has died.
_LEASE_S = 30.0


class ContainerOwner(Struct, frozen=True, kw_only=True):
    """A process that owns containers. ``url``: the address at which other servers reach the
    process. It is empty if they cannot reach the process."""

    id: str
    url: str = ""


class LocalContainers:
    """The containers of this process. The object is an async context manager. On exit, all its
    containers expire.

    - ``sandbox``: opens the isolated environments (boxes) in which code runs.
    - ``remote``: the containers of other processes. One of them may have to expire to make room for
      a new container of the same tenant.
    - ``lease_s``: lease in seconds. If this process does not renew its lease for this long, it
      loses its containers.
    - ``egress``: makes the proxies of containers with network access.
    - ``predecessors``: ids of processes that have died. Their containers expire immediately.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        policy: ContainerPolicy,
        services: ContainerServices,
        remote: RemoteContainers,
        *,
        owner: ContainerOwner,
        lease_s: float = _LEASE_S,
        egress: OpenEgress | None = None,
        predecessors: Collection[str] = (),
    ) -> None:
        self.library = services.library
        self.quotas = services.quotas
        self._sandbox = sandbox
        self._policy = policy
        self._services = services
        self._directory = services.directory
        self._owner = owner
        self._remote = remote
        self._lease_s = lease_s
        self._egress = egress
        self._predecessors = predecessors
        self._containers: dict[str, Container] = {}
        #: Id of a container that the directory lists as active → its time of last use in the
        #: directory.
        self._reported: dict[str, float] = {}
        self._sweeps = BackgroundTasks("container sweeps")

    async def __aenter__(self) -> LocalContainers:
        for owner in self._predecessors:
            await self._directory.release(owner)
        await self._directory.renew(self._owner.id, self._owner.url, lease_s=self._lease_s)
        failure = "expired containers could not be closed"
        self._sweeps.start(
            repeat(self._sweep, _SWEEP_INTERVAL_S, failure=failure, is_first_delayed=True)
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._sweeps.close()
        with suppress(StoreError):
            await self._directory.release(self._owner.id)
        await asyncio.gather(*(container.close() for container in self))
        await self._sandbox.close()

    def __iter__(self) -> Iterator[Container]:
        return iter(tuple(self._containers.values()))

    # --- the containers of tenants ---------------------------------------------------------------

    def find(self, tenant: str, container_id: str) -> Container | None:
        """Return the container with this id. Return None if this process has no such container."""
        container = self._containers.get(container_id)
        return container if container is not None and container.tenant == tenant else None

    def get(self, tenant: str, container_id: str) -> Container:
        """Return the container with this id. The container may be expired. Raises ``NotFound`` if
        this process has no such container."""
        container = self.find(tenant, container_id)
        if container is None:
            raise container_not_found(container_id)
        return container

    def get_active(self, tenant: str, container_id: str) -> Container:
        """Return the container with this id if the container can be used. Raises ``NotFound`` for
        an unknown container and ``InvalidRequest`` for an expired container."""
        container = self.get(tenant, container_id)
        if not container.is_active:
            raise container_expired(container_id)
        return container

    def resources(self, tenant: str) -> dict[str, wc.ContainerResource]:
        """Return those containers of a tenant that belong to this process, as the API shows them.
        The key of each container is its id."""
        return {each.id: each.resource for each in self if each.tenant == tenant}

    async def create(self, tenant: str, request: wc.CreateContainer) -> wc.ContainerResource:
        """Create a container for a client, with the requested files and skills. Raises
        ``InvalidRequest``, ``NotFound``, ``QuotaExceeded``, ``ToolError``."""
        self._policy.check(request)
        if request.expires_after is not None and request.expires_after.minutes * 60 > max(
            self._policy.idle_s, 60
        ):
            raise InvalidRequest(
                "Containers of this server expire after at most"
                f" {round(self._policy.idle_s / 60)} idle minutes.",
                param="expires_after.minutes",
                code="invalid_value",
            )
        skills = await resolve_skills(self.library, tenant, request.skills, "skills")
        await check_inline_skills(request.skills, skills, "skills")
        container = await self._add(tenant, request, is_auto=False)
        container.add_skills(skills)
        try:
            await container.list_files()
        except (ToolError, NotFound):
            await self._delete(container)
            raise
        return container.resource

    async def reserve(self, tenant: str, request: wc.CreateContainer) -> Container:
        """Create a container for a response. Its sandbox environment is started on first use.

        If the tenant already has the maximum number of containers, one of them expires: the least
        recently used container that was created for a response and that no response uses now.
        Raises ``QuotaExceeded`` if there is no such container.
        """
        return await self._add(tenant, request, is_auto=True)

    def record(self, container: Container) -> ContainerRecord:
        """Return the record of a container for the container directory, in which other processes
        find the owner of each container."""
        return ContainerRecord(
            tenant=container.tenant,
            resource=container.resource,
            owner=self._owner.id,
            url=self._owner.url,
            is_auto=container.is_auto,
        )

    async def delete(self, tenant: str, container_id: str) -> bool:
        """Delete a container and its files. Return False if this process has no such container."""
        container = self.find(tenant, container_id)
        if container is not None:
            await self._delete(container)
        return container is not None

    async def close(self, container: Container) -> None:
        """Close a container and remove it from this process. Called after another process has
        deleted the container's record in the container directory."""
        self._forget(container.id)
        await container.close()

    async def close_expired(self) -> None:
        """Close the sandbox environments of expired containers. Requests can still retrieve an
        expired container, but this process keeps at most ``_MAX_EXPIRED`` of them, and forgets the
        oldest."""
        expired = [container for container in self if not container.is_active]
        for container in expired:
            await container.close()
        for container in expired[: max(0, len(expired) - _MAX_EXPIRED)]:
            self._containers.pop(container.id, None)
        await self._report_expired()

    async def renew_lease(self) -> None:
        """Renew the lease of this process. Report to the container directory (the list of
        containers in the store) which containers were used.

        If the directory no longer lists a container as active, the container also expires in this
        process. This happens if the lease had ended or another process has deleted the container.
        """
        reported = dict(self._reported)
        used = [
            each for each in self if each.id in reported and reported[each.id] != each.last_used_at
        ]
        times = {each.id: each.last_used_at for each in used}
        active = await self._directory.renew(
            self._owner.id,
            self._owner.url,
            lease_s=self._lease_s,
            used=[each.resource for each in used],
        )
        self._reported.update((id, at) for id, at in times.items() if id in self._reported)
        for container in self:
            if container.id in reported and container.id not in active:
                self._reported.pop(container.id, None)
                container.expire()

    # --- private ---------------------------------------------------------------------------------

    async def _add(self, tenant: str, request: wc.CreateContainer, *, is_auto: bool) -> Container:
        await self._report_expired()
        container = Container(
            tenant,
            request,
            self._policy,
            self._services,
            id=self._services.ids("cntr"),
            open=self._sandbox.open,
            egress=self._egress,
            is_auto=is_auto,
            on_unused=self._delete_unused,
        )
        limit = self.quotas.for_tenant(tenant).max_containers
        record = self.record(container)
        while not await self._directory.add(record, max_active=limit, lease_s=self._lease_s):
            if not await self._expire_replaceable(tenant):
                raise quota_exceeded("active containers", max_containers=limit or 0)
        self._containers[container.id] = container
        self._reported[container.id] = container.last_used_at
        return container

    async def _expire_replaceable(self, tenant: str) -> bool:
        """Let one container of the tenant expire: the least recently used container that was
        created for a response and that no response uses now. Return False if there is no such
        container."""
        records = [each for each in await self._directory.list(tenant) if each.is_auto]
        for record in sorted(filter(lambda each: each.is_active, records), key=self._last_used_at):
            if await self._expire_if_replaceable(record):
                await self._directory.expire(record.owner, [record.resource.id])
                return True
        return False

    def _last_used_at(self, record: ContainerRecord) -> float:
        container = self.find(record.tenant, record.resource.id)
        return record.resource.last_active_at if container is None else container.last_used_at

    async def _expire_if_replaceable(self, record: ContainerRecord) -> bool:
        container = self.find(record.tenant, record.resource.id)
        if container is not None:
            return container.expire_if_replaceable()
        if record.owner == self._owner.id:
            return True  # this process removed the container, but the store did not confirm it
        try:
            return await self._remote.handle_for(record).expire_if_replaceable()
        except (NotFound, InvalidRequest):
            return True
        except (RequestError, ToolError):
            return False

    async def _delete(self, container: Container) -> None:
        self._forget(container.id)
        await self._directory.delete(container.tenant, container.id)
        await container.close()

    async def _delete_unused(self, container: Container) -> None:
        with suppress(StoreError):  # if the record remains, the container can still be replaced
            await self._delete(container)

    def _forget(self, container_id: str) -> None:
        self._containers.pop(container_id, None)
        self._reported.pop(container_id, None)

    async def _report_expired(self) -> None:
        active = {each.id for each in self if each.is_active}
        if over := [id for id in self._reported if id not in active]:
            await self._directory.expire(self._owner.id, over)
            for id in over:
                self._reported.pop(id, None)

    async def _sweep(self) -> None:
        try:
            await self.renew_lease()
        except StoreError as error:
            _log.warning("the lease of the containers could not be renewed", error=str(error))
        await self.close_expired()
