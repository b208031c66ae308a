"""What an interruption leaves of tools that ran: they are not run again, but failed. It knows no
model.
"""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.conversation import ResumePoint, caller_program_id, open_programs
from antiphon.stream.deltas import Close, Delta
from antiphon.stream.kinds import KINDS, error_fields
from antiphon.wire import items as it
from antiphon.wire.response import Usage

__all__ = ["calls_of", "fail_open_items", "interrupted_in_tools", "turns_of"]

_INTERRUPTED = "The server was interrupted while this ran. It may or may not have been done."


def calls_of(begun: ResumePoint) -> int:
    """Calls of tools that run here."""
    return sum(KINDS[type(item)].counts_as_call for item in (*begun.items, *begun.open_items))


def turns_of(begun: ResumePoint) -> list[Usage]:
    """What each turn used that was over."""
    over = begun.turns if interrupted_in_tools(begun) else begun.turns[:-1]
    return [
        Usage(input_tokens=read, output_tokens=said, total_tokens=read + said)
        for read, said in over
    ]


def interrupted_in_tools(begun: ResumePoint) -> bool:
    """Interrupted while tools ran, or before the model heard of it."""
    last = begun.open_items or begun.items[-1:]
    if any(KINDS[type(item)].runs_here or caller_program_id(item) is not None for item in last):
        return True
    return bool(open_programs(begun.items))


def fail_open_items(begun: ResumePoint) -> tuple[tuple[Delta, ...], tuple[it.Item, ...]]:
    """How the items that were open end, and what the conversation has of them."""
    out: list[Delta] = []
    items: list[it.Item] = []
    for item in begun.open_items:
        told = error_fields(item, _INTERRUPTED)
        status = "failed" if KINDS[type(item)].can_fail else "incomplete"
        out.append(Close(told, item.id, status))
        if "status" in item.__struct_fields__:
            told = {**told, "status": status}
        items.append(replace(item, **told))
    return tuple(out), tuple(items)
