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
from starlette.routing import Match, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

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
from antiphon.http.middleware.request_context import RequestContextMiddleware, route_path
from antiphon.http.openapi.operation import Operation
from antiphon.http.routes.admin.added_models import AddedModelRoutes, ModelAdditions
from antiphon.http.routes.admin.api_keys import ApiKeyRoutes
from antiphon.http.routes.admin.audit import AuditRoutes
from antiphon.http.routes.admin.managed_models import ManagedModelRoutes, ModelAdministration
from antiphon.http.routes.admin.organization_usage import OrganizationUsageRoutes
from antiphon.http.routes.admin.settings import SettingRoutes
from antiphon.http.routes.admin.tenants import TenantRoutes
from antiphon.http.routes.admin.tools import ToolRoutes
from antiphon.http.routes.admin.usage import UsageRoutes
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
from antiphon.http.ui.routes import PageRoutes
from antiphon.http.unknown_urls import UnknownUrls
from antiphon.limits.admission import Admission, admission_queue
from antiphon.limits.charges import ClientCharges
from antiphon.limits.key_ring import KeyRing
from antiphon.limits.rate_limits import RateLimits
from antiphon.limits.requests import RequestLimits
from antiphon.limits.token_budgets import TokenBudgets
from antiphon.oidc import SignIn
from antiphon.resources.admin.api_keys import ApiKeys
from antiphon.runs.request.no_storage import storage_disabled
from antiphon.stream.writer import Ids
from antiphon.support.log import Log
from antiphon.tracing.base import Tracer
from antiphon.wire.admin.settings import SettingList
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
    metrics.observe_queue(admission)
    _observe_models(metrics, service)
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
    routes = _routes(deps, access, auditor)
    routes += _manager_routes(deps, access, manager, additions, auditor)
    routes += _ollama_routes(OllamaRoutes(deps, access, manager, auditor), manager is not None)
    routes += _key_routes(ApiKeyRoutes(api_keys, access, limits, auditor))
    routes += _tenant_routes(service, access, auditor)
    routes += _sign_in_routes(SignInRoutes(sign_in.logins if sign_in is not None else None))
    routes += _health_routes(HealthRoutes(service, metrics, processes))
    routes += _setting_routes(settings, access)
    routes += _reference_routes(ReferenceRoutes(routes))
    app: ASGIApp = _Router(routes, refused=_STORING if stores_nothing else ())
    _serve_batches(deps, app, ids)
    keys = _configured(keys or KeyRing(), access, limits, api_keys, service)
    app = _authenticated(app, access, deps, keys, sign_in)
    app = ErrorMiddleware(app, log=log, reraise=reraise)
    if cors:
        app = _with_cors(app, cors)
    return RequestContextMiddleware(
        app, ids=ids, log=log, clock=clock, count_request=metrics.count_request, tracer=deps.tracer
    )


def _authenticated(
    app: ASGIApp,
    access: AuthConfig,
    deps: EndpointDependencies,
    keys: KeyRing,
    sign_in: SignIn | None,
) -> ASGIApp:
    """Return the app behind its authentication."""
    return AuthMiddleware(
        app,
        access,
        charges=ClientCharges(deps.rates, _budgets(deps.service, deps.clock)),
        keys=keys,
        sign_in=sign_in,
        watch=deps.service.request_watch,
    )


def _serve_batches(deps: EndpointDependencies, routes: ASGIApp, ids: Ids) -> None:
    """Let the service execute the requests of batches through the routes of the app."""
    execute = LineExecutor(routes, ids=ids, log=deps.log, clock=deps.clock)
    admission = deps.admission
    service = deps.service
    service.batch_worker.serve(
        execute, lambda: admission.running + admission.waiting + service.background_runs
    )


def _observe_models(metrics: Metrics, service: Service) -> None:
    """Let the metrics read the states of the models and of their prompt caches."""
    metrics.observe_models(
        lambda: {model.name: model.status.value == "loaded" for model in service.models()},
        lambda: {
            model.name: asdict(cache)
            for model in service.models()
            if (cache := model.status.prefix_cache) is not None
        },
    )


