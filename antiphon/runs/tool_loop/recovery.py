"""Recovers the tool calls of an interrupted response.

Calls that were running at the interruption are marked as failed. They are not run again.
"""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.inference.conversation import (
    Conversation,
    ResumePoint,
    caller_program_id,
    open_programs,
)
from antiphon.stream.deltas import Close, Delta
from antiphon.stream.kinds import KINDS, error_fields
from antiphon.wire import items as it
from antiphon.wire.response import Usage

__all__ = [
    "conversation_with_found_tools",
    "count_calls",
    "fail_open_items",
    "finished_turn_usages",
    "interrupted_in_tools",
]

_INTERRUPTED = "The server was interrupted while this ran. It may or may not have been done."


def count_calls(point: ResumePoint) -> int:
    """Return the number of server-side calls that the response has made so far."""
    return sum(KINDS[type(item)].counts_as_call for item in (*point.items, *point.open_items))


def finished_turn_usages(point: ResumePoint) -> list[Usage]:
    """Return the usage of each turn that was finished before the interruption."""
    finished = point.turns if interrupted_in_tools(point) else point.turns[:-1]
    return [
        Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            total_tokens=input_tokens + output_tokens,
        )
        for input_tokens, output_tokens in finished
    ]


def conversation_with_found_tools(conversation: Conversation, point: ResumePoint) -> Conversation:
    """Return the request's conversation together with the tool searches that the response has made.
    With it, the output of the model is parsed with the tools that these searches have found."""
    searches = [
        item for item in point.items if isinstance(item, it.ToolSearchCall | it.ToolSearchOutput)
    ]
    if not searches:
        return conversation
    return replace(conversation, items=(*conversation.items, *searches), stored_tokens=None)


def interrupted_in_tools(point: ResumePoint) -> bool:
    """Whether the run was interrupted while tools ran: a turn had started its tools, and the next
    model call had not begun."""
    last = point.open_items or point.items[-1:]
    if any(KINDS[type(item)].runs_here or caller_program_id(item) is not None for item in last):
        return True
    return bool(open_programs(point.items))


def fail_open_items(point: ResumePoint) -> tuple[tuple[Delta, ...], tuple[it.Item, ...]]:
    """Return the deltas that close the open items as failed. Also return these items in their final
    state, for the conversation."""
    deltas: list[Delta] = []
    items: list[it.Item] = []
    for item in point.open_items:
        fields = error_fields(item, _INTERRUPTED)
        status = "failed" if KINDS[type(item)].can_fail else "incomplete"
        deltas.append(Close(fields, item.id, status))
        if "status" in item.__struct_fields__:
            fields = {**fields, "status": status}
        items.append(replace(item, **fields))
    return tuple(deltas), tuple(items)
