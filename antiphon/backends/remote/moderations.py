"""Moderators on other servers that have OpenAI's endpoint ``/moderations``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.errors import BackendError
from antiphon.upstream.client import Upstream
from antiphon.wire.json_types import JsonObject
from antiphon.wire.moderation import Verdict, read_verdict

_WAIT_S = 60


class ModerationsApi:
    """Sends texts and images to the endpoint ``/moderations`` of an upstream server.

    ``upstream``: the HTTP client of this server; ``close`` closes it. ``body``: extra fields for
    the body of every request.
    """

    def __init__(self, upstream: Upstream, body: Mapping[str, object]) -> None:
        self._upstream = upstream
        self._body = dict(body)

    async def moderate(self, content: str | Sequence[JsonObject]) -> Verdict:
        """Return the verdict about a text, or about parts in OpenAI's form. Raises
        ``BackendError``."""
        url = f"{self._upstream.versioned_url}/moderations"
        answer = await self._upstream.request_json(
            url, {**self._body, "input": content}, wait_s=_WAIT_S
        )
        try:
            return read_verdict(answer)
        except ValueError:
            raise BackendError("The upstream's response is not a moderation.") from None

    async def close(self) -> None:
        await self._upstream.close()
