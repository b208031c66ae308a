"""The service: every operation of the Responses API, independent of HTTP.

``create`` loads the conversation, prepares the reply and returns a foreground run. The caller
starts this run with ``Run.drive``. ``enqueue`` puts a background run in the store, and any server
with free capacity executes it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import Reply, text_completion_unsupported_error
from antiphon.backends.catalog import CatalogModel
from antiphon.errors import InvalidRequest, NotFound, RequestError, RunError, model_not_found
from antiphon.limits.background_runs import ActiveRunLimits
from antiphon.limits.clients import ANYONE, Client
from antiphon.resources.admin.audit import AuditTrail
from antiphon.resources.admin.tenant_deletions import TenantDeletions
from antiphon.resources.admin.tenant_usage import TenantUsageReader
from antiphon.resources.audio import Audio
from antiphon.resources.batches import Batches
from antiphon.resources.containers import Containers
from antiphon.resources.conversations import ConversationLockHandle, Conversations
from antiphon.resources.file_storage.files import Files
from antiphon.resources.file_storage.uploads import ChunkedUploads
from antiphon.resources.images import Images
from antiphon.resources.reading_models import Embeddings, Rerankers
from antiphon.resources.skills import Skills
from antiphon.resources.tokenizers import Tokenizers
from antiphon.resources.vector_search.vector_stores import VectorStores
from antiphon.resources.webhook_endpoints import WebhookEndpoints
from antiphon.runs.background.event_log_reader import EventLogReader
from antiphon.runs.background.jobs import BackgroundJobs
from antiphon.runs.background.snapshots import Snapshots
from antiphon.runs.background.worker import BackgroundWorker
from antiphon.runs.batches.line_runs import LineRun, LineRuns, line_response_id
from antiphon.runs.batches.worker import BatchWorker
from antiphon.runs.execution.run import Run
from antiphon.runs.execution.steering import (
    already_completed,
    check_steerable,
    steering_not_supported,
)
from antiphon.runs.execution.supervisor import AccessWatch, Supervisor
from antiphon.runs.history.chain_cache import stored_tokens
from antiphon.runs.history.context import ConversationContext
from antiphon.runs.history.input_lists import InputLists
from antiphon.runs.history.session_chains import SessionChains
from antiphon.runs.replies.compaction import compacted_response
from antiphon.runs.replies.prompt_cache import CacheCountingReply, WarmupReply
from antiphon.runs.replies.raw_messages import RawMessagesReply
from antiphon.runs.request.attachments import Attachments
from antiphon.runs.request.no_storage import storage_disabled, without_storage
from antiphon.runs.request.options import apply_defaults, build_options
from antiphon.runs.request.session_identity import (
    conversation_identity,
    stored_session_identity,
)
from antiphon.store.common.response_lists import list_matching
from antiphon.store.records import ResponseQuery, RunLimit, StoredResponse
from antiphon.store.runs import RunLimitReached
from antiphon.store.upkeep.health import StoreHealth
from antiphon.stream.writer import Ids
from antiphon.support.tasks import do_nothing
from antiphon.tools.file_search.provider import FileSearchProvider
from antiphon.webhooks.deliver import WebhookSender
from antiphon.wire.cursors import PageParams, page_of
from antiphon.wire.items import Item
from antiphon.wire.pagination import Page
from antiphon.wire.request import (
    CompactRequest,
    CreateResponse,
    InputTokensRequest,
    refuse_unsupported,
)
from antiphon.wire.request_shapes import derive
from antiphon.wire.resources.batches import Batch
from antiphon.wire.response import CompactedResponse, Response
from antiphon.wire.response_list import ResponseSummary, Transcript
from antiphon.wire.steering import SteeringSubmission
from antiphon.wire.timeline import Timeline, timeline_of

from .dependencies import OptionalFeatures, RunDependencies
from .preparer import PreparedRequest, Preparer
from .response_quota import ResponseQuota
from .run_factory import RunFactory
from .tenants import Tenants
from .usage_counter import Prices, UsageCounter

__all__ = [
    "CatalogModel",
    "CompactionRun",
    "EnqueuedRun",
    "ResponseQuery",
    "Service",
    "StoredResponse",
]

_ACTIVE = ("queued", "in_progress")
#: Number of entries that are read at a time if not all of them belong to a list.
_FILTERED_AT_A_TIME = 200
#: The event with which a run begins, in the event log, and how many events are enough to find it.
_STARTED, _FIRST_EVENTS = b'"response.in_progress"', 4


class CompactionRun(Struct, frozen=True):
    """A run that compacts a conversation, together with the conversation."""

    run: Run
    context: ConversationContext

    @property
    def result(self) -> CompactedResponse:
        """The compacted conversation. In later requests, the client sends this conversation instead
        of the original one. Available once the run has completed."""
        return compacted_response(self.context, self.run.response)


class EnqueuedRun(Struct, frozen=True):
    """A stored background run. ``ignored_tools``: types of hosted tools in the request that neither
    this server nor the upstream can run. ``created``: false if the run already existed."""

    response: Response
    ignored_tools: tuple[str, ...] = ()
    created: bool = True


class _Accepted(Struct, frozen=True):
    """A prepared request, with its locked conversation and the storage that is reserved for its
    response. ``held.release``: unlocks the conversation and ends the reservation.
    ``release_quota``: only ends the reservation."""

    prepared: PreparedRequest
    held: ConversationLockHandle
    release_quota: Callable[[], Awaitable[None]]


class Service:
    """The Responses API of one server process. Background runs are executed between ``start`` and
    ``drain``.
    """

    def __init__(
        self, dependencies: RunDependencies, features: OptionalFeatures | None = None
    ) -> None:
        features = features or OptionalFeatures()
        self._dependencies = dependencies
        self.shapes = dependencies.shapes
        policy, clock, ids = dependencies.policy, dependencies.clock, dependencies.ids
        self._models = models = dependencies.models
        self._store = store = dependencies.store
        self._input_lists = InputLists(store)
        self._supervisor = Supervisor()
        #: Knows whether the store can be written.
        self.store_health = health = StoreHealth(store)
        owner = secrets.token_hex(8)
        #: Seconds without an event after which a stream gets a keepalive.
        self.keepalive_s = policy.keepalive_s
        #: Whether the keepalive is an event. If not, it is a comment in the stream.
        self.keepalive_events = policy.keepalive_events
        #: Reads the event logs of background runs.
        self.event_logs = EventLogReader(store)
        self._snapshots = Snapshots(store, dependencies.kinds)
        self.conversations = Conversations(
            store,
            clock=clock,
            ids=ids,
            owner=owner,
            lease_s=policy.lease.lease_s,
            on_deleted=lambda tenant, id: dependencies.signal(
                tenant, conversation_identity(id), "deleted", id
            ),
            on_deleting=None if dependencies.signals is None else dependencies.signals.announce,
        )
        self._run_limits = ActiveRunLimits(store.runs, policy.max_tenant_background_runs)
        self._quota = ResponseQuota(store, policy.quotas, owner=owner, lease_s=policy.lease.lease_s)
        self._create_resources(features)
        self._add_model = features.add_model
        #: The server-side tools by tool type.
        self.providers = features.providers
        if policy.file_search:
            file_search = FileSearchProvider(self.vector_stores)
            self.providers = {"file_search": file_search, **self.providers}
        self._preparer = Preparer(dependencies, self.attachments, self.providers)
        #: What judges inputs and outputs.
        self.moderators = self._preparer.moderators
        self.usage_counter = UsageCounter(store.usage_log, clock)
        self._runs = RunFactory(
            dependencies, self._supervisor, self.usage_counter, health, self._preparer.chains
        )
        objects = (self.conversations, self.prompts, self.webhook_endpoints)
        self._jobs = BackgroundJobs(dependencies, self._preparer, self._runs, *objects)
        self._background = BackgroundWorker(
            store.runs,
            lambda: [model.name for model in models.all()],
            self._jobs.resume,
            owner=owner,
            lease=policy.lease,
            clock=clock,
            on_end=dependencies.on_background_end,
        )
        self._create_batches(owner)

    def _create_batches(self, owner: str) -> None:
        """Create the batches and their worker. ``owner``: the name of this process."""
        dependencies = self._dependencies
        clock, policy = dependencies.clock, dependencies.policy
        self.line_runs = LineRuns(
            self._store,
            self.event_logs,
            end=self._end_run,
            worker=lambda name, owner: BackgroundWorker(
                self._store.runs,
                lambda: [model.name for model in self._models.all()],
                self._jobs.resume,
                owner=owner,
                lease=replace(policy.lease, max_runs=1, max_runs_per_tenant=None),
                clock=clock,
                name=name,
            ),
        )
        self.batches = Batches(
            self._store.values,
            self.files,
            clock=clock,
            ids=dependencies.ids,
            on_created=lambda: self.batch_worker.wake_up(),
        )
        #: Executes batches. The HTTP layer tells it how.
        self.batch_worker = BatchWorker(
            self.batches,
            self.files,
            dependencies.keys,
            self.line_runs,
            owner=owner,
            lease_s=policy.lease.lease_s,
            lines_at_a_time=policy.batch_lines,
            clock=clock,
            on_ended=self._report_batch,
        )

    async def _report_batch(self, tenant: str, batch: Batch) -> None:
        """Send webhooks about the end of a batch. Raises ``StoreError``."""
        if not batch.id.startswith("batch_"):  # a batch of Anthropic's API, which has no webhooks
            return
        webhooks = await self.webhook_endpoints.events(
            tenant,
            f"batch.{batch.status}",
            batch.id,
            for_operator=self._dependencies.policy.webhooks,
        )
        if webhooks:
            await self._store.runs.add_webhooks(webhooks)

    def _create_webhook_endpoints(self, sender: WebhookSender | None) -> WebhookEndpoints:
        dependencies = self._dependencies
        return WebhookEndpoints(
            dependencies.store.values,
            sender,
            seal=dependencies.seal,
            clock=dependencies.clock,
            ids=dependencies.ids,
            private=dependencies.policy.private_webhooks,
        )

    def _create_resources(self, features: OptionalFeatures) -> None:
        """Create the resources that clients manage besides responses and conversations, for example
        files and skills."""
        dependencies = self._dependencies
        store, policy = dependencies.store, dependencies.policy
        clock, ids = dependencies.clock, dependencies.ids
        #: Request counts of clients with limits. All processes share them.
        self.rates = store.rates
        self.files = Files(
            store,
            clock=clock,
            ids=ids,
            quotas=policy.quotas,
            blobs=features.blobs,
            signed_url_s=policy.files_signed_url_s,
        )
        self.uploads = ChunkedUploads(store, self.files, clock=clock, ids=ids, quotas=policy.quotas)
        self.skills = Skills(store, clock=clock, ids=ids, quotas=policy.quotas)
        self.containers = Containers(features.containers)
        self.prompts = features.prompts
        self.webhook_endpoints = self._create_webhook_endpoints(features.webhook_sender)
        self.embeddings = Embeddings(dependencies.models)
        self.audio = Audio(dependencies.models, policy.audio_input, policy.max_audio_bytes)
        #: Reads the files of requests.
        self.attachments = Attachments(self.files, self.audio, features.fetcher, features.documents)
        self.images = Images(features.providers.get("image_generation"))
        self.rerankers = Rerankers(dependencies.models)
        self.tokenizers = Tokenizers(dependencies.models)
        self.vector_stores = VectorStores(
            store,
            self.files,
            features.documents,
            self.embeddings,
            model=policy.file_search_embeddings,
            rerankers=self.rerankers,
            reranker=policy.file_search_reranker,
            clock=clock,
            ids=ids,
            quotas=policy.quotas,
        )
        #: The log of administrative actions.
        self.audit = AuditTrail(store.audit, clock=clock, ids=ids)
        #: The deletions of tenants, which end what is in progress for them.
        self.tenant_deletions = TenantDeletions(store.values, clock=clock, timer=time.monotonic)
        #: Exports and deletes tenants.
        self.tenants = Tenants(
            store,
            self.files.contents,
            self.containers,
            self.tenant_deletions,
            cancel=self.cancel,
            clock=clock,
            on_deleted=lambda tenant: dependencies.signal(tenant, None, "deleted"),
        )
        self.usages = TenantUsageReader(
            store,
            policy.quotas,
            uploads=self.uploads,
            containers=self.containers,
            max_runs=policy.lease.max_runs_per_tenant,
        )

    @property
    def request_watch(self) -> AccessWatch:
        """Ends the requests of clients that lose their access."""
        return self._supervisor.requests

    @property
    def is_ready(self) -> bool:
        """Whether the server accepts new runs."""
        return not self._supervisor.is_stopping

    @property
    def ids(self) -> Ids:
        """Returns a new id with a prefix."""
        return self._dependencies.ids

    @property
    def background_runs(self) -> int:
        """The number of background runs that this process executes, without those of batches."""
        return self._background.running

    @property
    def stores_nothing(self) -> bool:
        """Whether responses are never stored."""
        return self._dependencies.policy.stores_nothing

    @property
    def active_runs(self) -> int:
        """The number of foreground runs that have not ended."""
        return self._supervisor.running

    def models(self) -> tuple[CatalogModel, ...]:
        """Return the served models in the operator's order."""
        return self._models.all()

    @property
    def prices(self) -> Mapping[str, Prices]:
        """Name of a model or type of a tool → its prices."""
        return self._dependencies.policy.prices

    def start(self) -> None:
        """Start to execute background runs and to index the files of vector stores. Files that are
        only partly indexed are indexed further."""
        self._background.start()
        self.vector_stores.start()
        self.batch_worker.start()

    async def drain(self, grace_s: float) -> None:
        """Accept no new run, and wait until all runs have ended. Foreground runs that have not
        ended after ``grace_s`` seconds end as failed. Background runs that have not ended by then
        are released, so that other servers can continue them."""
        await self.batch_worker.drain(grace_s)
        await asyncio.gather(self._supervisor.drain(grace_s), self._background.drain(grace_s))
        await self._runs.close()
        self.event_logs.stop()
        await self.vector_stores.stop()
        await self.usage_counter.close()
        if self._dependencies.signals is not None:
            await self._dependencies.signals.drain()

    # --- runs ------------------------------------------------------------------------------------

    async def create(
        self,
        tenant: str,
        request: CreateResponse,
        *,
        client: Client = ANYONE,
        session_chains: SessionChains | None = None,
        counts_prompt: bool = True,
        id_prefix: str = "resp",
    ) -> Run:
        """Prepare a foreground run. The caller starts it with ``Run.drive``.

        ``client``: the client that is charged, and its permissions. ``session_chains``: the chains
        of responses that this client connection can continue, even if the responses are not stored.
        ``counts_prompt``: whether the client is charged for the input tokens; False if it is
        already charged for another choice of the same prompt. ``id_prefix``: the beginning of the
        id of the response. Raises ``RequestError`` if the request asks for something that is not
        possible.
        """
        if self._dependencies.policy.stores_nothing:
            request = without_storage(request)
        generate = not request.only_prewarms
        if not generate:
            request = replace(request, background=None)
        elif request.store is not False:
            await self.store_health.require()
        accepted = await self._accept(
            tenant,
            request,
            client,
            session_chains,
            response_id=self._dependencies.ids(id_prefix),
            claim=generate,
        )
        prepared = accepted.prepared
        if not generate:
            reply: Reply = WarmupReply(prepared.reply)
            if isinstance(prepared.reply, CacheCountingReply):
                reply = CacheCountingReply(reply, prepared.reply.share)
            prepared = replace(prepared, reply=reply)
        return self._runs.foreground_run(
            tenant, prepared, accepted.held, api_key=client.key, counts_prompt=counts_prompt
        )

    async def complete(
        self,
        tenant: str,
        request: CreateResponse,
        prompt: str | tuple[int, ...],
        *,
        client: Client = ANYONE,
        counts_prompt: bool = True,
    ) -> Run:
        """Prepare a run that continues raw text. The caller starts it with ``Run.drive``. Neither
        prompt nor output is stored. Only ``return_metrics`` and the sampling options of the
        request are used. ``counts_prompt``: as for ``create``. Raises ``RequestError``."""
        self._supervisor.admit()
        model = await self._find_model(request.model, client)
        await model.backend.ready()
        if not model.backend.capabilities.completes_text:
            raise text_completion_unsupported_error(model.name)
        request = apply_defaults(request, model.defaults, model.thinking_budgets)
        scope = self._dependencies.cache_scope(tenant, request)
        cache_key = request.prompt_cache_key
        session = (
            self._dependencies.session(tenant, f"cache key {cache_key}") if cache_key else None
        )
        options = build_options(request, scope, tenant=tenant, session=session)
        reply = await model.backend.complete(prompt, options)
        if request.return_metrics:
            clock = self._dependencies.clock
            reply = RawMessagesReply(
                reply, model.backend, with_messages=False, with_metrics=True, clock=clock
            )
        response_id = self._dependencies.ids("resp")
        return self._runs.completion_run(
            tenant,
            request,
            model,
            reply,
            response_id,
            api_key=client.key,
            counts_prompt=counts_prompt,
        )

    async def compact(
        self, tenant: str, request: CompactRequest, *, client: Client = ANYONE
    ) -> CompactionRun:
        """Prepare a run that compacts a conversation. The caller starts it with ``Run.drive``. The
        result of the run is not stored. Raises ``RequestError``."""
        accepted = await self._accept(tenant, request.as_create(), client, claim=False)
        prepared = accepted.prepared
        run = self._runs.foreground_run(tenant, prepared, accepted.held, api_key=client.key)
        return CompactionRun(run, prepared.context)

    async def enqueue(
        self,
        tenant: str,
        request: CreateResponse,
        response_id: str | None = None,
        *,
        client: Client = ANYONE,
        choice: int | None = None,
    ) -> EnqueuedRun:
        """Store a background run. If ``response_id`` is the id of an existing response, no second
        run is created. ``choice``: as for ``BackgroundJobs.enqueue``. Raises ``RequestError``."""
        if self._dependencies.policy.stores_nothing:
            raise storage_disabled("background" if request.background else None)
        if (existing := await self._existing_run(tenant, response_id)) is not None:
            return existing
        if choice is not None:
            return await self._enqueue(tenant, request, response_id, client, (), choice=choice)
        async with self._run_limits.check(tenant, client) as limits:
            return await self._enqueue(tenant, request, response_id, client, limits)

    async def _enqueue(
        self,
        tenant: str,
        request: CreateResponse,
        response_id: str | None,
        client: Client,
        limits: Sequence[RunLimit],
        *,
        choice: int | None = None,
    ) -> EnqueuedRun:
        accepted = await self._accept(
            tenant, request, client, response_id=response_id, is_durable=True
        )
        try:
            response = await self._jobs.enqueue(
                tenant,
                accepted.prepared,
                accepted.held.lock,
                api_key=client.key,
                limits=limits,
                choice=choice,
            )
        except RunError:  # a concurrent call may have created the run
            await accepted.held.release()
            if (existing := await self._existing_run(tenant, response_id)) is None:
                raise
            return existing
        except (RequestError, RunLimitReached):  # nothing was stored
            await accepted.prepared.release_approvals()
            await accepted.held.release()
            raise
        except BaseException:
            await accepted.held.release()
            raise
        await accepted.release_quota()  # the conversation stays locked until the run ends
        return EnqueuedRun(response, accepted.prepared.ignored_tools)

    async def _existing_run(self, tenant: str, response_id: str | None) -> EnqueuedRun | None:
        stored = None if response_id is None else await self._store.load(tenant, response_id)
        return None if stored is None else EnqueuedRun(stored.response, created=False)

    async def check_followable(self, tenant: str, response_id: str) -> None:
        """Check that a client can read the events of a response. Raises ``NotFound`` if the
        response does not exist. Raises ``InvalidRequest`` if its events are not stored."""
        stored = await self._load(tenant, response_id)
        if not stored.response.background:
            raise InvalidRequest(
                "Only responses created with background=true can be streamed again. Retrieve this "
                "one without stream.",
                param="stream",
            )
        await self.event_logs.check_available(tenant, response_id)

    async def cancel(self, tenant: str, response_id: str) -> Response:
        """Cancel a background run, and return its response. A run that has ended does not change.
        Raises ``NotFound`` if the response does not exist. Raises ``InvalidRequest`` for a
        foreground run: the client cancels it by closing the connection."""
        stored = await self._load(tenant, response_id)
        if not stored.response.background:
            raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")
        if stored.response.status in _ACTIVE:
            await self._end_run(tenant, stored)
        return (await self._load(tenant, response_id)).response

    async def _end_run(self, tenant: str, stored: StoredResponse) -> None:
        """End a run, whichever process executes it."""
        claim = await self._store.runs.take_over(tenant, stored.response.id)
        if claim is not None:
            self._background.on_run_lost(stored.response.id, claim.epoch)
            await self._jobs.end_cancelled(claim, stored)

    async def create_line(
        self,
        tenant: str,
        request: CreateResponse,
        line: str,
        *,
        client: Client = ANYONE,
        choice: int = 0,
        id_prefix: str = "resp",
    ) -> LineRun:
        """Prepare the run of a line of a batch. If it exists already, it goes on. ``line``: the
        name of the line. ``choice``: the index of the answer, if the request has several.
        ``id_prefix``: as for ``create``. Raises ``RequestError``."""
        response_id = line_response_id(line, choice, id_prefix)
        queued = await self.enqueue(tenant, request, response_id, client=client, choice=choice)
        return self.line_runs.start(tenant, line, queued.response, queued.ignored_tools)

    async def steer(
        self, tenant: str, response_id: str, input: tuple[Item, ...]
    ) -> SteeringSubmission:
        """Steer a background run: it ends early, and a successor continues it with ``input``.
        Raises ``NotFound`` if the response does not exist, and ``InvalidRequest`` if it cannot be
        steered."""
        response = (await self._load(tenant, response_id)).response
        if response.status not in _ACTIVE:
            raise already_completed(response_id)
        if not response.background:  # it runs on because of its idempotency key
            raise steering_not_supported("Only background responses can be steered over HTTP.")
        check_steerable(response)
        if not self._store.runs.supports_steering:
            raise steering_not_supported("The store of this server supports no steering.")
        if self._quota.applies_to(tenant):  # there must be room for the successor now
            await (await self._quota.reserve(tenant, response_id))()
        submission = await self._jobs.steerer.steer(tenant, response_id, input)
        self._background.steer(response_id)
        return submission

    async def _accept(
        self,
        tenant: str,
        request: CreateResponse,
        client: Client,
        session_chains: SessionChains | None = None,
        *,
        response_id: str | None = None,
        claim: bool = True,
        is_durable: bool = False,
    ) -> _Accepted:
        """Check that the client may use the model and the tools. Then lock the conversation of the
        request, reserve space for the response in the tenant's quota, and prepare the request.

        ``claim``: whether this response takes the MCP calls that the request approves. No other
        response can then run these calls. ``is_durable``: whether another process can continue the
        response, so that its tool calls are journaled."""
        self._supervisor.admit()
        resolved = await self.prompts.resolve(request)
        request = resolved.request
        model = await self._find_model(request.model, client)
        derive(request, refuse_unsupported)
        if request.tools:
            client.check_tools(self._preparer.tool_types(request))
        await model.backend.ready()
        request = apply_defaults(request, model.defaults, model.thinking_budgets)
        response_id = response_id or self._dependencies.ids("resp")
        with self._dependencies.tracer.start("prepare", request.trace or {}):
            held = await self.conversations.lock(tenant, request.conversation, response_id)
            releases = [held.release] if held.lock is not None else []
            try:
                release_quota: Callable[[], Awaitable[None]] = do_nothing
                is_stored = request.store is not False or request.background
                if is_stored and self._quota.applies_to(tenant):
                    release_quota = await self._quota.reserve(tenant, response_id)
                    releases.append(release_quota)
                prepared = await self._preparer.prepare(
                    tenant,
                    request,
                    model,
                    response_id,
                    session_chains,
                    resolved.leading_items,
                    api_key=client.key,
                    claim=claim,
                    is_durable=is_durable,
                )
            except BaseException:
                await _release_all(releases)
                raise
        if releases:
            held = ConversationLockHandle(held.lock, partial(_release_all, releases))
        return _Accepted(prepared, held, release_quota)

    async def _find_model(self, name: str | None, client: Client) -> CatalogModel:
        """Return the model that a request names. An unknown model is added if the operator allows
        it. Raises ``NotFound`` for a model that the client may not use, and names those that it may
        use."""
        add = self._add_model
        if name is not None and add is not None and client.allows_model((name,)):
            await add(name)
        try:
            model = self._models.find(name)
            client.check_model(model.name, name)
        except NotFound as error:
            if error.code != "model_not_found":
                raise
            models = self._models.all()
            names = [
                each.name for each in models if client.allows_model((each.name, *each.aliases))
            ]
            raise model_not_found(str(name), names) from None
        return model

    # --- stored responses ------------------------------------------------------------------------

    async def count(
        self, tenant: str, request: InputTokensRequest, *, client: Client = ANYONE
    ) -> int:
        """Return the number of input tokens of a request. The prompt is rendered in the same way as
        in ``create``. Raises ``RequestError``."""
        await self._find_model(request.model, client)
        client.check_tools(self._preparer.tool_types(request.as_create()))
        if request.conversation is not None:
            await self.conversations.retrieve(tenant, request.conversation.id, param="conversation")
        return await self._preparer.count(tenant, request)

    async def retrieve(self, tenant: str, response_id: str) -> Response:
        """Return a stored response. If the response belongs to a running background run, return its
        current state. Raises ``NotFound``."""
        stored = await self._load(tenant, response_id)
        if stored.response.status not in _ACTIVE:
            return stored.response
        snapshot = await self._snapshots.read(tenant, stored.response)
        return snapshot or (await self._load(tenant, response_id)).response

    async def delete(self, tenant: str, response_id: str) -> None:
        """Delete a stored response. A background run is cancelled first. Raises ``NotFound``."""
        stored = await self._load(tenant, response_id)
        if stored.response.status in _ACTIVE:
            await self.cancel(tenant, response_id)
        identity = await self._session_of(tenant, stored)
        if not await self._store.delete(tenant, response_id):
            raise _unknown(response_id)
        # What a conversation contains is deleted with the conversation.
        if not stored.response.conversation:
            self._dependencies.signal(tenant, identity, "deleted", response_id)

    async def _session_of(self, tenant: str, stored: StoredResponse) -> str:
        """Return the identity of a stored response's conversation."""
        chain: tuple[StoredResponse, ...] = (stored,)
        if stored.response.previous_response_id is not None:
            chain = await self._store.load_chain(tenant, stored.response.id) or chain
        return stored_session_identity(chain)

    async def find_stored(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return a stored response with the input items of its request. Returns None if there is no
        such response."""
        return await self._store.load(tenant, response_id)

    async def update_metadata(
        self, tenant: str, stored: StoredResponse, metadata: dict[str, str]
    ) -> Response:
        """Replace the metadata of a stored response that has ended, and return the response."""
        response = replace(stored.response, metadata=metadata)
        await self._store.save(tenant, replace(stored, response=response))
        return response

    async def list_responses(
        self,
        tenant: str,
        query: ResponseQuery,
        is_wanted: Callable[[ResponseSummary], bool] | None = None,
    ) -> Page[ResponseSummary]:
        """Return a page of stored responses, without their contents. ``is_wanted``: whether a
        response that matches the query belongs to the list; None if all do. Raises
        ``InvalidRequest`` if the cursor is not the id of a response."""
        status = query.status
        stored = replace(query, limit=query.limit + 1)
        if status in _ACTIVE:  # in the store, a background response is queued until it ends
            stored = replace(stored, status="queued")

        async def matching(page: Sequence[ResponseSummary]) -> Sequence[ResponseSummary]:
            return [
                each
                for each in await asyncio.gather(*(self._with_status(tenant, old) for old in page))
                if (status not in _ACTIVE or each.status == status)
                and (is_wanted is None or is_wanted(each))
            ]

        at_a_time = 0 if is_wanted is None else _FILTERED_AT_A_TIME
        found = await list_matching(self._store.list_responses, tenant, stored, matching, at_a_time)
        if found is None:
            raise InvalidRequest(f"Response with id '{query.after}' not found.", param="after")
        return page_of(found[: query.limit], has_more=len(found) > query.limit)

    async def _with_status(self, tenant: str, summary: ResponseSummary) -> ResponseSummary:
        """Return the entry of a response with its present status: the events of a background
        response say whether it runs by now."""
        if summary.status != "queued":
            return summary
        page = await self._store.runs.events(tenant, summary.id, -1, limit=_FIRST_EVENTS)
        runs = page is not None and any(_STARTED in batch.lines for batch in page.batches)
        return replace(summary, status="in_progress") if runs else summary

    async def transcript(self, tenant: str, response_id: str) -> Transcript:
        """Return the text of all tokens that the model read and wrote, from the start of the
        conversation to the end of a response. Raises ``NotFound`` if the response does not exist.
        Raises ``InvalidRequest`` if the token ids are unknown."""
        chain = await self._store.load_chain(tenant, response_id)
        if chain is None:
            raise _unknown(response_id)
        model = chain[-1].response.model
        tokens = stored_tokens(chain) if chain[-1].tokens is not None else None
        if tokens is None:
            raise InvalidRequest(
                "The tokens of this response are not known to this server.", param="response_id"
            )
        text = await self.tokenizers.detokenize(model, tokens.ids)
        return Transcript(id=response_id, model=model, token_count=len(tokens.ids), text=text)

    async def timeline(self, tenant: str, response_id: str) -> Timeline:
        """Return the times at which a response and its items started and ended. Raises
        ``NotFound``."""
        stored = await self._load(tenant, response_id)
        return timeline_of(stored.response, stored.times)

    async def input_items(self, tenant: str, response_id: str, params: PageParams) -> Page[Item]:
        """Return one page of a response's input. The input begins with the items of the earlier
        responses that the response continues. The input items of the response's own request follow.
        ``params``: the parameters of the page.

        Raises ``NotFound`` if the response does not exist. Raises ``InvalidRequest`` if the cursor
        is not the id of an item in the input.
        """
        page = await self._input_lists.page(tenant, response_id, params)
        if page is None:
            raise _unknown(response_id)
        return page

    async def _load(self, tenant: str, response_id: str) -> StoredResponse:
        stored = await self._store.load(tenant, response_id)
        if stored is None:
            raise _unknown(response_id)
        return stored


async def _release_all(releases: list[Callable[[], Awaitable[None]]]) -> None:
    """Call each function once, starting with the last. If a function raises, the remaining
    functions are still called."""
    if releases:
        try:
            await releases.pop()()
        finally:
            await _release_all(releases)


def _unknown(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")
