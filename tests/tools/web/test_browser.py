"""The browser: pages as a model reads them, their links, what was shown, and citations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ToolError
from antiphon.stream.deltas import Annotate, Text
from antiphon.tools.citations import Citations
from antiphon.tools.web.browser import Asked, Browser
from antiphon.tools.web.citations import of_pages
from antiphon.tools.web.page import Found, Page
from antiphon.tools.web.reading import read
from antiphon.wire.parts import UrlCitation

NORTH = "https://www.north.example/oslo"
TEXT = "# Oslo\n\nOslo is the [capital](/norway) of Norway.\n" + "\n".join(
    f"Line number {n}" for n in range(300)
)


class Fixed:
    """Two pages, of which one is found."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def search(self, query: str, asked: Asked) -> tuple[Found, ...]:
        self.asked.append(query)
        return (
            Found(url=NORTH, title="Oslo【1†x】", text="All about\nOslo"),
            Found(url="https://spam.example/a", title="", text="buy"),
        )

    async def page(self, url: str) -> Page:
        if url != NORTH:
            raise ToolError(f"no {url}")
        found = read(url, TEXT.encode(), "text/markdown")
        return Page.of(found.url, found.title, found.text, found.links)

    async def close(self) -> None: ...


def browser(**asked: object) -> Browser:
    return Browser(Fixed(), Asked(**asked))  # type: ignore[arg-type]


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
    found = mine.find("NUMBER 250", None)
    assert "# match 0 at L253\nL253: Line number 250\nL254: Line number 251" in found.text
    assert found.action == {"type": "find_in_page", "url": NORTH, "pattern": "NUMBER 250"}
    assert "is not on the page" in mine.find("Bergen", 1).text


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
        mine.find("x", None)
    await mine.search("x")
    for id, cursor in ((7, 0), (0, 5), ("http://a.b", 0)):
        with pytest.raises(ToolError):
            await mine.open(id, cursor, 0, None)
    with pytest.raises(ToolError, match="results"):
        mine.find("x", 0)


# --- citations -----------------------------------------------------------------------------------

PAGES = (Page.of("", "Results", "x", results=True), Page.of(NORTH, "Oslo", "y"))


def cite(texts: Sequence[str]) -> tuple[str, list[UrlCitation]]:
    citations = Citations([of_pages(lambda at: PAGES[at] if at < len(PAGES) else None)])
    deltas = [out for text in texts for out in citations.feed(Text(text))]
    deltas += citations.end()
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


@pytest.mark.parametrize(
    "text", ["【9†L1】", "【0†L1】", "【x】", "a 【 b", "【1†", "【1†L1", "】【", "【" + "x" * 200]
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