def _configured(
    keys: KeyRing,
    access: AuthConfig,
    limits: RequestLimits,
    api_keys: ApiKeys | None,
    service: Service,
) -> KeyRing:
    """Give a key ring the keys of the settings and of the store, and return it."""
    keys.configure(
        access.keys,
        tenants=access.tenants,
        roles=access.roles,
        requests_per_minute=limits.requests_per_minute,
        stored_keys=api_keys,
        issuers=access.issuers,
        deletions=service.tenant_deletions,
    )
    return keys


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


class _Router:
    """Starlette's router with a faster lookup: it finds routes without path parameters in a
    dictionary, and compares other paths only with the routes that have the same two first segments.

    Starlette's own router compares a path with the pattern of each route in turn. ``routes``: all
    routes. ``refused``: paths of objects that must not be created, because they would be stored.
    """

    def __init__(
        self, routes: Sequence[Route | WebSocketRoute], refused: tuple[str, ...] = ()
    ) -> None:
        self.routes = routes
        self._refused = refused
        self._unknown_urls = UnknownUrls(route.path for route in routes)
        self._fixed: dict[tuple[str, str], Route] = {}
        groups: dict[str, list[Route | WebSocketRoute]] = {}
        for route in routes:
            groups[_first_segments(route.path)] = []
            if isinstance(route, Route) and not route.param_convertors:
                for method in route.methods or ():
                    self._fixed.setdefault((method, route.path), route)
        # A route whose first segments have a parameter can match the paths of each group.
        for route in routes:
            name = _first_segments(route.path)
            for group in groups.values() if "{" in name else (groups[name],):
                group.append(route)
        self._groups = {name: self._router(group) for name, group in groups.items()}
        self._others = self._router(
            [route for route in routes if "{" in _first_segments(route.path)]
        )

    def _router(self, routes: Sequence[Route | WebSocketRoute]) -> Router:
        return Router(routes, redirect_slashes=False, default=self._refuse)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise self._unknown_urls.error(scope.get("method", "WEBSOCKET"), scope["path"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        if self._refused and scope.get("method") == "POST" and path.startswith(self._refused):
            raise storage_disabled()
        route = self._fixed.get((scope.get("method", ""), path))
        if route is None:
            router = self._groups.get(_first_segments(path), self._others)
            return await router(scope, receive, send)
        scope["route"] = route
        await route.app(scope, receive, send)


def _first_segments(path: str) -> str:
    return "/".join(path.split("/", 3)[:3])


def _with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Add CORS middleware to the app. Pages of these origins may then call the app and read the
    response headers that clients need."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after", IGNORED_TOOLS, "idempotent-replayed"),
    )


