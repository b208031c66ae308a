"""The service: everything the rim can ask for, in terms of values. It knows no HTTP.

create = context from the store, options from the request, a reply that is ready, a run. Foreground
runs belong to who drives them; background runs go through the store to whoever has a free place.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Fetcher
from antiphon.backends.base import text_completion_unsupported
from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.errors import InvalidRequest, NotFound, RunError
from antiphon.pagination import Cut, page
from antiphon.resources.containers import Containers
from antiphon.resources.conversations import Conversations
from antiphon.resources.embeddings import Embeddings
from antiphon.resources.files import Files
from antiphon.resources.prompts import Prompts
from antiphon.resources.skills import Skills
from antiphon.resources.vector_stores import VectorStores
from antiphon.runs.background.event_codec import encoded
from antiphon.runs.background.event_log_reader import EventLogReader
from antiphon.runs.background.restore import restored
from antiphon.runs.background.worker import Background
from antiphon.runs.execution.run import Run
from antiphon.runs.execution.supervisor import Supervisor
from antiphon.runs.history.context import Context, history
from antiphon.runs.history.session_chains import SessionChains
from antiphon.runs.replies.compaction import compacted
from antiphon.runs.replies.warmup import WarmupReply
from antiphon.runs.request.attachments import Attachments
from antiphon.runs.request.options import apply_defaults, build_options
from antiphon.security.encryption import Key, Seal
from antiphon.store.base import Store
from antiphon.store.records import Batch, Claim, StoredResponse
from antiphon.stream.kinds import kinds_for
from antiphon.stream.writer import Ids, ResponseWriter
from antiphon.tools.base import ToolProvider
from antiphon.tools.containers.registry import Containers as HeldContainers
from antiphon.tools.file_search.provider import FileSearch
from antiphon.wire.compaction import Compact, CompactedResponse
from antiphon.wire.items import Item
from antiphon.wire.pagination import Page
from antiphon.wire.request import CreateResponse, InputTokens, refuse_unsupported
from antiphon.wire.response import Response

from .policy import Policy
from .preparer import Prepared, Preparer

__all__ = ["CatalogModel", "Compaction", "EnqueuedRun", "ModelCatalog", "Policy", "Service"]

_ACTIVE = ("queued", "in_progress")


class Compaction(Struct, frozen=True):
    """A run that compacts, and what it compacts."""

    run: Run
    context: Context

    @property
    def result(self) -> CompactedResponse:
        """What the client is to send from now on, once the run is completed."""
        return compacted(self.context, self.run.response)


class EnqueuedRun(Struct, frozen=True):
    """A run that is kept until somebody has made it: its response, and the hosted tools the request
    named that nobody here runs. ``is_first``: it was not there before."""

    response: Response
    ignored_tools: tuple[str, ...] = ()
    is_first: bool = True


class Service:
    """One a server process; ``clock`` gives unix seconds, ``ids`` fresh ids by prefix. Background
    runs are worked on between ``start`` and ``drain``. Without a ``seal``, what clients carry can
    be read by this service alone; without a ``fetcher``, URLs in requests are refused.
    ``providers``: the tools that run here, by their types; ``containers``: where code is run."""

    def __init__(
        self,
        models: ModelCatalog,
        store: Store,
        *,
        policy: Policy,
        seal: Seal | None = None,
        prompts: Prompts | None = None,
        fetcher: Fetcher | None = None,
        documents: Documents | None = None,
        providers: Mapping[str, ToolProvider] | None = None,
        containers: HeldContainers | None = None,
        clock: Callable[[], float],
        ids: Ids,
    ) -> None:
        self._models = models
        self._store = store
        self._clock = clock
        self._ids = ids
        #: Seconds of silence on a stream after which it is filled.
        self.keepalive_s = policy.keepalive_s
        self._kinds = kinds_for(policy.reasoning_events)
        #: The events of runs that are kept.
        self.kept = EventLogReader(store, self._kinds)
        self._supervisor = Supervisor()
        self._owner = secrets.token_hex(8)
        #: What can be asked about conversations.
        self.conversations = Conversations(
            store, clock=clock, ids=ids, owner=self._owner, lease_s=policy.lease.lease_s
        )
        #: What clients keep here to be named in requests.
        self.files = Files(store, clock=clock, ids=ids, most=policy.max_files_bytes)
        #: What clients keep here for their containers.
        self.skills = Skills(store, clock=clock, ids=ids, most=policy.max_files_bytes)
        #: Where code is run.
        self.containers = Containers(containers)
        #: Stored prompts that requests may refer to.
        self.prompts = prompts or Prompts()
        #: Vectors of texts.
        self.embeddings = Embeddings(models)
        documents = documents or Documents()
        #: Files that are kept to be searched.
        self.vector_stores = stores = self._vector_stores(policy, documents)
        if policy.file_search:
            providers = {"file_search": FileSearch(stores), **(providers or {})}
        self._preparer = Preparer(
            models,
            store,
            self.conversations,
            self._supervisor,
            policy=policy,
            seal=seal or Seal((Key.fresh(),)),
            prompts=self.prompts,
            attachments=Attachments(self.files, fetcher=fetcher, documents=documents),
            providers=providers or {},
            kinds=self._kinds,
            clock=clock,
            ids=ids,
        )
        self._background = self._begun_elsewhere(policy)

    def _begun_elsewhere(self, policy: Policy) -> Background:
        return Background(
            self._store.runs,
            [model.name for model in self._models.all()],
            self._preparer.resume_claimed,
            owner=self._owner,
            lease=policy.lease,
        )

    def _vector_stores(self, policy: Policy, documents: Documents) -> VectorStores:
        return VectorStores(
            self._store,
            self.files,
            documents,
            self.embeddings,
            model=policy.file_search_embeddings,
            clock=self._clock,
            ids=self._ids,
        )

    @property
    def ready(self) -> bool:
        """New runs are accepted."""
        return not self._supervisor.stopping

    @property
    def running(self) -> int:
        """How many runs have not ended."""
        return self._supervisor.running

    def models(self) -> tuple[CatalogModel, ...]:
        """What is served, in the operator's order."""
        return self._models.all()

    def start(self) -> None:
        """Work on background runs and on files that are to be searched from now on, those that
        were left unfinished among them."""
        self._background.start()
        self.vector_stores.start()

    async def drain(self, grace_s: float) -> None:
        """Start nothing more and see the runs to their end. Background runs that do not reach it
        are given back."""
        await asyncio.gather(self._supervisor.drain(grace_s), self._background.drain(grace_s))
        await self.vector_stores.stop()

    # --- runs ------------------------------------------------------------------------------------

    async def create(
        self,
        tenant: str,
        request: CreateResponse,
        *,
        recent: SessionChains | None = None,
        generate: bool = True,
    ) -> Run:
        """A run for the caller to drive. ``recent``: what can be continued besides what is stored.
        Without ``generate`` the model only warms up. Raises ``RequestError`` for whatever cannot
        be honoured."""
        prepared, release = await self._prepared(tenant, request, recent)
        if not generate:
            prepared = replace(prepared, reply=WarmupReply(prepared.reply))
        return self._preparer.run(tenant, prepared, release)

    async def complete(self, request: CreateResponse, prompt: str | tuple[int, ...]) -> Run:
        """A run for the caller to drive that goes on with a text, and of which nothing is stored;
        of the request only what is about sampling counts. Raises ``RequestError``."""
        self._supervisor.admit()
        model = self._models.find(request.model)
        await model.ready()
        if not model.backend.capabilities.completes_text:
            raise text_completion_unsupported(model.name)
        request = apply_defaults(request, model.defaults, model.thinking_budgets)
        reply = await model.backend.complete(prompt, build_options(request, ()))
        return self._preparer.bare_run(request, model, reply, self._ids("resp"))

    async def compact(self, tenant: str, request: Compact) -> Compaction:
        """A run for the caller to drive, of which nothing is stored. Raises ``RequestError``."""
        prepared, release = await self._prepared(tenant, request.as_create())
        return Compaction(self._preparer.run(tenant, prepared, release), prepared.context)

    async def enqueue(
        self, tenant: str, request: CreateResponse, response_id: str | None = None
    ) -> EnqueuedRun:
        """Keep a run for whoever has a free place. One whose id is given, and which is there, is
        not begun a second time. Raises ``RequestError`` likewise."""
        if (first := await self._begun(tenant, response_id)) is not None:
            return first
        prepared, release = await self._prepared(tenant, request, response_id=response_id)
        try:
            job, stored, batch = self._preparer.job(tenant, prepared)
            await self._store.runs.begin(job, stored, batch)
        except RunError:  # somebody else may have begun it in between
            await release()
            if (first := await self._begun(tenant, response_id)) is None:
                raise
            return first
        except BaseException:
            await release()
            raise
        self._background.queued()
        return EnqueuedRun(stored.response, prepared.ignored_tools)

    async def _begun(self, tenant: str, response_id: str | None) -> EnqueuedRun | None:
        stored = None if response_id is None else await self._store.load(tenant, response_id)
        return None if stored is None else EnqueuedRun(stored.response, is_first=False)

    async def check_followable(self, tenant: str, response_id: str) -> None:
        """Raises ``NotFound``, and ``InvalidRequest`` for a response without kept events."""
        stored = await self._loaded(tenant, response_id)
        if not stored.response.background:
            raise InvalidRequest(
                "Only responses created with background=true can be streamed again. Retrieve this "
                "one without stream.",
                param="stream",
            )
        await self.kept.check(tenant, response_id)

    async def cancel(self, tenant: str, response_id: str) -> Response:
        """Stop a background run; one that is over stays as it is. A connection that is dropped
        cancels the others. Raises ``NotFound`` or ``InvalidRequest``."""
        stored = await self._loaded(tenant, response_id)
        if not stored.response.background:
            raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")
        if stored.response.status in _ACTIVE:
            claim = await self._store.runs.take_over(tenant, response_id)
            if claim is not None:
                self._background.lost(response_id, claim.epoch)
                await self._end_cancelled(claim, stored)
        return (await self._loaded(tenant, response_id)).response

    async def _end_cancelled(self, claim: Claim, stored: StoredResponse) -> None:
        """Whoever cancels writes the end: a late completion finds that the run is not its own."""
        runs = self._store.runs
        log, _, number = restored(await runs.history(claim), self._kinds)
        writer = ResponseWriter.restored(log, ids=self._ids, kinds=self._kinds, number=number)
        response = writer.finalize("cancelled", at=int(self._clock()), usage=None)
        writer.emit_terminal()
        events = writer.take()
        await runs.end(
            claim,
            StoredResponse(response=response, input=stored.input),
            Batch(first=number, count=len(events), lines=encoded(events)),
            expires_at=self._preparer.expiry(response)(),
            letter=self._preparer.letter(response),
        )

    async def _prepared(
        self,
        tenant: str,
        request: CreateResponse,
        recent: SessionChains | None = None,
        *,
        response_id: str | None = None,
    ) -> tuple[Prepared, Callable[[], Awaitable[None]]]:
        """The request made ready, and what gives back the conversation it holds."""
        self._supervisor.admit()
        resolved = await self.prompts.resolve(request)
        request = resolved.request
        model = self._models.find(request.model)
        refuse_unsupported(request)
        await model.ready()
        request = apply_defaults(request, model.defaults, model.thinking_budgets)
        response_id = response_id or self._ids("resp")
        release = await self.conversations.lock(tenant, request.conversation, response_id)
        try:
            prepared = await self._preparer.prepare(
                tenant, request, model, response_id, recent, resolved.lead
            )
            return prepared, release
        except BaseException:
            await release()
            raise

    # --- what is stored --------------------------------------------------------------------------

    async def count(self, tenant: str, request: InputTokens) -> int:
        """How many tokens the model would see: the same rendering as ``create``."""
        return await self._preparer.count(tenant, request)

    async def retrieve(self, tenant: str, response_id: str) -> Response:
        """A stored response, or a background response as far as it has come. Raises
        ``NotFound``."""
        stored = await self._loaded(tenant, response_id)
        if stored.response.status not in _ACTIVE:
            return stored.response
        so_far = await self.kept.snapshot(tenant, response_id)
        return so_far or (await self._loaded(tenant, response_id)).response

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget a stored response; one that is being made is cancelled first. Raises
        ``NotFound``."""
        stored = await self._loaded(tenant, response_id)
        if stored.response.status in _ACTIVE:
            await self.cancel(tenant, response_id)
        if not await self._store.delete(tenant, response_id):
            raise _unknown(response_id)

    async def input_items(self, tenant: str, response_id: str, cut: Cut) -> Page[Item]:
        """What the response was generated from: the items of its ancestors and its own input.

        Raises ``NotFound`` for the response, ``InvalidRequest`` for a cursor that is not in it.
        """
        chain = await self._store.chain(tenant, response_id)
        if chain is None:
            raise _unknown(response_id)
        items = (*history(chain[:-1]), *chain[-1].input)
        return page(items, cut)

    async def _loaded(self, tenant: str, response_id: str) -> StoredResponse:
        stored = await self._store.load(tenant, response_id)
        if stored is None:
            raise _unknown(response_id)
        return stored


def _unknown(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")
