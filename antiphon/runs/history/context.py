"""From a request and the store to the conversation the model will see.

A chain restores the inputs and outputs of every ancestor, oldest first: never instructions, tools
or settings, which belong to the request that brought them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from msgspec import Struct

from antiphon.conversation import Conversation, PromptTokens
from antiphon.errors import InvalidRequest
from antiphon.input_items import check_call_outputs, resolve_items
from antiphon.store.base import Store
from antiphon.store.records import StoredResponse
from antiphon.stream.writer import Ids
from antiphon.wire import items as it

from .chain_cache import ChainCache
from .session_chains import SessionChains
from .visible_history import VisibleHistory

__all__ = ["ConversationContext", "Recall", "chain_items", "load_context"]


class ConversationContext(Struct, frozen=True, kw_only=True):
    """What a request is asked in. ``input``: the part of it this request brought, ids given and
    references resolved; ``recalled``: what of it all the model is shown."""

    visible: VisibleHistory
    input: tuple[it.Item, ...]
    instructions: str | None = None
    prompt_tokens: PromptTokens | None = None
    #: The responses it continues, oldest first.
    chain: tuple[StoredResponse, ...] = ()
    #: What a stored prompt says before all else, in this request only.
    prompt_items: tuple[it.Item, ...] = ()

    @property
    def conversation(self) -> Conversation:
        """What the model is shown. Errors name the places of the request's own items, which are
        the last ones."""
        items = (*self.prompt_items, *self.visible.items)
        own = sum(not isinstance(item, it.CompactionTrigger) for item in self.input)
        return Conversation(
            items=items,
            instructions=self.instructions,
            stored_tokens=self.prompt_tokens,
            past_count=len(items) - own,
        )


#: What the model is shown of the past and of the request's own items.
Recall = Callable[[tuple[it.Item, ...], tuple[it.Item, ...]], VisibleHistory]


async def load_context(
    store: Store,
    tenant: str,
    *,
    input: tuple[it.Item, ...],
    instructions: str | None,
    previous_response_id: str | None,
    conversation_id: str | None = None,
    build_visible: Recall,
    session_chains: SessionChains | None = None,
    chains: ChainCache,
    ids: Ids,
) -> ConversationContext:
    """The past is a chain of responses, stored or ``recent``, or a conversation, never both.

    Raises ``InvalidRequest`` for an unknown or unfinished previous response, for outputs without
    their call and calls without their output, and ``NotFound`` for an item that is not stored."""
    chain: tuple[StoredResponse, ...] = ()
    if previous_response_id is not None:
        chain = session_chains.get(previous_response_id) or () if session_chains is not None else ()
        chain = chain or await _chain(chains, tenant, previous_response_id)
    past = chain_items(chain)
    if conversation_id is not None:
        past = await store.load_conversation_items(tenant, conversation_id)
    own = await resolve_items(input, store, tenant, ids, past)
    recalled = build_visible(past, own)
    check_call_outputs(recalled.items, waiting=recalled.compaction_requested)
    compacted = any(isinstance(item, it.Compaction) for item in own)
    return ConversationContext(
        visible=recalled,
        input=own,
        instructions=instructions,
        prompt_tokens=None if compacted else _kept(chain),  # those are of what was compacted
        chain=chain,
    )


async def _chain(chains: ChainCache, tenant: str, response_id: str) -> tuple[StoredResponse, ...]:
    chain = await chains.get(tenant, response_id)
    if chain is None:
        raise _no_previous(response_id)
    if not chain[-1].response.store:  # kept for a while, because it was made in the background
        raise _no_previous(response_id)
    status = chain[-1].response.status
    if status not in ("completed", "incomplete"):
        raise InvalidRequest(
            f"Previous response with id '{response_id}' is {status}: "
            "only a completed or incomplete response can be continued.",
            param="previous_response_id",
        )
    return chain


def _no_previous(response_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"Previous response with id '{response_id}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def chain_items(chain: Iterable[StoredResponse]) -> tuple[it.Item, ...]:
    """Every input and output item of a chain, oldest first."""
    return tuple(item for stored in chain for item in (*stored.input, *stored.response.output))


def _kept(chain: tuple[StoredResponse, ...]) -> PromptTokens | None:
    """The token ids the model last saw and wrote, rebuilt from what each turn added."""
    ids = array("I")
    fingerprint: str | None = None
    for stored in chain:
        tokens = stored.tokens
        if tokens is None:
            fingerprint = None
            continue
        if tokens.fingerprint != fingerprint and tokens.base:
            return None
        del ids[tokens.base :]
        ids.frombytes(tokens.ids)
        fingerprint = tokens.fingerprint
    return (
        PromptTokens(ids=tuple(ids), fingerprint=fingerprint) if fingerprint is not None else None
    )
