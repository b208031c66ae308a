"""Translate field names in errors: replace the names of the Responses API by the names of the API
that the client used."""

from __future__ import annotations

import re

from antiphon.errors import RequestError, RunError

_BOUNDARY = re.compile(r"(?=[.\[])")


class ErrorPaths:
    """Maps the path of a Responses API field to the path of the field that the client wrote. An
    entry for ``tools[0]`` also applies to the fields inside ``tools[0]``, such as
    ``tools[0].name``."""

    def __init__(self, **renamed: str) -> None:
        self._client_paths: dict[str, str] = dict(renamed)

    def add(self, path: str, client_path: str) -> None:
        """Record that the value of the Responses API field ``path`` comes from the field
        ``client_path`` of the client's request."""
        self._client_paths[path] = client_path

    def client_path(self, path: str) -> str:
        """Translate the path of a Responses API field to the path that the client wrote. The
        longest prefix of ``path`` for which a client path is recorded is replaced. If there is no
        such prefix, ``path`` is returned unchanged."""
        ends = [match.start() for match in _BOUNDARY.finditer(path)]
        for end in (len(path), *reversed(ends)):
            if (known := self._client_paths.get(path[:end])) is not None:
                return known + path[end:]
        return path

    def translate(self, error: RequestError | RunError) -> None:
        """Replace the path of a Responses API field by the path that the client wrote, both in
        ``error.param`` and in ``error.message``."""
        if error.param is None:
            return
        param = self.client_path(error.param)
        error.message = error.message.replace(f"'{error.param}'", f"'{param}'")
        error.param = param
