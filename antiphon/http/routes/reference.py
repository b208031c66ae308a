"""``/openapi.json`` and ``/docs``: the server's description of its own API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request

from antiphon.http.json_response import Reply
from antiphon.http.openapi.document import make_document
from antiphon.http.openapi.operation import operation
from antiphon.http.openapi.page import ReferencePage, make_page
from antiphon.wire.json_types import JsonObject


class ReferenceRoutes:
    """The routes of the OpenAPI document and of the HTML page that shows it. The document and the
    page are each built at the first request for them, in a thread. ``routes``: all routes of the
    app."""

    def __init__(self, routes: Sequence[object]) -> None:
        self._routes = routes
        self._lock = asyncio.Lock()
        self._document: JsonObject | None = None
        self._page: ReferencePage | None = None

    @operation("GET /openapi.json", "getOpenapi", security="open", errors=(400,))
    async def document(self, request: Request) -> JsonObject:
        """Return the OpenAPI document of this server."""
        document = await self._load()
        if root := request.scope.get("root_path", ""):
            document = {**document, "servers": [{"url": root}]}
        return document

    @operation("GET /docs", "getDocs", media_type="text/html", security="open", errors=(400,))
    async def page(self, request: Request) -> Reply:
        """Return the API reference as an HTML page."""
        document = await self._load()
        async with self._lock:
            if self._page is None:
                self._page = await asyncio.to_thread(make_page, document)
        headers = {
            "content-security-policy": self._page.policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }
        return Reply(self._page.html, headers=headers, media_type="text/html")

    async def _load(self) -> JsonObject:
        async with self._lock:
            if self._document is None:
                self._document = await asyncio.to_thread(make_document, self._routes)
        return self._document
