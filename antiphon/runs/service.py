"""The service: everything the rim can ask for, in terms of values. It knows no HTTP.

create = context from the store, options from the request, a reply that is ready, a run. All that
can be refused is refused before the run exists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from msgspec import Struct

from antiphon.backends.base import Backend
from antiphon.errors import InvalidRequest, NotFound
from antiphon.store.base import Store, StoredResponse
from antiphon.stream.kinds import kinds_for
from antiphon.stream.writer import Ids, ResponseWriter
from antiphon.wire.lists import ItemList
from antiphon.wire.request import CreateResponse, InputTokens, refuse_unsupported
from antiphon.wire.response import Response

from .asked import completed, echo, options, visible_tools
from .context import Context, assemble, history
from .conversations import Conversations
from .log import Log
from .pages import Cut, page
from .run import Run, Work
from .supervisor import Supervisor

__all__ = ["Models", "Policy", "ServedModel", "Service"]


class ServedModel(Protocol):
    """A model as the catalog serves it."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def context_size(self) -> int | None: ...
    @property
    def created(self) -> int: ...
    @property
    def defaults(self) -> Mapping[str, Any]: ...


class Models(Protocol):
    """The catalog: which models are served."""

    def find(self, name: str | None) -> ServedModel:
        """By name or alias; None: the default model. Raises ``NotFound``, ``model_not_found``."""

    def all(self) -> tuple[ServedModel, ...]: ...


class Policy(Struct, frozen=True, kw_only=True):
    """What the operator decided about runs. Times in seconds; None = no limit."""

    keepalive_s: float = 15.0
    timeout_s: float | None = None
    unavailable_tools: str = "ignore"
    reasoning_events: str = "openai"
    reraise: bool = False


class Service:
    """One a server process; ``clock`` gives unix seconds, ``ids`` fresh ids by prefix."""

    def __init__(
        self,
        models: Models,
        store: Store,
        *,
        policy: Policy,
        clock: Callable[[], float],
        ids: Ids,
    ) -> None:
        self._models = models
        self._store = store
        self._policy = policy
        self._clock = clock
        self._ids = ids
        self._kinds = kinds_for(policy.reasoning_events)
        self._supervisor = Supervisor()
        #: What can be asked about conversations.
        self.conversations = Conversations(store, clock=clock, ids=ids)

    @property
    def ready(self) -> bool:
        """New runs are accepted."""
        return not self._supervisor.stopping

    @property
    def running(self) -> int:
        """How many runs have not ended."""
        return self._supervisor.running

    def models(self) -> tuple[ServedModel, ...]:
        """What is served, in the operator's order."""
        return self._models.all()

    async def create(self, tenant: str, request: CreateResponse, *, request_id: str) -> Run:
        """Start a run. Raises ``RequestError`` for whatever cannot be honoured."""
        model = self._models.find(request.model)
        refuse_unsupported(request)
        request = completed(request, model.defaults)
        held = ExitStack()
        try:
            if request.conversation is not None:
                await self.conversations.retrieve(tenant, request.conversation.id)
                held.enter_context(self.conversations.turn(tenant, request.conversation.id))
            run = await self._prepared(tenant, request, model, held.close)
            self._supervisor.start(run)
        except BaseException:
            held.close()
            raise
        return run  # which gives back what is held

    async def _prepared(
        self,
        tenant: str,
        request: CreateResponse,
        model: ServedModel,
        release: Callable[[], object],
    ) -> Run:
        tools = visible_tools(request, self._policy.unavailable_tools)
        context = await self._context(tenant, request)
        reply = await model.backend.prepare(context.conversation, options(request, tools.tools))
        response = echo(
            request,
            id=self._ids("resp"),
            model=request.model or model.name,
            created_at=int(self._clock()),
        )
        work = Work(
            reply=reply,
            input=context.input,
            parent=context.conversation.kept,
            save=self._saving(tenant, request) if response.store else None,
            clock=self._clock,
            keepalive_s=self._policy.keepalive_s,
            timeout_s=self._policy.timeout_s,
            release=release,
            reraise=self._policy.reraise,
        )
        writer = ResponseWriter(response, ids=self._ids, kinds=self._kinds)
        return Run(writer, work, Log(), ignored_tools=tools.ignored)

    def _saving(
        self, tenant: str, request: CreateResponse
    ) -> Callable[[StoredResponse], Awaitable[None]]:
        """How the response is kept: what failed is no part of a conversation."""
        within = request.conversation

        def save(stored: StoredResponse) -> Awaitable[None]:
            if within is None or stored.response.status not in ("completed", "incomplete"):
                return self._store.save(tenant, stored)
            return self._store.save(tenant, stored, conversation=within.id)

        return save

    async def count(self, tenant: str, request: InputTokens) -> int:
        """How many tokens the model would see: the same rendering as ``create``."""
        asked = request.as_create()
        model = self._models.find(asked.model)
        tools = visible_tools(asked, self._policy.unavailable_tools)
        context = await self._context(tenant, asked)
        reply = await model.backend.prepare(context.conversation, options(asked, tools.tools))
        return reply.input_tokens

    async def retrieve(self, tenant: str, response_id: str) -> Response:
        """A stored response. Raises ``NotFound``."""
        stored = await self._store.load(tenant, response_id)
        if stored is None:
            raise _unknown(response_id)
        return stored.response

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget a stored response. Raises ``NotFound``."""
        if not await self._store.delete(tenant, response_id):
            raise _unknown(response_id)

    async def cancel(self, tenant: str, response_id: str) -> Response:
        """Only background responses can be cancelled; a connection that is dropped cancels the
        others. Raises ``NotFound`` or ``InvalidRequest``."""
        await self.retrieve(tenant, response_id)
        raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")

    async def input_items(self, tenant: str, response_id: str, cut: Cut) -> ItemList:
        """What the response was generated from: the items of its ancestors and its own input.

        Raises ``NotFound`` for the response, ``InvalidRequest`` for a cursor that is not in it.
        """
        chain = await self._store.chain(tenant, response_id)
        if chain is None:
            raise _unknown(response_id)
        items = (*history(chain[:-1]), *chain[-1].input)
        return page(items, cut)

    async def drain(self, grace_s: float) -> None:
        """Start nothing more and see the runs to their end."""
        await self._supervisor.drain(grace_s)

    async def _context(self, tenant: str, request: CreateResponse) -> Context:
        return await assemble(
            self._store,
            tenant,
            input=request.input or (),
            instructions=request.instructions,
            previous_response_id=request.previous_response_id,
            conversation_id=request.conversation.id if request.conversation else None,
            ids=self._ids,
        )


def _unknown(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")
