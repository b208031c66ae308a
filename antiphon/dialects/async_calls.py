"""How the model is shown asynchronous calls, for all formats of prompts.

Theory. An asynchronous call is a call of a client's function that the model does not wait for. Chat
templates and upstreams know only calls that have one result each, directly after them. So the model
is shown the call with a result that says that the call is pending. If the client sends an output
later, the model is shown the same call again at the place of the output, with this output as its
result. The beginning of the prompt thus stays the same, and its cache can be reused. Without the
pending result and the sentence in the description of the function, models invent results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.stream.kinds import KINDS, output_type
from antiphon.wire import items as it
from antiphon.wire import tools as tl

_Function = TypeVar("_Function", bound=tl.Function | tl.Custom)

_PENDING = (
    "Pending. This runs in the background, and its result will come later. Do not invent the result"
    " and do not call this again for it. Go on, or say that it is still running."
)
_HINT = (
    "This function runs in the background. Its result is pending at first, and comes later as the"
    " result of the same call."
)
_CALLS = frozenset[type[Any]]((it.FunctionCall, it.CustomToolCall))


def shown_tool(tool: _Function) -> _Function:
    """Return a function as the model is shown it. If it is asynchronous, its description says so,
    and the field ``async`` is absent."""
    if tool.async_ is not True:
        return tool
    return replace(tool, async_=UNSET, description=f"{tool.description or ''}\n\n{_HINT}".strip())


def shown_items(items: Sequence[it.Item]) -> Iterator[tuple[int, it.Item]]:
    """Yield the items that the model is shown, each with the index of the item that it comes from.
    They contain no asynchronous call: each is replaced as the module describes.

    Calls that directly follow one another are the calls of one answer of the model, so their
    pending results follow the last of them.
    """
    if _CALLS.isdisjoint(map(type, items)) or not any(item.async_ is True for item in items):
        return enumerate(items)
    return _shown(items)


def _shown(items: Iterable[it.Item]) -> Iterator[tuple[int, it.Item]]:
    calls: dict[str, it.Item] = {}
    pending: list[tuple[int, it.Item]] = []
    numbers = count(1)
    for index, item in enumerate(items):
        if type(item) not in _CALLS:
            yield from pending
            pending = []
        call = calls.get(item.call_id or "")
        if item.async_ is True:
            call = replace(item, async_=UNSET)
            calls[str(item.call_id)] = call
            yield index, call
            pending.append((index, _output(call, _PENDING)))
        elif call is not None and KINDS[type(item)].answers is not None:
            call_id = f"{call.call_id}_{next(numbers)}"
            yield index, replace(call, id="", call_id=call_id)
            yield index, replace(item, call_id=call_id)
        else:
            if type(item) in _CALLS:  # some clients use the same id in every turn
                calls.pop(str(item.call_id), None)
            yield index, item
    yield from pending


def _output(call: it.Item, text: str) -> it.Item:
    return output_type(call)(call_id=str(call.call_id), output=text)
