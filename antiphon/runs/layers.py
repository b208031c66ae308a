"""What stands around a model's reply: the turns of its tools, summaries of its thinking, and what
is told of it besides. Each is a reply itself; a request gets those it asks for.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import Reply
from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.runs.replies.compaction import ReplyRequest
from antiphon.runs.replies.raw_messages import RawMessagesReply
from antiphon.runs.replies.reasoning_summary import Summariser, SummarizedReply, level
from antiphon.runs.request.options import ToolSelection
from antiphon.runs.tool_loop.loop import ToolLoop, ToolLoopSpec
from antiphon.tools.allowed_callers import by_the_model
from antiphon.wire.request import CreateResponse

from .policy import Policy

__all__ = ["Layers"]


class Layers(Struct, frozen=True, kw_only=True):
    """One a service. ``clock`` gives seconds."""

    models: ModelCatalog
    policy: Policy
    ids: Callable[[str], str]
    clock: Callable[[], float]

    def around(
        self,
        reply: Reply,
        request: CreateResponse,
        question: ReplyRequest,
        model: CatalogModel,
        *,
        tools: ToolSelection,
        tenant: str,
        response_id: str,
    ) -> Reply:
        """The reply with all that the request asks for. Raises ``InvalidRequest``."""
        timed = bool(request.return_metrics)
        turns: ToolLoop | None = None
        if tools.offers or tools.hosted:
            reply = turns = ToolLoop(
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
                    bounds=replace(self.policy.bounds, calls=request.max_tool_calls),
                    ids=self.ids,
                    tenant=tenant,
                    response_id=response_id,
                    context_size=model.backend.context_size,
                ),
            )
        asked = None if request.include_reasoning is False else level(request.reasoning)
        if asked is not None:
            reply = SummarizedReply(reply, self._summariser(model, asked))
        if request.enable_response_messages or timed:
            reply = RawMessagesReply(
                reply,
                model.backend,
                spelled=bool(request.enable_response_messages),
                timed=timed,
                clock=self.clock,
                turns=turns.used if turns is not None else [],
            )
        return reply

    def _summariser(self, model: CatalogModel, asked: str) -> Summariser:
        name = self.policy.summary_model
        by = self.models.find(name) if name is not None else model
        return Summariser(backend=by.backend, level=asked, defaults=by.defaults)
