"""Moderators on other servers that have OpenAI's endpoint ``/moderations``."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.errors import BackendError
from antiphon.upstream.endpoint import UpstreamModel
from antiphon.wire.json_types import JsonObject
from antiphon.wire.moderation import Verdict, read_verdict

_WAIT_S = 60


class ModerationsApi(UpstreamModel):
    """Sends texts and images to the endpoint ``/moderations`` of an upstream server."""

    async def moderate(self, content: str | Sequence[JsonObject]) -> Verdict:
        """Return the verdict about a text, or about parts in OpenAI's form. Raises
        ``BackendError``."""
        answer = await self._request("moderations", {"input": content}, _WAIT_S)
        try:
            return read_verdict(answer)
        except ValueError:
            raise BackendError("The upstream's response is not a moderation.") from None
