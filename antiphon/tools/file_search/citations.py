"""Citations of files: what a model writes as ``【f3】`` is taken out, with a blank before it, and
becomes an annotation of the file at that place."""

from __future__ import annotations

import re
from collections.abc import Callable

from antiphon.tools.citations import Cited, Notation
from antiphon.wire.parts import FileCitation

__all__ = ["of_files"]

#: With the name behind it, as it is shown, or lines, as some models add.
_MARK = re.compile(r" ?【f(\d{1,6})(?:†[^【】]{0,200})?】")
_BEGUN = re.compile(r" ?【[^【】]*\Z| \Z")
_LONGEST = 216


def of_files(cited: Callable[[int], tuple[str, str] | None]) -> Notation:
    """``cited`` gives (file id, filename) of a number, if it was shown."""

    def cite(mark: re.Match[str], at: int, last: str) -> Cited | None:
        found = cited(int(mark.group(1)))
        if found is None:
            return None
        file_id, filename = found
        return Cited("", FileCitation(file_id=file_id, filename=filename, index=at))

    return Notation(whole=_MARK, begun=_BEGUN, longest=_LONGEST, cite=cite)
