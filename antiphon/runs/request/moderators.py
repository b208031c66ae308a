"""The moderators of a server, which judge inputs and outputs: guard models, upstreams with OpenAI's
endpoint ``/moderations``, and tools of MCP servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from antiphon.attachments.fetch import FetchError
from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.backends.reading import OnDemandTaskBackend, TaskBackend
from antiphon.errors import BackendError, InvalidRequest, NotFound, unsupported_parameter
from antiphon.tools.mcp.provider import McpProvider
from antiphon.wire.items import InputText
from antiphon.wire.json_types import JsonObject
from antiphon.wire.moderation import Verdict

from .attachments import Attachments, InvalidPart, image_part, part_source
from .guards import Question, judge_with_model

#: Values of ``Policy.guards`` for moderators that are no guard models.
API: Final = "api"
MCP: Final = "mcp"


class Moderator(Protocol):
    """Judges inputs, and answers to them. ``name``: its name in errors and in permissions."""

    name: str

    async def sees_images(self, tenant: str) -> bool:
        """Return whether it also judges images. Raises ``RunError``."""

    async def judge(self, question: Question) -> Verdict:
        """Return the verdict about an input, or about the answer to it. Raises ``RunError``."""


class Moderators:
    """Finds moderators. ``forms``: see ``Policy.guards``. ``mcp``: the provider of the tools of MCP
    servers, if it is available."""

    def __init__(
        self,
        models: ModelCatalog,
        forms: Mapping[str, str],
        attachments: Attachments,
        mcp: object = None,
    ) -> None:
        self._models = models
        self._forms = forms
        self._attachments = attachments
        self._mcp = mcp

    def __bool__(self) -> bool:
        return bool(self._forms)

    def find(self, name: str | None, param: str) -> Moderator:
        """Return a moderator by its name or alias. If ``name`` is None, return the first one.
        Raises ``InvalidRequest`` with the path ``param``."""
        if not self._forms:
            raise unsupported_parameter(param.partition(".")[0])
        name = name or next(iter(self._forms))
        if self._forms.get(name) == MCP and isinstance(self._mcp, McpProvider):
            return _McpModerator(name, self._mcp, self._attachments)
        try:
            model = self._models.find(name)
        except NotFound as error:
            raise InvalidRequest(error.message, param=param, code=error.code) from None
        form = self._forms.get(model.name)
        if form is None:
            raise InvalidRequest(
                f"The model '{model.name}' does not moderate.",
                param=param,
                code="unsupported_model",
            )
        if form == API:
            return _ApiModerator(model, self._attachments)
        return _GuardModel(model, form, self._attachments)


async def check_images(moderator: Moderator, question: Question, param: str) -> None:
    """Raise ``InvalidRequest`` with the path ``param`` if the input has images that the moderator
    does not see, and ``RunError`` if this cannot be found out."""
    if question.has_images and not await moderator.sees_images(question.tenant):
        raise InvalidRequest(
            f"'{moderator.name}' moderates texts, but no images, and the input has an image.",
            param=param,
            code="unsupported_value",
        )


class _GuardModel:
    """A guard model that this server serves. ``form``: a key of ``GUARDS``."""

    def __init__(self, model: CatalogModel, form: str, attachments: Attachments) -> None:
        self.name = model.name
        self._backend, self._form = model.backend, form
        self._attachments = attachments

    async def sees_images(self, tenant: str) -> bool:
        await self._backend.ready()
        return self._backend.capabilities.images

    async def judge(self, question: Question) -> Verdict:
        backend = self._attachments.resolving_backend(self._backend, question.tenant)
        return await judge_with_model(backend, self._form, question)


class _ApiModerator:
    """An upstream with the endpoint ``/moderations``."""

    def __init__(self, model: CatalogModel, attachments: Attachments) -> None:
        self.name = model.name
        self._backend: Any = model.backend
        self._attachments = attachments

    async def sees_images(self, tenant: str) -> bool:
        return True  # an upstream that sees none refuses the request

    async def judge(self, question: Question) -> Verdict:
        assert isinstance(self._backend, TaskBackend | OnDemandTaskBackend)
        content = await _content(question, self._attachments)
        async with self._backend.use() as worker:
            verdict: Verdict = await worker.moderate(content)
            return verdict


class _McpModerator:
    """A tool of an MCP server. ``name``: the name of this server in the settings."""

    def __init__(self, name: str, servers: McpProvider, attachments: Attachments) -> None:
        self.name = name
        self._servers = servers
        self._attachments = attachments

    async def sees_images(self, tenant: str) -> bool:
        return await self._servers.moderates_images(self.name, tenant)

    async def judge(self, question: Question) -> Verdict:
        content = await _content(question, self._attachments)
        return await self._servers.moderate(self.name, question.tenant, content)


async def _content(question: Question, attachments: Attachments) -> str | list[JsonObject]:
    """Return what ``POST /moderations`` takes as ``input``. Images in files become data URLs.
    Raises ``BackendError`` for a file that cannot be read."""
    if question.answer is not None:
        return question.answer
    if not question.has_images:
        return question.text
    parts: list[JsonObject] = []
    for part in question.parts:
        if isinstance(part, InputText):
            parts.append({"type": "text", "text": part.text})
            continue
        try:
            source = part_source(part)
            if source.file_id is not None:
                part = await image_part(await attachments.load(question.tenant, source))
        except (InvalidPart, FetchError) as error:
            raise BackendError(f"An image cannot be moderated: {error}") from None
        parts.append({"type": "image_url", "image_url": {"url": part.image_url}})
    return parts