def _routes(
    deps: EndpointDependencies, access: AuthConfig, auditor: Auditor
) -> list[Route | WebSocketRoute]:
    service, limits = deps.service, deps.limits
    create = CreateEndpoint(deps)
    compact = CompactRoutes(deps).compact
    responses = ResponseRoutes(service, limits, auditor)
    conversations = ConversationRoutes(service, limits)
    files = FileRoutes(service, limits)
    models = ModelRoutes(service)
    path, views = "/v1/responses/{response_id}", "/antiphon/responses/{response_id}"
    conversation = "/v1/conversations/{conversation_id}"
    return [
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses", responses.list, methods=["GET"]),
        WebSocketRoute("/v1/responses", WebSocketEndpoint(deps)),
        Route("/v1/responses/input_tokens", responses.count_input_tokens, methods=["POST"]),
        Route("/v1/responses/compact", compact, methods=["POST"]),
        Route(path, responses.retrieve, methods=["GET"]),
        Route(path, responses.delete, methods=["DELETE"]),
        Route(path + "/cancel", responses.cancel, methods=["POST"]),
        Route(path + "/steer", responses.steer, methods=["POST"]),
        Route(path + "/input_items", responses.list_input_items, methods=["GET"]),
        Route(views + "/transcript", responses.transcript, methods=["GET"]),
        Route(views + "/timeline", responses.timeline, methods=["GET"]),
        *_older_routes(deps, StoredChatRoutes(service, limits, auditor)),
        *_messages_routes(deps),
        *_vllm_routes(TokenRoutes(deps)),
        Route("/antiphon/usage", UsageRoutes(deps).retrieve, methods=["GET"]),
        Route("/antiphon/tools", ToolRoutes(service).list, methods=["GET"]),
        *_organization_routes(OrganizationUsageRoutes(service, access)),
        *_reading_routes(ReadingRoutes(deps)),
        Route("/v1/decisions", DecisionRoutes(deps).create, methods=["POST"]),
        *_audio_routes(AudioRoutes(deps)),
        *_image_routes(ImageRoutes(deps)),
        Route("/v1/conversations", conversations.create, methods=["POST"]),
        Route(conversation, conversations.retrieve, methods=["GET"]),
        Route(conversation, conversations.update, methods=["POST"]),
        Route(conversation, conversations.delete, methods=["DELETE"]),
        Route(conversation + "/items", conversations.list_items, methods=["GET"]),
        Route(conversation + "/items", conversations.add_items, methods=["POST"]),
        Route(conversation + "/items/{item_id}", conversations.retrieve_item, methods=["GET"]),
        Route(conversation + "/items/{item_id}", conversations.delete_item, methods=["DELETE"]),
        Route("/v1/files", files.create, methods=["POST"]),
        Route("/v1/files", files.list, methods=["GET"]),
        Route("/v1/files/{file_id}", files.retrieve, methods=["GET"]),
        Route("/v1/files/{file_id}", files.delete, methods=["DELETE"]),
        Route("/v1/files/{file_id}/content", files.read_content, methods=["GET"]),
        *_batch_routes(BatchRoutes(service, limits), MessageBatchRoutes(service, limits)),
        *_upload_routes(UploadRoutes(service, limits)),
        *_vector_routes(VectorStoreRoutes(service, limits)),
        *_container_routes(ContainerRoutes(service, limits, auditor)),
        *_skill_routes(SkillRoutes(service, limits)),
        *_prompt_routes(PromptRoutes(service, access, limits)),
        *_webhook_routes(WebhookEndpointRoutes(service, limits, auditor)),
        Route("/v1/models", models.list, methods=["GET"]),
        Route("/v1/models/{model:path}", models.retrieve, methods=["GET"]),
        *(_page_routes(PageRoutes()) if access.page else ()),
    ]


def _prompt_routes(prompts: PromptRoutes) -> list[Route]:
    return [
        Route("/v1/prompts", prompts.create, methods=["POST"]),
        Route("/v1/prompts", prompts.list, methods=["GET"]),
        Route("/v1/prompts/{prompt_id}", prompts.retrieve, methods=["GET"]),
        Route("/v1/prompts/{prompt_id}", prompts.delete, methods=["DELETE"]),
    ]


def _webhook_routes(endpoints: WebhookEndpointRoutes) -> list[Route]:
    path = "/v1/webhook_endpoints/{webhook_endpoint_id}"
    return [
        Route("/v1/webhook_endpoints", endpoints.create, methods=["POST"]),
        Route("/v1/webhook_endpoints", endpoints.list, methods=["GET"]),
        Route(path, endpoints.retrieve, methods=["GET"]),
        Route(path, endpoints.update, methods=["POST"]),
        Route(path, endpoints.delete, methods=["DELETE"]),
        Route(path + "/rotate_secret", endpoints.rotate_secret, methods=["POST"]),
        Route(path + "/test", endpoints.test, methods=["POST"]),
        Route("/v1/webhook_event_types", endpoints.list_event_types, methods=["GET"]),
    ]


def _organization_routes(usage: OrganizationUsageRoutes) -> list[Route]:
    path = "/v1/organization/usage"
    return [
        Route(path + "/completions", usage.completions, methods=["GET"]),
        Route(path + "/embeddings", usage.embeddings, methods=["GET"]),
        Route(path + "/audio_transcriptions", usage.transcriptions, methods=["GET"]),
        Route(path + "/audio_speeches", usage.speeches, methods=["GET"]),
        Route(path + "/web_search_calls", usage.web_searches, methods=["GET"]),
        Route(path + "/file_search_calls", usage.file_searches, methods=["GET"]),
        Route(path + "/code_interpreter_sessions", usage.code_interpreter, methods=["GET"]),
        Route("/v1/organization/costs", usage.costs, methods=["GET"]),
    ]


