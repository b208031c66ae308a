"""From a request, or from a run that was begun elsewhere, to a run that can be driven.

All that can be refused is refused here, before the run exists. It knows no HTTP.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import ASSUMED_CONTEXT_SIZE, Reply
from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.conversation import PromptTokens
from antiphon.errors import CannotContinue, RequestError, RunError
from antiphon.resources.conversations import Conversations
from antiphon.resources.prompts import Prompts
from antiphon.runs.background.event_codec import encoded
from antiphon.runs.background.event_log_writer import EventLogWriter, LogSink
from antiphon.runs.background.restore import FailedReply, prompt_ids, restored, resume_point
from antiphon.runs.background.worker import Ready
from antiphon.runs.execution.recorder import ExtraFields, Recorder
from antiphon.runs.execution.run import ReaderGone, Run, RunSpec
from antiphon.runs.execution.supervisor import Supervisor
from antiphon.runs.history.chain_cache import ChainCache
from antiphon.runs.history.context import Context, assemble, history
from antiphon.runs.history.encrypted_items import TenantSealer
from antiphon.runs.history.session_chains import SessionChains
from antiphon.runs.history.visible_history import recall
from antiphon.runs.replies.compaction import ReplyRequest, compact, prepare_reply
from antiphon.runs.replies.raw_messages import RawMessagesReply
from antiphon.runs.replies.reasoning_summary import (
    Summariser,
    SummarizedReply,
    interrupted_in_summary,
    level,
)
from antiphon.runs.request.attachments import Attachments
from antiphon.runs.request.initial_response import initial_response
from antiphon.runs.request.mcp_labels import replace_mcp_labels
from antiphon.runs.request.options import build_options, hidden_item_types
from antiphon.runs.request.tool_selection import ToolSelection, select_tools
from antiphon.runs.tool_loop.loop import ToolLoop, ToolLoopSpec
from antiphon.runs.tool_loop.recovery import interrupted_in_tools
from antiphon.runs.tool_loop.toolsets import check_access
from antiphon.security.encryption import Seal
from antiphon.store.base import Store
from antiphon.store.records import Batch, Claim, Job, StoredResponse, WebhookEvent
from antiphon.stream.fold import Fold
from antiphon.stream.kinds import Kind
from antiphon.stream.writer import Ids, ResponseWriter
from antiphon.tools.allowed_callers import by_the_model
from antiphon.tools.base import ResponseContext, ToolProvider
from antiphon.wire.items import InputText, Item, ItemBase, Message
from antiphon.wire.request import CreateResponse, InputTokens
from antiphon.wire.response import Response

from .policy import Policy

__all__ = ["Prepared", "Preparer"]

_log = structlog.get_logger(__name__)

_decode_request = msgspec.json.Decoder(CreateResponse).decode
_encode = msgspec.json.Encoder().encode
#: After a compaction, earlier messages of the user may fill this fraction (1/n) of the context.
_USERS_SHARE = 4
_SEALED = "reasoning.encrypted_content"
#: How often a run may be begun without a word: one that kills whoever works on it must end.
_MOST_ATTEMPTS = 10
#: Prepared requests kept for the moment they find a place.
_MOST_WAITING = 256


class Prepared(Struct, frozen=True, kw_only=True):
    """A request that will be answered: nothing has been generated yet."""

    request: CreateResponse
    model: CatalogModel
    context: Context
    reply: Reply
    response: Response
    ignored_tools: tuple[str, ...]


class Preparer:
    """One a service."""

    def __init__(
        self,
        models: ModelCatalog,
        store: Store,
        conversations: Conversations,
        supervisor: Supervisor,
        *,
        policy: Policy,
        seal: Seal,
        prompts: Prompts,
        attachments: Attachments,
        providers: Mapping[str, ToolProvider],
        kinds: Mapping[type[ItemBase], Kind],
        clock: Callable[[], float],
        ids: Ids,
    ) -> None:
        self._models = models
        self._store = store
        self._conversations = conversations
        self._supervisor = supervisor
        #: Of background runs, which are given back rather than failed when the server stops.
        self._unattended = Supervisor()
        self._policy = policy
        self._seal = seal
        self._prompts = prompts
        self._attachments = attachments
        self._providers = providers
        self._chains = ChainCache(store)
        self._kinds = kinds
        self._clock = clock
        self._ids = ids
        #: What was prepared here and waits for a place, which most often is found here.
        self._waiting: dict[str, Prepared] = {}

    async def prepare(
        self,
        tenant: str,
        request: CreateResponse,
        model: CatalogModel,
        response_id: str,
        recent: SessionChains | None = None,
        lead: tuple[Item, ...] = (),
    ) -> Prepared:
        """``lead``: what the request's stored prompt says. Raises ``RequestError`` for whatever
        cannot be honoured."""
        meant, tools = self._meant(request, model)
        context = replace(await self._context(tenant, request, model, recent), lead=lead)
        opening = ResponseContext(
            tenant=tenant, response_id=response_id, items=context.conversation.items
        )
        await check_access(tools.hosted, tools.tools, opening)
        backend = self._attachments.ahead_of(model.backend, tenant, len(lead))
        asked = build_options(meant, tools.tools)
        if tools.hosted:  # what there is to choose is known once they are open
            asked = replace(asked, tool_choice="auto")
        question = ReplyRequest(context=context, backend=backend, options=asked)
        sealed = TenantSealer(self._seal, tenant)
        reply = (
            await compact(question, sealed)
            if context.recalled.triggered
            else await prepare_reply(question, sealed, request.context_management or ())
        )
        if not context.recalled.triggered:
            reply = self._wrapped(reply, meant, question, model, tools, tenant, response_id)
        response = initial_response(
            request,
            id=response_id,
            model=request.model or model.name,
            created_at=int(self._clock()),
            backend=model.backend,
        )
        if removed := context.recalled.removed:
            response = replace(response, input_transformations=removed)
        if lead:
            said = request.instructions
            first = Message(
                id=self._ids("msg"), role="developer", content=(InputText(text=said or ""),)
            )
            response = replace(response, instructions=(first, *lead) if said else lead)
        return Prepared(
            request=request,
            model=model,
            context=context,
            reply=reply,
            response=response,
            ignored_tools=tools.ignored,
        )

    def _wrapped(
        self,
        reply: Reply,
        request: CreateResponse,
        question: ReplyRequest,
        model: CatalogModel,
        tools: ToolSelection,
        tenant: str,
        response_id: str,
    ) -> Reply:
        """Wrap the reply in what the request needs: the tool loop, reasoning summaries, raw
        messages. Raises ``InvalidRequest``."""
        timed = bool(request.return_metrics)
        tool_loop: ToolLoop | None = None
        if tools.offers or tools.hosted:
            reply = tool_loop = ToolLoop(
                reply,
                ToolLoopSpec(
                    conversation=question.context.conversation,
                    options=replace(question.options, tool_choice=request.tool_choice or "auto"),
                    offers=tools.offers,
                    hosted=tools.hosted,
                    declared=by_the_model(request.tools),
                    programs=tools.programs,
                    include=frozenset(request.include or ()),
                    ask=question.backend.prepare,
                    bounds=replace(self._policy.bounds, calls=request.max_tool_calls),
                    ids=self._ids,
                    tenant=tenant,
                    response_id=response_id,
                    context_size=model.backend.context_size,
                ),
            )
        summary_level = None if request.include_reasoning is False else level(request.reasoning)
        if summary_level is not None:
            reply = SummarizedReply(reply, self._summariser(model, summary_level))
        if request.enable_response_messages or timed:
            reply = RawMessagesReply(
                reply,
                model.backend,
                spelled=bool(request.enable_response_messages),
                timed=timed,
                clock=self._clock,
                turns=tool_loop.used if tool_loop is not None else [],
            )
        return reply

    def _summariser(self, model: CatalogModel, summary_level: str) -> Summariser:
        name = self._policy.summary_model
        by = self._models.find(name) if name is not None else model
        return Summariser(backend=by.backend, level=summary_level, defaults=by.defaults)

    async def count(self, tenant: str, request: InputTokens) -> int:
        """How many tokens the model would see: the same rendering."""
        asked = request.as_create()
        if asked.conversation is not None:
            await self._conversations.retrieve(tenant, asked.conversation.id, param="conversation")
        model = self._models.find(asked.model)
        asked, tools = self._meant(asked, model)
        context = await self._context(tenant, asked, model)
        backend = self._attachments.ahead_of(model.backend, tenant)
        reply = await backend.prepare(context.conversation, build_options(asked, tools.tools))
        return reply.input_tokens

    def _meant(
        self, asked: CreateResponse, model: CatalogModel
    ) -> tuple[CreateResponse, ToolSelection]:
        policy, upstream = self._policy, model.backend.capabilities.hosted_tools
        meant = replace_mcp_labels(asked, policy.mcp_labels)
        return meant, select_tools(meant, policy.unavailable_tools, self._providers, upstream)

    def run(self, tenant: str, prepared: Prepared, release: Callable[[], Awaitable[None]]) -> Run:
        """The run of a reader who waits for it."""
        request, response, context = prepared.request, prepared.response, prepared.context
        past, kept, input = context.chain, context.kept, context.input
        if response.store and not all(stored.response.store for stored in past):
            # What it builds on is nowhere: it is kept with all that was before.
            past, kept, input = (), None, (*history(past), *input)
        work = self._work(prepared.reply, input, release)
        save = self._saving(tenant, request) if response.store else None
        writer = ResponseWriter(response, ids=self._ids, kinds=self._kinds)
        return Run(
            writer,
            replace(work, parent=kept, save=save),
            self._supervisor,
            recorder=Recorder(
                writer,
                besides=self._besides(tenant, request),
                hides=hidden_item_types(request),
                prompt=work.reply.kept.ids if work.reply.kept is not None else (),
            ),
            past=past,
            ignored_tools=prepared.ignored_tools,
        )

    def bare_run(
        self, request: CreateResponse, model: CatalogModel, reply: Reply, response_id: str
    ) -> Run:
        """The run of a reply to no conversation. Nothing of it is stored."""
        name, now = request.model or model.name, int(self._clock())
        response = initial_response(request, id=response_id, model=name, created_at=now)
        writer = ResponseWriter(response, ids=self._ids, kinds=self._kinds)
        return Run(writer, self._work(reply, (), _nothing), self._supervisor)

    def job(self, tenant: str, prepared: Prepared) -> tuple[Job, StoredResponse, Batch]:
        """What is kept of a run that begins in the background, with its first events."""
        response = replace(prepared.response, status="queued")
        writer = ResponseWriter(response, ids=self._ids, kinds=self._kinds)
        writer.create()
        events = writer.take()
        kept = prepared.reply.kept
        job = Job(
            tenant=tenant,
            id=response.id,
            model=prepared.model.name,
            request=_encode(replace(prepared.request, input=None, tools=response.tools)),
            prompt=array("I", kept.ids).tobytes() if kept is not None else b"",
        )
        stored = StoredResponse(response=response, input=prepared.context.input)
        self._waiting[response.id] = prepared
        if len(self._waiting) > _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        return job, stored, Batch(first=0, count=len(events), lines=encoded(events))

    async def resume_claimed(self, claim: Claim, journal: EventLogWriter) -> Ready:
        """The run of a claim, from its first token or from where it was interrupted. What cannot be
        continued is a run that fails. Raises ``Left`` if it is gone."""
        job = claim.job
        stored = await self._store.load(job.tenant, job.id)
        if stored is None:
            raise ReaderGone
        request = replace(_decode_request(job.request), input=stored.input)
        log, tokens, number = restored(await self._store.runs.history(claim), self._kinds)
        parent: PromptTokens | None = None
        reply: Reply
        try:
            await self._conversations.resume(job.tenant, request.conversation, job.id)
            if interrupted_in_summary(log.open):
                raise CannotContinue("its thinking was being summarised")
            reply, parent = await self._resumed(claim, request, tokens, log)
        except (RequestError, RunError) as error:
            reply = FailedReply(RunError(error.message))
        except Exception:
            _log.exception("a run could not be prepared", response=job.id)
            reply = FailedReply(RunError("The server had an error while processing your request."))
        writer = ResponseWriter.restored(log, ids=self._ids, kinds=self._kinds, number=number)
        recorder = Recorder(
            writer,
            tokens,
            besides=self._besides(job.tenant, request),
            hides=hidden_item_types(request),
            prompt=prompt_ids(job),
        )
        entry = LogSink(
            journal,
            self._store.runs,
            claim,
            recorder.sampled,
            conversation=request.conversation.id if request.conversation else None,
            expires_at=self.expiry(stored.response),
            letter=self.letter,
        )
        work = replace(self._work(reply, stored.input, _nothing), parent=parent, keepalive_s=0)
        return Ready(Run(writer, work, self._unattended, recorder=recorder), entry)

    def expiry(self, response: Response) -> Callable[[], int | None]:
        """When a background response that was not to be stored is forgotten, once it has ended."""
        if response.store:
            return lambda: None
        return lambda: int(self._clock() + self._policy.unstored_s)

    def letter(self, response: Response) -> WebhookEvent | None:
        """What the receiver of webhooks is told of the end, if there is one. Types and form are
        OpenAI's."""
        if not self._policy.webhooks:
            return None
        name, now = self._ids("evt"), self._clock()
        body = {
            "id": name,
            "object": "event",
            "created_at": int(now),
            "type": f"response.{response.status}",
            "data": {"id": response.id},
        }
        return WebhookEvent(name, _encode(body), now)

    async def _resumed(
        self, claim: Claim, request: CreateResponse, tokens: array[int], log: Fold
    ) -> tuple[Reply, PromptTokens | None]:
        job, begun = claim.job, bool(log.items or log.open)
        waiting = self._waiting.pop(job.id, None)
        if waiting is not None and not tokens:
            return waiting.reply, waiting.context.kept
        if claim.attempts > _MOST_ATTEMPTS:
            raise CannotContinue("it was interrupted too often")
        model = self._models.find(job.model)
        resolved = await self._prompts.resolve(request)
        prepared = await self.prepare(
            job.tenant, resolved.request, model, job.id, lead=resolved.lead
        )
        reply = prepared.reply
        if job.prompt or tokens or begun:
            left = resume_point(job, tokens, log)
            reply = reply.resumed(left)
            if begun and not tokens and not interrupted_in_tools(left):
                raise CannotContinue("this model does not tell its tokens")
        return reply, prepared.context.kept

    def _work(
        self, reply: Reply, input: tuple[Item, ...], release: Callable[[], Awaitable[None]]
    ) -> RunSpec:
        return RunSpec(
            reply=reply,
            input=input,
            parent=None,
            save=None,
            clock=self._clock,
            keepalive_s=self._policy.keepalive_s,
            patience_s=self._policy.patience_s,
            timeout_s=self._policy.timeout_s,
            release=release,
            reraise=self._policy.reraise,
        )

    def _saving(
        self, tenant: str, request: CreateResponse
    ) -> Callable[[StoredResponse], Awaitable[None]]:
        """How the response is kept: what failed is no part of a conversation."""
        within = request.conversation.id if request.conversation is not None else None

        def save(stored: StoredResponse) -> Awaitable[None]:
            is_said = stored.response.status in ("completed", "incomplete")
            return self._store.save(tenant, stored, conversation=within if is_said else None)

        return save

    def _besides(self, tenant: str, request: CreateResponse) -> ExtraFields:
        """Thinking is sealed for clients that ask for it, or have nothing but what they are
        given; and what an upstream sealed always, so that it comes back as it went."""
        besides = TenantSealer(self._seal, tenant).besides
        if request.store is not False and _SEALED not in (request.include or ()):
            return lambda item: besides(item) if getattr(item, "encrypted_content", None) else {}
        return besides

    async def _context(
        self,
        tenant: str,
        request: CreateResponse,
        model: CatalogModel,
        recent: SessionChains | None = None,
    ) -> Context:
        return await assemble(
            self._store,
            tenant,
            input=request.input or (),
            instructions=request.instructions,
            previous_response_id=request.previous_response_id,
            conversation_id=request.conversation.id if request.conversation else None,
            recall=partial(
                recall,
                sealed=TenantSealer(self._seal, tenant),
                room=(model.backend.context_size or ASSUMED_CONTEXT_SIZE) // _USERS_SHARE,
                refuse=self._policy.undecryptable_items == "refuse",
            ),
            recent=recent,
            chains=self._chains,
            ids=self._ids,
        )


async def _nothing() -> None:
    """The store gives back what a background run holds, in the step that ends it."""
