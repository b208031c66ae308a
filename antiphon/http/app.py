"""The ASGI app: every route on one screen, and the layers around them.

From the outside in: request ids and the log line, CORS, errors, the guard, the routes. It knows
what the routes are called, not what they do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.compat.chat_request import chat_request
from antiphon.compat.completion_request import completion_request
from antiphon.http.middleware.auth import AuthConfig, AuthMiddleware, Limits
from antiphon.http.middleware.errors import Errors, error_reply, unknown_url
from antiphon.http.middleware.request_context import RequestContextMiddleware
from antiphon.http.routes.compaction import Compact
from antiphon.http.routes.completions import CompletionsEndpoint
from antiphon.http.routes.containers import Containers
from antiphon.http.routes.conversations import Conversations
from antiphon.http.routes.embeddings import Embeddings
from antiphon.http.routes.files import Files
from antiphon.http.routes.health import Health
from antiphon.http.routes.models import Models
from antiphon.http.routes.prompts import Prompts
from antiphon.http.routes.responses import IGNORED_TOOLS, Create, Responses
from antiphon.http.routes.skills import Skills
from antiphon.http.routes.vector_stores import VectorStores
from antiphon.http.routes.websocket import Socket
from antiphon.stream.writer import Ids

from .admission import AdmissionQueue
from .endpoint_context import EndpointContext
from .json_response import Reply
from .metrics import Metrics

if TYPE_CHECKING:
    from antiphon.runs.service import Service

__all__ = ["create_app"]


def create_app(
    service: Service,
    access: AuthConfig | None = None,
    limits: Limits | None = None,
    *,
    ids: Ids,
    log: Any,
    cors: Sequence[str] = (),
    metrics: Metrics | None = None,
    clock: Callable[[], float] = time.monotonic,
    reraise: bool = False,
) -> ASGIApp:
    """The app over an open service; whoever opened the service closes it.

    ``cors``: origins whose pages may call, "*" for all. ``log``: a structlog logger. ``clock``
    gives monotonic seconds. ``reraise``: let unexpected exceptions through (tests).
    """
    access = access or AuthConfig()
    limits = limits or Limits()
    metrics = metrics or Metrics()
    gate = AdmissionQueue(
        limits.max_concurrent_requests,
        limits.max_queued_requests,
        retry_after_s=limits.retry_after_s,
    )
    metrics.watch(gate)
    rim = EndpointContext(
        service=service, gate=gate, metrics=metrics, clock=clock, limits=limits, log=log
    )
    app: ASGIApp = Router(
        _routes(rim, access),
        redirect_slashes=False,
        default=_unknown,
    )
    app = AuthMiddleware(app, access, limits, clock)
    app = Errors(app, log=log, reraise=reraise)
    if cors:
        app = CORSMiddleware(
            app,
            allow_origins=cors,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after", IGNORED_TOOLS),
        )
    return RequestContextMiddleware(app, ids=ids, log=log, clock=clock, counted=metrics.counted)


def _routes(rim: EndpointContext, access: AuthConfig) -> list[Route | WebSocketRoute]:
    service, limits = rim.service, rim.limits
    create = Create(rim)
    compact = Compact(rim)
    embeddings = Embeddings(rim)
    responses = Responses(service, limits)
    talks = Conversations(service, limits)
    prompts = Prompts(service, access, limits)
    files = Files(service, limits)
    models = Models(service)
    health = Health(service, rim.metrics)
    one = "/v1/responses/{response_id}"
    talk = "/v1/conversations/{conversation_id}"
    return [
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses", _upgrade, methods=["GET"]),
        WebSocketRoute("/v1/responses", Socket(rim)),
        Route("/v1/responses/input_tokens", responses.count, methods=["POST"]),
        Route("/v1/responses/compact", compact, methods=["POST"]),
        Route(one, responses.retrieve, methods=["GET"]),
        Route(one, responses.delete, methods=["DELETE"]),
        Route(one + "/cancel", responses.cancel, methods=["POST"]),
        Route(one + "/input_items", responses.input_items, methods=["GET"]),
        *_older_routes(rim),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        Route("/v1/conversations", talks.create, methods=["POST"]),
        Route(talk, talks.retrieve, methods=["GET"]),
        Route(talk, talks.update, methods=["POST"]),
        Route(talk, talks.delete, methods=["DELETE"]),
        Route(talk + "/items", talks.items, methods=["GET"]),
        Route(talk + "/items", talks.add, methods=["POST"]),
        Route(talk + "/items/{item_id}", talks.item, methods=["GET"]),
        Route(talk + "/items/{item_id}", talks.remove, methods=["DELETE"]),
        Route("/v1/files", files.create, methods=["POST"]),
        Route("/v1/files", files.list, methods=["GET"]),
        Route("/v1/files/{file_id}", files.retrieve, methods=["GET"]),
        Route("/v1/files/{file_id}", files.delete, methods=["DELETE"]),
        Route("/v1/files/{file_id}/content", files.content, methods=["GET"]),
        *_vector_routes(VectorStores(service, limits)),
        *_container_routes(Containers(service, limits)),
        *_skill_routes(Skills(service, limits)),
        Route("/v1/prompts", prompts.create, methods=["POST"]),
        Route("/v1/prompts", prompts.list, methods=["GET"]),
        Route("/v1/prompts/{prompt_id}", prompts.one, methods=["GET"]),
        Route("/v1/prompts/{prompt_id}", prompts.delete, methods=["DELETE"]),
        Route("/v1/models", models.list, methods=["GET"]),
        Route("/v1/models/{model:path}", models.one, methods=["GET"]),
        Route("/health", health.health, methods=["GET"]),
        Route("/ready", health.ready, methods=["GET"]),
        Route("/metrics", health.metrics, methods=["GET"]),
    ]


def _older_routes(rim: EndpointContext) -> list[Route]:
    """Of the APIs that were before."""
    chats = CompletionsEndpoint(
        chat_request,
        lambda tenant, asked, at: rim.service.create(tenant, asked.requests[at]),
        rim,
    )
    texts = CompletionsEndpoint(
        completion_request,
        lambda tenant, asked, at: rim.service.complete(asked.requests[at], asked.prompts[at]),
        rim,
    )
    return [
        Route("/v1/chat/completions", chats, methods=["POST"]),
        Route("/v1/completions", texts, methods=["POST"]),
    ]


def _vector_routes(stores: VectorStores) -> list[Route]:
    root = "/v1/vector_stores"
    one = root + "/{vector_store_id}"
    file = one + "/files/{file_id}"
    batch = one + "/file_batches/{batch_id}"
    return [
        Route(root, stores.create, methods=["POST"]),
        Route(root, stores.list, methods=["GET"]),
        Route(one, stores.retrieve, methods=["GET"]),
        Route(one, stores.update, methods=["POST"]),
        Route(one, stores.delete, methods=["DELETE"]),
        Route(one + "/search", stores.search, methods=["POST"]),
        Route(one + "/files", stores.add_file, methods=["POST"]),
        Route(one + "/files", stores.files, methods=["GET"]),
        Route(file, stores.file, methods=["GET"]),
        Route(file, stores.label, methods=["POST"]),
        Route(file, stores.remove, methods=["DELETE"]),
        Route(file + "/content", stores.content, methods=["GET"]),
        Route(one + "/file_batches", stores.create_batch, methods=["POST"]),
        Route(batch, stores.batch, methods=["GET"]),
        Route(batch + "/cancel", stores.cancel_batch, methods=["POST"]),
        Route(batch + "/files", stores.batch_files, methods=["GET"]),
    ]


def _container_routes(containers: Containers) -> list[Route]:
    one = "/v1/containers/{container_id}"
    file = one + "/files/{file_id}"
    return [
        Route("/v1/containers", containers.create, methods=["POST"]),
        Route("/v1/containers", containers.list, methods=["GET"]),
        Route(one, containers.retrieve, methods=["GET"]),
        Route(one, containers.delete, methods=["DELETE"]),
        Route(one + "/files", containers.add_file, methods=["POST"]),
        Route(one + "/files", containers.list_files, methods=["GET"]),
        Route(file, containers.retrieve_file, methods=["GET"]),
        Route(file, containers.delete_file, methods=["DELETE"]),
        Route(file + "/content", containers.content, methods=["GET"]),
    ]


def _skill_routes(skills: Skills) -> list[Route]:
    one = "/v1/skills/{skill_id}"
    version = one + "/versions/{version}"
    return [
        Route("/v1/skills", skills.create, methods=["POST"]),
        Route("/v1/skills", skills.list, methods=["GET"]),
        Route(one, skills.retrieve, methods=["GET"]),
        Route(one, skills.update, methods=["POST"]),
        Route(one, skills.delete, methods=["DELETE"]),
        Route(one + "/content", skills.content, methods=["GET"]),
        Route(one + "/versions", skills.add_version, methods=["POST"]),
        Route(one + "/versions", skills.versions, methods=["GET"]),
        Route(version, skills.version, methods=["GET"]),
        Route(version, skills.delete_version, methods=["DELETE"]),
        Route(version + "/content", skills.version_content, methods=["GET"]),
    ]


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000, "reason": ""})
        return
    raise unknown_url(scope["method"], scope["path"])


async def _upgrade(request: Request) -> Reply:
    """A server without a WebSocket library hands the upgrade over as a plain GET: it is refused
    with the status at which clients go on over HTTP at once."""
    if request.headers.get("upgrade", "").lower() == "websocket":
        return error_reply(
            426,
            "This server does not speak the WebSocket mode. Use POST /v1/responses.",
            code="websocket_not_supported",
            headers={"upgrade": "HTTP/1.1", "connection": "upgrade, close"},
        )
    return error_reply(
        405,
        "Not allowed to GET on /v1/responses.",
        code="method_not_supported",
        headers={"allow": "POST"},
    )
