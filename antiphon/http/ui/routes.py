"""Routes that serve Antiphon's web page, on which users can try the API, and the page's files.

The page is served without an API key, because it contains no data. It asks the user for an API key
if the API requires one. The page needs no build step; the files in ``static/`` are sent unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from antiphon.http.json_response import Reply
from antiphon.http.unknown_urls import unknown_url

STATIC = Path(__file__).parent / "static"

#: Content security policy of the page. The page may load only files of this server. Images may also
#: be data that a response contains.
_CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "media-src blob:",
        "connect-src 'self'",
        "frame-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

#: Content security policy of the preview, which shows HTML that a model wrote. The HTML runs in its
#: own origin and cannot send data.
_PREVIEW_POLICY = "; ".join(
    (
        "sandbox allow-scripts",
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "font-src data:",
        "media-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    )
)
_PREVIEW = "preview.html"

_HEADERS = {
    "x-dns-prefetch-control": "off",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # Browsers check each file by its ETag, so they load the files of a new server version at once.
    "cache-control": "no-cache",
}

#: The system's table of media types differs between machines; browsers refuse modules of a wrong
#: type.
_MEDIA_TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


def page_routes() -> list[Route]:
    """Return the routes of the web page, which are no part of the API."""
    page = _Page()
    return [
        Route("/", page.index, methods=["GET"]),
        Route("/ui/{path:path}", page.file, methods=["GET"]),
    ]


class _Page:
    """The handlers of the web page: ``/`` and the files below ``/ui/``."""

    def __init__(self) -> None:
        self._files = StaticFiles(directory=STATIC)

    async def index(self, request: Request) -> Reply:
        """Return the web page."""
        return await self._reply("index.html", request)

    async def file(self, request: Request) -> Reply:
        """Return a file of the web page. Raises ``NotFound``."""
        return await self._reply(request.path_params["path"], request)

    async def _reply(self, path: str, request: Request) -> Reply:
        media_type = _MEDIA_TYPES.get(Path(path).suffix)
        if media_type is None:
            raise unknown_url(request.method, request.url.path)
        try:
            reply = await self._files.get_response(path, request.scope)
        except HTTPException:
            raise unknown_url(request.method, request.url.path) from None
        policy = _PREVIEW_POLICY if path == _PREVIEW else _CONTENT_POLICY
        reply.headers.update(
            {**_HEADERS, "content-security-policy": policy, "content-type": media_type}
        )
        return reply
