"""The browser: pages as a model reads them, their links, what was shown, and citations."""

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
from antiphon.tools.web_search.citations import page_citation_notation
from antiphon.tools.web_search.extract import extract_document
from antiphon.tools.web_search.page import SearchResult, WebPage
from antiphon.wire.parts import UrlCitation

NORTH = "https://www.north.example/oslo"
TEXT = "# Oslo\n\nOslo is the [capital](/norway) of Norway.\n" + "\n".join(
    f"Line number {n}" for n in range(300)
)


class Fixed:
    """Two pages, of which one is found."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def search(self, query: str, asked: SearchOptions) -> tuple[SearchResult, ...]:
        self.asked.append(query)
        return (
            SearchResult(url=NORTH, title="Oslo【1†x】", text="All about\nOslo"),
            SearchResult(url="https://spam.example/a", title="", text="buy"),
        )

    async def page(self, url: str) -> WebPage:
        if url != NORTH:
            raise ToolError(f"no {url}")
        found = await extract_document(url, TEXT.encode(), "text/markdown", Documents())
        return WebPage.from_text(found.url, found.title, found.text, found.links)

    async def close(self) -> None: ...


class Steps:
    """A browser whose steps follow each other."""

    def __init__(self, *before: WebPage | None, **asked: object) -> None:
        self.browser = Browser(Fixed(), SearchOptions(**asked), before)  # type: ignore[arg-type]

    async def search(self, query: str) -> StepResult:
        return await self.browser.search(query, at=self.browser.begin_step())

    async def open(
        self,
        id: int | str | None = None,
        cursor: int | None = None,
        loc: int | None = None,
        lines: int | None = None,
    ) -> StepResult:
        return await self.browser.open(id, cursor, loc, lines, at=self.browser.begin_step())

    async def find(self, pattern: str, cursor: int | None = None) -> StepResult:
        return await self.browser.find(pattern, cursor, at=self.browser.begin_step())


browser = Steps


async def test_a_search_lists_links_that_can_be_opened_and_looked_through() -> None:
    mine = browser()
    results = await mine.search("oslo")
    assert results.text.startswith("[0] Results for oslo\n**viewing lines [0 - 4] of 4**")
    assert "L0: 【0†Oslo〖1†x〗†north.example】" in results.text  # looks like no link of ours
    assert "【1†spam.example†spam.example】" in results.text
    assert results.action == {"type": "search", "query": "oslo", "queries": ["oslo"]}
    opened = await mine.open(0, None, 0, None)
    assert opened.action == {"type": "open_page", "url": NORTH}
    assert opened.text.startswith(f"[1] Oslo ({NORTH})")
    assert "【0†capital†north.example】" in opened.text
    found = await mine.find("NUMBER 250")
    assert "# 【0†match at L253】\nL253: Line number 250\nL254: Line number 251" in found.text
    assert found.action == {"type": "find_in_page", "url": NORTH, "pattern": "NUMBER 250"}
    assert "is not on the page" in (await mine.find("Bergen", 1)).text


async def test_views_are_bounded_and_go_on_where_they_are_told_to() -> None:
    mine = browser(room=200)
    await mine.search("oslo")
    first = await mine.open(0, 0, 0, None)
    assert len(first.text) < 400 and "L0:" in first.text
    later = await mine.open(None, None, 100, 2)
    assert "L100:" in later.text and "L101:" in later.text and "L102:" not in later.text
    past = await mine.open(None, None, 10_000, None)
    assert "viewing lines [302 - 302] of 302" in past.text


async def test_domains_can_be_allowed_and_blocked() -> None:
    only = await browser(allowed=("north.example",)).search("x")
    assert "spam" not in only.text and "north" in only.text
    assert "spam" not in (await browser(blocked=("spam.example",)).search("x")).text
    with pytest.raises(ToolError, match="not allowed"):
        await browser(blocked=("north.example",)).open(NORTH, None, 0, None)


async def test_what_is_not_there_is_told() -> None:
    mine = browser()
    with pytest.raises(ToolError, match="No page was opened"):
        await mine.find("x")
    await mine.search("x")
    for id, cursor in ((7, 1), (0, 5), ("http://a.b", 1)):
        with pytest.raises(ToolError):
            await mine.open(id, cursor, 0, None)
    with pytest.raises(ToolError, match="results"):
        await mine.find("x", 1)


async def test_a_hit_is_opened_where_it_stands() -> None:
    mine = browser()
    await mine.open(NORTH)
    found = await mine.find("line number 28")
    assert "# 【1†match at L283】" in found.text
    opened = await mine.open(1)
    assert opened.text.startswith(f"[2] Oslo ({NORTH})\n**viewing lines [279 -")
    assert (await mine.open(None, 1, 5, 1)).text.endswith("L5: Line number 2"), "of the page itself"
    assert "# 【0†match at L3】" in (await mine.find("line number 0", 1)).text


async def test_what_is_looked_for_may_go_over_links_and_ends_of_lines() -> None:
    text = "Oslo is the [capital](/norway) of Norway. " * 4
    page = WebPage.from_text(
        NORTH, "Oslo", text.replace("[capital](/norway)", "【0†capital†north.example】")
    )
    assert page.find_lines("the CAPITAL  of norway") == (0,), (
        "hits that are shown already are not told"
    )
    page = WebPage.from_text(NORTH, "x", " ".join(f"word{n}" for n in range(99)))
    last, first = page.lines[2].split()[-1], page.lines[3].split()[0]
    assert page.find_lines(f"{last} {first}") == (2,)
    assert page.find_lines("capital of Sweden") == ()


async def test_hits_are_told_as_long_as_there_is_room() -> None:
    mine = browser(room=300)
    await mine.open(NORTH)
    told = (await mine.find("line number")).text
    assert len(told) < 600 and "more" in told.splitlines()[-1]


@pytest.mark.requirement("WS-CURSORS")
async def test_steps_are_numbered_also_over_responses_and_failures() -> None:
    earlier = (
        WebPage(url="", title="", results=(), links=((NORTH, 0),)),
        None,
        WebPage(url=NORTH, title="n"),
    )
    mine = browser(*earlier)
    with pytest.raises(ToolError, match=r"no page \[1\]"):
        await mine.open(None, 1)
    assert (await mine.open(None, 2)).text.startswith(f"[4] Oslo ({NORTH})"), "it is read again"
    assert (await mine.open(0, 0)).text.startswith("[5] Oslo")
    assert (await mine.find("capital", 2)).text.startswith("[6] Oslo")
    assert mine.browser.page_at(3) is None and mine.browser.page_at(7) is None


@pytest.mark.requirement("WS-REQUEST")
async def test_a_page_that_moved_to_where_it_is_not_allowed_is_not_shown() -> None:
    class Moved(Fixed):
        async def page(self, url: str) -> WebPage:
            return WebPage.from_text("https://elsewhere.example/", "x", "secret")

    mine = Browser(Moved(), SearchOptions(allowed_domains=("north.example",)))
    with pytest.raises(ToolError, match=r"elsewhere\.example are not allowed"):
        await mine.open(NORTH, None, None, None, at=mine.begin_step())


async def test_what_a_result_says_is_told_in_short() -> None:
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
    citations = CitationReader(
        [page_citation_notation(lambda at: PAGES[at] if at < len(PAGES) else None)]
    )
    deltas = [out for text in texts for out in citations.feed(Text(text))]
    deltas += citations.finish()
    said, cited = "", []
    for delta in deltas:
        if isinstance(delta, Text):
            said += delta.text
        else:
            assert isinstance(delta, Annotate) and isinstance(delta.annotation, UrlCitation)
            assert delta.annotation.end_index <= len(said)  # what it cites has been said
            cited.append(delta.annotation)
    return said, cited


LINK = f"([north.example]({NORTH}))"


@pytest.mark.requirement("GO-11", "D-20", "D-78")
def test_a_mark_becomes_a_link_that_is_annotated() -> None:
    said, (one, two) = cite(["It rains 【1†L3-L5】. And on【1†L9】 Sunday."])
    assert said == f"It rains {LINK}. And on {LINK} Sunday."
    for citation in (one, two):
        assert said[citation.start_index : citation.end_index] == LINK
        assert (citation.url, citation.title) == (NORTH, "Oslo")


def test_a_line_of_results_cites_the_result() -> None:
    said, (cited,) = cite(["So they say【0†L1】."])
    assert said == "So they say ([south.example](https://south.example/))."
    assert (cited.url, cited.title) == ("https://south.example/", "South")


@pytest.mark.requirement("WS-PLAIN")
def test_a_url_cannot_write_into_the_answer() -> None:
    evil = "https://evil.example/a)![x](https://evil.example/b?<c>\nd"
    reader = CitationReader([page_citation_notation({0: WebPage.from_text(evil, "E]v", "x")}.get)])
    deltas = [*reader.feed(Text("x【0†L1】")), *reader.finish()]
    said = "".join(each.text for each in deltas if isinstance(each, Text))
    inside = said.removeprefix("x ([evil.example](").removesuffix("))")
    assert len(said) - len(inside) == len("x ([evil.example](") + 2
    assert not set("()[]<>\n ") & set(inside)


@pytest.mark.parametrize(
    "text",
    ["【9†L1】", "【0†source】", "【x】", "a 【 b", "【1†", "【1†L1", "】【", "【" + "x" * 200],
)
def test_what_cites_nothing_stays_text(text: str) -> None:
    assert cite([text]) == (text, [])


@given(
    text=st.text("ab 【】†1L\n", max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
def test_the_cuts_do_not_matter_and_nothing_is_lost(text: str, cuts: list[int]) -> None:
    text = f"{text}【1†L1-L2】 end"
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    said, cited = cite(pieces)
    assert (said, cited) == cite([text])
    assert said.count(LINK) == len(cited) >= 1
    for citation in cited:
        assert said[citation.start_index : citation.end_index] == LINK
    assert said.endswith(" end")
