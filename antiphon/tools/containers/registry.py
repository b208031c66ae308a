"""Registry of containers by id. A container belongs to one tenant and expires when unused.

A container belongs to one process, its owner: a box is processes and memory of one machine.
The directory in the store says who the owner is, and other processes call it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import structlog
from msgspec import Struct

from antiphon.errors import InvalidRequest, NotFound, RequestError, StoreError, ToolError
from antiphon.ipc.calls import Calls, NoCalls
from antiphon.limits.quotas import NO_QUOTAS, TenantQuotas, exceeded
from antiphon.pagination import PageParams, make_page
from antiphon.sandbox.base import Sandbox
from antiphon.store.containers import ContainerDirectory, ContainerRecord, expired
from antiphon.wire.items import CodeInterpreterCall, Item, ShellCall
from antiphon.wire.pagination import Page
from antiphon.wire.resources import containers as wc
from antiphon.wire.resources.skills import ShellSkill

from .container import Container, ContainerPolicy, Uploads, safe_file_name
from .handle import ContainerHandle, container_expired, container_not_found
from .local import LocalContainers
from .network import OpenEgress, network_key
from .remote import RemoteContainer
from .session import ContainerSession
from .skills import ContainerSkill, SkillLibrary, check_inline_skills, resolve_skills

__all__ = ["ContainerOwner", "ContainerRegistry"]

_log = structlog.get_logger(__name__)

_SWEEP_INTERVAL_S = 5.0
#: A process that does not renew its lease for this long loses its containers. A longer pause of the
#: store or of the process is rarer than a death that its address does not reveal.
_LEASE_S = 30.0


class ContainerOwner(Struct, frozen=True, kw_only=True):
    """This process among those that share a store. ``url``: where other servers reach it, empty if
    they cannot. ``connect`` makes the calls to another process, by its id and URL."""

    id: str
    url: str = ""
    connect: Callable[[str, str], Calls] = lambda owner, url: NoCalls()


class ContainerRegistry:
    """The containers of all processes. An async context manager. ``clock`` returns Unix seconds.
    ``quotas``: among them the number of active containers of a tenant. ``lease_s``: seconds without
    a sign of life after which this process loses its containers."""

    def __init__(
        self,
        sandbox: Sandbox,
        policy: ContainerPolicy,
        *,
        uploads: Uploads,
        library: SkillLibrary,
        clock: Callable[[], float],
        ids: Callable[[str], str],
        directory: ContainerDirectory,
        owner: ContainerOwner,
        quotas: TenantQuotas = NO_QUOTAS,
        lease_s: float = _LEASE_S,
        egress: OpenEgress | None = None,
    ) -> None:
        self.policy = policy
        self.quotas = quotas
        #: The containers that this process owns.
        self.local = LocalContainers(
            sandbox, policy, uploads=uploads, clock=clock, ids=ids, egress=egress
        )
        self._library = library
        self._sandbox = sandbox
        self._uploads = uploads
        self._directory = directory
        self._owner = owner
        self._lease_s = lease_s
        #: Own containers that the directory knows as active, and when they were last used.
        self._reported: dict[str, float] = {}

    async def __aenter__(self) -> ContainerRegistry:
        await self._directory.renew(self._owner.id, self._owner.url, lease_s=self._lease_s)
        self._sweep_task = asyncio.create_task(self._sweep_forever())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._sweep_task.cancel()
        with suppress(asyncio.CancelledError):
            await self._sweep_task
        with suppress(StoreError):
            await self._directory.release(self._owner.id)
        await asyncio.gather(*(container.close() for container in self.local))
        await self._sandbox.close()

    def session(self) -> ContainerSession:
        """Return what another process may call."""
        return ContainerSession(self.local, self._library)

    # --- containers ------------------------------------------------------------------------------

    async def create(self, tenant: str, request: wc.CreateContainer) -> wc.ContainerResource:
        """Create a container with its files and skills. Raises ``InvalidRequest``, ``NotFound``,
        ``QuotaExceeded``."""
        self.policy.check(request)
        if request.expires_after is not None and request.expires_after.minutes * 60 > max(
            self.policy.idle_s, 60
        ):
            raise InvalidRequest(
                "Containers of this server expire after at most"
                f" {round(self.policy.idle_s / 60)} idle minutes.",
                param="expires_after.minutes",
                code="invalid_value",
            )
        skills = await self.resolve_skills(tenant, request.skills, "skills")
        await check_inline_skills(request.skills, skills, "skills")
        container = await self._reserve(tenant, request, is_auto=False)
        container.add_skills(skills)
        try:
            await container.list_files()
        except (ToolError, NotFound):
            await self._remove(container)
            raise
        return container.resource

    async def get_active(self, tenant: str, container_id: str) -> ContainerHandle:
        """Return a container that can be used. Raises ``NotFound``, also for another tenant's,
        ``InvalidRequest`` if it has expired, and ``Overloaded`` if its owner cannot be reached."""
        if (container := self.local.find(tenant, container_id)) is not None:
            return self.local.get_active(tenant, container.id)
        record = await self._record(tenant, container_id)
        if record.is_active:
            remote = self._remote(record)
            if (await remote.load()).status == "active":
                return remote
        raise container_expired(container_id)

    async def retrieve(self, tenant: str, container_id: str) -> wc.ContainerResource:
        """Return a container as the API shows it, even an expired one. Raises ``NotFound``."""
        if (container := self.local.find(tenant, container_id)) is not None:
            return container.resource
        record = await self._record(tenant, container_id)
        try:
            return await self._remote(record).load() if record.is_active else record.resource
        except (InvalidRequest, NotFound):
            return expired(record.resource)

    async def list(self, tenant: str, page_params: PageParams) -> Page[wc.ContainerResource]:
        """Return one page of containers, those of other processes as they were seconds ago. Raises
        ``InvalidRequest`` for an unknown cursor."""
        return make_page(await self._resources(tenant), page_params)

    async def count_active(self, tenant: str) -> int:
        """Return the number of a tenant's active containers."""
        return sum(each.status == "active" for each in await self._resources(tenant))

    async def delete(self, tenant: str, container_id: str) -> None:
        """Delete a container and its files. An owner that cannot be reached closes the box when it
        renews its lease. Raises ``NotFound``."""
        if (container := self.local.find(tenant, container_id)) is not None:
            await self._remove(container)
            return
        record = await self._record(tenant, container_id)
        await self._directory.delete(tenant, container_id)
        if record.is_active:
            with suppress(RequestError, ToolError):
                await self._remote(record).close()

    # --- use by responses ------------------------------------------------------------------------

    async def acquire(self, tenant: str, container_id: str) -> ContainerHandle:
        """Acquire the container that a request names. Raises what ``get_active`` raises."""
        container = await self.get_active(tenant, container_id)
        await container.acquire()
        return container

    async def acquire_auto(
        self,
        tenant: str,
        request: wc.AutoContainer,
        items: Iterable[Item],
        skills: Iterable[ContainerSkill] = (),
    ) -> ContainerHandle:
        """Acquire a container of type ``auto`` for a tool, with the requested files and skills.

        Returns the container of the last call among ``items`` if it is still active and has the
        requested network, otherwise a new one. Raises ``QuotaExceeded``."""
        skills = tuple(skills)
        last = await self.last_active(tenant, items)
        if last is not None and last.network_key == network_key(request.network_policy):
            with suppress(NotFound, InvalidRequest):  # its owner has ended since
                await last.acquire(request.file_ids, skills)
                return last
        creation = wc.CreateContainer(
            name="auto",
            memory_limit=request.memory_limit,
            network_policy=request.network_policy,
        )
        container = await self._reserve(tenant, creation, is_auto=True)
        await container.acquire(request.file_ids, skills)
        return container

    async def release(self, container: ContainerHandle) -> None:
        """End a response's use of a container. A container that was never used is removed."""
        await container.release()
        if isinstance(container, Container) and container.is_unused:
            await self._remove(container)

    async def last_active(self, tenant: str, items: Iterable[Item]) -> ContainerHandle | None:
        """Return the container of the last call among ``items``, None if it cannot be used."""
        container_id = next(filter(None, map(_container_id_of, reversed(tuple(items)))), None)
        with suppress(RequestError):
            return None if container_id is None else await self.get_active(tenant, container_id)
        return None

    async def resolve_skills(
        self, tenant: str, skills: Iterable[ShellSkill], path: str
    ) -> tuple[ContainerSkill, ...]:
        """Return the skills that a request names at ``path``. Raises ``InvalidRequest``."""
        return await resolve_skills(self._library, tenant, skills, path)

    async def check_reference(self, tenant: str, container_id: str, path: str) -> None:
        """Raise ``InvalidRequest`` if the container a request names at ``path`` cannot be used."""
        try:
            await self.get_active(tenant, container_id)
        except (NotFound, InvalidRequest) as error:
            raise InvalidRequest(error.message, param=path, code=error.code) from None

    async def check_auto(self, tenant: str, request: wc.AutoContainer, path: str) -> None:
        """Raise ``InvalidRequest`` if a file or skill that a request names at ``path`` does not
        exist."""
        for index, file_id in enumerate(request.file_ids):
            if await self._uploads.name(tenant, file_id) is None:
                raise InvalidRequest(
                    f"No such File object: {file_id}", param=f"{path}.file_ids[{index}]"
                )
        skills_path = f"{path}.skills"
        await check_inline_skills(
            request.skills,
            await self.resolve_skills(tenant, request.skills, skills_path),
            skills_path,
        )

    # --- files -----------------------------------------------------------------------------------

    async def copy_upload(self, tenant: str, container_id: str, file_id: str) -> wc.ContainerFile:
        """Copy an uploaded file into a container. Raises ``NotFound``."""
        container = await self.get_active(tenant, container_id)
        name, content = await self._uploads.read(tenant, file_id)
        return await container.write_file(safe_file_name(name), content)

    async def list_files(
        self, tenant: str, container_id: str, page_params: PageParams
    ) -> Page[wc.ContainerFile]:
        """Return one page of files. Raises ``NotFound``, ``InvalidRequest``."""
        container = await self.get_active(tenant, container_id)
        return make_page(await container.list_files(), page_params)

    # --- the directory ---------------------------------------------------------------------------

    async def _reserve(
        self, tenant: str, request: wc.CreateContainer, *, is_auto: bool
    ) -> Container:
        """Create a container whose box is opened when it is needed.

        At the tenant's limit, the longest unused container that a response created for itself
        expires. Raises ``QuotaExceeded`` if there is none."""
        await self._report_expired()
        container = self.local.make(tenant, request, is_auto=is_auto)
        limit = self.quotas.of(tenant).max_containers
        record = ContainerRecord(
            tenant=tenant,
            resource=container.resource,
            owner=self._owner.id,
            url=self._owner.url,
            is_auto=is_auto,
        )
        while not await self._directory.add(record, max_active=limit, lease_s=self._lease_s):
            if not await self._expire_replaceable(tenant):
                raise exceeded("active containers", max_containers=limit or 0)
        self.local.add(container)
        self._reported[container.id] = container.last_used_at
        return container

    async def _expire_replaceable(self, tenant: str) -> bool:
        """Let one container expire that no client created and no response uses. Returns False if
        there is none."""
        records = [each for each in await self._directory.list(tenant) if each.is_auto]
        for record in sorted(filter(lambda each: each.is_active, records), key=self._last_used_at):
            if await self._expire_if_replaceable(record):
                await self._directory.expire(record.owner, [record.resource.id])
                return True
        return False

    def _last_used_at(self, record: ContainerRecord) -> float:
        container = self.local.find(record.tenant, record.resource.id)
        return record.resource.last_active_at if container is None else container.last_used_at

    async def _expire_if_replaceable(self, record: ContainerRecord) -> bool:
        container = self.local.find(record.tenant, record.resource.id)
        if container is not None:
            return container.expire_if_replaceable()
        if record.owner == self._owner.id:
            return True  # it was removed, but the store did not answer
        try:
            return await self._remote(record).expire_if_replaceable()
        except (NotFound, InvalidRequest):
            return True
        except (RequestError, ToolError):
            return False

    async def _record(self, tenant: str, container_id: str) -> ContainerRecord:
        record = await self._directory.find(tenant, container_id)
        if record is None:
            raise container_not_found(container_id)
        return record

    async def _resources(self, tenant: str) -> tuple[wc.ContainerResource, ...]:
        records = await self._directory.list(tenant)
        local = {each.id: each.resource for each in self.local if each.tenant == tenant}
        return tuple(local.get(each.resource.id, each.resource) for each in records)

    def _remote(self, record: ContainerRecord) -> RemoteContainer:
        calls = self._owner.connect(record.owner, record.url)
        return RemoteContainer(record, calls, self._expire_lost)

    async def _expire_lost(self, record: ContainerRecord) -> None:
        """What clients were told is true from now on, even if the owner comes back."""
        await self._directory.expire(record.owner, [record.resource.id])

    async def _remove(self, container: Container) -> None:
        self.local.remove(container.id)
        self._reported.pop(container.id, None)
        await self._directory.delete(container.tenant, container.id)
        await container.close()

    async def close_expired(self) -> None:
        """Close the boxes of expired containers."""
        await self.local.close_expired()
        await self._report_expired()

    async def _report_expired(self) -> None:
        active = {each.id for each in self.local if each.is_active}
        if over := [id for id in self._reported if id not in active]:
            await self._directory.expire(self._owner.id, over)
            for id in over:
                self._reported.pop(id, None)

    async def renew_lease(self) -> None:
        """Renew the lease of this process, report which containers were used, and let those expire
        that the directory no longer has: the lease was over, or others deleted them."""
        reported = dict(self._reported)
        used = [
            each
            for each in self.local
            if each.id in reported and reported[each.id] != each.last_used_at
        ]
        times = {each.id: each.last_used_at for each in used}
        active = await self._directory.renew(
            self._owner.id,
            self._owner.url,
            lease_s=self._lease_s,
            used=[each.resource for each in used],
        )
        self._reported.update((id, at) for id, at in times.items() if id in self._reported)
        for container in self.local:
            if container.id in reported and container.id not in active:
                self._reported.pop(container.id, None)
                container.expire()

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            try:
                await self.renew_lease()
            except StoreError as error:
                _log.warning("the lease of the containers is not renewed", error=str(error))
            with suppress(StoreError):
                await self.close_expired()


def _container_id_of(item: Item) -> str | None:
    """Return the id of the container that a call ran in."""
    if isinstance(item, CodeInterpreterCall):
        return item.container_id
    if isinstance(item, ShellCall) and isinstance(item.environment, dict):
        container = item.environment.get("container_id")
        return container if isinstance(container, str) else None
    return None
