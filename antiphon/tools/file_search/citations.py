"""Citations of files: what a model writes as ``【f3】`` is taken out, with a blank before it, and
becomes an annotation of the file at that place."""

from __future__ import annotations

import re
from collections.abc import Callable

from antiphon.tools.citations import Citation, CitationNotation
from antiphon.wire.parts import FileCitation

__all__ = ["file_citation_notation"]

#: With the name behind it, as it is shown, or lines, as some models add.
_MARK = re.compile(r" ?【f(\d{1,6})(?:†[^【】]{0,200})?】")
_PARTIAL_MARK = re.compile(r" ?【[^【】]*\Z| \Z")
_MAX_MARK_LENGTH = 216


def file_citation_notation(file_of: Callable[[int], tuple[str, str] | None]) -> CitationNotation:
    """``cited`` gives (file id, filename) of a number, if it was shown."""

    def cite(mark: re.Match[str], at: int, last: str) -> Citation | None:
        found = file_of(int(mark.group(1)))
        if found is None:
            return None
        file_id, filename = found
        return Citation("", FileCitation(file_id=file_id, filename=filename, index=at))

    return CitationNotation(
        pattern=_MARK, partial_pattern=_PARTIAL_MARK, max_length=_MAX_MARK_LENGTH, cite=cite
    )
