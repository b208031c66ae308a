"""Create background jobs from prepared requests, run claimed jobs, and end cancelled jobs. A job is
the stored form of a background run.

A server that has claimed a job starts the run of this job. If the run was interrupted before, the
server restores the run from its stored events and token ids, and continues it. A run that cannot be
continued fails.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import structlog
from msgspec.structs import replace

from antiphon.backends.base import Reply
from antiphon.errors import (
    CannotContinue,
    EngineLost,
    InternalError,
    RequestError,
    RunError,
    StoreError,
)
from antiphon.inference.conversation import PromptTokens
from antiphon.limits.clients import Client
from antiphon.resources.conversations import Conversations, conversation_locked
from antiphon.resources.prompts import Prompts
from antiphon.resources.webhook_endpoints import WebhookEndpoints
from antiphon.runs.dependencies import RunDependencies
from antiphon.runs.execution.run import ReaderGone
from antiphon.runs.execution.token_log import total_counts
from antiphon.runs.preparer import PreparedRequest, Preparer
from antiphon.runs.replies.interrupted import FinishedReply, RestartedReply, restart_obstacle
from antiphon.runs.replies.reasoning_summary import interrupted_in_summary
from antiphon.runs.run_factory import RunFactory
from antiphon.runs.tool_loop.recovery import interrupted_in_tools
from antiphon.runs.usage_counter import UsageMeter
from antiphon.store.records import (
    Claim,
    ConversationLock,
    EventBatch,
    Job,
    NewRun,
    RunEnd,
    RunLimit,
    StoredResponse,
    WebhookEvent,
)
from antiphon.stream.writer import ResponseWriter
from antiphon.support.fair_threads import current_tenant
from antiphon.tracing.base import Span
from antiphon.wire.items import Item
from antiphon.wire.request_options import BackgroundOptions
from antiphon.wire.response import Response, Usage

from .event_codec import encode_batch
from .event_log_writer import EventLogWriter, LogSink, end_steered
from .restore import FailedReply, PromptedReply, RestoredRun
from .steering import Steerer
from .stored_request import StoredRequest
from .worker import ClaimedRun

_log = structlog.get_logger(__name__)

_decode_request = msgspec.json.Decoder(StoredRequest).decode
_encode = msgspec.json.Encoder().encode

#: A run fails if it was claimed more often than this without a new event. Its request may crash
#: every server.
_MAX_ATTEMPTS = 10
#: Number of prepared requests that are kept in memory. Most jobs are claimed by the process that
#: has prepared them.
_MAX_PREPARED = 256
#: How long the response to a line of a batch is kept at most, if it has ``store: false``: a batch
#: ends within 24 hours, and until then, its results may have to be written again.
_LINE_KEPT_S = 25 * 3600
#: ``completion_window`` → the seconds after which a run no longer waits behind others. This is half
#: of the window, so that the other half is left for the answer.
_MAX_WAIT_S: Mapping[str, int] = {"2h": 3600, "8h": 4 * 3600}


class BackgroundJobs:
    """Stores the background runs of one service as jobs, starts or continues the runs of claimed
    jobs, and ends cancelled jobs. A job is the stored form of a background run."""

    def __init__(
        self,
        dependencies: RunDependencies,
        preparer: Preparer,
        runs: RunFactory,
        conversations: Conversations,
        prompts: Prompts,
        webhook_endpoints: WebhookEndpoints,
    ) -> None:
        self._dependencies = dependencies
        self._preparer = preparer
        self._runs = runs
        self._conversations = conversations
        self._prompts = prompts
        self._webhook_endpoints = webhook_endpoints
        self.steerer = Steerer(dependencies)
        #: Prepared requests by response id, oldest first.
        self._prepared_requests: dict[str, PreparedRequest] = {}

    async def enqueue(
        self,
        tenant: str,
        prepared: PreparedRequest,
        lock: ConversationLock | None = None,
        *,
        api_key: str | None = None,
        limits: Sequence[RunLimit] = (),
        choice: int | None = None,
    ) -> Response:
        """Store a background run (a job) with its first events. Returns the queued response.

        ``lock``: the lock of the response's conversation. ``api_key``: the name of the API key to
        which the usage is charged. ``limits``: limits on the number of background runs.
        ``choice``: for a line of a batch, which only ``LineRuns`` claims, the index of the answer.

        Raises ``RunError`` if a response with this id is already stored. Raises ``InvalidRequest``
        if the lock was lost. Raises ``RunLimitReached`` if a limit is reached.
        """
        dependencies = self._dependencies
        response = replace(prepared.response, status="queued")
        writer = ResponseWriter(response, ids=dependencies.ids, kinds=dependencies.kinds)
        writer.create()
        events = writer.take()
        prompt_tokens = prepared.reply.prompt_tokens
        job = Job(
            tenant=tenant,
            id=response.id,
            model=prepared.model.name,
            request=_encode(
                StoredRequest.seal(
                    prepared.request,
                    response.tools,
                    dependencies.seal,
                    tenant,
                    api_key=api_key,
                    choice=choice,
                )
            ),
            prompt=array("I", prompt_tokens.ids).tobytes() if prompt_tokens is not None else b"",
        )
        urgency = prepared.request.background_options or BackgroundOptions()
        max_wait_s = _MAX_WAIT_S.get(urgency.completion_window)
        self._prepared_requests[response.id] = prepared
        if len(self._prepared_requests) > _MAX_PREPARED:
            del self._prepared_requests[next(iter(self._prepared_requests))]
        is_created = False
        try:
            is_created = await dependencies.store.runs.create(
                NewRun(
                    job=job,
                    stored=StoredResponse(response=response, input=prepared.context.input),
                    batch=encode_batch(events, at=dependencies.clock()),
                    lock=lock,
                    api_key=api_key or "",
                    limits=limits,
                    by_name=choice is not None,
                    start_by=0 if max_wait_s is None else response.created_at + max_wait_s,
                )
            )
        finally:
            if not is_created:  # when the client retries, the conversation may be longer
                self._prepared_requests.pop(response.id, None)
        if not is_created:
            raise conversation_locked()
        return response

    async def resume(self, claim: Claim, log_writer: EventLogWriter) -> ClaimedRun:
        """Create the run and its event sink for a queued or interrupted run that this server has
        claimed. Raises ``ReaderGone`` if the response was deleted. Raises ``StoreError``."""
        request = _decode_request(claim.job.request)
        span = self._dependencies.tracer.start(
            "background run",
            request.trace or {},
            {"gen_ai.response.id": claim.job.id, "antiphon.attempt": claim.attempts},
        )
        try:
            request = replace(request, trace=dict(span.headers) or None)
            return await self._resume(claim, request, log_writer, span)
        except BaseException:
            span.end()
            raise

    async def _resume(
        self, claim: Claim, request: StoredRequest, log_writer: EventLogWriter, span: Span
    ) -> ClaimedRun:
        job = claim.job
        current_tenant.set(job.tenant)
        store = self._dependencies.store
        stored = await store.load(job.tenant, job.id)
        if stored is None:
            raise ReaderGone
        request = replace(request, input=stored.input)
        restored = await self._restore(claim)
        parent: PromptTokens | None = None
        reply: Reply
        try:
            await self._conversations.reacquire_lock(job.tenant, request.conversation, job.id)
            if interrupted_in_summary(restored.log):
                raise CannotContinue("its reasoning was being summarized")
            client = Client(key=request.api_key)
            client = await self._dependencies.keys.limited_now(job.tenant, client)
            client.check_model(job.model, request.model)
            client.check_tools(self._preparer.tool_types(request))
            reply, parent = await self._resumed_reply(claim, request, restored)
        except (StoreError, EngineLost):  # the run is claimed again
            raise
        except (RequestError, RunError) as error:
            reply = FailedReply(RunError(error.message))
        except Exception:
            _log.exception("a run could not be prepared", response=job.id)
            reply = FailedReply(InternalError())
        run = self._runs.background_run(
            job.tenant,
            request,
            reply,
            parent,
            restored,
            api_key=request.api_key,
            can_restart=partial(_can_restart, claim, request),
        )
        if await self.steerer.is_steered(job):
            run.steer()
        sink = LogSink(
            log_writer,
            store.runs,
            claim,
            run.recorder.token_log,
            conversation=request.conversation.id if request.conversation else None,
            expires_at=self._expires_at(stored.response, request),
            webhooks=partial(self._webhooks, job.tenant, request),
            usage=self._meter(job, request, stored.response).record,
            conclude=partial(self.steerer.conclude, job, request),
            clock=self._dependencies.clock,
            has_readers=not request.is_line,
        )
        return ClaimedRun(run, sink, span)

    async def end_cancelled(self, claim: Claim, stored: StoredResponse) -> None:
        """Write the end of a cancelled run to the store. ``claim``: the store's record that this
        server has taken over the run. ``stored``: the response as it is stored.

        The server that executed the run before may still try to write events. The store refuses
        these events, because each new claim of a run gets a higher number (``epoch``), and only the
        newest claim may write.
        """
        dependencies = self._dependencies
        try:
            restored = await self._restore(claim)
        except ReaderGone:
            return
        writer = restored.writer(
            ids=dependencies.ids, kinds=dependencies.kinds, clock=dependencies.clock
        )
        response = writer.finalize("cancelled", at=int(dependencies.clock()), usage=None)
        events = writer.take()  # none if no item was open: a cancelled run has no last event
        request = _decode_request(claim.job.request)
        meter = self._meter(claim.job, request, stored.response)
        read, sampled = 0, 0
        if restored.tokens:
            read, sampled = total_counts(restored.prompt, restored.tokens)
        end = RunEnd(
            stored=StoredResponse(response=response, input=stored.input, times=writer.timer.times),
            batch=encode_batch(events)
            if events
            else EventBatch(first=restored.next_event, count=0),
            expires_at=self._expires_at(response, request)(),
            webhooks=await self._webhooks(claim.job.tenant, request, response),
            usage=meter.record(response, Usage(input_tokens=read, output_tokens=sampled)),
        )
        conclude = partial(self.steerer.conclude, claim.job, request)
        await end_steered(dependencies.store.runs, claim, end, conclude)
        dependencies.on_background_end(response)

    def _meter(self, job: Job, request: StoredRequest, response: Response) -> UsageMeter:
        return UsageMeter(
            tenant=job.tenant,
            api_key=request.api_key,
            model=job.model,
            started=response.created_at,
            clock=self._dependencies.clock,
            counts_prompt=not request.choice,
        )

    async def _restore(self, claim: Claim) -> RestoredRun:
        dependencies = self._dependencies
        batches = await dependencies.store.runs.load_batches(claim)
        if not batches:  # deleted in the meantime
            raise ReaderGone
        return RestoredRun.load(claim.job, batches, dependencies.kinds)

    async def _resumed_reply(
        self, claim: Claim, request: StoredRequest, restored: RestoredRun
    ) -> tuple[Reply, PromptTokens | None]:
        """Return the reply that continues the run, and the token ids of the conversation before the
        run's response."""
        job, log, tokens = claim.job, restored.log, restored.tokens
        started = bool(log.done_items or log.open_items)
        prepared_request = self._prepared_requests.pop(job.id, None)
        if prepared_request is not None and not tokens and not started:
            prepared_request.set_parent_span(request.trace or {})
            return prepared_request.reply, prepared_request.context.prompt_tokens
        if claim.attempts > _MAX_ATTEMPTS:
            raise CannotContinue("it was interrupted too often")
        model = self._dependencies.models.find(job.model)
        seal = self._dependencies.seal
        resolved = await self._prompts.resolve(request.with_secrets(seal, job.tenant))
        prepared = await self._preparer.prepare(
            job.tenant,
            resolved.request,
            model,
            job.id,
            prompt_items=resolved.leading_items,
            api_key=request.api_key,
            is_durable=True,
        )
        reply = prepared.reply
        if job.prompt or tokens or started:
            point = restored.resume_point()
            if not started or tokens or interrupted_in_tools(point):
                reply = reply.resume(point)
            elif restored.is_answered:
                reply = FinishedReply(reply, point)
            elif request.interrupted_output == "fail":
                raise CannotContinue("this model does not report its token ids")
            else:
                reply = RestartedReply(reply, point)
        elif reply.prompt_tokens is not None:  # the job was stored before it was prepared
            reply = PromptedReply(reply, reply.prompt_tokens.ids)
        return reply, prepared.context.prompt_tokens

    def _expires_at(self, response: Response, request: StoredRequest) -> Callable[[], int | None]:
        """Return a function that is called at the end of the run. The function returns the time at
        which the store will delete the response, in Unix seconds. It returns None for a response
        with ``store: true``, because this class sets no time for its deletion."""
        if response.store:
            return lambda: None
        dependencies = self._dependencies
        kept_s = _LINE_KEPT_S if request.is_line else dependencies.policy.unstored_retention_s
        return lambda: int(dependencies.clock() + kept_s)

    async def _webhooks(
        self, tenant: str, request: StoredRequest, response: Response
    ) -> tuple[WebhookEvent, ...]:
        """Return the webhooks that report the end of a response. There are none for a line of a
        batch."""
        if request.is_line:
            return ()
        return await self._webhook_endpoints.events(
            tenant,
            f"response.{response.status}",
            response.id,
            for_operator=self._dependencies.policy.webhooks,
        )


def _can_restart(
    claim: Claim, request: StoredRequest, done: Sequence[Item], still_open: Sequence[Item]
) -> bool:
    """Return whether a run may be claimed again after its upstream broke off. ``done``,
    ``still_open``: the items of its response. The number of claims is limited, because an upstream
    may break off each time."""
    return (
        claim.epoch < _MAX_ATTEMPTS
        and request.interrupted_output != "fail"
        and restart_obstacle(done, still_open) is None
    )
