"""Search with ``ddgs``: the real package over a fake HTTP client, and the process it runs in."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.attachments.documents import Documents
from antiphon.errors import SetupError, ToolError
from antiphon.tools.web_search import search_worker
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
        self.answer: Answer = lambda url, requests: (
            (200, RESULTS_PAGE) if "mojeek" in url else (403, "<html></html>")
        )

    def request(self, method: str, url: str, **kwargs: Any) -> Any:
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
def engine(engines: FakeHttpClient) -> Ddgs:
    """The worker's code in this process."""

    async def run(request: bytes) -> bytes:
        return await asyncio.to_thread(search_worker.answer, request)

    return Ddgs(run)


@pytest.mark.requirement("WS-KEYLESS")
async def test_search_results_are_parsed(engines: FakeHttpClient, engine: Ddgs) -> None:
    results = await engine.search("longest fjord", SearchOptions(count=5))
    first = results[0]
    assert (first.url, first.title) == ("https://north.example/a", "Fjords & lakes")
    assert first.text == "A fjord is narrow."
    assert {one.url for one in results} == {"https://north.example/a", "https://spam.example/"}
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


async def test_rate_limit_has_its_own_message(
    engine: Ddgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(self: Any, query: str, **arguments: Any) -> Any:
        raise exceptions.RatelimitException("429")

    monkeypatch.setattr("ddgs.ddgs.DDGS.text", text)
    with pytest.raises(ToolError, match="limit the rate"):
        await engine.search("fjord", SearchOptions())


async def test_empty_result_is_not_an_error(engines: FakeHttpClient, engine: Ddgs) -> None:
    engines.answer = lambda url, requests: (403, "<html><body>No.</body></html>")
    assert await engine.search("fjord", SearchOptions()) == ()


#: A package that answers with what its process sees, or with what its query says.
PACKAGE = """
import os, time
import resource
import ddgs.exceptions
class DDGS:
    def __init__(self, timeout): pass
    def text(self, query, **arguments):
        if query == "die":
            os.kill(os.getpid(), 11)
        if query == "hang":
            time.sleep(600)
        print("noise", flush=True)
        seen = {"pid": os.getpid(), "uid": os.getuid(), "secret": os.environ.get("OPENAI_API_KEY"),
                "proxy": os.environ.get("HTTPS_PROXY"),
                "memory": resource.getrlimit(resource.RLIMIT_AS)[0]}
        return [{"href": "https://a.example/", "title": query, "body": repr(seen)}]
"""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ddgs:
    """The engine with real processes over ``PACKAGE``."""
    package = tmp_path / "ddgs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "ddgs.py").write_text(PACKAGE)
    (package / "exceptions.py").write_text(Path(str(exceptions.__file__)).read_text())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    return Ddgs.open({"HTTPS_PROXY": "http://127.0.0.1:9"})


@pytest.mark.requirement("WS-KEYLESS")
async def test_pages_are_parsed_in_a_process_with_limits(process: Ddgs) -> None:
    (result,) = await process.search("a fjord", SearchOptions())
    seen = eval(result.text)
    assert result.title == "a fjord"
    assert seen.pop("pid") != os.getpid()
    assert seen == {
        "uid": os.getuid() or 64002,
        "secret": None,
        "proxy": "http://127.0.0.1:9",
        "memory": 2 * 2**30,
    }


async def test_dead_process_is_a_failed_search(process: Ddgs) -> None:
    with pytest.raises(ToolError, match="cannot be reached"):
        await process.search("die", SearchOptions())


@pytest.mark.requirement("WS-KEYLESS")
async def test_search_has_a_total_timeout(process: Ddgs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.tools.web_search.ddgs._TOTAL_TIMEOUT_S", 0.5)
    async with asyncio.timeout(60):
        with pytest.raises(ToolError, match="too long"):
            await process.search("hang", SearchOptions())


async def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ddgs", None)
    with pytest.raises(SetupError, match=r"\[ddgs\]"):
        Ddgs.open({})
