"""Search engines: what each is asked and how its answers are read, over recorded shapes."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Fetcher
from antiphon.errors import SetupError, ToolError
from antiphon.tools.web_search.browser import SearchOptions
from antiphon.tools.web_search.engines import ENGINES, HttpSearchEngine
from antiphon.tools.web_search.live_web import LiveWeb

ONE = {"url": "https://a.example/1", "title": "One"}
#: Engine → an answer of it, in its own shape.
ANSWERS: dict[str, Any] = {
    "exa": {"results": [{**ONE, "text": "words"}]},
    "tavily": {"results": [{**ONE, "content": "words", "score": 0.5}]},
    "brave": {"web": {"results": [{**ONE, "description": "words"}]}},
    "you": {"results": {"web": [{**ONE, "snippets": ["words"], "description": "x"}]}},
    "searxng": {"results": [{**ONE, "content": "words", "engine": "x"}]},
}
PAGE = b"<html><head><title>T</title></head><body><article><p>%s</p></article></body></html>" % (
    b"A page about something that is long enough to be read as an article. " * 5
)


@asynccontextmanager
async def serving(
    engine: str, answer: Any, status: int = 200
) -> AsyncIterator[tuple[LiveWeb, list[Any]]]:
    seen: list[Any] = []

    async def answered(request: web.Request) -> web.Response:
        if request.path == "/page":
            return web.Response(body=PAGE, content_type="text/html")
        body = await request.json() if request.can_read_body else dict(request.query)
        seen.append((request.method, request.path, dict(request.headers), body))
        if isinstance(answer, bytes):
            return web.Response(body=answer, status=status)
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answered)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    local = ipaddress.ip_network("127.0.0.0/8")
    fetcher = Fetcher.open(most=10**6, clock=time.monotonic, networks=(local,))
    source = LiveWeb(
        HttpSearchEngine.open(engine, key="k3y", url=f"http://127.0.0.1:{port}"),
        fetcher,
        Documents(),
    )
    try:
        yield source, [port, seen]
    finally:
        await source.close()
        await fetcher.close()
        await runner.cleanup()


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_engine_is_asked_and_read(engine: str) -> None:
    async with serving(engine, ANSWERS[engine]) as (source, (port, seen)):
        asked = SearchOptions(count=3, allowed_domains=("a.example",), location={"country": "NO"})
        (found,) = await source.search("fjords", asked)
        assert (found.url, found.title, found.text) == (ONE["url"], "One", "words")
        page = await source.page(f"http://127.0.0.1:{port}/page")
        assert page.title == "T" and any("article" in line for line in page.lines)
    ((method, path, headers, body),) = seen
    assert "fjords" in body.values() and path == ENGINES[engine].path
    if ENGINES[engine].key is not None:
        assert "k3y" in str(headers)
    if method == "POST":
        assert ["a.example"] in body.values()


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({}, 500),
        ({"results": "x"}, 200),
        (b"<html>", 200),
        ({"results": [{"a": 1}]}, 200),
        ([], 200),
    ],
)
async def test_what_goes_wrong_there_is_told_in_short(answer: Any, status: int) -> None:
    async with serving("tavily", answer, status) as (source, _):
        if answer == {"results": "x"}:
            assert await source.search("x", SearchOptions()) == ()
            return
        with pytest.raises(ToolError) as caught:
            await source.search("x", SearchOptions())
        assert "k3y" not in caught.value.message and len(caught.value.message) < 100


async def test_an_engine_that_is_not_there() -> None:
    async with serving("searxng", {}) as (_, (port, _)):
        pass
    fetcher = Fetcher.open(most=1, clock=time.monotonic)
    gone = LiveWeb(
        HttpSearchEngine.open("searxng", url=f"http://127.0.0.1:{port}"), fetcher, Documents()
    )
    with pytest.raises(ToolError, match="cannot be reached"):
        await gone.search("x", SearchOptions())
    with pytest.raises(ToolError, match="not a public one"):
        await gone.page(f"http://127.0.0.1:{port}/page")
    await gone.close()
    await fetcher.close()


async def test_keys_and_addresses_are_asked_for() -> None:
    with pytest.raises(SetupError, match="web_search_key"):
        HttpSearchEngine.open("exa")
    with pytest.raises(SetupError, match="web_search_url"):
        HttpSearchEngine.open("searxng")
