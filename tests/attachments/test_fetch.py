"""Fetching URLs: limits and refused addresses. Only loopback is dialled."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from antiphon.attachments import fetch
from antiphon.attachments.fetch import Fetcher, FetchError, check
from antiphon.errors import SetupError
from antiphon.security.ssrf import guarded_session

LOOPBACK = (ipaddress.ip_network("127.0.0.1/32"),)


class Site:
    """A server on loopback. ``hits``: paths of its requests."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        self.port = 0
        self.headers: dict[str, str] = {}

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.hits.append(request.path)
        self.headers = dict(request.headers)
        match request.path:
            case "/to":
                raise web.HTTPFound(request.query["url"])
            case "/large":
                return web.Response(body=b"x" * 101)
            case "/endless":
                reply = web.StreamResponse()
                await reply.prepare(request)
                try:
                    for _ in range(10_000):
                        await reply.write(b"x" * 1000)
                except ConnectionError:
                    pass
                return reply
            case "/silent":
                await asyncio.Event().wait()
            case "/packed":
                return web.Response(body=b"x", headers={"content-encoding": "gzip"})
            case "/gone":
                raise web.HTTPNotFound
            case "/torn":
                assert request.transport is not None
                request.transport.abort()
        return web.Response(body=b"hello", content_type="text/plain")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    site.port = runner.addresses[0][1]
    yield site
    await runner.cleanup()


MakeFetcher = Callable[..., Fetcher]


@pytest.fixture
async def make_fetcher() -> AsyncIterator[MakeFetcher]:
    created: list[Fetcher] = []

    def make(**options: Any) -> Fetcher:
        given = {"max_bytes": 100, "clock": lambda: 0.0, "networks": LOOPBACK, **options}
        created.append(Fetcher.open(**given))
        return created[-1]

    yield make
    for each in created:
        await each.close()


async def failure_reason(fetcher: Fetcher, url: str) -> str:
    with pytest.raises(FetchError) as failed:
        async with asyncio.timeout(60):
            await fetcher.fetch(url)
    return failed.value.reason


async def test_a_url_of_an_allowed_network_is_fetched(
    site: Site, make_fetcher: MakeFetcher
) -> None:
    fetched = await make_fetcher().fetch(site.url("/a/b%20c.txt?x=1"))
    assert (fetched.content, fetched.mime, fetched.name) == (b"hello", "text/plain", "b c.txt")
    assert not {"Cookie", "Authorization", "Referer"} & set(site.headers)


async def test_session_is_opened_by_the_first_fetches_once(
    site: Site, make_fetcher: MakeFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    def open_session(**options: Any) -> Any:
        opened.append(guarded_session(**options))
        return opened[-1]

    monkeypatch.setattr(fetch, "guarded_session", open_session)
    fetcher = make_fetcher()
    assert not opened
    await asyncio.gather(*(fetcher.fetch(site.url(f"/{n}")) for n in range(3)))
    await fetcher.close()
    [session] = opened
    assert session.closed


async def test_fetching_without_its_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(SetupError, match="fetch"):
        Fetcher.open(max_bytes=1, clock=lambda: 0.0)


async def test_redirects_to_allowed_addresses_are_followed(
    site: Site, make_fetcher: MakeFetcher
) -> None:
    fetched = await make_fetcher().fetch(site.url("/to?url=/there"))
    assert fetched.content == b"hello" and site.hits == ["/to", "/there"]


@pytest.mark.requirement("FILE-FETCH-INNER")
@pytest.mark.parametrize("host", ["127.0.0.2", "[::1]", "[::ffff:127.0.0.2]", "0x7f.0.0.2"])
async def test_private_address_is_never_dialled(
    site: Site, make_fetcher: MakeFetcher, host: str
) -> None:
    with capture_logs():
        assert await failure_reason(make_fetcher(), site.url("/", host)) == "address"
        assert (
            await failure_reason(make_fetcher(), site.url("/to?url=" + site.url("/x", host)))
            == "address"
        )
    assert site.hits == ["/to"]


@pytest.mark.requirement("FILE-FETCH-INNER")
async def test_loopback_is_refused_under_all_its_names(
    site: Site, make_fetcher: MakeFetcher
) -> None:
    with capture_logs():
        for host in ("localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001"):
            assert await failure_reason(make_fetcher(networks=()), site.url("/", host)) in (
                "address",
                "broken",
            )
    assert site.hits == []


@pytest.mark.requirement("FILE-FETCH-INNER")
async def test_resolved_address_is_checked_at_connect_time(
    site: Site, make_fetcher: MakeFetcher
) -> None:
    class ChangingResolver:
        """Means another address each time."""

        def __init__(self) -> None:
            self.answers = ["127.0.0.1", "127.0.0.2"]

        async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]:
            name = {"hostname": host, "port": port, "family": socket.AF_INET, "proto": 0}
            return [{**name, "host": self.answers.pop(0), "flags": socket.AI_NUMERICHOST}]

        async def close(self) -> None: ...

    fetcher = make_fetcher(resolver=ChangingResolver())
    await fetcher.fetch(site.url("/one", "names.example"))
    with capture_logs() as logs:
        assert await failure_reason(fetcher, site.url("/two", "names.example")) == "address"
    assert site.hits == ["/one"]
    assert logs[0]["host"] == "names.example"


@pytest.mark.requirement("FILE-FETCH-BOUNDS")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/large", "large"),
        ("/endless", "large"),
        ("/packed", "broken"),
        ("/gone", "status"),
        ("/torn", "broken"),
        ("/to?url=/to%3Furl=/to%3Furl=/to%3Furl=/to", "broken"),
        ("/to?url=file:///etc/hostname", "broken"),
        ("/to?url=ftp://127.0.0.1/", "broken"),
    ],
)
async def test_response_outside_the_limits_is_refused(
    site: Site, make_fetcher: MakeFetcher, path: str, reason: str
) -> None:
    assert await failure_reason(make_fetcher(), site.url(path)) == reason


@pytest.mark.requirement("FILE-FETCH-BOUNDS")
async def test_silent_server_times_out(site: Site, make_fetcher: MakeFetcher) -> None:
    assert await failure_reason(make_fetcher(timeout_s=0.1), site.url("/silent")) == "slow"


@pytest.mark.parametrize(
    "url",
    ["", "x", "file:///etc/passwd", "ftp://h/", "http://", "http:///x", "http://u:p@h/", "//h/x",
     "http://h:0/", "http://h:99999/", "http://[::1", "gopher://h", "data:text/plain,x"],
)  # fmt: skip
def test_only_http_urls_without_credentials_are_fetched(url: str) -> None:
    with pytest.raises(FetchError) as failed:
        check(url)
    assert failed.value.reason == "url"


async def test_fetched_content_is_cached(site: Site, make_fetcher: MakeFetcher) -> None:
    now = [0.0]
    fetcher = make_fetcher(clock=lambda: now[0])
    for moment in (0, 299, 301):
        now[0] = moment
        await fetcher.fetch(site.url("/a"))
    assert site.hits == ["/a", "/a"]
