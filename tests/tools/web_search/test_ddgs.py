"""Searches by ``ddgs``: the package itself, with nobody behind its HTTP client."""

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

#: An answer in the shape of one engine's pages; the others answer 403.
MOJEEK = """<html><body><ul class="results-standard">{}</ul></body></html>"""
ONE = '<li><h2><a href="{url}">{title}</a></h2><p class="s">{text}</p></li>'
FOUND = MOJEEK.format(
    ONE.format(url="https://north.example/a", title="Fjords &amp; lakes", text="A fjord is narrow.")
    + ONE.format(url="https://spam.example/", title="Buy", text="fjord")
    + ONE.format(url="javascript:alert(1)", title="fjord", text="x")
)

Answer = Callable[[str, dict[str, Any]], tuple[int, str]]


class Engines:
    """What stands in for the package's HTTP client: it answers, and knows what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.threads: set[str] = set()
        self.answer: Answer = lambda url, asked: (
            (200, FOUND) if "mojeek" in url else (403, "<html></html>")
        )

    def request(self, method: str, url: str, **given: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        fields = given.get("params") or given.get("data") or {}
        self.asked.append((url, fields))
        status, text = self.answer(url, fields)
        return SimpleNamespace(status_code=status, text=text, content=text.encode())


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    made = Engines()
    monkeypatch.setattr(
        HttpClient, "request", lambda self, *args, **given: made.request(*args, **given)
    )
    return made


@pytest.fixture
async def finder(engines: Engines) -> AsyncIterator[Ddgs]:
    made = Ddgs.open()
    yield made
    await made.close()


@pytest.mark.requirement("WS-KEYLESS")
async def test_what_engines_find_is_read(engines: Engines, finder: Ddgs) -> None:
    found = await finder.search("longest fjord", SearchOptions(count=5))
    first = found[0]
    assert (first.url, first.title) == ("https://north.example/a", "Fjords & lakes")
    assert first.text == "A fjord is narrow."
    assert {one.url for one in found} == {"https://north.example/a", "https://spam.example/"}
    assert threading.current_thread().name not in engines.threads, "the loop goes on meanwhile"
    assert ("longest fjord") in [fields.get("q") for _, fields in engines.asked]


async def test_domains_and_countries_are_asked_for(engines: Engines, finder: Ddgs) -> None:
    asked = SearchOptions(
        allowed_domains=("a.example", "b.example"),
        blocked_domains=("c.example",),
        location={"country": "no"},
    )
    await finder.search("fjord", asked)
    _, fields = next(each for each in engines.asked if "mojeek" in each[0])
    assert fields["q"] == "fjord (site:a.example OR site:b.example) -site:c.example"
    hosts = {url.split("/")[2] for url, _ in engines.asked}
    assert "no.wikipedia.org" in hosts
    engines.asked.clear()
    await finder.search("fjord", SearchOptions(location={"country": "x.evil/"}))
    assert "en.wikipedia.org" in {url.split("/")[2] for url, _ in engines.asked}
    assert not [url for url, _ in engines.asked if "evil" in url.split("/")[2]]


async def test_what_a_request_does_not_allow_is_not_shown(finder: Ddgs) -> None:
    class Nothing:
        async def fetch(self, url: str) -> Any:
            raise AssertionError(url)

    web = LiveWeb(finder, Nothing(), Documents())  # type: ignore[arg-type]
    browser = Browser(web, SearchOptions(blocked_domains=("spam.example",)))
    assert [
        one.url for one in (await browser.search("fjord", at=browser.begin_step())).results
    ] == ["https://north.example/a"]
    assert isinstance(browser.page_at(0), WebPage)


@pytest.mark.requirement("WS-KEYLESS")
@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (exceptions.TimeoutException("operation timed out"), "too long"),
        (exceptions.DDGSException("ConnectError: secret 10.0.0.1"), "cannot be reached"),
    ],
)
async def test_why_a_search_fails_is_told_by_its_kind(
    engines: Engines, finder: Ddgs, raised: Exception, told: str
) -> None:
    def fails(url: str, asked: dict[str, Any]) -> tuple[int, str]:
        raise raised

    engines.answer = fails
    with pytest.raises(ToolError, match=told) as caught:
        await finder.search("fjord", SearchOptions())
    assert "secret" not in caught.value.message


async def test_engines_that_have_had_enough_are_told_of() -> None:
    class Limited:
        def __init__(self, **given: Any) -> None: ...

        def text(self, query: str, **given: Any) -> Any:
            raise exceptions.RatelimitException("429")

    finder = Ddgs(Limited)
    with pytest.raises(ToolError, match="no more searches"):
        await finder.search("fjord", SearchOptions())
    await finder.close()


async def test_nothing_found_is_no_failure(engines: Engines, finder: Ddgs) -> None:
    engines.answer = lambda url, asked: (403, "<html><body>No.</body></html>")
    assert await finder.search("fjord", SearchOptions()) == ()


@pytest.mark.requirement("WS-KEYLESS")
async def test_engines_that_never_answer_are_not_waited_for(
    engines: Engines, finder: Ddgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.tools.web_search.ddgs._TOTAL_TIMEOUT_S", 0.01)
    released = threading.Event()

    def waits(url: str, asked: dict[str, Any]) -> tuple[int, str]:
        released.wait(10)
        return 403, ""

    engines.answer = waits
    try:
        async with asyncio.timeout(5):
            with pytest.raises(ToolError, match="too long"):
                await finder.search("fjord", SearchOptions())
    finally:
        released.set()


async def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ddgs", None)
    with pytest.raises(SetupError, match=r"antiphon\[ddgs\]"):
        Ddgs.open()
