"""Builds the conversation that the model will see, from a request and the store.

Theory. A request can continue an earlier response, which may itself continue another response. Such
a chain is a linked list: each response stores only what it added, i.e. its input, its output and
its sampled token ids, and the id of the response before it. Responses never change, so several
requests can continue the same one, and the parts that they share are stored once. A deleted
response is still part of the chains that continue it.

From the chain, the conversation gets inputs and outputs, oldest first. It does not get
instructions, tools or settings, because these belong to one request. The stored token ids go along
with the items: if the prompt is rendered to the same ids up to a point, the engine can reuse its
cache up to there, which is why sampled ids are stored and not encoded again from the text. The ids
are dropped where the conversation no longer matches them, for example after a compaction.

A conversation object (``/v1/conversations``) is a list of items instead of a chain, of which only
the end is read (``recent_items.py``). In both cases, ``visible_history.py`` then decides which
items the model sees.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import countOf

from msgspec import Struct

from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Conversation, PromptTokens
from antiphon.inference.encoded_items import EncodedItems, select
from antiphon.resources.input_items import (
    belongs_to_call,
    check_call_outputs,
    check_programs,
    resolve_items,
)
from antiphon.store.base import Store
from antiphon.store.records import StoredResponse
from antiphon.stream.writer import Ids
from antiphon.wire import items as it

from .chain_cache import ChainCache, LoadedChain, chain_items, stored_tokens
from .recent_items import PastItems, load_past_items
from .session_chains import SessionChains
from .visible_history import VisibleHistory, is_compaction


class ConversationContext(Struct, frozen=True, kw_only=True):
    """The conversation of a request.

    ``visible``: the items that the model sees. ``input``: the items of this request. Each item
    has an id. A reference to a stored item is replaced by the stored item.
    """

    visible: VisibleHistory
    input: tuple[it.Item, ...]
    instructions: str | None = None
    #: The token ids of the chain, and the token ids that the client sent with raw messages.
    prompt_tokens: PromptTokens | None = None
    client_tokens: PromptTokens | None = None
    #: The responses that the request continues, oldest first.
    chain: tuple[StoredResponse, ...] = ()
    #: Items of a stored prompt. They precede all other items, and only in this request.
    prompt_items: tuple[it.Item, ...] = ()
    #: Whether some older items were not loaded, because the conversation is too long.
    is_partial: bool = False
    #: Number of items at the beginning of ``input`` with which clients have steered the last
    #: response of the chain. They waited for this request.
    queued_count: int = 0
    #: See ``Conversation``.
    past_tokens: int | None = None
    encoded: EncodedItems | None = None

    @property
    def items(self) -> tuple[it.Item, ...]:
        """The items that the model sees: first the earlier items, then the items of the request.

        Error messages depend on this order. An index in ``items`` minus the number of earlier items
        (``Conversation.past_count``) is the index of the item in the request's input.
        """
        return (*self.prompt_items, *self.visible.items)

    @property
    def conversation(self) -> Conversation:
        """The conversation in the form that the backend takes."""
        items = self.items
        triggers = countOf(map(type, self.input), it.CompactionTrigger)
        return Conversation(
            items=items,
            instructions=self.instructions,
            stored_tokens=self.prompt_tokens or self.client_tokens,
            past_count=len(items) - len(self.input) + self.queued_count + triggers,
            past_tokens=self.past_tokens,
            encoded=self.encoded,
        )


#: Builds the visible history from the earlier items and the items of the request.
BuildVisibleHistory = Callable[[tuple[it.Item, ...], tuple[it.Item, ...]], VisibleHistory]


async def load_context(
    store: Store,
    tenant: str,
    *,
    input: tuple[it.Item, ...],
    prompt_items: tuple[it.Item, ...] = (),
    instructions: str | None,
    previous_response_id: str | None,
    client_tokens: PromptTokens | None = None,
    conversation_id: str | None = None,
    max_past_tokens: int | None = None,
    build_visible: BuildVisibleHistory,
    session_chains: SessionChains | None = None,
    chains: ChainCache,
    ids: Ids,
) -> ConversationContext:
    """Load the conversation that a request continues. It is either a stored conversation or a
    chain, i.e. a response and all responses before it. The chain comes from the store or from
    ``session_chains``.

    ``prompt_items``: the items of the stored prompt that the request names. ``client_tokens``: the
    token ids that the client sent with raw messages. ``max_past_tokens``: the newest items of a
    stored conversation are loaded until they have this many tokens; None means that all items are
    loaded.

    Raises ``InvalidRequest`` for an unknown or unfinished previous response, for a tool output
    without its call, and for a tool call without its output. Raises ``NotFound`` for an item that
    is not stored.
    """
    chain = LoadedChain()
    if previous_response_id is not None:
        chain = await _chain(chains, tenant, previous_response_id, session_chains)
    loaded = PastItems(chain_items(chain.responses))
    if conversation_id is not None:
        loaded = await load_past_items(
            store, tenant, conversation_id, max_tokens=max_past_tokens, new_items=input
        )
    past, queued = loaded.items, chain.pending_input
    own_items = await resolve_items(input, store, tenant, ids, past)
    new_items = (*queued, *own_items)
    if not loaded.is_partial:
        check_programs(past, own_items)
    visible = build_visible(past, new_items)
    calls = [visible.items[at] for at in select(visible.items, belongs_to_call, chain.encoded)]
    if calls:
        check_call_outputs(calls, waiting=visible.compaction_requested, own=own_items)
    is_compacted = any(map(is_compaction, new_items))
    return ConversationContext(
        visible=visible,
        input=new_items,
        instructions=instructions,
        # The stored tokens belong to the conversation before the compaction.
        prompt_tokens=None if is_compacted else chain.tokens,
        client_tokens=client_tokens,
        chain=chain.responses,
        encoded=chain.encoded,
        prompt_items=prompt_items,
        is_partial=loaded.is_partial,
        queued_count=len(queued),
    )


async def find_chain(
    chains: ChainCache, tenant: str, response_id: str, session_chains: SessionChains | None = None
) -> LoadedChain | None:
    """Return the chain of responses that ends with this response, from the store or from
    ``session_chains``. Return None if the response cannot be continued."""
    if session_chains is not None and (session := session_chains.get(response_id)):
        return LoadedChain(session, stored_tokens(session))
    chain = await chains.get(tenant, response_id)
    # A background response that is not stored is in the store for a while only.
    return chain if chain is not None and chain.responses[-1].response.store else None


async def _chain(
    chains: ChainCache, tenant: str, response_id: str, session_chains: SessionChains | None
) -> LoadedChain:
    chain = await find_chain(chains, tenant, response_id, session_chains)
    if chain is None:
        raise _previous_not_found(response_id)
    status = chain.responses[-1].response.status
    if status not in ("completed", "incomplete"):
        raise InvalidRequest(
            f"Previous response with id '{response_id}' is {status}: "
            "only a completed or incomplete response can be continued.",
            param="previous_response_id",
        )
    return chain


def _previous_not_found(response_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"Previous response with id '{response_id}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
