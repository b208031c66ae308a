"""The error for a URL that the server does not have: what was meant, or what is not offered.

A misspelt path, a base URL with a wrong prefix, and an API that this server does not have are three
mistakes with three remedies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from antiphon.errors import NotFound

from .not_offered import NotOffered, not_offered

#: Paths that differ in more than this share of their letters are no misspelling.
_CUTOFF = 0.8
#: Number of characters of a path that are compared.
_MAX_PATH = 200


class UnknownUrls:
    """Explains unknown URLs. ``paths``: the paths of the server's routes."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(dict.fromkeys(path for path in paths if "{" not in path))

    def error(self, method: str, path: str) -> NotFound:
        """Return the error for a method and path without a route."""
        plain = "/" + path.strip("/")[:_MAX_PATH]
        hints = (hint for each in _without_prefixes(plain) if (hint := self._hint(each, path)))
        return unknown_url(method, path, next(hints, " GET /docs lists all URLs."))

    def _hint(self, plain: str, path: str) -> str | None:
        """Return what to do instead of requesting ``path``, if it was meant as ``plain``."""
        for candidate in (plain, f"/v1{plain}"):
            is_below = any(candidate.startswith(f"{each}/") for each in self._paths)
            if candidate != path and (is_below or candidate in self._paths):
                return f" Did you mean {candidate}?"
            if (missing := not_offered(candidate)) is not None:
                return _refusal(missing)
        if close := get_close_matches(plain, self._paths, n=1, cutoff=_CUTOFF):
            return f" Did you mean {close[0]}?"
        return None


def _without_prefixes(path: str) -> Iterator[str]:
    """Yield a path, and the path without its first one and two segments."""
    segments = path.split("/")[1:]
    for start in range(min(3, len(segments))):
        yield "/" + "/".join(segments[start:])


def _refusal(missing: NotOffered) -> str:
    instead = f" {missing.instead}" if missing.instead else ""
    return f" This server does not offer {missing.what}.{instead} See not-offered.md."


def unknown_url(method: str, path: str, hint: str = "") -> NotFound:
    """Return the error for an unknown route. It begins with OpenAI's error message."""
    return NotFound(f"Unknown request URL: {method} {path}.{hint}", code="unknown_url")
