"""Citations of files.

The model writes a mark such as ``【f3】``. The mark and a space before it are removed. At this
position, the text gets an annotation that names the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from antiphon.tools.citations import Citation, CitationNotation
from antiphon.wire.parts import FileCitation

#: Some models add line numbers, or the filename in the form that they are shown.
_MARK = re.compile(r" ?【f(\d{1,6})(?:†[^【】]{0,200})?】")
_PARTIAL_MARK = re.compile(r" ?【[^【】]*\Z| \Z")
_MAX_MARK_LENGTH = 216


def file_citation_notation(file_of: Callable[[int], tuple[str, str] | None]) -> CitationNotation:
    """Return the notation of file citations. ``file_of``: a function that returns the file id and
    filename of the passage with a given number. It returns None if the model was not shown a
    passage with this number."""

    def cite(mark: re.Match[str], position: int, preceding: str) -> Citation | None:
        file = file_of(int(mark.group(1)))
        if file is None:
            return None
        file_id, filename = file
        return Citation("", FileCitation(file_id=file_id, filename=filename, index=position))

    return CitationNotation(
        pattern=_MARK, partial_pattern=_PARTIAL_MARK, max_length=_MAX_MARK_LENGTH, cite=cite
    )
