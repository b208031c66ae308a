"""Citations of pages: what a model writes as ``【3†L9-L11】`` becomes a link, which is annotated.
Pages are known by their place only."""

from __future__ import annotations

import re
from collections.abc import Callable

from antiphon.tools.citations import Citation, CitationNotation
from antiphon.wire.parts import UrlCitation

from .page import WebPage, domain, plain_line

__all__ = ["page_citation_notation"]

_MARK = re.compile(r"【(\d{1,6})†([^【】]{0,64})】")
_LINE = re.compile(r"L(\d{1,9})")
_PARTIAL_MARK = re.compile(r"【[^【】]*\Z")
_MAX_MARK_LENGTH = 80
#: What would end the link, or begin something else: a page's owner writes its URL.
_ESCAPES = {ord(sign): f"%{ord(sign):02X}" for sign in ' \t\r\n()<>[]`"\\'}


def page_citation_notation(page_at: Callable[[int], WebPage | None]) -> CitationNotation:
    """``page`` gives the page of a cursor, if there is one."""

    def cite(mark: re.Match[str], at: int, last: str) -> Citation | None:
        shown, line = page_at(int(mark.group(1))), _LINE.search(mark.group(2))
        found = (
            shown.citation_target(int(line.group(1)) if line else None)
            if shown is not None
            else None
        )
        if found is None or not found.url:
            return None
        link = f"([{domain(found.url)}]({found.url.translate(_ESCAPES)}))"
        glue = "" if last.isspace() else " "
        start = at + len(glue)
        citation = UrlCitation(
            url=found.url,
            title=plain_line(found.title),
            start_index=start,
            end_index=start + len(link),
        )
        return Citation(glue + link, citation)

    return CitationNotation(
        pattern=_MARK, partial_pattern=_PARTIAL_MARK, max_length=_MAX_MARK_LENGTH, cite=cite
    )
