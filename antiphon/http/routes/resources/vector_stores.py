"""Endpoints of ``/v1/vector_stores``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta
from starlette.requests import Request

from antiphon.http.json_response import Reply, json_reply
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests.query import object_key, path_param, read_query, tenant_of
from antiphon.limits.requests import RequestLimits
from antiphon.wire.cursors import PageParams
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

_STORE = "/v1/vector_stores/{vector_store_id}"
_FILE = _STORE + "/files/{file_id}"
_BATCH = _STORE + "/file_batches/{batch_id}"
_store_key = object_key("vector_store_id")
_file = path_param("file_id")
_batch = path_param("batch_id")
#: Response header that tells a polling client how many milliseconds to wait before the next poll.
_SOON = {"openai-poll-after-ms": "200"}


class StoredFileListing(PageParams, frozen=True, kw_only=True):
    filter: Annotated[FileStatus | None, Meta(description="Only files with this status.")] = None


class VectorStoreRoutes:
    """All routes below ``/v1/vector_stores``."""

    def __init__(self, service: Service, limits: RequestLimits) -> None:
        self._stores = service.vector_stores
        self._limits = limits

    @operation(
        "POST /v1/vector_stores",
        "createVectorStore",
        body=wire.CreateVectorStore,
        body_required=False,
        errors=(404,),
    )
    async def create(self, request: Request) -> VectorStore:
        """Create a vector store. An empty body creates a vector store without files."""
        parsed = await bodies.parse(request, self._limits, wire.parse_create_vector_store)
        return await self._stores.create(tenant_of(request), parsed)

    @operation("GET /v1/vector_stores", "listVectorStores", query=PageParams)
    async def list(self, request: Request) -> Page[VectorStore]:
        """Return a page of vector stores, by default newest first."""
        return await self._stores.list(tenant_of(request), read_query(request, PageParams))

    @operation(f"GET {_STORE}", "getVectorStore")
    async def retrieve(self, request: Request) -> VectorStore:
        """Return a vector store with the counts of its files by status."""
        return await self._stores.retrieve(*_store_key(request))

    @operation(f"POST {_STORE}", "modifyVectorStore", body=wire.UpdateVectorStore)
    async def update(self, request: Request) -> VectorStore:
        """Change a vector store. Fields that the request does not contain stay unchanged."""
        parsed = await bodies.parse(request, self._limits, wire.parse_update_vector_store)
        return await self._stores.update(*_store_key(request), parsed)

    @operation(f"DELETE {_STORE}", "deleteVectorStore")
    async def delete(self, request: Request) -> DeletedObject:
        """Delete a vector store. The files themselves are kept."""
        tenant, store_id = _store_key(request)
        await self._stores.delete(tenant, store_id)
        return DeletedObject(id=store_id, object="vector_store.deleted")

    @operation(f"POST {_STORE}/search", "searchVectorStore", body=wire.SearchBody, errors=(502,))
    async def search(self, request: Request) -> SearchResultPage:
        """Search a vector store: return the chunks of text that match the query best."""
        request_context(request.scope).client.check_any_tool("file_search")
        parsed = await bodies.parse(request, self._limits, wire.parse_search)
        tenant, store_id = _store_key(request)
        found = await self._stores.search(tenant, (store_id,), parsed)
        return SearchResultPage(search_query=parsed.queries, data=found)

    @operation(f"POST {_STORE}/files", "createVectorStoreFile", body=wire.AddFile)
    async def add_file(self, request: Request) -> VectorStoreFile:
        """Add a file to a vector store. The file is indexed in the background."""
        parsed = await bodies.parse(request, self._limits, wire.parse_add_file)
        return await self._stores.add_file(*_store_key(request), parsed)

    @operation(f"GET {_STORE}/files", "listVectorStoreFiles", query=StoredFileListing)
    async def list_files(self, request: Request) -> Page[VectorStoreFile]:
        """Return a page of the files of a vector store."""
        query = read_query(request, StoredFileListing)
        found = self._stores.list_files(*_store_key(request), query, status=query.filter)
        return await found

    @operation(f"GET {_FILE}", "getVectorStoreFile", answer=VectorStoreFile)
    async def retrieve_file(self, request: Request) -> Reply:
        """Return a file with its indexing status."""
        found = await self._stores.retrieve_file(*_store_key(request), _file(request))
        return json_reply(found, headers=_SOON)

    @operation(f"POST {_FILE}", "updateVectorStoreFileAttributes", body=wire.FileAttributesBody)
    async def update_file(self, request: Request) -> VectorStoreFile:
        """Replace the attributes of a file."""
        attributes = await bodies.parse(request, self._limits, wire.parse_file_attributes)
        found = self._stores.update_attributes(*_store_key(request), _file(request), attributes)
        return await found

    @operation(f"DELETE {_FILE}", "deleteVectorStoreFile")
    async def remove_file(self, request: Request) -> DeletedObject:
        """Remove a file from the vector store. The file itself is kept."""
        await self._stores.remove_file(*_store_key(request), _file(request))
        return DeletedObject(id=_file(request), object="vector_store.file.deleted")

    @operation(f"GET {_FILE}/content", "retrieveVectorStoreFileContent")
    async def read_content(self, request: Request) -> FileContentPage:
        """Return the extracted text of a file."""
        return await self._stores.read_text(*_store_key(request), _file(request))

    @operation(f"POST {_STORE}/file_batches", "createVectorStoreFileBatch", body=wire.FileBatchBody)
    async def create_batch(self, request: Request) -> FileBatch:
        """Add several files to a vector store with one request, as a batch."""
        parsed = await bodies.parse(request, self._limits, wire.parse_file_batch)
        return await self._stores.create_batch(*_store_key(request), parsed)

    @operation(f"GET {_BATCH}", "getVectorStoreFileBatch", answer=FileBatch)
    async def retrieve_batch(self, request: Request) -> Reply:
        """Return a batch with the counts of its files by status."""
        found = await self._stores.retrieve_batch(*_store_key(request), _batch(request))
        return json_reply(found, headers=_SOON)

    @operation(f"POST {_BATCH}/cancel", "cancelVectorStoreFileBatch")
    async def cancel_batch(self, request: Request) -> FileBatch:
        """Cancel the indexing of those files of a batch that are not indexed yet."""
        return await self._stores.cancel_batch(*_store_key(request), _batch(request))

    @operation(f"GET {_BATCH}/files", "listFilesInVectorStoreBatch", query=StoredFileListing)
    async def list_batch_files(self, request: Request) -> Page[VectorStoreFile]:
        """Return a page of the files of a batch."""
        query = read_query(request, StoredFileListing)
        found = self._stores.list_files(
            *_store_key(request), query, status=query.filter, batch=_batch(request)
        )
        return await found
