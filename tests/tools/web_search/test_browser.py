"""The browser: views of pages, links, cursors and citations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.attachments.documents import Documents
from antiphon.errors import ToolError
from antiphon.stream.deltas import Annotate, Text
from antiphon.tools.citations import CitationReader
from antiphon.tools.web_search.browser import Browser, SearchOptions, StepResult
from antiphon.tools.web_search.extract import extract_document
from antiphon.tools.web_search.page import SearchResult, WebPage
from antiphon.tools.web_search.provider import page_citation_notation
from antiphon.wire.parts import UrlCitation

NORTH = "https://www.north.example/oslo"
TEXT = "# Oslo\n\nOslo is the [capital](/norway) of Norway.\n" + "\n".join(
    f"Line number {n}" for n in range(300)
)


class FakePages:
    """A page source with two search results, of which one can be opened."""

    def __init__(self) -> None:
        self.options: list[str] = []

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        self.options.append(query)
        return (
            SearchResult(url=NORTH, title="Oslo【1†x】", text="All about\nOslo"),
            SearchResult(url="https://spam.example/a", title="", text="buy"),
        )

    async def page(self, url: str, *, tenant: str = "") -> WebPage:
        if url != NORTH:
            raise ToolError(f"no {url}")
        result = await extract_document(url, TEXT.encode(), "text/markdown", Documents())
        return WebPage.from_text(result.url, result.title, result.text, result.links)

    async def close(self) -> None: ...


class SteppedBrowser:
    """A browser that begins a step for each call."""

    def __init__(self, *earlier_pages: WebPage | None, **options: object) -> None:
        self.browser = Browser(FakePages(), SearchOptions(**options), earlier_pages)  # type: ignore[arg-type]

    async def search(self, query: str) -> StepResult:
        return await self.browser.search(query, step_cursor=self.browser.begin_step())

    async def open(
        self,
        id: int | str | None = None,
        cursor: int | None = None,
        loc: int | None = None,
        lines: int | None = None,
    ) -> StepResult:
        return await self.browser.open(
            id, cursor, loc, lines, step_cursor=self.browser.begin_step()
        )

    async def find(self, pattern: str, cursor: int | None = None) -> StepResult:
        return await self.browser.find(pattern, cursor, step_cursor=self.browser.begin_step())


async def test_search_open_and_find() -> None:
    browser = SteppedBrowser()
    results = await browser.search("oslo")
    assert results.text.startswith("[0] Results for oslo\n**viewing lines [0 - 4] of 4**")
    assert "L0: 【0†Oslo〖1†x〗†north.example】" in results.text  # not a link mark
    assert "【1†spam.example†spam.example】" in results.text
    assert results.action == {"type": "search", "query": "oslo", "queries": ["oslo"]}
    opened = await browser.open(0, None, 0, None)
    assert opened.action == {"type": "open_page", "url": NORTH}
    assert opened.text.startswith(f"[1] Oslo ({NORTH})")
    assert "【0†capital†north.example】" in opened.text
    result = await browser.find("NUMBER 250")
    assert "# 【0†match at L253】\nL253: Line number 250\nL254: Line number 251" in result.text
    assert result.action == {"type": "find_in_page", "url": NORTH, "pattern": "NUMBER 250"}
    assert "is not on the page" in (await browser.find("Bergen", 1)).text


async def test_views_are_limited_and_continue_at_loc() -> None:
    browser = SteppedBrowser(max_view_chars=200)
    await browser.search("oslo")
    first = await browser.open(0, 0, 0, None)
    assert len(first.text) < 400 and "L0:" in first.text
    later = await browser.open(None, None, 100, 2)
    assert "L100:" in later.text and "L101:" in later.text and "L102:" not in later.text
    past_count = await browser.open(None, None, 10_000, None)
    assert "viewing lines [302 - 302] of 302" in past_count.text


async def test_domains_can_be_allowed_and_blocked() -> None:
    north_only = await SteppedBrowser(allowed_domains=("north.example",)).search("x")
    assert "spam" not in north_only.text and "north" in north_only.text
    assert "spam" not in (await SteppedBrowser(blocked_domains=("spam.example",)).search("x")).text
    with pytest.raises(ToolError, match="not allowed"):
        await SteppedBrowser(blocked_domains=("north.example",)).open(NORTH, None, 0, None)


async def test_missing_page_or_link_raises_tool_error() -> None:
    browser = SteppedBrowser()
    with pytest.raises(ToolError, match="No page is open"):
        await browser.find("x")
    await browser.search("x")
    for id, cursor in ((7, 1), (0, 5), ("http://a.b", 1)):
        with pytest.raises(ToolError):
            await browser.open(id, cursor, 0, None)
    with pytest.raises(ToolError, match="results"):
        await browser.find("x", 1)


async def test_hit_opens_near_its_line() -> None:
    browser = SteppedBrowser()
    await browser.open(NORTH)
    result = await browser.find("line number 28")
    assert "# 【1†match at L283】" in result.text
    opened = await browser.open(1)
    assert opened.text.startswith(f"[2] Oslo ({NORTH})\n**viewing lines [279 -")
    assert (await browser.open(None, 1, 5, 1)).text.endswith("L5: Line number 2"), (
        "line of the page, not of the hit list"
    )
    assert "# 【0†match at L3】" in (await browser.find("line number 0", 1)).text


async def test_find_matches_across_links_and_line_breaks() -> None:
    text = "Oslo is the [capital](/norway) of Norway. " * 4
    page = WebPage.from_text(
        NORTH, "Oslo", text.replace("[capital](/norway)", "【0†capital†north.example】")
    )
    assert page.find_lines("the CAPITAL  of norway") == (0,), "hits within shown lines are left out"
    page = WebPage.from_text(NORTH, "x", " ".join(f"word{n}" for n in range(99)))
    last, first = page.lines[2].split()[-1], page.lines[3].split()[0]
    assert page.find_lines(f"{last} {first}") == (2,)
    assert page.find_lines("capital of Sweden") == ()


async def test_list_of_hits_is_truncated() -> None:
    browser = SteppedBrowser(max_view_chars=300)
    await browser.open(NORTH)
    text = (await browser.find("line number")).text
    assert len(text) < 600 and "more" in text.splitlines()[-1]


@pytest.mark.requirement("WS-CURSORS")
async def test_cursors_count_earlier_responses_and_failed_steps() -> None:
    earlier = (
        WebPage(url="", title="", results=(), links=((NORTH, 0),)),
        None,
        WebPage(url=NORTH, title="n"),
    )
    browser = SteppedBrowser(*earlier)
    with pytest.raises(ToolError, match=r"no page \[1\]"):
        await browser.open(None, 1)
    assert (await browser.open(None, 2)).text.startswith(f"[4] Oslo ({NORTH})"), (
        "the page is loaded again"
    )
    assert (await browser.open(0, 0)).text.startswith("[5] Oslo")
    assert (await browser.find("capital", 2)).text.startswith("[6] Oslo")
    assert browser.browser.page_at(3) is None and browser.browser.page_at(7) is None


@pytest.mark.requirement("WS-REQUEST")
async def test_redirect_to_a_blocked_domain_is_rejected() -> None:
    class Moved(FakePages):
        async def page(self, url: str, *, tenant: str = "") -> WebPage:
            return WebPage.from_text("https://elsewhere.example/", "x", "secret")

    browser = Browser(Moved(), SearchOptions(allowed_domains=("north.example",)))
    with pytest.raises(ToolError, match=r"elsewhere\.example are not allowed"):
        await browser.open(NORTH, None, None, None, step_cursor=browser.begin_step())


async def test_result_texts_are_shortened() -> None:
    long = SearchResult(url=NORTH, title="Oslo", text="word " * 1000)
    page = WebPage.from_results("x", (long, SearchResult(url="https://b.example/", title="B")))
    assert len("".join(page.lines)) < 800
    second = next(at for at, line in enumerate(page.lines) if line.startswith("【1†"))
    assert page.citation_target(0) == long and page.citation_target(second - 2) == long
    assert (page.citation_target(second) or long).url == "https://b.example/"
    assert (
        page.citation_target(None) is None
        and WebPage.from_results("x", ()).citation_target(0) is None
    )


# --- citations -----------------------------------------------------------------------------------

PAGES = (
    WebPage.from_results("x", (SearchResult(url="https://south.example/", title="South"),)),
    WebPage.from_text(NORTH, "Oslo", "y"),
)


def cite(texts: Sequence[str]) -> tuple[str, list[UrlCitation]]:
    reader = CitationReader(
        [page_citation_notation(lambda at: PAGES[at] if at < len(PAGES) else None)]
    )
    deltas = [out for text in texts for out in reader.feed(Text(text))]
    deltas += reader.finish()
    text, citations = "", []
    for delta in deltas:
        if isinstance(delta, Text):
            text += delta.text
        else:
            assert isinstance(delta, Annotate) and isinstance(delta.annotation, UrlCitation)
            assert delta.annotation.end_index <= len(text)  # the cited text is already sent
            citations.append(delta.annotation)
    return text, citations


LINK = f"([north.example]({NORTH}))"


@pytest.mark.requirement("GO-11", "D-20", "D-78")
def test_mark_becomes_an_annotated_link() -> None:
    text, (one, two) = cite(["It rains 【1†L3-L5】. And on【1†L9】 Sunday."])
    assert text == f"It rains {LINK}. And on {LINK} Sunday."
    for citation in (one, two):
        assert text[citation.start_index : citation.end_index] == LINK
        assert (citation.url, citation.title) == (NORTH, "Oslo")


def test_mark_on_a_result_line_cites_the_result() -> None:
    text, (citation,) = cite(["So they say【0†L1】."])
    assert text == "So they say ([south.example](https://south.example/))."
    assert (citation.url, citation.title) == ("https://south.example/", "South")


@pytest.mark.requirement("WS-PLAIN")
def test_url_cannot_break_out_of_the_link() -> None:
    hostile_url = "https://evil.example/a)![x](https://evil.example/b?<c>\nd"
    reader = CitationReader(
        [page_citation_notation({0: WebPage.from_text(hostile_url, "E]v", "x")}.get)]
    )
    deltas = [*reader.feed(Text("x【0†L1】")), *reader.finish()]
    text = "".join(each.text for each in deltas if isinstance(each, Text))
    inside = text.removeprefix("x ([evil.example](").removesuffix("))")
    assert len(text) - len(inside) == len("x ([evil.example](") + 2
    assert not set("()[]<>\n ") & set(inside)


@pytest.mark.parametrize(
    "text",
    ["【9†L1】", "【0†source】", "【x】", "a 【 b", "【1†", "【1†L1", "】【", "【" + "x" * 200],
)
def test_mark_without_target_stays_text(text: str) -> None:
    assert cite([text]) == (text, [])


@given(
    text=st.text("ab 【】†1L\n", max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
def test_chunking_does_not_change_citations(text: str, cuts: list[int]) -> None:
    text = f"{text}【1†L1-L2】 end"
    bounds = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    output, citations = cite(pieces)
    assert (output, citations) == cite([text])
    assert output.count(LINK) == len(citations) >= 1
    for citation in citations:
        assert output[citation.start_index : citation.end_index] == LINK
    assert output.endswith(" end")
