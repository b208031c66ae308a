"""Reads the end of a long conversation. Items that the model cannot see are not read, so the cost
of a turn does not grow with the conversation."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from antiphon.inference.conversation import caller_program_id
from antiphon.store.base import Store
from antiphon.store.records import ItemQuery
from antiphon.stream.kinds import KINDS
from antiphon.wire import items as it
from antiphon.wire.tags import tag_of

from .visible_history import estimate_tokens, is_persistent

#: Numbers of items of the first page and of the largest page. Each page is twice as large as the
#: page before it.
_FIRST_PAGE, _LARGEST_PAGE = 64, 1024
#: Types of items that refer to no other items, except that an output refers to its call. Items of
#: other types may refer to any earlier item.
_SIMPLE_ITEMS = (
    it.Message,
    it.FunctionCall,
    it.FunctionCallOutput,
    it.CustomToolCall,
    it.CustomToolCallOutput,
    it.Reasoning,
)
#: Kinds of items that apply to the whole conversation: roles of messages and types of other items.
_PERSISTENT_KINDS = frozenset(
    {"system", "developer"} | {tag_of(each) for each, kind in KINDS.items() if kind.persistent}
)
_MAX_ITEMS = 2**31 - 1


class PastItems(Struct, frozen=True):
    """The earlier items of a conversation, oldest first. ``is_partial``: whether some older items
    were not loaded. Older items that apply to the whole conversation, such as system messages, are
    always loaded."""

    items: tuple[it.Item, ...]
    is_partial: bool = False


async def load_past_items(
    store: Store,
    tenant: str,
    conversation_id: str,
    *,
    max_tokens: int | None,
    new_items: tuple[it.Item, ...] = (),
) -> PastItems:
    """Load the newest items of a conversation, until they have slightly more than ``max_tokens``
    tokens. Token numbers are estimates. If ``max_tokens`` is None, load all items.

    All items are also loaded if a loaded item, or one of ``new_items``, refers to an older item
    that was not loaded.
    """
    if max_tokens is not None:
        recent = await _recent_items(store, tenant, conversation_id, max_tokens)
        if recent is not None and _has_all_calls((*recent.items, *new_items)):
            return recent
    return PastItems(await store.load_conversation_items(tenant, conversation_id))


async def _recent_items(
    store: Store, tenant: str, conversation_id: str, max_tokens: int
) -> PastItems | None:
    """Return the newest items. Together, these items have slightly more than ``max_tokens`` tokens.
    Returns None if these items may depend on older ones, for example because a compaction is among
    them. The caller then loads all items."""
    newest_first: list[it.Item] = []
    tokens, limit = 0, _FIRST_PAGE
    while tokens <= max_tokens or not _has_all_calls(newest_first):
        after = newest_first[-1].id if newest_first else None
        query = ItemQuery(limit=limit, newest_first=True, after=after)
        page = await store.list_conversation_items(tenant, conversation_id, query)
        if page is None or not all(map(_is_simple, page)):
            return None  # the page is None if the last item was removed meanwhile
        newest_first += page
        if len(page) < limit:
            return PastItems(tuple(reversed(newest_first)))
        tokens += sum(map(estimate_tokens, page))
        limit = min(2 * limit, _LARGEST_PAGE)
    query = ItemQuery(limit=_MAX_ITEMS, until=newest_first[-1].id, kinds=_PERSISTENT_KINDS)
    older = await store.list_conversation_items(tenant, conversation_id, query)
    if older is None:
        return None
    persistent = filter(is_persistent, older)
    return PastItems((*persistent, *reversed(newest_first)), is_partial=True)


def _is_simple(item: it.Item) -> bool:
    return isinstance(item, _SIMPLE_ITEMS) and caller_program_id(item) is None


def _has_all_calls(items: Iterable[it.Item]) -> bool:
    """Return whether each tool output among the items has its call among the items, too."""
    calls: set[str] = set()
    outputs: set[str] = set()
    for item in items:
        if call_id := item.call_id:
            (outputs if KINDS[type(item)].answers is not None else calls).add(call_id)
    return outputs <= calls
