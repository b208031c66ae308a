"""A Qdrant server for tests: its documented HTTP API over the client's local mode.

Bodies are read with the client's types, which forbid unknown fields. The local mode compares all
points, so it also says which points a filter selects. Fields without an index cannot be filtered,
as with Qdrant's strict mode.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from qdrant_client import AsyncQdrantClient, models

__all__ = ["FakeQdrant", "fake_qdrant"]


class FakeQdrant:
    """``requests``: the last part of each path and its body. ``is_down``: it answers nothing but
    429."""

    def __init__(self, key: str | None) -> None:
        self._key = key
        self.local = AsyncQdrantClient(":memory:")
        self.url = ""
        self.indexes: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.is_down = False

    def searches(self) -> list[dict[str, Any]]:
        """The bodies of all searches."""
        return [body for name, body in self.requests if name == "query"]

    async def answer(self, request: web.Request) -> web.Response:
        """Answer any request."""
        if self._key is not None and request.headers.get("api-key") != self._key:
            return web.Response(status=401, text="Must provide an API key")
        if self.is_down:
            # Too many requests, which the client reports in another way than other errors.
            return web.Response(status=429, headers={"retry-after": "1"})
        text = await request.text()
        name = request.match_info.get("collection", "")
        operation = request.path.removeprefix(f"/collections/{name}").strip("/")
        body = json.loads(text) if text else {}
        self.requests.append((operation.rpartition("/")[2], body))
        handler = _HANDLERS.get((request.method, operation))
        if handler is None:
            return web.Response(status=404)
        if operation not in ("", "exists", "collections"):
            if not await self.local.collection_exists(name):
                return web.json_response({"status": {"error": "Not found"}}, status=404)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what has no effect in the local mode
            result = await handler(self, name, body)
        return web.json_response({"result": result, "status": "ok", "time": 0.0})

    async def exists(self, name: str, body: Any) -> Any:
        return {"exists": await self.local.collection_exists(name)}

    async def collections(self, name: str, body: Any) -> Any:
        return (await self.local.get_collections()).model_dump(mode="json")

    async def create(self, name: str, body: Any) -> Any:
        read = models.CreateCollection.model_validate(body)
        self.indexes[name] = {}
        return await self.local.create_collection(name, read.vectors, hnsw_config=read.hnsw_config)

    async def index(self, name: str, body: Any) -> Any:
        read = models.CreateFieldIndex.model_validate(body)
        self.indexes[name][read.field_name] = body["field_schema"]
        return _DONE

    async def upsert(self, name: str, body: Any) -> Any:
        read = models.PointsList.model_validate(body)
        await self.local.upsert(name, read.points)
        return _DONE

    async def delete(self, name: str, body: Any) -> Any:
        read = models.FilterSelector.model_validate(body)
        self._check_filter(name, read.filter)
        await self.local.delete(name, read)
        return _DONE

    async def count(self, name: str, body: Any) -> Any:
        read = models.CountRequest.model_validate(body)
        assert read.filter is not None
        self._check_filter(name, read.filter)
        return (await self.local.count(name, read.filter)).model_dump()

    async def query(self, name: str, body: Any) -> Any:
        read: Any = models.QueryRequest.model_validate(body)
        self._check_filter(name, read.filter)
        found = await self.local.query_points(
            name,
            query=read.query,
            query_filter=read.filter,
            search_params=read.params,
            limit=read.limit,
            with_payload=read.with_payload,
        )
        return json.loads(found.model_dump_json())

    def _check_filter(self, name: str, selected: models.Filter) -> None:
        fields = {condition.key for condition in _conditions(selected)}
        assert fields <= self.indexes[name].keys(), "a field without an index"


_DONE = {"operation_id": 1, "status": "completed"}
_HANDLERS: Any = {
    ("GET", "collections"): FakeQdrant.collections,
    ("GET", "exists"): FakeQdrant.exists,
    ("PUT", ""): FakeQdrant.create,
    ("PUT", "index"): FakeQdrant.index,
    ("PUT", "points"): FakeQdrant.upsert,
    ("POST", "points/delete"): FakeQdrant.delete,
    ("POST", "points/count"): FakeQdrant.count,
    ("POST", "points/query"): FakeQdrant.query,
}


def _conditions(selected: models.Filter) -> Iterator[Any]:
    for conditions in (selected.must, selected.must_not):
        yield from conditions or ()  # type: ignore[misc]


@asynccontextmanager
async def fake_qdrant(*, key: str | None = None) -> AsyncIterator[FakeQdrant]:
    """Run a server on a free port. ``key``: the API key that it demands."""
    server = FakeQdrant(key)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/collections", server.answer)
    app.router.add_route("*", "/collections/{collection}", server.answer)
    app.router.add_route("*", "/collections/{collection}/{rest:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = "qdrant://{}:{}".format(*runner.addresses[0][:2])
    try:
        yield server
    finally:
        await runner.cleanup()
        await server.local.close()
