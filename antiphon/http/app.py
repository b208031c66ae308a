"""The ASGI app: all routes, and the middleware around them.

Middleware from the outside in: request context (ids, access log), CORS, errors, authentication.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import asdict
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

from antiphon.compat.chat_request import SHARED_FIELDS as CHAT_FIELDS
from antiphon.compat.chat_request import parse_chat_request
from antiphon.compat.chat_response import ChatCompletion
from antiphon.compat.chat_stream import ChatChunk
from antiphon.compat.completion_request import SHARED_FIELDS as COMPLETION_FIELDS
from antiphon.compat.completion_request import parse_completion_request
from antiphon.compat.completion_response import Completion
from antiphon.compat.messages.bodies import MessagesFields
from antiphon.compat.messages.request import parse_messages_request
from antiphon.compat.messages.stream import PING
from antiphon.compat.messages.types import MessageAnswer, MessageError, MessageEvent
from antiphon.compat.request_bodies import chat_completion_body, completion_body
from antiphon.http.auditor import Auditor
from antiphon.http.batch_lines import LineExecutor
from antiphon.http.middleware.auth import AuthConfig, AuthMiddleware
from antiphon.http.middleware.errors import ErrorMiddleware
from antiphon.http.middleware.request_context import RequestContextMiddleware
from antiphon.http.openapi.operation import Operation
from antiphon.http.router import FastRouter, routes_of
from antiphon.http.routes.admin.added_models import AddedModelRoutes, ModelAdditions
from antiphon.http.routes.admin.api_keys import ApiKeyRoutes
from antiphon.http.routes.admin.managed_models import ManagedModelRoutes, ModelAdministration
from antiphon.http.routes.admin.organization_usage import usage_handlers
from antiphon.http.routes.admin.reports import AuditRoutes, SettingRoutes, ToolRoutes, UsageRoutes
from antiphon.http.routes.admin.tenants import TenantRoutes
from antiphon.http.routes.audio import AudioRoutes
from antiphon.http.routes.chat_completions import StoredChatRoutes
from antiphon.http.routes.compaction import CompactRoutes
from antiphon.http.routes.completions import CompletionsEndpoint
from antiphon.http.routes.decisions import DecisionRoutes
from antiphon.http.routes.embeddings import ReadingRoutes
from antiphon.http.routes.health import HealthRoutes, ReadProcesses
from antiphon.http.routes.images import ImageRoutes
from antiphon.http.routes.messages import MessageRoutes, start_message
from antiphon.http.routes.models import ModelRoutes
from antiphon.http.routes.ollama import OllamaRoutes
from antiphon.http.routes.reference import ReferenceRoutes
from antiphon.http.routes.resources.batches import BatchRoutes, MessageBatchRoutes
from antiphon.http.routes.resources.containers import ContainerRoutes
from antiphon.http.routes.resources.conversations import ConversationRoutes
from antiphon.http.routes.resources.files import FileRoutes
from antiphon.http.routes.resources.prompts import PromptRoutes
from antiphon.http.routes.resources.skills import SkillRoutes
from antiphon.http.routes.resources.uploads import UploadRoutes
from antiphon.http.routes.resources.vector_stores import VectorStoreRoutes
from antiphon.http.routes.resources.webhook_endpoints import WebhookEndpointRoutes
from antiphon.http.routes.responses import IGNORED_TOOLS, CreateEndpoint, ResponseRoutes
from antiphon.http.routes.sign_in import SignInRoutes
from antiphon.http.routes.tokens import TokenRoutes
from antiphon.http.routes.websocket import WebSocketEndpoint
from antiphon.http.streaming.response import StreamFormat
from antiphon.http.ui.routes import page_routes
from antiphon.limits.admission import Admission, admission_queue
from antiphon.limits.charges import ClientCharges
from antiphon.limits.key_ring import KeyRing
from antiphon.limits.rate_limits import RateLimits
from antiphon.limits.requests import RequestLimits
from antiphon.limits.token_budgets import TokenBudgets
from antiphon.oidc import SignIn
from antiphon.resources.admin.api_keys import ApiKeys
from antiphon.stream.writer import Ids
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.log import Log
from antiphon.tracing.base import Tracer
from antiphon.wire.admin.server_info import SettingList
from antiphon.wire.object_ids import STORED_CHAT_ID

from .endpoint_context import EndpointDependencies, create_run
from .metrics import Metrics

if TYPE_CHECKING:
    from antiphon.runs.service import Service


def create_app(
    service: Service,
    access: AuthConfig | None = None,
    limits: RequestLimits | None = None,
    *,
    ids: Ids,
    log: Log,
    cors: Sequence[str] = (),
    metrics: Metrics | None = None,
    admission: Admission | None = None,
    rates: RateLimits | None = None,
    manager: ModelAdministration | None = None,
    additions: ModelAdditions | None = None,
    settings: SettingList | None = None,
    api_keys: ApiKeys | None = None,
    keys: KeyRing | None = None,
    sign_in: SignIn | None = None,
    processes: ReadProcesses | None = None,
    stores_nothing: bool = False,
    clock: Callable[[], float] = time.monotonic,
    tracer: Tracer | None = None,
    reraise: bool = False,
) -> ASGIApp:
    """Build the app for a service that is already open. The caller closes the service.

    - ``log``: a structlog logger.
    - ``cors``: origins whose pages may call the app; "*" allows all origins.
    - ``admission``: the admission queue of the app; None creates a queue from ``limits``.
    - ``rates`` counts the requests of clients; None creates it.
    - ``manager`` manages the models, and ``additions`` adds some; None leaves out their routes.
    - ``settings``: the content that ``/antiphon/settings`` returns; None leaves out this route.
    - ``api_keys``: the API keys in the store; None if API keys are not kept in the store.
    - ``keys``: the key ring of the runs of ``service``, so that a run ends when its key is revoked;
      None creates one of the app's own.
    - ``sign_in``: identifies the users of issuers; None if there are no issuers.
    - ``processes``: a function that reads the state of all processes of the server; None if there
      is only one process.
    - ``stores_nothing``: whether requests that store files, conversations … are refused.
    - ``clock`` returns monotonic seconds.
    - ``tracer``: None means that nothing is traced.
    - ``reraise``: whether unexpected exceptions are raised, and not converted to error responses.
      Only tests set it.
    """
    access = access or AuthConfig()
    limits = limits or RequestLimits()
    metrics = metrics or Metrics()
    admission = admission or admission_queue(limits, clock, metrics.observe_wait)
    _observe(metrics, service, admission)
    deps = EndpointDependencies(
        service=service,
        admission=admission,
        rates=rates or RateLimits(service.rates, owner=secrets.token_hex(8), timer=clock),
        metrics=metrics,
        clock=clock,
        limits=limits,
        log=log,
        tracer=tracer or Tracer(),
    )
    auditor = Auditor(service.audit)
    routes: list[Route | WebSocketRoute] = [
        WebSocketRoute("/v1/responses", WebSocketEndpoint(deps)),
        *routes_of(
            access,
            *_generating(deps),
            *_resources(deps, auditor),
            *_operators(deps, auditor, api_keys, settings),
            *_managers(deps, access, auditor, manager, additions),
            SignInRoutes(sign_in.logins if sign_in is not None else None),
            HealthRoutes(service, metrics, processes),
        ),
        *(page_routes() if access.page else ()),
    ]
    routes += routes_of(access, ReferenceRoutes(routes))
    app: ASGIApp = FastRouter(routes, refused=_STORING if stores_nothing else ())
    _serve_batches(deps, app, ids)
    app = _authenticated(app, access, deps, keys or KeyRing(), api_keys, sign_in)
    app = _with_cors(ErrorMiddleware(app, log=log, reraise=reraise), cors)
    return _with_contexts(app, deps, ids)


def _authenticated(
    app: ASGIApp,
    access: AuthConfig,
    deps: EndpointDependencies,
    keys: KeyRing,
    api_keys: ApiKeys | None,
    sign_in: SignIn | None,
) -> ASGIApp:
    """Give the key ring the keys of the settings and of the store, and return the app behind its
    authentication."""
    keys.configure(
        access.keys,
        tenants=access.tenants,
        roles=access.roles,
        requests_per_minute=deps.limits.requests_per_minute,
        stored_keys=api_keys,
        issuers=access.issuers,
        deletions=deps.service.tenant_deletions,
    )
    return AuthMiddleware(
        app,
        access,
        charges=ClientCharges(deps.rates, _budgets(deps.service, deps.clock)),
        keys=keys,
        sign_in=sign_in,
        watch=deps.service.request_watch,
    )


def _with_contexts(app: ASGIApp, deps: EndpointDependencies, ids: Ids) -> ASGIApp:
    """Give each request of the app its context."""
    limits = deps.limits
    return RequestContextMiddleware(
        app,
        ids=ids,
        log=deps.log,
        clock=deps.clock,
        count_request=deps.metrics.count_request,
        tracer=deps.tracer,
        body_memory=FairLimiter(
            limits.body_memory_bytes, max_per_tenant=limits.body_memory_per_tenant
        ),
    )


def _serve_batches(deps: EndpointDependencies, routes: ASGIApp, ids: Ids) -> None:
    """Let the service execute the requests of batches through the routes of the app."""
    execute = LineExecutor(routes, ids=ids, log=deps.log, clock=deps.clock)
    admission = deps.admission
    service = deps.service
    service.batch_worker.serve(
        execute, lambda: admission.running + admission.waiting + service.background_runs
    )


def _observe(metrics: Metrics, service: Service, admission: Admission) -> None:
    """Let the metrics read the queue, and the states of the models and of their prompt caches."""
    metrics.observe_queue(admission)
    metrics.observe_models(
        lambda: {model.name: model.backend.status.value == "loaded" for model in service.models()},
        lambda: {
            model.name: asdict(cache)
            for model in service.models()
            if (cache := model.backend.status.prefix_cache) is not None
        },
    )


#: Paths of objects that are stored. A server that stores nothing refuses to create them.
_STORING = (
    "/v1/batches",
    "/v1/conversations",
    "/v1/files",
    "/v1/messages/batches",
    "/v1/skills",
    "/v1/uploads",
    "/v1/vector_stores",
    "/v1/webhook_endpoints",
)


def _with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let pages of these origins call the app and read the response headers that clients need."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after", IGNORED_TOOLS, "idempotent-replayed"),
    )


def _budgets(service: Service, timer: Callable[[], float]) -> TokenBudgets:
    return TokenBudgets(
        lambda query: service.usage_counter.totals(query),
        clock=lambda: service.usage_counter.clock(),
        timer=timer,
    )


def _resources(deps: EndpointDependencies, auditor: Auditor) -> list[object]:
    """Return the endpoints of the objects that clients manage."""
    service, limits = deps.service, deps.limits
    return [
        ResponseRoutes(service, limits, auditor),
        StoredChatRoutes(service, limits, auditor),
        ConversationRoutes(service, limits),
        FileRoutes(service, limits),
        BatchRoutes(service, limits),
        MessageBatchRoutes(service, limits),
        UploadRoutes(service, limits),
        VectorStoreRoutes(service, limits),
        ContainerRoutes(service, limits, auditor),
        SkillRoutes(service, limits),
        WebhookEndpointRoutes(service, limits, auditor),
        ModelRoutes(service),
        ToolRoutes(service),
    ]


def _operators(
    deps: EndpointDependencies,
    auditor: Auditor,
    api_keys: ApiKeys | None,
    settings: SettingList | None,
) -> list[object]:
    """Return the endpoints of operators, auditors and editors of prompts."""
    service, limits = deps.service, deps.limits
    return [
        PromptRoutes(service, limits),
        *usage_handlers(service),
        TenantRoutes(service.tenants, auditor),
        AuditRoutes(service.audit),
        ApiKeyRoutes(api_keys, limits, auditor),
        *([] if settings is None else [SettingRoutes(settings)]),
    ]


def _managers(
    deps: EndpointDependencies,
    access: AuthConfig,
    auditor: Auditor,
    manager: ModelAdministration | None,
    additions: ModelAdditions | None,
) -> list[object]:
    """Return Ollama's API, and the endpoints with which operators manage models. ``manager`` and
    ``additions``: None leaves out the endpoints that need it."""
    found: list[object] = [OllamaRoutes(deps, access, manager, auditor)]
    if manager is not None:
        found.append(ManagedModelRoutes(manager, deps.service.keepalive_s, auditor))
        if additions is not None:
            found.append(AddedModelRoutes(additions, manager, deps.limits, auditor))
    return found


def _generating(deps: EndpointDependencies) -> list[object]:
    """Return the endpoints whose models answer, read, hear, speak or draw."""
    return [
        CreateEndpoint(deps),
        CompactRoutes(deps),
        *_older_endpoints(deps),
        _messages_endpoint(deps),
        MessageRoutes(deps),
        TokenRoutes(deps),
        UsageRoutes(deps),
        ReadingRoutes(deps),
        DecisionRoutes(deps),
        AudioRoutes(deps),
        ImageRoutes(deps),
    ]


def _older_endpoints(deps: EndpointDependencies) -> list[object]:
    """Return the endpoints of OpenAI's older APIs: Chat Completions and Completions."""
    chat_completions = CompletionsEndpoint(
        parse_chat_request,
        lambda context, request, index: create_run(
            deps.service,
            context,
            request.requests[index],
            choice=index,
            id_prefix=STORED_CHAT_ID if request.request.store else "resp",
        ),
        deps,
        Operation(
            route="POST /v1/chat/completions",
            id="createChatCompletion",
            summary="Generate a reply to messages in the format of OpenAI's Chat Completions API.",
            body=chat_completion_body(frozenset(CHAT_FIELDS)),
            answer=ChatCompletion,
            events=ChatChunk,
            errors=(404, 424, 502),
        ),
    )
    completions = CompletionsEndpoint(
        parse_completion_request,
        lambda context, request, index: deps.service.complete(
            context.tenant,
            request.requests[index],
            request.prompts[index],
            client=context.client,
            counts_prompt=index % request.n == 0,
        ),
        deps,
        Operation(
            route="POST /v1/completions",
            id="createCompletion",
            summary="Continue texts.",
            body=completion_body(frozenset(COMPLETION_FIELDS)),
            answer=Completion,
            events=Completion,
            errors=(404, 502),
        ),
    )
    return [chat_completions, completions]


def _messages_endpoint(deps: EndpointDependencies) -> object:
    """Return the endpoint of Anthropic's Messages API."""
    return CompletionsEndpoint(
        parse_messages_request,
        partial(start_message, deps.service),
        deps,
        Operation(
            route="POST /v1/messages",
            id="createMessage",
            summary="Generate a reply to messages in the format of Anthropic's Messages API.",
            body=MessagesFields,
            answer=MessageAnswer,
            events=MessageEvent,
            response_headers=(IGNORED_TOOLS,),
            errors=(404, 424, 502),
            error_body=MessageError,
        ),
        stream_format=StreamFormat(end_mark=b"", comment=PING),
    )
