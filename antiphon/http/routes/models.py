"""Endpoints of ``/v1/models``. One response contains both OpenAI's list of models and Codex's model
catalog. Clients of the Messages API get Anthropic's list instead.

Each alias of a model is listed like a model. Some clients behave differently for certain model
names. To get this behaviour for a model, an operator can give it such a name as an alias.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, convert
from starlette.requests import Request

from antiphon.compat.messages.types import (
    MessagesModel,
    MessagesModelPage,
    ModelCapabilities,
    rfc3339,
)
from antiphon.errors import model_not_found
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import messages_handler, operation
from antiphon.http.requests.query import read_query
from antiphon.wire.cursors import PageEnd, PageParams, PageStart, make_page
from antiphon.wire.models import CodexModel, ModelEntry, ModelList, ModelStatus, ReasoningLevel

if TYPE_CHECKING:
    from antiphon.runs.service import CatalogModel, Service

#: Anthropic's limit of a page.
_MAX_LIMIT = 1_000
_CODEX_INSTRUCTIONS = (
    "You are a coding agent working in the user's terminal and file system. Use the tools to read, "
    "change and run code until the task is done, check your work, then say briefly what you did."
)

_LEVELS = (
    ReasoningLevel(effort="low", description="Little reasoning, fast answers"),
    ReasoningLevel(effort="medium", description="Some reasoning"),
    ReasoningLevel(effort="high", description="Much reasoning for hard tasks"),
)


class ModelListing(Struct, frozen=True, kw_only=True):
    """Parameters for clients of Anthropic's API. Others get the whole list."""

    limit: Annotated[
        int,
        Meta(ge=1, le=_MAX_LIMIT),
        Meta(description="For clients of Anthropic's API: the largest number of entries."),
    ] = _MAX_LIMIT
    after_id: PageStart = None
    before_id: PageEnd = None
    lifecycle: Annotated[
        tuple[Literal["active", "deprecated", "retired"], ...] | None,
        Meta(description="For clients of Anthropic's API: all models here are `active`."),
    ] = None


class ModelRoutes:
    """The routes ``/v1/models`` and ``/v1/models/{model}``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @operation("GET /v1/models", "listModels", query=ModelListing)
    async def list(self, request: Request) -> ModelList:
        """Return the model names that the client may use: in ``data`` for OpenAI's clients, in
        ``models`` for Codex."""
        read_query(request, ModelListing)
        named = tuple(self._names(request))
        return ModelList(
            data=tuple(_entry(name, model) for name, model in named),
            models=tuple(
                _catalog_entry(name, model, priority)
                for priority, (name, model) in enumerate(named, 1)
                if model.backend.task is None
            ),
        )

    @messages_handler(list)
    async def list_for_messages(self, request: Request) -> MessagesModelPage:
        query = read_query(request, ModelListing)
        is_empty = "active" not in (query.lifecycle or ("active",))
        named = () if is_empty else self._names(request)
        params = PageParams(
            limit=query.limit, order="asc", after=query.after_id, before=query.before_id
        )
        page = make_page([self._messages_entry(name, model) for name, model in named], params)
        return MessagesModelPage(
            data=page.data, has_more=page.has_more, first_id=page.first_id, last_id=page.last_id
        )

    @operation("GET /v1/models/{model:path}", "retrieveModel")
    async def retrieve(self, request: Request) -> ModelEntry:
        """Return one model. Raises ``NotFound`` with OpenAI's error message, because clients look
        for this text."""
        return _entry(*self._find(request))

    @messages_handler(retrieve)
    async def retrieve_for_messages(self, request: Request) -> MessagesModel:
        return self._messages_entry(*self._find(request))

    def _find(self, request: Request) -> tuple[str, CatalogModel]:
        wanted = request.path_params["model"]
        for name, model in self._names(request):
            if name == wanted:
                return name, model
        raise model_not_found(wanted)

    def _messages_entry(self, name: str, model: CatalogModel) -> MessagesModel:
        modalities = _input_modalities(model)
        tools = {
            kind
            for kind, provider in self._service.providers.items()
            if provider.unavailable_reason() is None
        }
        return MessagesModel(
            id=name,
            display_name=name,
            created_at=rfc3339(model.created),
            max_input_tokens=model.backend.context_size,
            max_tokens=model.backend.context_size,
            capabilities=None
            if modalities is UNSET
            else ModelCapabilities.of(
                images="image" in modalities,
                thinks=model.backend.capabilities.thinks is not False,
                executes_code="code_interpreter" in tools,
                searches="web_search" in tools,
            ),
        )

    def _names(self, request: Request) -> Iterator[tuple[str, CatalogModel]]:
        """Yield each model name that the client may use, together with the model."""
        client = request_context(request.scope).client
        for model in self._service.models():
            for name in (model.name, *model.aliases):
                if client.allows_model((name, model.name)):
                    yield name, model


def _entry(name: str, model: CatalogModel) -> ModelEntry:
    return ModelEntry(
        id=name,
        created=model.created,
        status=convert(model.backend.status, ModelStatus, from_attributes=True),
        input_modalities=_input_modalities(model),
        task=model.backend.task or UNSET,
    )


def _input_modalities(model: CatalogModel) -> tuple[Literal["text", "image"], ...] | UnsetType:
    """Return the input types of a model. Returns ``UNSET`` before the model is loaded, because only
    a loaded model shows whether it reads images. Models for a task, such as embeddings, get
    ``UNSET`` too."""
    if model.backend.task is not None or model.backend.status.value != "loaded":
        return UNSET
    return ("text", "image") if model.backend.capabilities.images else ("text",)


def _reasoning_levels(model: CatalogModel) -> tuple[ReasoningLevel, ...]:
    """Return the reasoning efforts for a model. A model that is not known to reason may do so."""
    return () if model.backend.capabilities.thinks is False else _LEVELS


def _catalog_entry(name: str, model: CatalogModel, priority: int) -> CodexModel:
    return CodexModel(
        slug=name,
        display_name=name,
        priority=priority,
        base_instructions=_CODEX_INSTRUCTIONS,
        supported_reasoning_levels=_reasoning_levels(model),
        context_window=UNSET if model.backend.context_size is None else model.backend.context_size,
        input_modalities=_input_modalities(model),
    )
