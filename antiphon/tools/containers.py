"""Containers: each of one tenant, found by its id, and gone when nobody uses it. They live in this
process: a box is processes and memory of this machine. It knows no tool and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from antiphon.errors import InvalidRequest, NotFound, ToolError
from antiphon.sandbox.base import Box, Sandbox
from antiphon.wire import containers as wc

from .container import Container, Rules

__all__ = ["Containers", "Page", "Uploads", "safe"]

#: Tenant, file id → the name and content of what was uploaded. Raises ``NotFound``.
Uploads = Callable[[str, str], Awaitable[tuple[str, bytes]]]

_SWEEP_S = 5.0
#: Expired ones of which the status is still told.
_REMEMBERED = 1000


class Page(Struct, frozen=True, kw_only=True):
    """Which part of a list."""

    limit: int = 20
    order: str = "desc"
    after: str | None = None


class Containers:
    """All of them. Entered and left by whoever puts the server together; ``clock`` gives unix
    seconds."""

    def __init__(
        self,
        sandbox: Sandbox,
        rules: Rules,
        *,
        uploads: Uploads,
        clock: Callable[[], float],
        ids: Callable[[str], str],
    ) -> None:
        self.rules = rules
        self._sandbox = sandbox
        self._uploads = uploads
        self._clock = clock
        self._ids = ids
        self._all: dict[str, Container] = {}

    async def __aenter__(self) -> Containers:
        self._sweeping = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._sweeping
        await asyncio.gather(*(each.close() for each in self._all.values()))
        await self._sandbox.close()

    async def create(self, tenant: str, asked: wc.CreateContainer) -> wc.Container:
        """A new one with its files. Raises ``InvalidRequest``, ``NotFound``."""
        self.rules.check(asked.memory_limit, "memory_limit")
        if asked.expires_after is not None and asked.expires_after.minutes * 60 > max(
            self.rules.idle_s, 60
        ):
            raise InvalidRequest(
                f"Containers of this server are kept for {round(self.rules.idle_s / 60)} idle"
                " minutes at most.",
                param="expires_after.minutes",
                code="invalid_value",
            )
        container = self.reserve(tenant, asked)
        try:
            await container.files()
        except (ToolError, NotFound):
            del self._all[container.id]
            await container.close()
            raise
        return container.shown

    def reserve(self, tenant: str, asked: wc.CreateContainer) -> Container:
        """One whose box is opened when it is needed. Raises ``InvalidRequest`` for one too many."""
        mine = [one for one in self._all.values() if one.tenant == tenant and one.is_active]
        if len(mine) >= self.rules.most:
            raise InvalidRequest(
                f"There are {len(mine)} containers, as many as there can be: delete one.",
                code="container_limit_exceeded",
            )
        container = Container(
            tenant,
            asked,
            id=self._ids("cntr"),
            rules=self.rules,
            begin=self._begin,
            clock=self._clock,
            ids=self._ids,
        )
        self._all[container.id] = container
        return container

    def release(self, container: Container) -> None:
        """One that was reserved and in which nothing was done leaves no trace."""
        if container.is_untouched:
            self._all.pop(container.id, None)

    def find(self, tenant: str, container_id: str) -> Container:
        """Raises ``NotFound``, also for what is another tenant's."""
        found = self._all.get(container_id)
        if found is None or found.tenant != tenant:
            raise NotFound(f"Container with id '{container_id}' not found.", param="container_id")
        return found

    def active(self, tenant: str, container_id: str) -> Container:
        """One that can be used. Raises ``NotFound``, ``InvalidRequest`` if it has expired."""
        found = self.find(tenant, container_id)
        if not found.is_active:
            raise InvalidRequest(
                f"Container '{container_id}' has expired.", code="container_expired"
            )
        return found

    async def put_upload(self, tenant: str, container_id: str, file_id: str) -> wc.ContainerFile:
        """A copy of an uploaded file. Raises ``NotFound``."""
        container = self.active(tenant, container_id)
        name, content = await self._uploads(tenant, file_id)
        return await container.put(safe(name), content)

    def list(self, tenant: str, page: Page) -> wc.ContainerList:
        """Raises ``InvalidRequest`` for a cursor that is none."""
        mine = [each.shown for each in self._all.values() if each.tenant == tenant]
        data, more = _cut(mine, page)
        return wc.ContainerList(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=more,
        )

    async def list_files(self, tenant: str, container_id: str, page: Page) -> wc.ContainerFileList:
        """Raises ``NotFound``, ``InvalidRequest``."""
        data, more = _cut(await self.active(tenant, container_id).files(), page)
        return wc.ContainerFileList(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=more,
        )

    async def delete(self, tenant: str, container_id: str) -> None:
        """For good. Raises ``NotFound``."""
        container = self.find(tenant, container_id)
        self._all.pop(container_id, None)
        await container.close()

    async def sweep(self) -> None:
        """Close those whose time is over; the oldest of them are forgotten."""
        over = [each for each in self._all.values() if not each.is_active]
        for container in over:
            await container.close()
        for container in over[: max(0, len(over) - _REMEMBERED)]:
            self._all.pop(container.id, None)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            await self.sweep()

    async def _begin(self, container: Container) -> Box:
        """A box with the files that were asked for, which are the user's."""
        asked = container.asked
        files = [await self._uploads(container.tenant, each) for each in asked.file_ids]
        box = await self._sandbox.open(self.rules.limits(asked.memory_limit or "1g"))
        try:
            for name, content in files:
                await box.write(safe(name), content)
                await container.look(box, "user", safe(name))
        except BaseException:
            await box.close()
            raise
        return box


_T = TypeVar("_T", wc.Container, wc.ContainerFile)


def _cut(things: Iterable[_T], page: Page) -> tuple[tuple[_T, ...], bool]:
    ordered = list(things)
    if page.order == "desc":
        ordered.reverse()
    start = 0
    if page.after is not None:
        ids = [each.id for each in ordered]
        if page.after not in ids:
            raise InvalidRequest(f"No such object: {page.after}", param="after")
        start = ids.index(page.after) + 1
    found = ordered[start : start + page.limit]
    return tuple(found), start + len(found) < len(ordered)


def safe(name: str) -> str:
    """A file's name without folders."""
    return name.replace("\\", "/").rsplit("/", 1)[-1].lstrip(".") or "file"
