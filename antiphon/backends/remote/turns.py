"""Where the items of a long conversation can be encoded part by part.

A backend that sends the whole conversation in every turn encodes each part of it once.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.inference.conversation import caller_program_id
from antiphon.stream.kinds import KINDS
from antiphon.wire import items as it

#: Types of results of calls, and of calls and results that refer to each other by an id alone.
_RESULTS = frozenset(cls for cls, kind in KINDS.items() if kind.answers is not None)
_PAIRED = _RESULTS.union(kind.answers for kind in KINDS.values() if kind.answers is not None)
#: Types of items to which no later item refers.
_COMPLETE = frozenset({it.Reasoning}).union(
    cls
    for cls, kind in KINDS.items()
    if (kind.hidden if kind.call is None else kind.result is not None)
)


def turn_ends(items: Sequence[it.Item], past_count: int) -> list[int]:
    """Return where a conversation can be split into parts whose encoded forms do not depend on
    each other. The items of the request are in the last part.

    A part ends before a message of the user. It also ends after the results of calls, unless an
    item between them and the next message of the user belongs to what precedes the results.
    """
    ends, after_user = list[int](), 0
    open_calls: set[object] = set()
    is_after_result = False
    for index, item in enumerate(items):
        is_user = _is_from_user(item)
        if (is_user or is_after_result) and not open_calls and 0 < index <= past_count:
            ends.append(index)
        is_after_result = type(item) in _RESULTS
        if is_user:
            after_user = len(ends)
        elif type(item) is it.Message:
            if item.role != "assistant":  # it may be joined with the one before it
                del ends[after_user:]
        elif type(item) in _PAIRED and not (item.async_ is True or caller_program_id(item)):
            open_calls ^= {item.call_id}
        elif type(item) is not it.Reasoning or item.encrypted_content:
            # Encrypted reasoning may belong to an answer before the results.
            del ends[after_user:]
            if type(item) not in _COMPLETE:  # an approval, for example
                break
    return ends


def ends_for_good(items: Sequence[it.Item], end: int) -> bool:
    """Return whether a part of a conversation ends at ``end`` whatever follows it. ``end`` is in
    the result of ``turn_ends``, and the rest of the conversation can be split by itself."""
    return _is_from_user(items[end])


def _is_from_user(item: it.Item) -> bool:
    return type(item) is it.Message and item.role == "user"
