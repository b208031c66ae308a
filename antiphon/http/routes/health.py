"""For machines that watch: is the process there, may it be sent work, what does it count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from antiphon.http.json_response import Reply, json_reply
from antiphon.http.metrics import Metrics

if TYPE_CHECKING:
    from antiphon.runs.service import Service

__all__ = ["Health"]


class Health:
    """``/health``, ``/ready`` and ``/metrics``."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics

    async def health(self, request: Request) -> Reply:
        """200 as long as the event loop turns."""
        return json_reply({"status": "ok"})

    async def ready(self, request: Request) -> Reply:
        """200 while new work is welcome, 503 before and after."""
        if self._service.ready:
            return json_reply({"status": "ready"})
        return json_reply({"status": "not_ready"}, 503)

    async def metrics(self, request: Request) -> Reply:
        """The numbers, in the text format the scraper asks for."""
        content, media_type = self._metrics.exposition(request.headers.get("accept", ""))
        return Reply(content, media_type=media_type)
