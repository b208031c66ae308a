"""Citations of pages: what a model writes as ``【3†L9-L11】`` becomes a link, which is annotated.
Pages are known by their place only."""

from __future__ import annotations

import re
from collections.abc import Callable

from antiphon.tools.citations import Cited, Notation
from antiphon.wire.parts import UrlCitation

from .page import Page, domain, plain

__all__ = ["of_pages"]

_MARK = re.compile(r"【(\d{1,6})†([^【】]{0,64})】")
_LINE = re.compile(r"L(\d{1,9})")
_BEGUN = re.compile(r"【[^【】]*\Z")
_LONGEST = 80
#: What would end the link, or begin something else: a page's owner writes its URL.
_ESCAPES = {ord(sign): f"%{ord(sign):02X}" for sign in ' \t\r\n()<>[]`"\\'}


def of_pages(page: Callable[[int], Page | None]) -> Notation:
    """``page`` gives the page of a cursor, if there is one."""

    def cite(mark: re.Match[str], at: int, last: str) -> Cited | None:
        shown, line = page(int(mark.group(1))), _LINE.search(mark.group(2))
        found = shown.cited(int(line.group(1)) if line else None) if shown is not None else None
        if found is None or not found.url:
            return None
        link = f"([{domain(found.url)}]({found.url.translate(_ESCAPES)}))"
        glue = "" if last.isspace() else " "
        start = at + len(glue)
        citation = UrlCitation(
            url=found.url, title=plain(found.title), start_index=start, end_index=start + len(link)
        )
        return Cited(glue + link, citation)

    return Notation(whole=_MARK, begun=_BEGUN, longest=_LONGEST, cite=cite)
