"""Operations on whole tenants: export all data of a tenant as an archive, and delete a tenant.

The archive consists of JSON lines; docs/tenants.md describes it. It is generated page by page while
it is read, so it may have any size.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar, get_args

import msgspec
from msgspec.structs import asdict, replace

from antiphon.errors import NotFound
from antiphon.resources.admin.tenant_deletions import TenantDeletions
from antiphon.resources.containers import Containers
from antiphon.resources.file_storage.contents import ContentStore, single_chunk
from antiphon.resources.webhook_endpoints import stored_endpoints
from antiphon.store.base import Store
from antiphon.store.batches import BatchStore
from antiphon.store.files import FileQuery
from antiphon.store.records import ItemQuery, ResponseQuery
from antiphon.store.usage import UsageKind, UsageQuery
from antiphon.wire.cursors import PageParams
from antiphon.wire.resources.files import File
from antiphon.wire.response import Response
from antiphon.wire.response_list import ResponseSummary

#: Version of the archive's format.
_VERSION = 1
#: Objects that are read at a time.
_PAGE = 100
#: Bytes of a file in one line of an archive.
_PIECE_BYTES = 3 << 18
_DAY = 86_400
_KINDS: tuple[UsageKind, ...] = get_args(UsageKind)

_encode = msgspec.json.Encoder().encode

#: An entry of an archive: its type, and its data.
_Entry = tuple[str, Any]


class Tenants:
    """Exports and deletes all data of a tenant.

    - ``deletions``: where deletions are recorded, so that what is in progress for a tenant ends.
    - ``cancel``: a function that cancels a background response, given the tenant and the id.
    - ``clock`` returns Unix seconds.
    - ``on_deleted``: called with a tenant whose data was deleted.
    """

    def __init__(
        self,
        store: Store,
        contents: ContentStore,
        containers: Containers,
        deletions: TenantDeletions,
        *,
        cancel: Callable[[str, str], Awaitable[Response]],
        clock: Callable[[], float],
        on_deleted: Callable[[str], None] = lambda tenant: None,
    ) -> None:
        self._deletions = deletions
        self._on_deleted = on_deleted
        self._store = store
        self._batch_store = BatchStore(store.values)
        self._contents = contents
        self._containers = containers
        self._cancel = cancel
        self._clock = clock

    async def export(self, tenant: str) -> AsyncIterator[bytes]:
        """Yield the lines of a tenant's archive. The archive may lack changes that happen during
        the export. Raises ``StoreError``."""
        now = int(self._clock())
        yield _line("tenant", {"name": tenant, "exported_at": now, "version": _VERSION})
        counts: Counter[str] = Counter()
        for entries in (
            self._responses(tenant),
            self._conversations(tenant),
            self._files(tenant),
            self._vector_stores(tenant),
            self._skills(tenant),
            self._batches(tenant),
            self._webhook_endpoints(tenant),
            self._container_resources(tenant),
            self._usage(tenant, now),
            self._keys(tenant),
        ):
            async for type, data in entries:
                counts[type] += 1
                yield _line(type, data)
        yield _line("end", {"counts": dict(counts)})

    async def delete(self, tenant: str) -> None:
        """Delete all data of a tenant: first its keys, then its runs, then all other data. What is
        in progress for the tenant ends, even if its key is in the settings. Data that other
        processes store in the next two seconds may remain. Raises ``StoreError``."""
        await self._deletions.record(tenant)
        for key in await self._store.keys.list():
            if key.tenant == tenant:
                await self._store.keys.delete(key.name)
        await self._cancel_runs(tenant)
        async for _, container in self._container_resources(tenant):
            await self._containers.registry.delete(tenant, container.id)
        await self._store.delete_tenant(tenant)
        self._on_deleted(tenant)

    async def _cancel_runs(self, tenant: str) -> None:
        """Cancel the tenant's background runs. The status ``queued`` selects all of them: in the
        list of responses, a run keeps this status until it ends."""
        query = ResponseQuery(status="queued", background=True, limit=_PAGE)
        cancelled: set[str] = set()
        while page := await self._store.list_responses(tenant, query):
            ids = {summary.id for summary in page}
            if ids <= cancelled:
                break
            for response_id in ids - cancelled:
                with suppress(NotFound):  # deleted meanwhile
                    await self._cancel(tenant, response_id)
            cancelled |= ids

    # --- entries ---------------------------------------------------------------------------------

    async def _responses(self, tenant: str) -> AsyncIterator[_Entry]:
        query = ResponseQuery(limit=_PAGE)

        async def read(after: str | None) -> tuple[ResponseSummary, ...] | None:
            return await self._store.list_responses(tenant, replace(query, after=after))

        async for summary in _all(read):
            if (stored := await self._store.load(tenant, summary.id)) is not None:
                yield "response", {"response": stored.response, "input": stored.input}

    async def _conversations(self, tenant: str) -> AsyncIterator[_Entry]:
        after: str | None = None
        while page := await self._store.list_conversations(tenant, after=after, limit=_PAGE):
            for conversation in page:
                yield "conversation", conversation
                query = ItemQuery(limit=_PAGE)
                while items := await self._store.list_conversation_items(
                    tenant, conversation.id, query
                ):
                    for item in items:
                        yield "item", {"conversation": conversation.id, "item": item}
                    query = ItemQuery(limit=_PAGE, after=items[-1].id)
            after = page[-1].id

    async def _files(self, tenant: str) -> AsyncIterator[_Entry]:
        query = FileQuery(limit=_PAGE)

        async def read(after: str | None) -> tuple[File, ...] | None:
            return await self._store.files.list_page(tenant, replace(query, after=after))

        async for file in _all(read):
            if (stored := await self._contents.open(tenant, file)) is not None:
                yield "file", file
                async for entry in _pieces({"file": file.id}, stored.read()):
                    yield entry

    async def _vector_stores(self, tenant: str) -> AsyncIterator[_Entry]:
        for store in await self._store.vectors.list_stores(tenant):
            yield "vector_store", store
            for indexed in await self._store.vectors.list_files(tenant, store.id):
                yield "vector_store_file", indexed

    async def _skills(self, tenant: str) -> AsyncIterator[_Entry]:
        for skill in await self._store.skills.list_skills(tenant):
            yield "skill", skill
            for version in await self._store.skills.list_versions(tenant, skill.id):
                number = int(version.version)
                bundle = await self._store.skills.read_bundle(tenant, skill.id, number)
                yield "skill_version", version
                content = single_chunk(bundle or b"")
                async for entry in _pieces({"skill_version": version.id}, content):
                    yield entry

    async def _batches(self, tenant: str) -> AsyncIterator[_Entry]:
        for batch_id in await self._batch_store.ids(tenant):
            if (record := await self._batch_store.load(tenant, batch_id)) is not None:
                yield "batch", record.batch

    async def _webhook_endpoints(self, tenant: str) -> AsyncIterator[_Entry]:
        for record in (await stored_endpoints(self._store.values, tenant).load()).values():
            yield "webhook_endpoint", record.endpoint

    async def _container_resources(self, tenant: str) -> AsyncIterator[_Entry]:
        after: str | None = None
        while (registry := self._containers.registry_or_none) is not None:
            params = PageParams(limit=_PAGE, order="asc", after=after)
            page = await registry.list(tenant, params)
            for container in page.data:
                yield "container", container
            if not page.has_more:
                break
            after = page.last_id

    async def _usage(self, tenant: str, now: int) -> AsyncIterator[_Entry]:
        for kind in _KINDS:
            query = UsageQuery(
                start=0,
                end=now + 1,
                width=_DAY,
                kind=kind,
                tenants=(tenant,),
                group_by=frozenset(("api_key", "model")),
            )
            for totals in await self._store.usage_log.totals(query):
                yield "usage", {"kind": kind, **asdict(totals), "tenant": tenant}

    async def _keys(self, tenant: str) -> AsyncIterator[_Entry]:
        for key in await self._store.keys.list():
            if key.tenant == tenant:
                fields = asdict(key)
                del fields["sha256"], fields["hint"]
                yield "api_key", fields


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


_T = TypeVar("_T", bound=_HasId)


async def _all(
    read: Callable[[str | None], Awaitable[tuple[_T, ...] | None]],
) -> AsyncIterator[_T]:
    """Yield the entries of all pages. ``read`` returns the page after the entry with a given id.
    For None, it returns the first page. If the entry was deleted meanwhile, ``read`` returns None.
    Reading then continues after the entry before the deleted one."""
    page = await read(None)
    while page:
        for entry in page:
            yield entry
        for entry in reversed(page):
            if (page := await read(entry.id)) is not None:
                break


def _line(type: str, data: object) -> bytes:
    return _encode({"type": type, "data": data}) + b"\n"


async def _pieces(of: dict[str, str], chunks: AsyncIterator[bytes]) -> AsyncIterator[_Entry]:
    """Yield the content of a file or a skill version in pieces. ``of``: the fields that each piece
    gets to identify its object: ``{"file": ID}`` or ``{"skill_version": ID}``."""
    offset = 0
    async for chunk in chunks:
        for start in range(0, len(chunk), _PIECE_BYTES):
            piece = chunk[start : start + _PIECE_BYTES]
            yield "content", {**of, "offset": offset, "base64": base64.b64encode(piece).decode()}
            offset += len(piece)
