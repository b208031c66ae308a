"""Run one tool call and return its items as a client sees them. Used by ``tool_check``, the
contract check of tool providers.

The call goes through the same steps as a tool call in a response of the server. The events and
items are then checked.
"""

from __future__ import annotations

import itertools
import time

import msgspec
from msgspec import UNSET

from antiphon.runs.execution.recorder import Recorder
from antiphon.runs.tool_loop.executor import (
    CallBudget,
    CallEnvironment,
    CallRunner,
    CallServices,
    ToolLimits,
)
from antiphon.runs.tool_loop.turn import Turn
from antiphon.stream.deltas import Close, Delta, Finish, Open, Text
from antiphon.stream.event_grammar import check
from antiphon.stream.writer import ResponseWriter
from antiphon.tools.base import ToolFunction
from antiphon.wire import tools as tl
from antiphon.wire.events import Event
from antiphon.wire.items import CustomToolCall, FunctionCall, Item
from antiphon.wire.parsing.items import read_items
from antiphon.wire.response import Response, Usage

__all__ = ["items_of_call"]


async def items_of_call(
    function: ToolFunction, arguments: str, *, tenant: str, max_result_bytes: int
) -> list[Item]:
    """Run a call and return the response items of the call. Raises ``AssertionError`` for items
    that a client cannot send back as input, and ``GrammarError`` for events in an illegal order."""
    numbers = itertools.count(1)

    def ids(prefix: str) -> str:
        return f"{prefix}_{next(numbers)}"

    writer = ResponseWriter(Response(id="resp_check", created_at=1, model="m"), ids=ids)
    writer.create()
    writer.start()
    recorder = Recorder(writer)
    turn = Turn({(function.tool.name, function.namespace): function}, ids)
    for delta in turn.feed((*_call_deltas(function, arguments), Finish("stop", Usage()))):
        recorder.record([delta])
    calls = [call for call in turn.calls if call.function.handler is not None]
    environment = CallEnvironment(
        services=CallServices(
            tenant=tenant,
            response_id="resp_check",
            ids=ids,
            limits=ToolLimits(max_parallel_calls=1),
        ),
        max_result_bytes=max_result_bytes,
        timeout_s=60,
        budget=CallBudget(None),
    )
    async for delta in CallRunner(environment, time.monotonic).run(calls):
        recorder.record([delta])
    response = writer.finalize("completed", at=2, usage=Usage())
    writer.emit_terminal()
    events: tuple[Event, ...] = writer.take()
    check(events)
    encoded = msgspec.json.decode(msgspec.json.encode(response.output))
    assert list(read_items(encoded, "input")) == list(response.output), (
        f"a client cannot send the items back unchanged: {encoded}"
    )
    return list(response.output)


def _call_deltas(function: ToolFunction, arguments: str) -> tuple[Delta, ...]:
    """Return the deltas of a reply in which the model calls ``function`` with ``arguments``."""
    name, namespace = function.tool.name, function.namespace or UNSET
    shell: Item = (
        CustomToolCall(call_id="", name=name, input="", namespace=namespace)
        if isinstance(function.tool, tl.Custom)
        else FunctionCall(call_id="", name=name, arguments="", namespace=namespace)
    )
    return (Open(shell), Text(arguments), Close())
