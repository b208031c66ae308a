"""An index of one's own: what is added is found, the best first, and read as a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import SetupError, ToolError
from antiphon.tools.web.browser import Asked
from antiphon.tools.web.index import Document, Index
from antiphon.tools.web.indexing import add

HTML = b"""<html><head><title>Fjords &amp; lakes</title></head><body><nav>menu home</nav><article>
<h1>Fjords</h1><p>A fjord is a long, narrow inlet with steep sides, carved by a glacier. There are
many of them in <a href="/norway">Norway</a>, and people sail through them in summer.</p>
<p>The longest one is the Sognefjord, which is about two hundred kilometres long.</p></article>
<footer>imprint</footer></body></html>"""


async def found(index: Index, query: str) -> list[str]:
    return [one.url for one in await index.search(query, Asked())]


async def test_what_is_added_is_found_and_read(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "fjords.html").write_bytes(HTML)
    (folder / "sub" / "lakes.md").write_text("# Lakes\n\nLakes hold sweet water, fjords salt.")
    (folder / "image.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.md").write_text("secret")
    (folder / "broken.txt").write_bytes(b"\xff\xfe\xff")
    index = Index(tmp_path / "web.db")
    added = await add(index, str(folder))
    assert added.pages == 2 and [why for why in added.skipped if "no text" in why]
    assert await found(index, "fjord") == ["file:notes/fjords.html", "file:notes/sub/lakes.md"]
    assert await found(index, "secret") == []
    page = await index.page("file:notes/fjords.html")
    text = "\n".join(page.lines)
    assert page.title == "Fjords & lakes" and "steep sides" in text
    assert "menu" not in text and "imprint" not in text
    await index.close()
    again = Index(tmp_path / "web.db")
    assert await again.count() == 2
    await again.close()


async def test_a_page_added_again_is_replaced_and_can_be_removed() -> None:
    index = Index(":memory:")
    for text in ("old words", "new words"):
        await index.add([Document(url="https://a.example/x", title="X", text=text)])
    assert await index.count() == 1
    assert await found(index, "old") == [] and await found(index, "new") == ["https://a.example/x"]
    assert await index.remove("https://b") == 0 and await index.remove("https://a") == 1
    assert await found(index, "new") == [] and await index.count() == 0
    with pytest.raises(ToolError, match="not in the index"):
        await index.page("https://a.example/x")


@pytest.mark.parametrize("query", ['"', "AND OR NOT", "a* OR (b", "NEAR(x)", "", "—", "x" * 5000])
async def test_no_query_is_an_error(query: str) -> None:
    index = Index(":memory:")
    await index.add([Document(url="u", title="t", text="and or not x")])
    assert isinstance(await index.search(query, Asked()), tuple)


async def test_what_is_no_index_is_told(tmp_path: Path) -> None:
    path = tmp_path / "no.db"
    path.write_text("this is no database, whatever its name says" * 100)
    with pytest.raises(SetupError, match="cannot be used"):
        Index(path)
    index = Index(":memory:")
    with pytest.raises(SetupError, match="There is no"):
        await add(index, str(tmp_path / "absent"))
    with pytest.raises(SetupError, match="fetch_urls"):
        await add(index, "https://a.example/")
