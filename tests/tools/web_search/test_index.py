"""The local index: add, search, read and remove pages."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from antiphon.attachments.documents import Documents, UnreadableDocument
from antiphon.errors import SetupError, ToolError
from antiphon.tools.web_search.browser import SearchOptions
from antiphon.tools.web_search.extract import extract_document
from antiphon.tools.web_search.index import PageDocument, PageIndex
from antiphon.tools.web_search.index_builder import IndexReport, add_source

HTML = b"""<html><head><title>Fjords &amp; lakes</title></head><body><nav>menu home</nav><article>
<h1>Fjords</h1><p>A fjord is a long, narrow inlet with steep sides, carved by a glacier. There are
many of them in <a href="/norway">Norway</a>, and people sail through them in summer.</p>
<p>The longest one is the Sognefjord, which is about two hundred kilometres long.</p></article>
<footer>imprint</footer></body></html>"""


async def search_urls(index: PageIndex, query: str) -> list[str]:
    return [one.url for one in await index.search(query, SearchOptions())]


async def test_added_folder_is_searchable(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "fjords.html").write_bytes(HTML)
    (folder / "sub" / "lakes.md").write_text("# Lakes\n\nLakes hold sweet water, fjords salt.")
    (folder / "image.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.md").write_text("secret")
    (folder / "broken.txt").write_bytes(b"\xff\xfe\xff")
    index = PageIndex(tmp_path / "web.db")
    steps: list[tuple[int, int]] = []
    report = await add_source(
        index,
        str(folder),
        documents=Documents(),
        progress=lambda done, total: steps.append((done, total)),
    )
    assert [done for done, _ in steps] == list(range(len(steps)))
    assert steps[-1][0] == steps[-1][1] == len(steps) - 1
    assert (
        report.pages == 2
        and "broken.txt is in a format that cannot be read" in report.skip_reasons[0]
    )
    assert await search_urls(index, "fjord") == [
        "file:notes/fjords.html",
        "file:notes/sub/lakes.md",
    ]
    assert await search_urls(index, "secret") == []
    page = await index.page("file:notes/fjords.html")
    text = "\n".join(page.lines)
    assert page.title == "Fjords & lakes" and "steep sides" in text
    assert "menu" not in text and "imprint" not in text
    await index.close()
    reopened = PageIndex(tmp_path / "web.db")
    assert await reopened.count() == 2
    await reopened.close()


async def test_pages_can_be_replaced_and_removed() -> None:
    index = PageIndex(":memory:")
    for text in ("old words", "new words"):
        await index.add([PageDocument(url="https://a.example/x", title="X", text=text)])
    assert await index.count() == 1
    assert await search_urls(index, "old") == [] and await search_urls(index, "new") == [
        "https://a.example/x"
    ]
    assert await index.remove("https://b") == 0 and await index.remove("https://a") == 1
    assert await index.count() == 0
    with pytest.raises(ToolError, match="index of this server is empty"):
        await search_urls(index, "new")
    with pytest.raises(ToolError, match="not in the index"):
        await index.page("https://a.example/x")


@pytest.mark.parametrize("query", ['"', "AND OR NOT", "a* OR (b", "NEAR(x)", "", "—", "x" * 5000])
async def test_any_query_is_accepted(query: str) -> None:
    index = PageIndex(":memory:")
    await index.add([PageDocument(url="u", title="t", text="and or not x")])
    assert isinstance(await index.search(query, SearchOptions()), tuple)


async def test_invalid_index_or_source_raises_setup_error(tmp_path: Path) -> None:
    path = tmp_path / "no.db"
    path.write_text("this is no database, whatever its name says" * 100)
    with pytest.raises(SetupError, match="cannot be used"):
        PageIndex(path)
    index = PageIndex(":memory:")
    with pytest.raises(SetupError, match="does not exist"):
        await add_source(index, str(tmp_path / "absent"), documents=Documents())
    with pytest.raises(SetupError, match="setting fetch_urls is false"):
        await add_source(index, "https://a.example/", documents=Documents())


@pytest.mark.requirement("WS-INDEX")
async def test_adding_a_folder_again_synchronizes_it(tmp_path: Path) -> None:
    folder, single_file = tmp_path / "notes", tmp_path / "other.md"
    folder.mkdir()
    for name in ("one", "two", "three"):
        (folder / f"{name}.md").write_text(f"# {name}\n\nAbout {name}, and fjords.")
    single_file.write_text("fjords too")
    index = PageIndex(":memory:")
    documents = Documents()
    page = PageDocument(url="https://wiki.example/page", title="P", text="fjords")
    await index.add([page])
    for source in (folder, single_file):
        await add_source(index, str(source), documents=documents, prefix="https://wiki.example/")
    (folder / "one.md").unlink()
    (folder / "two.md").write_text("# two\n\nNothing of that any more.")
    (folder / "three.md").write_bytes(b"\0\xff")
    report = await add_source(
        index, str(folder), documents=documents, prefix="https://wiki.example/"
    )
    assert (report.pages, report.removed_count, len(report.skip_reasons)) == (1, 2, 1)
    assert [url.rsplit("/", 1)[1] for url, _ in await index.list()] == [
        "other.md",
        "page",
        "two.md",
    ]
    assert await index.list("https://wiki.example/t") == (("https://wiki.example/two.md", "two"),)
    assert sorted(await search_urls(index, "fjords")) == [
        "https://wiki.example/other.md",
        "https://wiki.example/page",
    ]


async def test_documents_are_indexed(tmp_path: Path) -> None:
    pytest.importorskip("kreuzberg")
    (tmp_path / "book.rtf").write_text(r"{\rtf1\ansi The longest fjord is the Sognefjord.}")
    index = PageIndex(":memory:")
    report = await add_source(index, str(tmp_path), documents=Documents())
    assert report == IndexReport(pages=1)
    ((url, title),) = await index.list()
    assert title == "book" and await search_urls(index, "sognefjord") == [url]


@pytest.mark.requirement("WS-REQUEST")
async def test_domain_filter_applies_before_the_result_limit() -> None:
    index = PageIndex(":memory:")
    many = [
        PageDocument(url=f"https://loud.example/{n}", title="fjord fjord", text="fjord")
        for n in range(99)
    ]
    await index.add([*many, PageDocument(url="https://a.b.example/", title="x", text="one fjord")])
    options = SearchOptions(count=3, allowed_domains=("b.example",))
    assert [one.url for one in await index.search("fjord", options)] == ["https://a.b.example/"]
    options = SearchOptions(count=3, blocked_domains=("loud.example",))
    assert [one.url for one in await index.search("fjord", options)] == ["https://a.b.example/"]
    assert len(await index.search("fjord", SearchOptions(count=3))) == 3


@pytest.mark.requirement("VS-WORDS")
async def test_text_without_spaces_is_indexed_and_removed() -> None:
    index = PageIndex(":memory:")
    text = "挪威有许多峡湾。" * 50 + "最长的是松恩峡湾,长二百零五公里。" + "别的都短。" * 50
    await index.add([PageDocument(url="https://a.example/1", title="挪威的峡湾", text=text)])
    (one,) = await index.search("最长的峡湾", SearchOptions())
    assert one.url == "https://a.example/1" and len(one.text) < 400
    assert await search_urls(index, "冰川") == []
    await index.remove("")
    await index.add([PageDocument(url="u", title="t", text="x")])
    assert await search_urls(index, "峡湾") == []


async def test_snippet_shows_the_densest_match() -> None:
    index = PageIndex(":memory:")
    text = (
        "Fjords. "
        + "Filler words. " * 300
        + "The longest fjord is the Sognefjord. "
        + "More. " * 300
    )
    await index.add([PageDocument(url="u", title="t", text=text)])
    (one,) = await index.search("longest fjord", SearchOptions())
    assert "The longest fjord is the Sognefjord." in one.text and len(one.text) < 320
    assert one.text.startswith("… ") and one.text.endswith(" …")


@pytest.mark.parametrize("url", ["https://a.example/x#part", "https://a.example/x/"])
async def test_page_is_found_by_equivalent_urls(url: str) -> None:
    index = PageIndex(":memory:")
    await index.add([PageDocument(url="https://a.example/x", title="X", text="x")])
    assert (await index.page(url)).url == "https://a.example/x"


async def test_page_encoding_is_detected() -> None:
    text = "Привет мир, сегодня мы говорим о фьордах и озёрах Норвегии. " * 5
    markup = f"<html><head><title>Фьорды</title></head><body><p>{text}</p></body></html>"
    page = await extract_document("u", markup.encode("cp1251"), "text/html", Documents())
    assert page.title == "Фьорды" and "озёрах" in page.text


async def test_pages_are_parsed_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trafilatura", "lxml", "lxml.html", "lxml.etree"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    page = await extract_document("https://x.example/a/", HTML, "text/html", Documents())
    assert page.title == "Fjords & lakes"
    assert page.links == ("https://x.example/norway",)
    assert not {"trafilatura", "lxml"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (lambda: Documents(page_reader=_Dead()), "needs too many resources"),
        (lambda: Documents(timeout_s=0.001), "takes too long"),
        (lambda: Documents(max_chars=10), "is too long"),
    ],
)
async def test_the_death_of_the_page_reader_is_a_tool_error(
    documents: Callable[[], Documents], message: str
) -> None:
    with pytest.raises(ToolError, match=f"https://x.example/ {message}"):
        await extract_document("https://x.example/", HTML, "text/html", documents())


async def test_too_large_html_is_rejected() -> None:
    markup = b"<html><body>" + b"<p>x</p>" * 2**20 + b"</body></html>"
    with pytest.raises(ToolError, match="too large"):
        await extract_document("u", markup, "text/html", Documents())


async def test_database_error_raises_tool_error(tmp_path: Path) -> None:
    index = PageIndex(tmp_path / "web.db")
    await index.add([PageDocument(url="u", title="t", text="x")])
    with closing(sqlite3.connect(tmp_path / "web.db")) as database:
        database.execute("DROP TABLE pages")
    with pytest.raises(ToolError, match="cannot be read now"):
        await index.page("u")
    with pytest.raises(ToolError, match="cannot be read now"):
        await index.search("x", SearchOptions())


class _Dead:
    """A reader whose process was killed at a limit."""

    async def read(self, content: bytes, kind: str, *, max_chars: int, timeout_s: float) -> bytes:
        raise UnreadableDocument("bomb")


def test_index_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "web.db"
    PageIndex(path)
    assert path.stat().st_mode & 0o077 == 0
