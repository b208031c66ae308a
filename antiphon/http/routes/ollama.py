"""Endpoints of Ollama's API below ``/api``, for clients that know no other API.

They use the same models, runs and limits as the other endpoints. Errors are objects with a text;
``error_forms.py`` writes them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.types import Scope

from antiphon.compat.ollama.answer import KEEPALIVE, OllamaAnswer, ollama_load_answer
from antiphon.compat.ollama.bodies import (
    OllamaChat,
    OllamaEmbed,
    OllamaEmbeddings,
    OllamaGenerate,
    OllamaModelName,
    OllamaPull,
)
from antiphon.compat.ollama.models import (
    ModelFacts,
    OllamaEmbedAnswer,
    OllamaEmbeddingAnswer,
    OllamaError,
    OllamaModelList,
    OllamaProgress,
    OllamaRunningModels,
    OllamaShow,
    OllamaVersion,
    matching_name,
)
from antiphon.compat.ollama.request import (
    OllamaRequest,
    parse_chat,
    parse_generate,
    read_keep_alive,
)
from antiphon.errors import Forbidden, InvalidRequest, NotFound, Overloaded, models_hint
from antiphon.http.auditor import Auditor
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.middleware.auth import AuthConfig, check_permission
from antiphon.http.middleware.request_context import RequestContext, request_context
from antiphon.http.openapi.operation import Operation, operation
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.http.streaming.response import JSON_LINES_HEADERS, StreamFormat
from antiphon.http.streaming.task_stream import TaskStream, pull_failure
from antiphon.wire.admin.managed_models import (
    ManagedModel,
    PullEvent,
    PullFailed,
    PullProgress,
)
from antiphon.wire.parsing.fields import body_parser

from .admin.managed_models import MANAGE_MODELS, ModelAdministration
from .completions import CompletionsEndpoint

if TYPE_CHECKING:
    from antiphon.runs.execution.run import Run
    from antiphon.runs.service import CatalogModel

_LINES = StreamFormat(headers=JSON_LINES_HEADERS, end_mark=b"", comment=KEEPALIVE)
_MEDIA_TYPE = "application/x-ndjson"
_ERRORS: Mapping[str, Any] = {"errors": (404, 502), "error_body": OllamaError}
_NANOSECONDS = 1_000_000_000
_BodyT = TypeVar("_BodyT", bound=msgspec.Struct)
_SUCCESS = OllamaProgress(status="success")


class OllamaRoutes:
    """All routes below ``/api``. ``manager`` loads, unloads and downloads models; None if the app
    manages no models."""

    def __init__(
        self,
        deps: EndpointDependencies,
        access: AuthConfig,
        manager: ModelAdministration | None,
        auditor: Auditor,
    ) -> None:
        self._deps = deps
        self._service = deps.service
        self._access = access
        self._manager = manager
        self._auditor = auditor
        self.chat = CompletionsEndpoint(
            parse_chat,
            self._start_run,
            deps,
            Operation(
                route="POST /api/chat",
                id="ollamaChat",
                summary="Generate a reply to messages in the format of Ollama's API.",
                body=OllamaChat,
                answer=OllamaAnswer,
                events=OllamaAnswer,
                events_media_type=_MEDIA_TYPE,
                **_ERRORS,
            ),
            stream_format=_LINES,
            answer_at_once=self._load,
        )
        self.generate = CompletionsEndpoint(
            parse_generate,
            self._start_run,
            deps,
            Operation(
                route="POST /api/generate",
                id="ollamaGenerate",
                summary="Generate a reply to a prompt in the format of Ollama's API.",
                body=OllamaGenerate,
                answer=OllamaAnswer,
                events=OllamaAnswer,
                events_media_type=_MEDIA_TYPE,
                **_ERRORS,
            ),
            stream_format=_LINES,
            answer_at_once=self._load,
        )

    # --- text ------------------------------------------------------------------------------------

    async def _start_run(self, context: RequestContext, request: OllamaRequest, index: int) -> Run:
        name, model = self._find(context, str(request.request.model))
        if request.must_think and model.backend.capabilities.thinks is False:
            raise InvalidRequest(
                f'"{name}" does not support thinking.', param="think", code="unsupported_value"
            )
        create = replace(request.request, model=name)
        if request.raw_prompt is None:
            return await self._service.create(context.tenant, create, client=context.client)
        return await self._service.complete(
            context.tenant, create, request.raw_prompt, client=context.client
        )

    async def _load(self, scope: Scope, request: OllamaRequest) -> OllamaAnswer | None:
        """Answer a request that only loads or unloads a model. Return None for other requests."""
        if not request.only_loads:
            return None
        context = request_context(scope)
        name, model = self._find(context, str(request.request.model))
        if request.unloads:
            await self._managing(scope).unload(model.name)
            await self._auditor.record(scope, "model.unloaded", model.name)
        else:
            await model.backend.ready()
            while model.backend.status.value == "loading":
                await model.backend.ready()
        now = self._service.usage_counter.clock()
        return ollama_load_answer(request.form, name, now, unloaded=request.unloads)

    # --- embeddings ------------------------------------------------------------------------------

    @operation("POST /api/embed", "ollamaEmbed", body=OllamaEmbed, **_ERRORS)
    async def embed(self, request: Request) -> OllamaEmbedAnswer:
        """Compute the embeddings of texts in the format of Ollama's API."""
        body = await self._body(request, OllamaEmbed)
        texts = (body.input,) if isinstance(body.input, str) else body.input
        texts = tuple(text for text in texts if text)
        read_keep_alive(body.keep_alive)
        name, vectors, tokens = await self._embed(request, body.model, texts, body.dimensions)
        context = request_context(request.scope)
        return OllamaEmbedAnswer(
            model=name,
            embeddings=vectors,
            total_duration=int((self._deps.clock() - context.started) * _NANOSECONDS),
            load_duration=0,
            prompt_eval_count=tokens,
        )

    @operation("POST /api/embeddings", "ollamaEmbeddings", body=OllamaEmbeddings, **_ERRORS)
    async def embeddings(self, request: Request) -> OllamaEmbeddingAnswer:
        """Compute the embedding of one text in the older format of Ollama's API."""
        body = await self._body(request, OllamaEmbeddings)
        read_keep_alive(body.keep_alive)
        texts = (body.prompt,) if body.prompt else ()
        _, vectors, _ = await self._embed(request, body.model, texts, None)
        return OllamaEmbeddingAnswer(vectors[0] if vectors else ())

    async def _embed(
        self, request: Request, wanted: str, texts: tuple[str, ...], dimensions: int | None
    ) -> tuple[str, tuple[tuple[float, ...], ...], int]:
        context, scope = request_context(request.scope), request.scope
        name, _ = self._find(context, wanted)
        if not texts:
            return name, (), 0
        async with CancelOnDisconnect(scope, request.receive), self._deps.slot(context):
            result = await self._service.embeddings.embed(
                name, texts, tenant=context.tenant, dimensions=dimensions, client=context.client
            )
        self._deps.record_reading(context, result.model.name, result.tokens)
        self._deps.metrics.record_embeddings(result.model.name, result.tokens)
        return name, tuple(map(tuple, result.vectors)), result.tokens

    # --- models ----------------------------------------------------------------------------------

    @operation("GET /api/version", "ollamaVersion")
    async def version(self, request: Request) -> OllamaVersion:
        """Return the version of Ollama whose API this server has."""
        return OllamaVersion()

    @operation("GET /api/tags", "ollamaTags")
    async def tags(self, request: Request) -> OllamaModelList:
        """List the models in the format of Ollama's API."""
        managed = await self._managed()
        names = self._names(request_context(request.scope))
        facts = (_facts(name, model, managed) for name, model in names.items())
        return OllamaModelList(tuple(each.listing() for each in facts))

    @operation("GET /api/ps", "ollamaPs")
    async def ps(self, request: Request) -> OllamaRunningModels:
        """List the loaded models in the format of Ollama's API."""
        managed = await self._managed()
        names = self._names(request_context(request.scope))
        return OllamaRunningModels(
            tuple(
                _facts(name, model, managed).running()
                for name, model in names.items()
                if model.name == name and model.backend.status.value == "loaded"
            )
        )

    @operation(
        "POST /api/show", "ollamaShow", body=OllamaModelName, errors=(404,), error_body=OllamaError
    )
    async def show(self, request: Request) -> OllamaShow:
        """Describe a model in the format of Ollama's API."""
        body = await self._body(request, OllamaModelName)
        name, model = self._find(request_context(request.scope), body.wanted)
        return _facts(name, model, await self._managed()).show()

    @operation(
        "POST /api/pull",
        "ollamaPull",
        body=OllamaPull,
        answer=OllamaProgress,
        events=OllamaProgress,
        events_media_type=_MEDIA_TYPE,
        errors=(403, 404),
        error_body=OllamaError,
    )
    async def pull(self, request: Request) -> Reply | TaskStream:
        """Download the files of a configured model; the response reports the progress."""
        body = await self._body(request, OllamaPull)
        try:
            _, model = self._find(request_context(request.scope), body.wanted)
            events = await self._download(request, model)
        except NotFound as error:
            if not body.stream:
                raise
            # As in Ollama, whose clients show the text of this line, but not that of a status.
            events = _events(PullFailed(message=error.message))
        if body.stream:
            return TaskStream(events, self._service.keepalive_s, _line, _LINES, pull_failure)
        async with CancelOnDisconnect(request.scope, request.receive), aclosing(events) as pulling:
            async for event in pulling:
                if isinstance(event, PullFailed):
                    raise Overloaded(event.message, status=502, code="server_error")
        return json_reply(_SUCCESS)

    async def _download(
        self, request: Request, model: CatalogModel
    ) -> AsyncGenerator[PullEvent | None, None]:
        """Return the events of a download. If nothing needs to be downloaded, return no events:
        every client may ask for this."""
        managed = (await self._managed()).get(model.name)
        if managed is None or managed.source is None or managed.size_bytes is not None:
            return _events(None)
        manager = self._managing(request.scope)
        await self._auditor.record(request.scope, "model.pulled", model.name)
        return manager.pull(model.name)

    @operation(
        "DELETE /api/delete",
        "ollamaDelete",
        body=OllamaModelName,
        media_type="",
        errors=(403, 404),
        error_body=OllamaError,
    )
    async def delete(self, request: Request) -> Reply:
        """Delete the downloaded files of a model, which stays in the settings."""
        body = await self._body(request, OllamaModelName)
        _, model = self._find(request_context(request.scope), body.wanted)
        await self._managing(request.scope).delete(model.name)
        await self._auditor.record(request.scope, "model.deleted", model.name)
        return Reply(status_code=200)

    async def _managed(self) -> Mapping[str, ManagedModel]:
        if self._manager is None:
            return {}
        return {each.id: each for each in (await self._manager.list()).data}

    def _managing(self, scope: Scope) -> ModelAdministration:
        """Return the manager of the models. Raises ``Forbidden`` for clients that may not use
        it."""
        check_permission(scope, self._access, MANAGE_MODELS)
        if self._manager is None:
            raise Forbidden("You may not manage the models of this server.")
        return self._manager

    # --- names -----------------------------------------------------------------------------------

    def _names(self, context: RequestContext) -> dict[str, CatalogModel]:
        """Return the names and aliases that the client may use, with their models."""
        return {
            name: model
            for model in self._service.models()
            for name in (model.name, *model.aliases)
            if context.client.allows_model((name, model.name))
        }

    def _find(self, context: RequestContext, wanted: str) -> tuple[str, CatalogModel]:
        """Return the name that the client means, and its model. Raises ``NotFound``."""
        if not wanted:
            raise InvalidRequest("model is required", param="model")
        names = self._names(context)
        name = matching_name(wanted, tuple(names))
        if name is None:
            message = f"model '{wanted}' not found.{models_hint(tuple(names))}"
            raise NotFound(message, param="model", code="model_not_found")
        return name, names[name]

    async def _body(self, request: Request, cls: type[_BodyT]) -> _BodyT:
        return await bodies.parse(request, self._deps.limits, body_parser(cls))


