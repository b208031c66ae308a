"""The error for a URL that the server does not have: what was meant, or what is not offered.

A misspelt path, a base URL without ``/v1``, and an API that this server does not have are three
mistakes with three remedies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from antiphon.errors import NotFound

__all__ = ["UnknownUrls", "unknown_url"]

#: The beginning of a path of OpenAI's or another API → what this server does not offer.
_NOT_OFFERED: Mapping[str, str] = {
    "/v1/assistants": "the Assistants API. Use the Responses API with 'conversation'",
    "/v1/audio": "audio endpoints. Send audio as an input_audio part, if the model hears",
    "/v1/batches": "the Batch API. Send requests with 'background': true",
    "/v1/decisions": "decisions",
    "/v1/evals": "evals",
    "/v1/fine_tuning": "fine-tuning. Serve the tuned model, or its LoRA adapter",
    "/v1/images": "image endpoints. Use the tool 'image_generation'",
    "/v1/moderations": "moderations",
    "/v1/organization": "this part of the administration API. It has usage and costs only",
    "/v1/realtime": "the Realtime API. Use the WebSocket of /v1/responses",
    "/v1/threads": "the Assistants API. Use the Responses API with 'conversation'",
    "/v1/videos": "videos",
    "/v1/webhook_endpoints": "webhook endpoints by API. Set them in the settings",
    "/api/": "Ollama's API. Use the OpenAI-compatible one below /v1",
}
#: Paths that differ in more than this share of their letters are no misspelling.
_CUTOFF = 0.8


class UnknownUrls:
    """Explains unknown URLs. ``paths``: the paths of the server's routes."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(dict.fromkeys(path for path in paths if "{" not in path))

    def error(self, method: str, path: str) -> NotFound:
        """Return the error for a method and path without a route."""
        if (meant := self._meant(path)) is not None:
            return unknown_url(method, path, f" Did you mean {meant}?")
        for start, what in _NOT_OFFERED.items():
            if path == start or path.startswith(start if start.endswith("/") else f"{start}/"):
                return unknown_url(method, path, f" This server does not offer {what}.")
        return unknown_url(method, path, " GET /docs lists all URLs.")

    def _meant(self, path: str) -> str | None:
        """Return the route that a path probably means, or None."""
        plain = "/" + path.strip("/")[:200]
        while plain.startswith("/v1/v1/"):
            plain = plain.removeprefix("/v1")
        first = plain.split("/")[1]
        for candidate in (plain, f"/v1{plain}"):
            if candidate != path and candidate in self._paths:
                return candidate
        if f"/v1/{first}" in self._paths and plain != f"/{first}":
            return f"/v1{plain}"
        close = get_close_matches(plain, self._paths, n=1, cutoff=_CUTOFF)
        return close[0] if close and close[0] != path else None


def unknown_url(method: str, path: str, hint: str = "") -> NotFound:
    """Return the error for an unknown route. It begins with OpenAI's error message."""
    return NotFound(f"Unknown request URL: {method} {path}.{hint}", code="unknown_url")
