"""Truncation: drop the oldest items of a conversation until the conversation fits the context.

A tool call and its output are dropped together. A reasoning item and the item after it are dropped
together too. Truncation never drops system messages, developer messages, items that declare tools,
or the last user message. The caller passes a function that decides whether the shortened
conversation fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from antiphon.inference.conversation import Conversation
from antiphon.wire import items as it

_Rendered = TypeVar("_Rendered")


def shorten_conversation(
    conversation: Conversation,
    render: Callable[[Conversation], _Rendered | None],
    fits: Callable[[_Rendered], bool],
) -> tuple[_Rendered, tuple[str, ...]] | None:
    """Drop the oldest items until the rendered conversation fits. Drop as few items as possible.

    ``render``: renders a conversation; None if it is much too long. ``fits``: says whether a
    rendered conversation fits.

    Returns the rendered shortened conversation, and the ids of the dropped items. Returns None if
    even the shortest conversation does not fit. A binary search keeps the number of calls of
    ``render`` low.
    """
    groups = droppable_groups(conversation.items)
    best: tuple[_Rendered, tuple[str, ...]] | None = None
    low, high = 1, len(groups)
    while low <= high:
        count = (low + high) // 2
        dropped = {index for group in groups[:count] for index in group}
        remaining = tuple(
            item for index, item in enumerate(conversation.items) if index not in dropped
        )
        rendered = render(replace(conversation, items=remaining, past_tokens=None))
        if rendered is not None and fits(rendered):
            best = rendered, tuple(conversation.items[index].id for index in sorted(dropped))
            high = count - 1
        else:
            low = count + 1
    return best


def droppable_groups(items: Sequence[it.Item]) -> list[list[int]]:
    """Return the indexes of the items that may be dropped, in groups, with the oldest group first.
    The items of a group must be dropped together."""
    last_user = max((n for n, item in enumerate(items) if _is_user(item)), default=len(items))
    groups: list[list[int]] = []
    group_of_call: dict[str, list[int]] = {}
    pending_reasoning: list[int] = []
    for index, item in enumerate(items):
        if _is_required(item) or index == last_user:
            continue
        call_id = item.call_id
        if item.is_reasoning:
            pending_reasoning.append(index)
        elif call_id and call_id in group_of_call:
            group_of_call[call_id].append(index)
        else:
            group = [*pending_reasoning, index]
            pending_reasoning = []
            groups.append(group)
            if call_id:
                group_of_call[call_id] = group
    return groups


def _is_user(item: it.Item) -> bool:
    return item.role == "user"


def _is_required(item: it.Item) -> bool:
    return type(item) is it.AdditionalTools or item.role in ("system", "developer")
