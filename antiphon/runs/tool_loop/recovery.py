"""Recovers the tool calls of an interrupted response, with the journal.

A call that was done keeps its result. A call that may run again is run again: it only reads, its
tool is idempotent, or the request says so. Every other call that may have been done is reported as
unknown, to the client and to the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from antiphon.inference.conversation import (
    Conversation,
    ResumePoint,
    ToolName,
    caller_program_id,
    open_programs,
)
from antiphon.stream.deltas import Close, Delta, Open
from antiphon.stream.kinds import KINDS, error_fields, output_type
from antiphon.tools.base import ToolFunction
from antiphon.wire import items as it
from antiphon.wire.response import Usage

from .journal import CallJournal, JournaledCall
from .turn import ToolCall

#: What happens to a call that may have been done when the server was interrupted, and that must not
#: run twice. ``tell``: it is reported as unknown. ``fail``: the response fails, too. ``retry``: it
#: runs again.
OnInterruption = Literal["tell", "fail", "retry"]

_UNKNOWN = "unknown: The server was interrupted while this ran. It may or may not have been done."
_NOT_STARTED = "The server was interrupted before this began. It was not done."

#: The calls whose output is a separate item, with the fields of the output of a call that failed.
_EMPTY_OUTPUTS: Mapping[type[it.ItemBase], Mapping[str, Any]] = {
    it.ShellCall: {"output": ()},
    it.ToolSearchCall: {"tools": ()},
    it.Program: {"result": f"The program failed. {_NOT_STARTED}"},
}


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
    model call had not begun. Also, whether the model was writing a call whose item does not contain
    the text so far, such as a program: the model then begins its turn again."""
    if any(_is_call(item) for item in point.open_items):
        return True
    last = () if point.open_items else point.items[-1:]
    # The model goes on after an asynchronous call.
    if any(KINDS[type(item)].runs_here or item.async_ is True or _is_nested(item) for item in last):
        return True
    return bool(open_programs(point.items))


def _is_call(item: it.Item) -> bool:
    return not KINDS[type(item)].written_by_model or _is_nested(item)


def _is_nested(item: it.Item) -> bool:
    return caller_program_id(item) is not None


async def recover_calls(
    point: ResumePoint,
    journal: CallJournal,
    functions: Mapping[ToolName, ToolFunction],
    on_interruption: OnInterruption,
) -> Recovery:
    """Decide what becomes of the open items of an interrupted response. ``functions``: the
    functions of the server-side tools, by name."""
    unanswered = _unanswered_calls(point)
    keys = {item.id: _key(item, point) for item in (*unanswered, *point.open_items)}
    known = await journal.recover([key for key in dict.fromkeys(keys.values()) if key])
    recovery = Recovery(functions, on_interruption)
    for item in point.open_items:
        recovery.recover_open(item, keys[item.id], known.get(keys[item.id]))
    for item in unanswered:
        if (call := known.get(keys[item.id])) is not None and call.intent is not None:
            recovery.answer(item, call.items)
    return recovery


def _key(item: it.Item, point: ResumePoint) -> str:
    """Return the key of a call in the journal: the id of its item. ``item``: the item of the call,
    or of its output. The key is empty if the item is neither."""
    kind = KINDS[type(item)]
    if kind.answers is None:
        return item.id if kind.runs_here or _is_nested(item) else ""
    calls = (each for each in point.items if isinstance(each, kind.answers))
    return next((each.id for each in calls if each.call_id == item.call_id), "")


def _unanswered_calls(point: ResumePoint) -> list[it.Item]:
    """Return the finished items of calls whose output is a separate item that does not exist yet.
    Calls that the client runs are included."""
    answered = {
        item.call_id
        for item in (*point.items, *point.open_items)
        if KINDS[type(item)].answers is not None
    }
    return [
        item
        for item in point.items
        if type(item) in _EMPTY_OUTPUTS and item.call_id not in answered
    ]


