"""For which calls a steered response waits."""

from __future__ import annotations

from antiphon.runs.execution.steering import required_input
from antiphon.wire import items as it


def test_calls_that_were_cut_off_wait_for_nothing() -> None:
    cut = (
        it.Program(id="p1", call_id="c1", code="", fingerprint=""),
        it.FunctionCall(call_id="c2", name="f", arguments="{", status="incomplete"),
    )
    open_program = it.Program(id="p2", call_id="c3", code="x", fingerprint="f")
    (stub,) = required_input((*cut, open_program))
    assert stub == {"type": "program_output", "call_id": "c3"}
