"""Search with ``ddgs``: the real package over a fake HTTP client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.attachments.documents import Documents
from antiphon.errors import SetupError, ToolError
from antiphon.tools.web_search.browser import Browser, SearchOptions
from antiphon.tools.web_search.ddgs import Ddgs
from antiphon.tools.web_search.live_web import LiveWeb
from antiphon.tools.web_search.page import WebPage

pytest.importorskip("ddgs")
from ddgs import exceptions
from ddgs.http_client import HttpClient

#: A results page in the format of one engine; the others answer 403.
RESULTS_TEMPLATE = """<html><body><ul class="results-standard">{}</ul></body></html>"""
RESULT_TEMPLATE = '<li><h2><a href="{url}">{title}</a></h2><p class="s">{text}</p></li>'
RESULTS_PAGE = RESULTS_TEMPLATE.format(
    RESULT_TEMPLATE.format(
        url="https://north.example/a", title="Fjords &amp; lakes", text="A fjord is narrow."
    )
    + RESULT_TEMPLATE.format(url="https://spam.example/", title="Buy", text="fjord")
    + RESULT_TEMPLATE.format(url="javascript:alert(1)", title="fjord", text="x")
)

Answer = Callable[[str, dict[str, Any]], tuple[int, str]]


class FakeHttpClient:
    """A fake for the package's HTTP client. Records the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.threads: set[str] = set()
        self.answer: Answer = lambda url, requests: (
            (200, RESULTS_PAGE) if "mojeek" in url else (403, "<html></html>")
        )

    def request(self, method: str, url: str, **kwargs: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        fields = kwargs.get("params") or kwargs.get("data") or {}
        self.requests.append((url, fields))
        status, text = self.answer(url, fields)
        return SimpleNamespace(status_code=status, text=text, content=text.encode())


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> FakeHttpClient:
    client = FakeHttpClient()
    monkeypatch.setattr(
        HttpClient, "request", lambda self, *args, **kwargs: client.request(*args, **kwargs)
    )
    return client


@pytest.fixture
async def engine(engines: FakeHttpClient) -> AsyncIterator[Ddgs]:
    client = Ddgs.open()
    yield client
    await client.close()


@pytest.mark.requirement("WS-KEYLESS")
async def test_search_results_are_parsed(engines: FakeHttpClient, engine: Ddgs) -> None:
    results = await engine.search("longest fjord", SearchOptions(count=5))
    first = results[0]
    assert (first.url, first.title) == ("https://north.example/a", "Fjords & lakes")
    assert first.text == "A fjord is narrow."
    assert {one.url for one in results} == {"https://north.example/a", "https://spam.example/"}
    assert threading.current_thread().name not in engines.threads, "the event loop is not blocked"
    assert ("longest fjord") in [fields.get("q") for _, fields in engines.requests]


async def test_domains_and_country_are_in_the_query(engines: FakeHttpClient, engine: Ddgs) -> None:
    requests = SearchOptions(
        allowed_domains=("a.example", "b.example"),
        blocked_domains=("c.example",),
        location={"country": "no"},
    )
    await engine.search("fjord", requests)
    _, fields = next(each for each in engines.requests if "mojeek" in each[0])
    assert fields["q"] == "fjord (site:a.example OR site:b.example) -site:c.example"
    hosts = {url.split("/")[2] for url, _ in engines.requests}
    assert "no.wikipedia.org" in hosts
    engines.requests.clear()
    await engine.search("fjord", SearchOptions(location={"country": "x.evil/"}))
    assert "en.wikipedia.org" in {url.split("/")[2] for url, _ in engines.requests}
    assert not [url for url, _ in engines.requests if "evil" in url.split("/")[2]]


async def test_blocked_domains_are_filtered_from_results(engine: Ddgs) -> None:
    class NoFetcher:
        async def fetch(self, url: str) -> Any:
            raise AssertionError(url)

    web = LiveWeb(engine, NoFetcher(), Documents())  # type: ignore[arg-type]
    browser = Browser(web, SearchOptions(blocked_domains=("spam.example",)))
    assert [
        one.url for one in (await browser.search("fjord", step_cursor=browser.begin_step())).results
    ] == ["https://north.example/a"]
    assert isinstance(browser.page_at(0), WebPage)


@pytest.mark.requirement("WS-KEYLESS")
@pytest.mark.parametrize(
    ("exception", "message"),
    [
        (exceptions.TimeoutException("operation timed out"), "too long"),
        (exceptions.DDGSException("ConnectError: secret 10.0.0.1"), "cannot be reached"),
    ],
)
async def test_search_failures_have_distinct_messages(
    engines: FakeHttpClient, engine: Ddgs, exception: Exception, message: str
) -> None:
    def raise_exception(url: str, requests: dict[str, Any]) -> tuple[int, str]:
        raise exception

    engines.answer = raise_exception
    with pytest.raises(ToolError, match=message) as error:
        await engine.search("fjord", SearchOptions())
    assert "secret" not in error.value.message


async def test_rate_limit_raises_tool_error() -> None:
    class RateLimitedClient:
        def __init__(self, **kwargs: Any) -> None: ...

        def text(self, query: str, **kwargs: Any) -> Any:
            raise exceptions.RatelimitException("429")

    engine = Ddgs(RateLimitedClient)
    with pytest.raises(ToolError, match="limit the rate"):
        await engine.search("fjord", SearchOptions())
    await engine.close()


async def test_empty_result_is_not_an_error(engines: FakeHttpClient, engine: Ddgs) -> None:
    engines.answer = lambda url, requests: (403, "<html><body>No.</body></html>")
    assert await engine.search("fjord", SearchOptions()) == ()


@pytest.mark.requirement("WS-KEYLESS")
async def test_search_has_a_total_timeout(
    engines: FakeHttpClient, engine: Ddgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.tools.web_search.ddgs._TOTAL_TIMEOUT_S", 0.01)
    released = threading.Event()

    def block(url: str, requests: dict[str, Any]) -> tuple[int, str]:
        released.wait(10)
        return 403, ""

    engines.answer = block
    try:
        async with asyncio.timeout(5):
            with pytest.raises(ToolError, match="too long"):
                await engine.search("fjord", SearchOptions())
    finally:
        released.set()


async def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ddgs", None)
    with pytest.raises(SetupError, match=r"\[ddgs\]"):
        Ddgs.open()
