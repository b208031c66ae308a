"""``/v1/vector_stores``: requests become calls of the service. It knows no store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from antiphon.http.json_response import Reply, json_reply
from antiphon.http.middleware.auth import RequestLimits
from antiphon.http.middleware.request_context import request_context
from antiphon.http.requests import body as bodies
from antiphon.http.requests.query import Query
from antiphon.wire.pagination import Deleted
from antiphon.wire.parsing import vector_stores as wire
from antiphon.wire.vector_stores import SearchResultPage

if TYPE_CHECKING:
    from antiphon.runs.service import Service

__all__ = ["VectorStoreRoutes"]

#: Clients that wait for a file ask again after so many milliseconds.
_SOON = {"openai-poll-after-ms": "200"}
_STATUSES = ("in_progress", "completed", "failed", "cancelled")


class VectorStoreRoutes:
    """Every route below ``/v1/vector_stores``."""

    def __init__(self, service: Service, limits: RequestLimits) -> None:
        self._stores = service.vector_stores
        self._limits = limits

    async def create(self, request: Request) -> Reply:
        """A new one; an empty body is one without files."""
        parsed = wire.parse_create_vector_store(await self._body(request), self._limits.body)
        return json_reply(await self._stores.create(_tenant(request), parsed))

    async def list(self, request: Request) -> Reply:
        """A page of them, newest first unless asked otherwise."""
        return json_reply(
            await self._stores.list(_tenant(request), Query(request.scope).page_params())
        )

    async def retrieve(self, request: Request) -> Reply:
        """With how far its files are."""
        return json_reply(await self._stores.retrieve(*_store_key(request)))

    async def update(self, request: Request) -> Reply:
        """What is given is replaced."""
        parsed = wire.parse_update_vector_store(await self._body(request), self._limits.body)
        return json_reply(await self._stores.update(*_store_key(request), parsed))

    async def delete(self, request: Request) -> Reply:
        """The files themselves stay."""
        tenant, store_id = _store_key(request)
        await self._stores.delete(tenant, store_id)
        return json_reply(Deleted(id=store_id, object="vector_store.deleted"))

    async def search(self, request: Request) -> Reply:
        """The pieces of files that fit best."""
        parsed = wire.parse_search(await self._body(request), self._limits.body)
        tenant, store_id = _store_key(request)
        found = await self._stores.search(tenant, (store_id,), parsed)
        return json_reply(SearchResultPage(search_query=parsed.queries, data=found))

    async def add_file(self, request: Request) -> Reply:
        """It is made searchable behind this."""
        parsed = wire.parse_add_file(await self._body(request), self._limits.body)
        return json_reply(await self._stores.add_file(*_store_key(request), parsed))

    async def files(self, request: Request) -> Reply:
        """A page of its files."""
        query = Query(request.scope)
        found = self._stores.list_files(
            *_store_key(request), query.page_params(), status=_status(query)
        )
        return json_reply(await found)

    async def file(self, request: Request) -> Reply:
        """How far it is."""
        found = await self._stores.retrieve_file(*_store_key(request), _file(request))
        return json_reply(found, headers=_SOON)

    async def label(self, request: Request) -> Reply:
        """Its attributes are replaced."""
        attributes = wire.parse_file_attributes(await self._body(request), self._limits.body)
        found = self._stores.update_attributes(*_store_key(request), _file(request), attributes)
        return json_reply(await found)

    async def remove(self, request: Request) -> Reply:
        """The file itself stays."""
        await self._stores.remove_file(*_store_key(request), _file(request))
        return json_reply(Deleted(id=_file(request), object="vector_store.file.deleted"))

    async def content(self, request: Request) -> Reply:
        """The text that was read from it."""
        return json_reply(await self._stores.read_text(*_store_key(request), _file(request)))

    async def create_batch(self, request: Request) -> Reply:
        """Files that are added together."""
        parsed = wire.parse_file_batch(await self._body(request), self._limits.body)
        return json_reply(await self._stores.create_batch(*_store_key(request), parsed))

    async def batch(self, request: Request) -> Reply:
        """How far its files are."""
        found = await self._stores.retrieve_batch(*_store_key(request), _batch(request))
        return json_reply(found, headers=_SOON)

    async def cancel_batch(self, request: Request) -> Reply:
        """What is not finished stays undone."""
        return json_reply(await self._stores.cancel_batch(*_store_key(request), _batch(request)))

    async def batch_files(self, request: Request) -> Reply:
        """A page of its files."""
        query = Query(request.scope)
        found = self._stores.list_files(
            *_store_key(request), query.page_params(), status=_status(query), batch=_batch(request)
        )
        return json_reply(await found)

    async def _body(self, request: Request) -> bytes:
        return await bodies.read(request.scope, request.receive, self._limits.max_body_bytes)


def _tenant(request: Request) -> str:
    return request_context(request.scope).tenant


def _store_key(request: Request) -> tuple[str, str]:
    """Tenant and vector store id."""
    return _tenant(request), request.path_params["vector_store_id"]


def _file(request: Request) -> str:
    return str(request.path_params["file_id"])


def _batch(request: Request) -> str:
    return str(request.path_params["batch_id"])


def _status(query: Query) -> str | None:
    return query.choice("filter", _STATUSES, "") if query.value("filter") else None
