"""Citations of pages: what a model writes as ``【3†L9-L11】`` becomes a link, which is annotated.
Pages are known by their place only."""

from __future__ import annotations

import re
from collections.abc import Callable

from antiphon.tools.citations import Cited, Notation
from antiphon.wire.parts import UrlCitation

from .page import Page, domain

__all__ = ["of_pages"]

_MARK = re.compile(r"【(\d{1,6})†[^【】]{0,64}】")
_BEGUN = re.compile(r"【[^【】]*\Z")
_LONGEST = 80


def of_pages(page: Callable[[int], Page | None]) -> Notation:
    """``page`` gives the page of a cursor, if there is one."""

    def cite(mark: re.Match[str], at: int, last: str) -> Cited | None:
        found = page(int(mark.group(1)))
        if found is None or not found.url:
            return None
        link = f"([{domain(found.url)}]({found.url}))"
        glue = "" if last.isspace() else " "
        start = at + len(glue)
        citation = UrlCitation(
            url=found.url, title=found.title, start_index=start, end_index=start + len(link)
        )
        return Cited(glue + link, citation)

    return Notation(whole=_MARK, begun=_BEGUN, longest=_LONGEST, cite=cite)
