"""Where the fields of a translated request came from: errors name what the client wrote."""

from __future__ import annotations

import re

from antiphon.errors import RequestError, RunError

__all__ = ["Paths"]

_BOUNDARY = re.compile(r"(?=[.\[])")


class Paths:
    """Our paths and the client's, by their beginnings."""

    def __init__(self, **renamed: str) -> None:
        self._theirs: dict[str, str] = dict(renamed)

    def add(self, ours: str, theirs: str) -> None:
        """What stands at ``ours`` was read from ``theirs``."""
        self._theirs[ours] = theirs

    def theirs(self, path: str) -> str:
        """The client's path: its longest known beginning is put into the client's words."""
        ends = [match.start() for match in _BOUNDARY.finditer(path)]
        for end in (len(path), *reversed(ends)):
            if (known := self._theirs.get(path[:end])) is not None:
                return known + path[end:]
        return path

    def name(self, error: RequestError | RunError) -> None:
        """Let ``error`` name the field as the client wrote it."""
        if error.param is None:
            return
        param = self.theirs(error.param)
        error.message = error.message.replace(f"'{error.param}'", f"'{param}'")
        error.param = param
