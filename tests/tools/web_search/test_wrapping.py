"""Long lines of a page are wrapped as ``textwrap`` wraps them."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.tools.web_search import page
from antiphon.tools.web_search.page import WebPage

WORDS = st.sampled_from(
    ["a", " ", "  ", "-", "é", "b" * 17, "c" * 79, "d" * 80, "e" * 81, "f" * 200]
)


@given(st.lists(WORDS, max_size=40).map("".join))
def test_long_lines_are_wrapped_like_short_ones(line: str) -> None:
    line = line.strip()
    wrapped = textwrap.wrap(
        line, 80, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_MAX_TEXTWRAP", 0)
        assert list(WebPage.from_text("https://example.com", "Page", line).lines) == wrapped or [""]


def test_line_without_spaces_keeps_its_text() -> None:
    web_page = WebPage.from_text("https://example.com", "Page", "x" * 100_000)
    assert "".join(web_page.lines) == "x" * 100_000
    assert max(map(len, web_page.lines)) == 80
