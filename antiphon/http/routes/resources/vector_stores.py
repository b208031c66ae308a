"""Endpoints of ``/v1/vector_stores``."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from starlette.requests import Request

from antiphon.http.json_response import Reply, json_reply
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests.path import object_key, path_param, tenant_of
from antiphon.http.requests.query import PAGE_PARAMS, Query, QueryParam
from antiphon.limits.requests import RequestLimits
from antiphon.wire.pagination import DeletedObject, Page
from antiphon.wire.parsing import vector_stores as wire
from antiphon.wire.resources.vector_stores import (
    FileBatch,
    FileContentPage,
    FileStatus,
    SearchResultPage,
    VectorStore,
    VectorStoreFile,
)

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_store_key = object_key("vector_store_id")
_file = path_param("file_id")
_batch = path_param("batch_id")
#: Response header that tells a polling client how many milliseconds to wait before the next poll.
_SOON = {"openai-poll-after-ms": "200"}
_STATUSES: tuple[FileStatus, ...] = get_args(FileStatus)
_FILE_LIST_PARAMS = (
    *PAGE_PARAMS,
    QueryParam(name="filter", type=FileStatus, description="Only files with this status."),
)


class VectorStoreRoutes:
    """All routes below ``/v1/vector_stores``."""

    def __init__(self, service: Service, limits: RequestLimits) -> None:
        self._stores = service.vector_stores
        self._limits = limits

    @operation(
        "createVectorStore",
        body=wire.CreateVectorStoreBody,
        body_required=False,
        answer=VectorStore,
        errors=(404,),
    )
    async def create(self, request: Request) -> Reply:
        """Create a vector store. An empty body creates a vector store without files."""
        parsed = await bodies.parse(request, self._limits, wire.parse_create_vector_store)
        return json_reply(await self._stores.create(tenant_of(request), parsed))

    @operation("listVectorStores", query=PAGE_PARAMS, answer=Page[VectorStore])
    async def list(self, request: Request) -> Reply:
        """Return a page of vector stores, by default newest first."""
        return json_reply(
            await self._stores.list(tenant_of(request), Query(request.scope).page_params())
        )

    @operation("getVectorStore", answer=VectorStore)
    async def retrieve(self, request: Request) -> Reply:
        """Return a vector store with the counts of its files by status."""
        return json_reply(await self._stores.retrieve(*_store_key(request)))

    @operation("modifyVectorStore", body=wire.UpdateVectorStoreBody, answer=VectorStore)
    async def update(self, request: Request) -> Reply:
        """Change a vector store. Fields that the request does not contain stay unchanged."""
        parsed = await bodies.parse(request, self._limits, wire.parse_update_vector_store)
        return json_reply(await self._stores.update(*_store_key(request), parsed))

    @operation("deleteVectorStore", answer=DeletedObject)
    async def delete(self, request: Request) -> Reply:
        """Delete a vector store. The files themselves are kept."""
        tenant, store_id = _store_key(request)
        await self._stores.delete(tenant, store_id)
        return json_reply(DeletedObject(id=store_id, object="vector_store.deleted"))

    @operation("searchVectorStore", body=wire.SearchBody, answer=SearchResultPage, errors=(502,))
    async def search(self, request: Request) -> Reply:
        """Search a vector store: return the chunks of text that match the query best."""
        request_context(request.scope).client.check_any_tool("file_search")
        parsed = await bodies.parse(request, self._limits, wire.parse_search)
        tenant, store_id = _store_key(request)
        found = await self._stores.search(tenant, (store_id,), parsed)
        return json_reply(SearchResultPage(search_query=parsed.queries, data=found))

    @operation("createVectorStoreFile", body=wire.AddFileBody, answer=VectorStoreFile)
    async def add_file(self, request: Request) -> Reply:
        """Add a file to a vector store. The file is indexed in the background."""
        parsed = await bodies.parse(request, self._limits, wire.parse_add_file)
        return json_reply(await self._stores.add_file(*_store_key(request), parsed))

    @operation("listVectorStoreFiles", query=_FILE_LIST_PARAMS, answer=Page[VectorStoreFile])
    async def list_files(self, request: Request) -> Reply:
        """Return a page of the files of a vector store."""
        query = Query(request.scope)
        found = self._stores.list_files(
            *_store_key(request), query.page_params(), status=_status(query)
        )
        return json_reply(await found)

    @operation("getVectorStoreFile", answer=VectorStoreFile)
    async def retrieve_file(self, request: Request) -> Reply:
        """Return a file with its indexing status."""
        found = await self._stores.retrieve_file(*_store_key(request), _file(request))
        return json_reply(found, headers=_SOON)

    @operation(
        "updateVectorStoreFileAttributes", body=wire.FileAttributesBody, answer=VectorStoreFile
    )
    async def update_file(self, request: Request) -> Reply:
        """Replace the attributes of a file."""
        attributes = await bodies.parse(request, self._limits, wire.parse_file_attributes)
        found = self._stores.update_attributes(*_store_key(request), _file(request), attributes)
        return json_reply(await found)

    @operation("deleteVectorStoreFile", answer=DeletedObject)
    async def remove_file(self, request: Request) -> Reply:
        """Remove a file from the vector store. The file itself is kept."""
        await self._stores.remove_file(*_store_key(request), _file(request))
        return json_reply(DeletedObject(id=_file(request), object="vector_store.file.deleted"))

    @operation("retrieveVectorStoreFileContent", answer=FileContentPage)
    async def read_content(self, request: Request) -> Reply:
        """Return the extracted text of a file."""
        return json_reply(await self._stores.read_text(*_store_key(request), _file(request)))

    @operation("createVectorStoreFileBatch", body=wire.FileBatchBody, answer=FileBatch)
    async def create_batch(self, request: Request) -> Reply:
        """Add several files to a vector store with one request, as a batch."""
        parsed = await bodies.parse(request, self._limits, wire.parse_file_batch)
        return json_reply(await self._stores.create_batch(*_store_key(request), parsed))

    @operation("getVectorStoreFileBatch", answer=FileBatch)
    async def retrieve_batch(self, request: Request) -> Reply:
        """Return a batch with the counts of its files by status."""
        found = await self._stores.retrieve_batch(*_store_key(request), _batch(request))
        return json_reply(found, headers=_SOON)

    @operation("cancelVectorStoreFileBatch", answer=FileBatch)
    async def cancel_batch(self, request: Request) -> Reply:
        """Cancel the indexing of those files of a batch that are not indexed yet."""
        return json_reply(await self._stores.cancel_batch(*_store_key(request), _batch(request)))

    @operation("listFilesInVectorStoreBatch", query=_FILE_LIST_PARAMS, answer=Page[VectorStoreFile])
    async def list_batch_files(self, request: Request) -> Reply:
        """Return a page of the files of a batch."""
        query = Query(request.scope)
        found = self._stores.list_files(
            *_store_key(request), query.page_params(), status=_status(query), batch=_batch(request)
        )
        return json_reply(await found)


def _status(query: Query) -> str | None:
    return query.choice("filter", _STATUSES, "") if query.value("filter") else None