def _page_routes(page: PageRoutes) -> list[Route]:
    return [
        Route("/", page.index, methods=["GET"]),
        Route("/ui/{path:path}", page.file, methods=["GET"]),
    ]


def _health_routes(health: HealthRoutes) -> list[Route]:
    return [
        Route("/health", health.health, methods=["GET"]),
        Route("/ready", health.ready, methods=["GET"]),
        Route("/metrics", health.metrics, methods=["GET"]),
    ]


def _reference_routes(reference: ReferenceRoutes) -> list[Route]:
    return [
        Route("/openapi.json", reference.document, methods=["GET"]),
        Route("/docs", reference.page, methods=["GET"]),
    ]


class _ActionRoute(Route):
    """The route of an action, such as ``/antiphon/models/NAME/load``. If a request has this path
    but another method, this route returns 405.

    Starlette's own route would pass such a request on to the later routes. The route
    ``/antiphon/models/{model:path}`` would then take ``NAME/load`` for the name of a model, because
    names of models may contain slashes.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        return (Match.FULL if match is Match.PARTIAL else match), child_scope


def _manager_routes(
    deps: EndpointDependencies,
    access: AuthConfig,
    manager: ModelAdministration | None,
    additions: ModelAdditions | None,
    auditor: Auditor,
) -> list[Route]:
    """Return the routes with which operators manage models. If ``manager`` is None, return no
    routes. If ``additions`` is None, return none that add models."""
    if manager is None:
        return []
    models = ManagedModelRoutes(manager, access, deps.service.keepalive_s, auditor)
    model = "/antiphon/models/{model:path}"
    added = []
    if additions is not None:
        added = _added_routes(AddedModelRoutes(additions, manager, access, deps.limits, auditor))
    return [
        *added,
        Route("/antiphon/models", models.list, methods=["GET"]),
        _ActionRoute(model + "/load", models.load, methods=["POST"]),
        _ActionRoute(model + "/unload", models.unload, methods=["POST"]),
        _ActionRoute(model + "/pull", models.pull, methods=["POST"]),
        Route(model, models.retrieve, methods=["GET"]),
        Route("/v1/models/{model:path}", models.delete, methods=["DELETE"]),
    ]


def _added_routes(models: AddedModelRoutes) -> list[Route]:
    return [
        Route("/antiphon/added-models", models.list, methods=["GET"]),
        Route("/antiphon/added-models", models.add, methods=["POST"]),
        Route("/antiphon/found-models", models.search, methods=["GET"]),
        Route("/antiphon/added-models/{model:path}", models.change, methods=["POST"]),
        Route("/antiphon/added-models/{model:path}", models.remove, methods=["DELETE"]),
    ]


def _setting_routes(settings: SettingList | None, access: AuthConfig) -> list[Route]:
    if settings is None:
        return []
    return [Route("/antiphon/settings", SettingRoutes(settings, access).list, methods=["GET"])]


def _sign_in_routes(sign_in: SignInRoutes) -> list[Route]:
    return [
        Route("/antiphon/session", sign_in.session, methods=["GET"]),
        Route("/antiphon/sign-in/callback", sign_in.finish, methods=["GET"]),
        Route("/antiphon/sign-in/{issuer}", sign_in.begin, methods=["GET"]),
        Route("/antiphon/sign-out", sign_in.end, methods=["POST"]),
    ]


def _tenant_routes(service: Service, access: AuthConfig, auditor: Auditor) -> list[Route]:
    tenants = TenantRoutes(service.tenants, access, auditor)
    tenant = "/antiphon/tenants/{name:path}"
    return [
        Route(tenant + "/export", tenants.export, methods=["GET"]),
        Route(tenant, tenants.delete, methods=["DELETE"]),
        Route("/antiphon/audit", AuditRoutes(service.audit, access).list, methods=["GET"]),
    ]


def _key_routes(keys: ApiKeyRoutes) -> list[Route]:
    key = "/antiphon/keys/{name:path}"
    return [
        Route("/antiphon/keys", keys.list, methods=["GET"]),
        Route("/antiphon/keys", keys.create, methods=["POST"]),
        Route(key + "/rotate", keys.rotate, methods=["POST"]),
        Route(key, keys.revoke, methods=["DELETE"]),
    ]


def _budgets(service: Service, timer: Callable[[], float]) -> TokenBudgets:
    return TokenBudgets(
        lambda query: service.usage_counter.totals(query),
        clock=lambda: service.usage_counter.clock(),
        timer=timer,
    )


def _older_routes(deps: EndpointDependencies, stored: StoredChatRoutes) -> list[Route]:
    """Return the routes of OpenAI's older APIs: Chat Completions and Completions."""
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
            id="createCompletion",
            summary="Continue texts.",
            body=completion_body(frozenset(COMPLETION_FIELDS)),
            answer=Completion,
            events=Completion,
            errors=(404, 502),
        ),
    )
    completion = "/v1/chat/completions/{completion_id}"
    return [
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/chat/completions", stored.list, methods=["GET"]),
        Route(completion, stored.retrieve, methods=["GET"]),
        Route(completion, stored.update, methods=["POST"]),
        Route(completion, stored.delete, methods=["DELETE"]),
        Route(completion + "/messages", stored.list_messages, methods=["GET"]),
        Route("/v1/completions", completions, methods=["POST"]),
    ]