def _facts(name: str, model: CatalogModel, managed: Mapping[str, ManagedModel]) -> ModelFacts:
    known = managed.get(model.name)
    return ModelFacts(
        name=name,
        created=model.created,
        capabilities=_capabilities(model),
        source=(known and known.source) or "",
        size_bytes=(known and known.size_bytes) or 0,
        memory_bytes=(known and known.memory_bytes) or 0,
        context_size=model.backend.context_size,
        template=model.backend.capabilities.template,
        defaults=model.defaults,
    )


def _capabilities(model: CatalogModel) -> tuple[str, ...]:
    if (task := model.backend.task) is not None:
        return ("embedding",) if task == "embeddings" else ()
    known = model.backend.capabilities
    optional = {"vision": known.images, "thinking": known.thinks}
    return ("completion", "tools", *(name for name, has in optional.items() if has))


async def _events(event: PullEvent | None) -> AsyncGenerator[PullEvent | None, None]:
    yield event


def _line(event: PullEvent | None) -> bytes:
    """Return an event of a download as a line. None is the only event if there is nothing to
    download."""
    answer: OllamaProgress | OllamaError = _SUCCESS
    if isinstance(event, PullProgress):
        total = msgspec.UNSET if event.total_bytes is None else event.total_bytes
        answer = OllamaProgress(
            status=f"pulling {event.file}", digest=event.file, total=total, completed=event.bytes
        )
    elif isinstance(event, PullFailed):
        answer = OllamaError(event.message)
    return msgspec.json.encode(answer) + b"\n"
