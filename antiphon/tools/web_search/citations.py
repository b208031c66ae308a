"""The notation in which the model cites web pages: a mark such as ``【3†L9-L11】``. The module
defines how ``CitationReader`` replaces the mark by a link with an annotation."""

from __future__ import annotations

import re
from collections.abc import Callable

from antiphon.tools.citations import Citation, CitationNotation
from antiphon.wire.parts import UrlCitation

from .page import WebPage, domain, plain_line

_MARK = re.compile(r"【(\d{1,6})†([^【】]{0,64})】")
_LINE = re.compile(r"L(\d{1,9})")
_PARTIAL_MARK = re.compile(r"【[^【】]*\Z")
_MAX_MARK_LENGTH = 80
#: Characters that could end the link or start other markup: URLs are untrusted.
_ESCAPES = {ord(sign): f"%{ord(sign):02X}" for sign in ' \t\r\n()<>[]`"\\'}


def page_citation_notation(page_at: Callable[[int], WebPage | None]) -> CitationNotation:
    """Return the notation in which the model cites web pages. ``page_at``: a function that returns
    the page with a given number (its cursor). It returns None if there is no such page."""

    def cite(mark: re.Match[str], at: int, last: str) -> Citation | None:
        page, line = page_at(int(mark.group(1))), _LINE.search(mark.group(2))
        target = (
            page.citation_target(int(line.group(1)) if line else None) if page is not None else None
        )
        if target is None or not target.url:
            return None
        link = f"([{domain(target.url)}]({target.url.translate(_ESCAPES)}))"
        space = "" if last.isspace() else " "
        start = at + len(space)
        citation = UrlCitation(
            url=target.url,
            title=plain_line(target.title),
            start_index=start,
            end_index=start + len(link),
        )
        return Citation(space + link, citation)

    return CitationNotation(
        pattern=_MARK, partial_pattern=_PARTIAL_MARK, max_length=_MAX_MARK_LENGTH, cite=cite
    )