def _messages_routes(deps: EndpointDependencies) -> list[Route]:
    """The routes of Anthropic's Messages API."""
    messages = CompletionsEndpoint(
        parse_messages_request,
        partial(start_message, deps.service),
        deps,
        Operation(
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
    return [
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", MessageRoutes(deps).count_tokens, methods=["POST"]),
    ]


def _ollama_routes(ollama: OllamaRoutes, manages_models: bool) -> list[Route]:
    """Return the routes of Ollama's API. ``manages_models``: whether models can be deleted."""
    deletion = Route("/api/delete", ollama.delete, methods=["DELETE"])
    return [
        *([deletion] if manages_models else []),
        Route("/api/version", ollama.version, methods=["GET"]),
        Route("/api/tags", ollama.tags, methods=["GET"]),
        Route("/api/ps", ollama.ps, methods=["GET"]),
        Route("/api/show", ollama.show, methods=["POST"]),
        Route("/api/chat", ollama.chat, methods=["POST"]),
        Route("/api/generate", ollama.generate, methods=["POST"]),
        Route("/api/embed", ollama.embed, methods=["POST"]),
        Route("/api/embeddings", ollama.embeddings, methods=["POST"]),
        Route("/api/pull", ollama.pull, methods=["POST"]),
    ]


def _reading_routes(reading: ReadingRoutes) -> list[Route]:
    return [
        Route("/v1/embeddings", reading.embed, methods=["POST"]),
        Route("/v1/moderations", reading.moderate, methods=["POST"]),
        Route("/v1/rerank", reading.rerank, methods=["POST"]),
    ]


def _image_routes(images: ImageRoutes) -> list[Route]:
    return [
        Route("/v1/images/generations", images.generate, methods=["POST"]),
        Route("/v1/images/edits", images.edit, methods=["POST"]),
    ]


def _audio_routes(audio: AudioRoutes) -> list[Route]:
    return [
        Route("/v1/audio/transcriptions", audio.transcribe, methods=["POST"]),
        Route("/v1/audio/translations", audio.translate, methods=["POST"]),
        Route("/v1/audio/speech", audio.speak, methods=["POST"]),
    ]


def _batch_routes(batches: BatchRoutes, messages: MessageBatchRoutes) -> list[Route]:
    batch, message_batch = "/v1/batches/{batch_id}", "/v1/messages/batches/{batch_id}"
    return [
        Route("/v1/batches", batches.create, methods=["POST"]),
        Route("/v1/batches", batches.list, methods=["GET"]),
        Route(batch, batches.retrieve, methods=["GET"]),
        Route(batch + "/cancel", batches.cancel, methods=["POST"]),
        Route("/v1/messages/batches", messages.create, methods=["POST"]),
        Route("/v1/messages/batches", messages.list, methods=["GET"]),
        Route(message_batch, messages.retrieve, methods=["GET"]),
        Route(message_batch, messages.delete, methods=["DELETE"]),
        Route(message_batch + "/cancel", messages.cancel, methods=["POST"]),
        Route(message_batch + "/results", messages.results, methods=["GET"]),
    ]


def _upload_routes(uploads: UploadRoutes) -> list[Route]:
    path = "/v1/uploads/{upload_id}"
    return [
        Route("/v1/uploads", uploads.create, methods=["POST"]),
        Route(path + "/parts", uploads.add_part, methods=["POST"]),
        Route(path + "/complete", uploads.complete, methods=["POST"]),
        Route(path + "/cancel", uploads.cancel, methods=["POST"]),
    ]


def _vllm_routes(tokens: TokenRoutes) -> list[Route]:
    return [
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/version", tokens.version, methods=["GET"]),
        Route("/load", tokens.load, methods=["GET"]),
    ]


def _vector_routes(stores: VectorStoreRoutes) -> list[Route]:
    root = "/v1/vector_stores"
    path = root + "/{vector_store_id}"
    file = path + "/files/{file_id}"
    batch = path + "/file_batches/{batch_id}"
    return [
        Route(root, stores.create, methods=["POST"]),
        Route(root, stores.list, methods=["GET"]),
        Route(path, stores.retrieve, methods=["GET"]),
        Route(path, stores.update, methods=["POST"]),
        Route(path, stores.delete, methods=["DELETE"]),
        Route(path + "/search", stores.search, methods=["POST"]),
        Route(path + "/files", stores.add_file, methods=["POST"]),
        Route(path + "/files", stores.list_files, methods=["GET"]),
        Route(file, stores.retrieve_file, methods=["GET"]),
        Route(file, stores.update_file, methods=["POST"]),
        Route(file, stores.remove_file, methods=["DELETE"]),
        Route(file + "/content", stores.read_content, methods=["GET"]),
        Route(path + "/file_batches", stores.create_batch, methods=["POST"]),
        Route(batch, stores.retrieve_batch, methods=["GET"]),
        Route(batch + "/cancel", stores.cancel_batch, methods=["POST"]),
        Route(batch + "/files", stores.list_batch_files, methods=["GET"]),
    ]


def _container_routes(containers: ContainerRoutes) -> list[Route]:
    path = "/v1/containers/{container_id}"
    file = path + "/files/{file_id}"
    return [
        Route("/v1/containers", containers.create, methods=["POST"]),
        Route("/v1/containers", containers.list, methods=["GET"]),
        Route(path, containers.retrieve, methods=["GET"]),
        Route(path, containers.delete, methods=["DELETE"]),
        Route(path + "/files", containers.add_file, methods=["POST"]),
        Route(path + "/files", containers.list_files, methods=["GET"]),
        Route(file, containers.retrieve_file, methods=["GET"]),
        Route(file, containers.delete_file, methods=["DELETE"]),
        Route(file + "/content", containers.read_content, methods=["GET"]),
    ]


def _skill_routes(skills: SkillRoutes) -> list[Route]:
    path = "/v1/skills/{skill_id}"
    version = path + "/versions/{version}"
    return [
        Route("/v1/skills", skills.create, methods=["POST"]),
        Route("/v1/skills", skills.list, methods=["GET"]),
        Route(path, skills.retrieve, methods=["GET"]),
        Route(path, skills.update, methods=["POST"]),
        Route(path, skills.delete, methods=["DELETE"]),
        Route(path + "/content", skills.read_content, methods=["GET"]),
        Route(path + "/versions", skills.add_version, methods=["POST"]),
        Route(path + "/versions", skills.list_versions, methods=["GET"]),
        Route(version, skills.retrieve_version, methods=["GET"]),
        Route(version, skills.delete_version, methods=["DELETE"]),
        Route(version + "/content", skills.read_version_content, methods=["GET"]),
    ]
