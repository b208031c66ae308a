"""The error for a URL that the server does not have: what was meant, or what is not offered.

A misspelt path, a base URL without ``/v1``, and an API that this server does not have are three
mistakes with three remedies.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from antiphon.errors import NotFound

from .not_offered import NotOffered, not_offered

#: Paths that differ in more than this share of their letters are no misspelling.
_CUTOFF = 0.8


class UnknownUrls:
    """Explains unknown URLs. ``paths``: the paths of the server's routes."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(dict.fromkeys(path for path in paths if "{" not in path))

    def error(self, method: str, path: str) -> NotFound:
        """Return the error for a method and path without a route."""
        plain = _plain(path)
        if (meant := self._with_prefix(plain)) is not None and meant != path:
            return unknown_url(method, path, f" Did you mean {meant}?")
        if (missing := not_offered(plain) or not_offered(f"/v1{plain}")) is not None:
            return unknown_url(method, path, _refusal(missing))
        if close := get_close_matches(plain, self._paths, n=1, cutoff=_CUTOFF):
            return unknown_url(method, path, f" Did you mean {close[0]}?")
        return unknown_url(method, path, " GET /docs lists all URLs.")

    def _with_prefix(self, plain: str) -> str | None:
        """Return the route of a path, perhaps with the prefix ``/v1`` that the path lacks."""
        for candidate in (plain, f"/v1{plain}"):
            if candidate in self._paths:
                return candidate
        first = plain.split("/")[1]
        is_below = f"/v1/{first}" in self._paths and plain != f"/{first}"
        return f"/v1{plain}" if is_below else None


def _plain(path: str) -> str:
    """Return a path of limited length without doubled prefixes and slashes at its end."""
    plain = "/" + path.strip("/")[:200]
    while plain.startswith("/v1/v1/"):
        plain = plain.removeprefix("/v1")
    return plain


def _refusal(missing: NotOffered) -> str:
    instead = f" {missing.instead}" if missing.instead else ""
    return f" This server does not offer {missing.what}.{instead} See not-offered.md."


def unknown_url(method: str, path: str, hint: str = "") -> NotFound:
    """Return the error for an unknown route. It begins with OpenAI's error message."""
    return NotFound(f"Unknown request URL: {method} {path}.{hint}", code="unknown_url")
