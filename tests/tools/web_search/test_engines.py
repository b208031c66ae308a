"""Search engines: requests and parsing, against recorded answer shapes."""

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

RESULT = {"url": "https://a.example/1", "title": "One"}
#: Engine → an answer in its format.
ANSWERS: dict[str, Any] = {
    "exa": {"results": [{**RESULT, "text": "words"}]},
    "tavily": {"results": [{**RESULT, "content": "words", "score": 0.5}]},
    "brave": {"web": {"results": [{**RESULT, "description": "words"}]}},
    "you": {"results": {"web": [{**RESULT, "snippets": ["words"], "description": "x"}]}},
    "searxng": {"results": [{**RESULT, "content": "words", "engine": "x"}]},
}
PAGE = b"<html><head><title>T</title></head><body><article><p>%s</p></article></body></html>" % (
    b"A page about something that is long enough to be read as an article. " * 5
)


@asynccontextmanager
async def serve_engine(
    engine: str, answer: Any, status: int = 200
) -> AsyncIterator[tuple[LiveWeb, list[Any]]]:
    requests: list[Any] = []

    async def handle(request: web.Request) -> web.Response:
        if request.path == "/page":
            return web.Response(body=PAGE, content_type="text/html")
        body = await request.json() if request.can_read_body else dict(request.query)
        requests.append((request.method, request.path, dict(request.headers), body))
        if isinstance(answer, bytes):
            return web.Response(body=answer, status=status)
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    local = ipaddress.ip_network("127.0.0.0/8")
    fetcher = Fetcher.open(max_bytes=10**6, clock=time.monotonic, networks=(local,))
    source = LiveWeb(
        HttpSearchEngine.open(engine, key="k3y", url=f"http://127.0.0.1:{port}"),
        fetcher,
        Documents(),
    )
    try:
        yield source, [port, requests]
    finally:
        await source.close()
        await fetcher.close()
        await runner.cleanup()


@pytest.mark.parametrize("engine", ENGINES)
async def test_each_engine_is_queried_and_parsed(engine: str) -> None:
    async with serve_engine(engine, ANSWERS[engine]) as (source, (port, requests)):
        options = SearchOptions(count=3, allowed_domains=("a.example",), location={"country": "NO"})
        (result,) = await source.search("fjords", options)
        assert (result.url, result.title, result.text) == (RESULT["url"], "One", "words")
        page = await source.page(f"http://127.0.0.1:{port}/page")
        assert page.title == "T" and any("article" in line for line in page.lines)
    ((method, path, headers, body),) = requests
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
async def test_invalid_answers_raise_short_tool_errors(answer: Any, status: int) -> None:
    async with serve_engine("tavily", answer, status) as (source, _):
        if answer == {"results": "x"}:
            assert await source.search("x", SearchOptions()) == ()
            return
        with pytest.raises(ToolError) as error:
            await source.search("x", SearchOptions())
        assert "k3y" not in error.value.message and len(error.value.message) < 100


async def test_unreachable_engine_raises_tool_error() -> None:
    async with serve_engine("searxng", {}) as (_, (port, _)):
        pass
    fetcher = Fetcher.open(max_bytes=1, clock=time.monotonic)
    stopped_source = LiveWeb(
        HttpSearchEngine.open("searxng", url=f"http://127.0.0.1:{port}"), fetcher, Documents()
    )
    with pytest.raises(ToolError, match="cannot be reached"):
        await stopped_source.search("x", SearchOptions())
    with pytest.raises(ToolError, match="fetch_allowed_networks"):
        await stopped_source.page(f"http://127.0.0.1:{port}/page")
    await stopped_source.close()
    await fetcher.close()


async def test_missing_key_or_url_raises_setup_error() -> None:
    with pytest.raises(SetupError, match=r"web_search\.key"):
        HttpSearchEngine.open("exa")
    with pytest.raises(SetupError, match=r"web_search\.url"):
        HttpSearchEngine.open("searxng")
