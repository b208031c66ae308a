"""Run Antiphon on Ray Serve: ``serve run antiphon.ray:app``.

Each replica is a separate server. All replicas use one PostgreSQL store and reach the engines over
HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.bootstrap.app import open_app
from antiphon.config.load import load
from antiphon.errors import SetupError
from antiphon.store import is_postgres
from antiphon.support.installation import needs_packages

__all__ = ["ServeArguments", "ServedApp", "app"]


class ServeArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of ``serve run antiphon.ray:app NAME=VALUE …``.

    - ``config``: the path of the settings file, which is the same on every node. The default is the
      file that ``ANTIPHON_CONFIG`` names. If this variable is not set, the default is
      ``antiphon.toml`` in the working directory of a replica.
    - ``min_replicas``, ``max_replicas``: limits of autoscaling.
    - ``target_requests``: number of running requests per replica above which Ray Serve adds
      replicas. A stream and a WebSocket count as running while they are open.
    - ``max_requests``: maximum number of requests that Ray Serve sends to a replica at a time.
    - ``upscale_delay_s``, ``downscale_delay_s``: how many seconds the load must be high or low
      before Ray Serve adds or removes a replica.
    - ``shutdown_s``: seconds that a replica may take to finish its streams before Ray Serve stops
      it.
    """

    config: str | None = None
    min_replicas: int = 1
    max_replicas: int = 1
    target_requests: int = 64
    max_requests: int = 256
    upscale_delay_s: float = 10
    downscale_delay_s: float = 600
    shutdown_s: float = 600


def app(arguments: Mapping[str, Any]) -> Any:
    """Build the Ray Serve application. ``arguments``: the fields of ``ServeArguments`` by name.
    Raises ``SetupError`` if the extra ``ray`` is missing, an argument is unknown, or an argument
    has a wrong type."""
    with needs_packages("Ray Serve is not installed", "ray"):
        from ray import serve
    try:
        options = msgspec.convert(dict(arguments), ServeArguments, strict=False)
    except msgspec.ValidationError as error:
        raise SetupError(f"antiphon.ray:app: {error}") from None
    deployment = serve.deployment(
        name="Antiphon",
        max_ongoing_requests=options.max_requests,
        autoscaling_config={
            "min_replicas": options.min_replicas,
            "max_replicas": options.max_replicas,
            "target_ongoing_requests": options.target_requests,
            "upscale_delay_s": options.upscale_delay_s,
            "downscale_delay_s": options.downscale_delay_s,
        },
        graceful_shutdown_timeout_s=options.shutdown_s,
    )
    served = ServedApp(options.config, has_several=options.max_replicas > 1)
    return deployment(serve.ingress(served)()).bind()


class ServedApp:
    """The ASGI app of a replica. Ray Serve pickles this object and sends it to the replica, so it
    contains no connections and no models. The app opens these in the replica, when the ASGI
    lifespan starts.

    ``config``: the path of the settings file. ``has_several``: whether there can be several
    replicas. They need a common store in PostgreSQL.
    """

    def __init__(self, config: str | None, *, has_several: bool) -> None:
        self._config = config
        self._has_several = has_several
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        answer: Message = {"type": "lifespan.shutdown.complete"}
        try:
            settings = load(file=None if self._config is None else Path(self._config)).settings
            if self._has_several and not is_postgres(settings.store):
                raise SetupError("several replicas need a store in PostgreSQL (setting: store)")
            async with open_app(settings) as self._app:
                await send({"type": "lifespan.startup.complete"})
                await receive()
                self._app = None
        except SetupError as error:
            answer = {"type": "lifespan.startup.failed", "message": str(error)}
        await send(answer)
