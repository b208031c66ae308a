"""Truncation: the oldest items of a conversation are left out until the rest fits.

A call and its output go together, and what a turn thought goes with what it did. System and
developer messages, declared tools and the last user message stay. It knows no tokens: the caller
says what fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from antiphon.conversation import Conversation
from antiphon.wire import items as it

__all__ = ["droppable_groups", "shorten_conversation"]

_Form = TypeVar("_Form")


def shorten_conversation(
    conversation: Conversation, form: Callable[[Conversation], _Form], fits: Callable[[_Form], bool]
) -> tuple[_Form, tuple[str, ...]] | None:
    """The form of the conversation with as few items left out as fit, and the ids of those; None
    if even the shortest does not fit. ``form`` is called a logarithmic number of times."""
    groups = droppable_groups(conversation.items)
    best: tuple[_Form, tuple[str, ...]] | None = None
    low, high = 1, len(groups)
    while low <= high:
        count = (low + high) // 2
        out = {index for group in groups[:count] for index in group}
        rest = tuple(item for index, item in enumerate(conversation.items) if index not in out)
        formed = form(replace(conversation, items=rest))
        if fits(formed):
            best = formed, tuple(conversation.items[index].id for index in sorted(out))
            high = count - 1
        else:
            low = count + 1
    return best


def droppable_groups(items: Sequence[it.Item]) -> list[list[int]]:
    """Positions that may be left out, in groups that go together, oldest first."""
    last_user = max((n for n, item in enumerate(items) if _is_user(item)), default=len(items))
    groups: list[list[int]] = []
    of_call: dict[str, list[int]] = {}
    thoughts: list[int] = []
    for index, item in enumerate(items):
        if _stays(item) or index == last_user:
            continue
        call_id = getattr(item, "call_id", None)
        if isinstance(item, it.Reasoning):
            thoughts.append(index)
        elif call_id and call_id in of_call:
            of_call[call_id].append(index)
        else:
            group = [*thoughts, index]
            thoughts = []
            groups.append(group)
            if call_id:
                of_call[call_id] = group
    return groups


def _is_user(item: it.Item) -> bool:
    return isinstance(item, it.Message) and item.role == "user"


def _stays(item: it.Item) -> bool:
    return isinstance(item, it.AdditionalTools) or (
        isinstance(item, it.Message) and item.role in ("system", "developer")
    )
