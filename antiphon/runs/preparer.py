"""Prepare a request: check it, load its history, and render its prompt.

All checks that can refuse a request happen here, before a run exists.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.backends.base import ASSUMED_CONTEXT_SIZE, Backend, Reply
from antiphon.backends.catalog import CatalogModel
from antiphon.backends.repeating import RepeatingBackend
from antiphon.backends.tracing import TracedAgentReply, TracedBackend
from antiphon.errors import NotFound
from antiphon.inference.conversation import Conversation, Options, PromptTokens
from antiphon.resources.input_items import lacks_call_id
from antiphon.runs.history.chain_cache import ChainCache
from antiphon.runs.history.context import ConversationContext, find_chain, load_context
from antiphon.runs.history.encrypted_items import TenantSealer
from antiphon.runs.history.session_chains import SessionChains
from antiphon.runs.history.visible_history import build_visible_history, is_compaction
from antiphon.runs.replies.compaction import ReplyRequest, prepare_compaction, prepare_reply
from antiphon.runs.replies.moderation import moderated_parts, moderated_reply
from antiphon.runs.replies.prompt_cache import CacheCountingReply, EmptyPromptReply
from antiphon.runs.replies.raw_messages import RawMessagesReply
from antiphon.runs.replies.reasoning_excerpt import ExcerptedReply
from antiphon.runs.replies.reasoning_summary import SummarizedReply, Summarizer, summary_level
from antiphon.runs.request.attachments import Attachments
from antiphon.runs.request.cache_diagnostics import (
    CacheComparison,
    compare_prompts,
    written_share,
)
from antiphon.runs.request.guards import Question
from antiphon.runs.request.initial_response import initial_response
from antiphon.runs.request.mcp_approvals import (
    ApprovedCall,
    claim_approvals,
    find_approved_calls,
    record_approval_requests,
    release_approvals,
    return_approvals,
)
from antiphon.runs.request.mcp_labels import replace_mcp_labels
from antiphon.runs.request.moderators import Moderators
from antiphon.runs.request.omitted_parts import find_omitted_parts, unread_types
from antiphon.runs.request.options import build_options, text_config, with_instructions
from antiphon.runs.request.session_identity import session_identity
from antiphon.runs.request.tool_selection import (
    IgnoredToolLog,
    ToolSelection,
    select_tools,
    tool_types,
)
from antiphon.runs.tool_loop.journal import CallJournal, StoredCallJournal
from antiphon.runs.tool_loop.loop import ToolLoop, ToolLoopSpec
from antiphon.runs.tool_loop.toolsets import check_access, declared_toolsets, with_functions
from antiphon.runs.tool_loop.turn import ToolCall
from antiphon.tools.base import AnyToolProvider, ResponseContext
from antiphon.tracing.base import TraceHeaders
from antiphon.wire.items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
)
from antiphon.wire.request import CreateResponse, InputTokensRequest
from antiphon.wire.request_options import ComparisonNotFound
from antiphon.wire.request_shapes import derive
from antiphon.wire.response import Response, Usage
from antiphon.wire.tools import Custom, Function

from .dependencies import RunDependencies

#: After a compaction, earlier messages of the user may fill this fraction (1/n) of the context.
_USER_SHARE = 4
#: The loaded items of a long conversation have about this many times the tokens of the context.
_PAST_CONTEXTS = 3
#: Types of input items that refer to no earlier items. Only outputs refer to an item: their call.
_SIMPLE_INPUT = (Message, FunctionCallOutput, CustomToolCallOutput)


class PreparedRequest(Struct, frozen=True, kw_only=True):
    """A request that has been checked and whose prompt has been rendered. Nothing has been
    generated yet.

    ``trace``: the trace headers of the span that is the parent of the reply's spans. ``reply``
    reads this dict when it starts a span. ``release_approvals``: lets other responses use the MCP
    approvals of the request, because this response will not be generated.
    """

    request: CreateResponse
    model: CatalogModel
    context: ConversationContext
    reply: Reply
    response: Response
    ignored_tools: tuple[str, ...]
    trace: dict[str, str]
    release_approvals: Callable[[], Awaitable[None]]

    def set_parent_span(self, headers: TraceHeaders) -> None:
        """Make the reply's spans children of the span with these trace headers. Call this method
        before the reply starts."""
        self.trace.clear()
        self.trace.update(headers)


class Preparer:
    """Prepares the requests of one service. ``providers``: the server-side tools by tool type."""

    def __init__(
        self,
        dependencies: RunDependencies,
        attachments: Attachments,
        providers: Mapping[str, AnyToolProvider],
    ) -> None:
        self._store = dependencies.store
        self._models = dependencies.models
        self._policy = dependencies.policy
        self.moderators = Moderators(
            dependencies.models, dependencies.policy.guards, attachments, providers.get("mcp")
        )
        self._seal = dependencies.seal
        self._clock = dependencies.clock
        self._ids = dependencies.ids
        self._cache_scope = dependencies.cache_scope
        self._session = dependencies.session
        self._signal = dependencies.signal
        self._tracer = dependencies.tracer
        self._keys = dependencies.keys
        self._on_tool_call = dependencies.on_tool_call
        self._attachments = attachments
        self._providers = providers
        self.chains = ChainCache(dependencies.store)
        self._ignored_tools = IgnoredToolLog()

    async def prepare(
        self,
        tenant: str,
        request: CreateResponse,
        model: CatalogModel,
        response_id: str,
        session_chains: SessionChains | None = None,
        prompt_items: tuple[Item, ...] = (),
        *,
        api_key: str | None = None,
        claim: bool = True,
        is_durable: bool = False,
    ) -> PreparedRequest:
        """Check a request and render its prompt.

        - ``session_chains``: the chains of responses that this client connection can continue, even
          if the responses are not stored.
        - ``prompt_items``: the items of the stored prompt that the request names.
        - ``api_key``: the name of the request's API key. Tools run only as long as it is valid.
        - ``claim``: whether the response will run the MCP calls that the request approves. If so,
          the store records that these approvals are used, so that no other response runs the calls
          again.
        - ``is_durable``: whether another process can continue the response. If so, the calls of
          tools are journaled.

        Raises ``RequestError`` if the request asks for something that is not possible.
        """
        for max_past_tokens in (_max_past_tokens(request, model), None):
            prepared = await self._prepare(
                tenant,
                request,
                model,
                response_id,
                session_chains,
                prompt_items,
                api_key=api_key,
                claim=claim,
                is_durable=is_durable,
                max_past_tokens=max_past_tokens,
            )
            if not prepared.context.is_partial or prepared.reply.dropped_ids:
                break  # otherwise, the context can hold more
        return prepared

    async def _prepare(
        self,
        tenant: str,
        request: CreateResponse,
        model: CatalogModel,
        response_id: str,
        session_chains: SessionChains | None,
        prompt_items: tuple[Item, ...],
        *,
        api_key: str | None,
        claim: bool,
        is_durable: bool,
        max_past_tokens: int | None,
    ) -> PreparedRequest:
        """Check a request and render its prompt.

        ``max_past_tokens``: the newest items of a stored conversation are loaded until they have
        this many tokens together. If it is None, all items are loaded.

        If older items were not loaded, ``context.is_partial`` of the result is true. There are then
        two cases:

        - The loaded items fit the model's context. The context may hold more items, so the caller
          has to call this method again with ``max_past_tokens=None``.
        - The loaded items are too long for the model's context. So some of them are dropped from
          the prompt, or the request is rejected. A second call is not needed.
        """
        resolved, tools = self._select_tools(request, model)
        self._ignored_tools.report(tools.ignored_tools)
        context = await self._load_context(
            tenant, request, model, session_chains, prompt_items, max_past_tokens=max_past_tokens
        )
        if context.instructions is not None and request.instructions is None:
            request = with_instructions(request, context.instructions)
        if (past_tokens := _past_tokens(request, model, context)) is not None:
            context = replace(context, past_tokens=past_tokens)
        tool_context = _tool_context(request, context, tenant, response_id, api_key)
        await check_access(tools.server_tools, tools.visible_tools, tool_context)
        approved = _approved_calls(context, tool_context.items, tools)
        identity = session_identity(request, context.chain, context.input, response_id)
        options = await self._build_options(resolved, model, tools, tool_context, context, identity)
        trace = dict(options.trace)
        backend = self._attachments.resolving_backend(model.backend, tenant, len(prompt_items))
        reply_request = ReplyRequest(
            context=context,
            backend=self._repeating(self._traced(backend, model), request, tools),
            options=replace(options, trace=trace),
            on_compacted=partial(self._signal, tenant, identity, "superseded"),
        )
        claimed = approved if claim else ()
        journal = self._store.journal
        if spent := await claim_approvals(journal, tenant, response_id, claimed):
            tool_context = replace(tool_context, spent_approvals=spent)
        release = partial(release_approvals, journal, tenant, response_id, claimed)
        try:
            reply = await self._prepare_reply(
                resolved, reply_request, model, tools, tool_context, is_durable=is_durable
            )
        except BaseException:
            await release()
            raise
        reply = self._traced_agent(reply, trace, model, tools, tool_context)
        response = self._initial_response(request, model, response_id, context, tools, reply)
        return PreparedRequest(
            request=request,
            model=model,
            context=context,
            reply=reply,
            response=await self._diagnosed(response, tenant, model, context, reply, session_chains),
            ignored_tools=tuple(each.type for each in tools.ignored_tools),
            trace=trace,
            release_approvals=release,
        )

    async def count(self, tenant: str, request: InputTokensRequest) -> int:
        """Return the number of tokens that the model would see. The prompt is rendered in the same
        way as in ``prepare``. Raises ``RequestError``."""
        as_create = request.as_create()
        model = self._models.find(as_create.model)
        resolved, tools = self._select_tools(as_create, model)
        context = await self._load_context(tenant, resolved, model)
        backend = self._attachments.resolving_backend(model.backend, tenant)
        tool_context = ResponseContext(tenant=tenant, response_id="", items=context.items)
        options = await self._build_options(resolved, model, tools, tool_context, context)
        reply = await backend.prepare(context.conversation, options)
        return reply.input_tokens

    def tool_types(self, request: CreateResponse) -> tuple[str, ...]:
        """Return the types of the request's tools, in order. For a type with several names, such as
        ``web_search`` and ``web_search_preview``, return the current name. For an MCP tool that the
        operator has replaced with a built-in tool, return the type of the built-in tool."""
        return derive(replace_mcp_labels(request, self._policy.mcp_labels), tool_types)

    def _traced(self, backend: Backend, model: CatalogModel) -> Backend:
        return TracedBackend(backend, self._tracer, model.name) if self._tracer.enabled else backend

    def _repeating(
        self, backend: Backend, request: CreateResponse, tools: ToolSelection
    ) -> Backend:
        is_seen = request.stream or request.background
        return backend if is_seen or tools.server_tools else RepeatingBackend(backend)

    # --- tools -----------------------------------------------------------------------------------

    def _select_tools(
        self, request: CreateResponse, model: CatalogModel
    ) -> tuple[CreateResponse, ToolSelection]:
        """Replace MCP tools with built-in tools, as the operator has configured. Return the changed
        request, and its tools grouped by who runs them. Raises ``InvalidRequest``, also for an
        unknown moderator."""
        if request.moderation is not None:
            self.moderators.find(request.moderation.model, "moderation.model")
        policy, upstream = self._policy, model.backend.capabilities.hosted_tools
        resolved = replace_mcp_labels(request, policy.mcp_labels)
        return resolved, select_tools(resolved, policy.unavailable_tools, self._providers, upstream)

    async def _build_options(
        self,
        request: CreateResponse,
        model: CatalogModel,
        tools: ToolSelection,
        tool_context: ResponseContext,
        context: ConversationContext,
        identity: str | None = None,
    ) -> Options:
        """Build the options for the first model call, with the functions that the server-side tools
        declare, and with the settings that items of the conversation have changed. ``identity``: a
        string that identifies the conversation; None if no answer will be generated."""
        toolsets = await declared_toolsets(tools, tool_context)
        tenant = tool_context.tenant
        session = None
        if identity is not None:
            talk, id = request.conversation, tool_context.response_id
            owner = None if request.store is False else id if talk is None else talk.id
            session = self._session(tenant, identity, owner=owner)
        scope = self._cache_scope(tenant, request)
        options = context.visible.configuration.apply(
            build_options(request, scope, tenant=tenant, session=session), model.thinking_budgets
        )
        return with_functions(options, tools, toolsets, tool_context.items)

    def _traced_agent(
        self,
        reply: Reply,
        trace: dict[str, str],
        model: CatalogModel,
        tools: ToolSelection,
        context: ResponseContext,
    ) -> Reply:
        if not self._tracer.enabled or not tools.needs_loop(context.items):
            return reply
        return TracedAgentReply(reply, self._tracer, trace, model.name, context.conversation_id)

    # --- the reply -------------------------------------------------------------------------------

    async def _prepare_reply(
        self,
        request: CreateResponse,
        reply_request: ReplyRequest,
        model: CatalogModel,
        tools: ToolSelection,
        tool_context: ResponseContext,
        *,
        is_durable: bool,
    ) -> Reply:
        """Prepare the reply. Wrap it in the tool loop, compaction, reasoning summaries and raw
        messages, as the request needs them. Raises ``RequestError``."""
        if request.only_prewarms and not (request.instructions or reply_request.context.items):
            return EmptyPromptReply()
        sealer = TenantSealer(self._seal, tool_context.tenant)
        if reply_request.context.visible.compaction_requested:
            return await prepare_compaction(reply_request, sealer, request.context_management or ())
        turn_usages = reply_request.turn_usages
        if tools.needs_loop(tool_context.items):
            wrap = self._tool_loop_factory(
                request, reply_request, tools, tool_context, turn_usages, is_durable=is_durable
            )
            reply_request = replace(reply_request, wrap=wrap)
        reply = await prepare_reply(reply_request, sealer, request.context_management or ())
        level = None if request.include_reasoning is False else summary_level(request.reasoning)
        if level is not None and self._policy.reasoning_summaries == "excerpt":
            waits = model.backend.capabilities.summarizes_reasoning
            reply = ExcerptedReply(reply, level, waits=waits)
        elif level is not None:
            tenant = tool_context.tenant
            scope = self._cache_scope(tenant, request)
            reply = SummarizedReply(reply, self._summarizer(model, level, scope, tenant))
        with_metrics = bool(request.return_metrics)
        if request.enable_response_messages or with_metrics:
            reply = RawMessagesReply(
                reply,
                model.backend,
                with_messages=bool(request.enable_response_messages),
                with_metrics=with_metrics,
                clock=self._clock,
                turn_usages=turn_usages,
                items=reply_request.context.visible.items,
            )
        if (moderation := request.moderation) is not None:
            question = Question(
                parts=moderated_parts(reply_request.context.input),
                tenant=tool_context.tenant,
                cache_scope=self._cache_scope(tool_context.tenant, request),
            )
            moderator = self.moderators.find(moderation.model, "moderation.model")
            reply = await moderated_reply(reply, moderation, moderator, question)
        share = written_share(request, tool_context.items, reply_request.context.encoded)
        return CacheCountingReply(reply, share) if share and reply.reports_tokens else reply

    def _tool_loop_factory(
        self,
        request: CreateResponse,
        reply_request: ReplyRequest,
        tools: ToolSelection,
        tool_context: ResponseContext,
        turn_usages: list[Usage],
        *,
        is_durable: bool,
    ) -> Callable[[Reply, Conversation], Reply]:
        """Return a function that wraps a reply in the tool loop. ``turn_usages``: a list to which
        the usage of each turn is appended."""
        tenant, response_id = tool_context.tenant, tool_context.response_id
        spec = ToolLoopSpec(
            conversation=reply_request.context.conversation,
            options=reply_request.options,
            tools=tools,
            include=tool_context.include,
            spent_approvals=tool_context.spent_approvals,
            conversation_id=tool_context.conversation_id,
            prepare=reply_request.backend.prepare,
            limits=replace(self._policy.tool_limits, max_calls=request.max_tool_calls),
            ids=self._ids,
            tenant=tenant,
            response_id=response_id,
            context_size=reply_request.backend.context_size,
            tracer=self._tracer,
            on_tool_call=self._on_tool_call,
            check_access=(
                # A background run is cancelled when its tenant is deleted.
                partial(self._keys.check, tenant, tool_context.api_key)
                if is_durable
                else self._keys.access(tenant, tool_context.api_key)
            ),
            journal=self._call_journal(tenant, response_id) if is_durable else CallJournal(),
            on_interruption=request.interrupted_tools or "tell",
            on_calls=partial(self._record_approval_requests, tenant, response_id),
            on_unused=partial(return_approvals, self._store.journal, tenant, response_id),
        )

        def wrap(reply: Reply, conversation: Conversation) -> Reply:
            return ToolLoop(reply, replace(spec, conversation=conversation), turn_usages)

        return wrap

    def _call_journal(self, tenant: str, response_id: str) -> CallJournal:
        return StoredCallJournal(
            self._store.journal,
            tenant,
            response_id,
            attempt=secrets.token_hex(8),
            clock=self._clock,
        )

    async def _record_approval_requests(
        self, tenant: str, response_id: str, calls: Sequence[ToolCall]
    ) -> None:
        journal, now = self._store.journal, int(self._clock())
        await record_approval_requests(journal, tenant, response_id, calls, now=now)

    def _summarizer(
        self, model: CatalogModel, level: str, cache_scope: str | None, tenant: str
    ) -> Summarizer:
        name = self._policy.summary_model
        summary_model = self._models.find(name) if name is not None else model
        return Summarizer(
            backend=summary_model.backend,
            level=level,
            defaults=summary_model.defaults,
            cache_scope=cache_scope,
            tenant=tenant,
        )

    # --- the response and its history ------------------------------------------------------------

    def _initial_response(
        self,
        request: CreateResponse,
        model: CatalogModel,
        response_id: str,
        context: ConversationContext,
        tools: ToolSelection,
        reply: Reply,
    ) -> Response:
        """Return the response in its state before anything is generated."""
        response = initial_response(
            request,
            id=response_id,
            model=request.model or model.name,
            created_at=int(self._clock()),
            backend=model.backend,
        )
        if transformations := context.visible.input_transformations:
            response = replace(response, input_transformations=transformations)
        if tools.ignored_tools:
            response = replace(response, ignored_tools=tools.ignored_tools)
        unread = unread_types(self._attachments.capabilities(model.backend))
        if unread and (omitted := find_omitted_parts(context.conversation, unread)):
            response = replace(response, omitted_parts=omitted)
        if context.prompt_items:
            text = request.instructions
            instructions = Message(
                id=self._ids("msg"), role="developer", content=(InputText(text=text or ""),)
            )
            items = (instructions, *context.prompt_items) if text else context.prompt_items
            response = replace(response, instructions=items)
        fields = reply.initial_fields()
        return replace(response, **fields) if fields else response

    async def _diagnosed(
        self,
        response: Response,
        tenant: str,
        model: CatalogModel,
        context: ConversationContext,
        reply: Reply,
        session_chains: SessionChains | None,
    ) -> Response:
        """Return the response with its cache diagnostics, if the request asks for them: a
        comparison of the prompt with that of an earlier response."""
        earlier = response.prompt_cache_options.comparison_response_id
        if earlier is UNSET:
            return response
        chain = await find_chain(self.chains, tenant, earlier, session_chains)
        if chain is None:
            return replace(response, prompt_cache_diagnostics=ComparisonNotFound())
        comparison = CacheComparison(
            chain=chain.responses,
            tokens=chain.tokens,
            same_model=self._is_model(chain.responses[-1].response.model, model),
        )
        diagnostics = compare_prompts(comparison, response, context, reply.prompt_tokens)
        return replace(response, prompt_cache_diagnostics=diagnostics)

    def _is_model(self, name: str, model: CatalogModel) -> bool:
        """Whether ``name`` is a name of ``model``, perhaps an alias."""
        try:
            return self._models.find(name).name == model.name
        except NotFound:
            return False

    async def _load_context(
        self,
        tenant: str,
        request: CreateResponse,
        model: CatalogModel,
        session_chains: SessionChains | None = None,
        prompt_items: tuple[Item, ...] = (),
        *,
        max_past_tokens: int | None = None,
    ) -> ConversationContext:
        """Load the conversation that the request continues. Raises ``RequestError``."""
        context_size = model.backend.context_size or ASSUMED_CONTEXT_SIZE
        context = await load_context(
            self._store,
            tenant,
            input=request.input or (),
            prompt_items=prompt_items,
            instructions=request.instructions,
            previous_response_id=request.previous_response_id,
            client_tokens=_client_tokens(request),
            conversation_id=request.conversation.id if request.conversation else None,
            max_past_tokens=max_past_tokens,
            build_visible=partial(
                build_visible_history,
                sealer=TenantSealer(self._seal, tenant),
                user_token_budget=context_size // _USER_SHARE,
                refuse=self._policy.undecryptable_items == "refuse",
            ),
            session_chains=session_chains,
            chains=self.chains,
            ids=self._ids,
        )
        default = _default_instructions(request, model, context)
        return context if default is None else replace(context, instructions=default)


def _default_instructions(
    request: CreateResponse, model: CatalogModel, context: ConversationContext
) -> str | None:
    """Return the default system prompt of the model. Return None if it has none, or if the request
    or its conversation contains instructions."""
    if model.instructions is None or request.instructions is not None:
        return None
    is_instructed = request.previous_input_messages or any(map(_is_system, context.items))
    return None if is_instructed else model.instructions


def _is_system(item: Item) -> bool:
    return item.is_message and item.role in ("system", "developer")


def _client_tokens(request: CreateResponse) -> PromptTokens | None:
    """Return the token ids in the request's field ``previous_input_messages``, with the fingerprint
    of their tokenizer. Returns None if the request lacks this field, or if the field contains no
    fingerprint."""
    previous = request.previous_input_messages
    if previous is None or previous.tokenizer is None:
        return None
    return PromptTokens(ids=previous.token_ids, fingerprint=previous.tokenizer)


def _max_past_tokens(request: CreateResponse, model: CatalogModel) -> int | None:
    """Return how many tokens of a stored conversation have to be loaded. The number is larger than
    the model's context, because token counts are estimates.

    Returns None if the request continues no stored conversation, and if all items have to be
    loaded. They have to be if at least one of these conditions is true:

    - The request has hosted tools.
    - The request asks for compaction.
    - The input of the request may refer to earlier items.
    - Only the upstream knows the size of the model's context.
    """
    size = model.backend.context_size
    is_simple = (
        request.conversation is not None
        and size is not None
        and not request.context_management
        and derive(request, _has_plain_tools)
        and all(map(_is_simple, request.input or ()))
    )
    return _PAST_CONTEXTS * size if is_simple and size is not None else None


def _is_simple(item: Item) -> bool:
    return isinstance(item, _SIMPLE_INPUT) and not lacks_call_id(item)


def _has_plain_tools(request: CreateResponse) -> bool:
    return all(isinstance(tool, Function | Custom) for tool in request.tools)


def _past_tokens(
    request: CreateResponse, model: CatalogModel, context: ConversationContext
) -> int | None:
    """Return how many tokens the model counted for the chain that the request continues. Returns
    None if the request changes what else the prompt contains, if the last prompt was perhaps
    truncated, or if items were compacted since then."""
    last = context.chain[-1].response if context.chain else None
    if (
        last is None
        or last.usage is None
        or last.status != "completed"
        or last.truncation != "disabled"
        or last.model != (request.model or model.name)
        or last.instructions != request.instructions
        or last.tools != request.tools
        or last.text != text_config(request)
        or context.prompt_items
        or any(map(is_compaction, context.input))
    ):
        return None
    return last.usage.total_tokens


def _tool_context(
    request: CreateResponse,
    context: ConversationContext,
    tenant: str,
    response_id: str,
    api_key: str | None,
) -> ResponseContext:
    """Return what tools need to know about a request."""
    return ResponseContext(
        tenant=tenant,
        response_id=response_id,
        items=context.items,
        api_key=api_key,
        include=frozenset(request.include or ()),
        conversation_id=_conversation_id(request, context),
    )


def _conversation_id(request: CreateResponse, context: ConversationContext) -> str:
    """Return an id of the conversation that a request continues: the id of the stored conversation,
    or the id of the first response of the chain. Returns an empty string if the request starts a
    new conversation."""
    if request.conversation is not None:
        return request.conversation.id
    return context.chain[0].response.id if context.chain else ""


def _approved_calls(
    context: ConversationContext, items: Sequence[Item], tools: ToolSelection
) -> tuple[ApprovedCall, ...]:
    """Return the approved calls that have to run. If the request asks for a compaction, no calls
    run. ``items``: the items that the model sees. Raises ``InvalidRequest``."""
    if context.visible.compaction_requested:
        return ()
    runnable = (*(each.tool for each in tools.server_tools), *tools.visible_tools)
    return find_approved_calls(items, context.input, runnable)