class Recovery:
    """What becomes of the items that were open when a response was interrupted.

    - ``deltas``: the deltas that close the items of calls that do not run again.
    - ``items``: these items in their final state, for the conversation.
    - ``calls``: the calls that run again.
    - ``unknown``: the names of calls that may or may not have been done.
    """

    def __init__(
        self, functions: Mapping[ToolName, ToolFunction], on_interruption: OnInterruption
    ) -> None:
        self._functions = functions
        self._on_interruption = on_interruption
        self.deltas: list[Delta] = []
        self.items: list[it.Item] = []
        self.calls: list[ToolCall] = []
        self.unknown: list[str] = []

    def recover_open(self, item: it.Item, key: str, call: JournaledCall | None) -> None:
        """Close an open item, or run its call again."""
        if not key:  # the model was writing it
            self._fail(item, "")
            self._answer_failed(item, _NOT_STARTED)
        elif call is None or call.intent is None:
            self._fail(item, _NOT_STARTED)
            self._answer_failed(item, _NOT_STARTED)
        elif call.items is not None:
            self._restore(item, call.items)
        elif (repeated := self._repeated(item, key, call)) is not None:
            self.calls.append(repeated)
        else:
            self.unknown.append(call.intent.name)
            self._fail(item, _UNKNOWN)
            self._answer_failed(item, _UNKNOWN)

    def answer(self, item: it.Item, items: Sequence[it.Item] | None) -> None:
        """Add the output of a call whose item is complete. ``items``: the items that the call has
        left; None if its result is not known."""
        if items is not None:
            self._add(each for each in items if type(each) is not type(item))
            return
        self.unknown.append(item.type)
        self._answer_failed(item, _UNKNOWN)

    def _repeated(self, item: it.Item, key: str, call: JournaledCall) -> ToolCall | None:
        """Return the call to run again. Returns None if it must not run again, or if its tool no
        longer exists."""
        intent = call.intent
        assert intent is not None
        function = self._functions.get((intent.name, intent.namespace))
        if function is None or function.handler is None:
            return None
        if function.effects == "any" and self._on_interruption != "retry" and not call.note:
            return None
        return ToolCall.resume(function, intent, item, key, call.note)

    def _fail(self, item: it.Item, message: str) -> None:
        status = "failed" if KINDS[type(item)].can_fail else "incomplete"
        self._close(item, error_fields(item, message) if message else {}, status)

    def _restore(self, item: it.Item, items: Sequence[it.Item]) -> None:
        """Give an open item the result of its call. ``items``: the items that the call has left."""
        final = next((each for each in items if type(each) is type(item)), item)
        fields = {
            name: value
            for name in item.__struct_fields__
            if name not in ("id", "status")
            and (value := getattr(final, name)) != getattr(item, name)
        }
        self._close(item, fields, getattr(final, "status", "completed"))
        if KINDS[type(item)].answers is None:
            self._add(each for each in items if type(each) is not type(item))

    def _answer_failed(self, item: it.Item, message: str) -> None:
        """Add an output with an error, if the output of this call is a separate item."""
        if (empty := _EMPTY_OUTPUTS.get(type(item))) is not None:
            output = output_type(item)(call_id=item.call_id, status="incomplete", **empty)
            self._add([replace(output, **error_fields(output, message))])

    def _close(self, item: it.Item, fields: Mapping[str, object], status: str) -> None:
        self.deltas.append(Close(fields, item.id, status))
        if "status" in item.__struct_fields__:
            fields = {**fields, "status": status}
        self.items.append(replace(item, **fields))

    def _add(self, items: Iterable[it.Item]) -> None:
        """Add complete items to the output."""
        for item in items:
            key = f"recovered {len(self.deltas)}"
            status = getattr(item, "status", "completed")
            self.deltas += (Open(item, key), Close({}, key, status))
            self.items.append(item)
