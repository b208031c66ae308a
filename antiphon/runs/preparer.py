"""From a request to a reply that is ready to generate.

Everything that can be refused is refused here, before a run exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import ASSUMED_CONTEXT_SIZE, Reply
from antiphon.backends.catalog import CatalogModel
from antiphon.conversation import Options
from antiphon.runs.history.chain_cache import ChainCache
from antiphon.runs.history.context import ConversationContext, load_context
from antiphon.runs.history.encrypted_items import TenantSealer
from antiphon.runs.history.session_chains import SessionChains
from antiphon.runs.history.visible_history import build_visible_history
from antiphon.runs.replies.compaction import ReplyRequest, prepare_compaction, prepare_reply
from antiphon.runs.replies.raw_messages import RawMessagesReply
from antiphon.runs.replies.reasoning_summary import SummarizedReply, Summarizer, summary_level
from antiphon.runs.request.attachments import Attachments
from antiphon.runs.request.initial_response import initial_response
from antiphon.runs.request.mcp_labels import replace_mcp_labels
from antiphon.runs.request.options import build_options
from antiphon.runs.request.tool_selection import ToolSelection, select_tools
from antiphon.runs.tool_loop.loop import ToolLoop, ToolLoopSpec
from antiphon.runs.tool_loop.toolsets import check_access, declared_toolsets, with_functions
from antiphon.tools.base import ResponseContext, ToolProvider
from antiphon.wire.items import InputText, Item, Message
from antiphon.wire.request import CreateResponse, InputTokensRequest
from antiphon.wire.response import Response

from .dependencies import RunDependencies

__all__ = ["PreparedRequest", "Preparer"]

#: After a compaction, earlier messages of the user may fill this fraction (1/n) of the context.
_USERS_SHARE = 4


class PreparedRequest(Struct, frozen=True, kw_only=True):
    """A request that will be answered: nothing has been generated yet."""

    request: CreateResponse
    model: CatalogModel
    context: ConversationContext
    reply: Reply
    response: Response
    ignored_tools: tuple[str, ...]


class Preparer:
    """Prepares the requests of one service. ``providers``: the server-side tools by tool type."""

    def __init__(
        self,
        dependencies: RunDependencies,
        attachments: Attachments,
        providers: Mapping[str, ToolProvider],
    ) -> None:
        self._store = dependencies.store
        self._models = dependencies.models
        self._policy = dependencies.policy
        self._seal = dependencies.seal
        self._clock = dependencies.clock
        self._ids = dependencies.ids
        self._attachments = attachments
        self._providers = providers
        self._chains = ChainCache(dependencies.store)

    async def prepare(
        self,
        tenant: str,
        request: CreateResponse,
        model: CatalogModel,
        response_id: str,
        session_chains: SessionChains | None = None,
        prompt_items: tuple[Item, ...] = (),
    ) -> PreparedRequest:
        """``lead``: what the request's stored prompt says. Raises ``RequestError`` for whatever
        cannot be honoured."""
        meant, tools = self._select_tools(request, model)
        context = replace(
            await self._context(tenant, request, model, session_chains), prompt_items=prompt_items
        )
        opening = ResponseContext(
            tenant=tenant,
            response_id=response_id,
            items=context.conversation.items,
            include=frozenset(request.include or ()),
        )
        await check_access(tools.server_tools, tools.visible_tools, opening)
        backend = self._attachments.ahead_of(model.backend, tenant, len(prompt_items))
        options = await self._options(meant, tools, opening)
        question = ReplyRequest(context=context, backend=backend, options=options)
        sealed = TenantSealer(self._seal, tenant)
        reply = (
            await prepare_compaction(question, sealed)
            if context.visible.compaction_requested
            else await prepare_reply(question, sealed, request.context_management or ())
        )
        if not context.visible.compaction_requested:
            reply = self._wrapped(reply, meant, question, model, tools, tenant, response_id)
        response = initial_response(
            request,
            id=response_id,
            model=request.model or model.name,
            created_at=int(self._clock()),
            backend=model.backend,
        )
        if removed := context.visible.removed:
            response = replace(response, input_transformations=removed)
        if prompt_items:
            said = request.instructions
            first = Message(
                id=self._ids("msg"), role="developer", content=(InputText(text=said or ""),)
            )
            response = replace(
                response, instructions=(first, *prompt_items) if said else prompt_items
            )
        return PreparedRequest(
            request=request,
            model=model,
            context=context,
            reply=reply,
            response=response,
            ignored_tools=tools.ignored_types,
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
        if tools.search_functions or tools.server_tools:
            reply = tool_loop = ToolLoop(
                reply,
                ToolLoopSpec(
                    conversation=question.context.conversation,
                    options=question.options,
                    tools=tools,
                    include=frozenset(request.include or ()),
                    prepare=question.backend.prepare,
                    limits=replace(self._policy.bounds, calls=request.max_tool_calls),
                    ids=self._ids,
                    tenant=tenant,
                    response_id=response_id,
                    context_size=model.backend.context_size,
                ),
            )
        level = None if request.include_reasoning is False else summary_level(request.reasoning)
        if level is not None:
            reply = SummarizedReply(reply, self._summariser(model, level))
        if request.enable_response_messages or timed:
            reply = RawMessagesReply(
                reply,
                model.backend,
                with_messages=bool(request.enable_response_messages),
                with_metrics=timed,
                clock=self._clock,
                turn_usages=tool_loop.used if tool_loop is not None else [],
            )
        return reply

    def _summariser(self, model: CatalogModel, level: str) -> Summarizer:
        name = self._policy.summary_model
        by = self._models.find(name) if name is not None else model
        return Summarizer(backend=by.backend, level=level, defaults=by.defaults)

    async def count(self, tenant: str, request: InputTokensRequest) -> int:
        """How many tokens the model would see: the same rendering."""
        asked = request.as_create()
        model = self._models.find(asked.model)
        asked, tools = self._select_tools(asked, model)
        context = await self._context(tenant, asked, model)
        backend = self._attachments.ahead_of(model.backend, tenant)
        response = ResponseContext(tenant=tenant, response_id="", items=context.conversation.items)
        options = await self._options(asked, tools, response)
        reply = await backend.prepare(context.conversation, options)
        return reply.input_tokens

    async def _options(
        self, request: CreateResponse, tools: ToolSelection, response: ResponseContext
    ) -> Options:
        """Build the options for the first prompt, with the functions that the server's tools
        declare."""
        toolsets = await declared_toolsets(tools, response)
        return with_functions(build_options(request), tools, toolsets, response.items)

    def _select_tools(
        self, asked: CreateResponse, model: CatalogModel
    ) -> tuple[CreateResponse, ToolSelection]:
        policy, upstream = self._policy, model.backend.capabilities.hosted_tools
        meant = replace_mcp_labels(asked, policy.mcp_labels)
        return meant, select_tools(meant, policy.unavailable_tools, self._providers, upstream)

    async def _context(
        self,
        tenant: str,
        request: CreateResponse,
        model: CatalogModel,
        recent: SessionChains | None = None,
    ) -> ConversationContext:
        return await load_context(
            self._store,
            tenant,
            input=request.input or (),
            instructions=request.instructions,
            previous_response_id=request.previous_response_id,
            conversation_id=request.conversation.id if request.conversation else None,
            build_visible=partial(
                build_visible_history,
                sealer=TenantSealer(self._seal, tenant),
                user_token_budget=(model.backend.context_size or ASSUMED_CONTEXT_SIZE)
                // _USERS_SHARE,
                refuse=self._policy.undecryptable_items == "refuse",
            ),
            session_chains=recent,
            chains=self._chains,
            ids=self._ids,
        )
