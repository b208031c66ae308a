"""The times of a run, as the writer records them and as they are read from its stored events."""

from __future__ import annotations

import itertools

from antiphon.stream.run_timer import LoggedTimes
from antiphon.stream.writer import ResponseWriter
from antiphon.wire import items as it
from antiphon.wire.response import Response, Usage
from antiphon.wire.timeline import ItemTimes, RunTimes, timeline_of


def test_items_and_run_are_timed() -> None:
    numbers, ids, clock = itertools.count(), itertools.count(), itertools.count(10)
    response = Response(id="resp_1", created_at=1, model="m")
    writer = ResponseWriter(
        response,
        ids=lambda prefix: f"{prefix}_{next(ids)}",
        clock=lambda: float(next(clock)),
    )
    writer.create()
    writer.start()
    call = writer.open(it.McpCall(name="roll", server_label="dice", arguments=""))
    message = writer.open(it.Message(role="assistant", content=()))
    call.write("{}")
    for _ in range(50):
        message.write("word ")
    call.seal()
    call.close(output="6")
    message.close()
    response = writer.finalize("completed", at=9, usage=Usage())
    expected = RunTimes(
        created_at=10,
        started_at=11,
        items=(
            ItemTimes(started_at=12, written_at=14, completed_at=15),
            ItemTimes(started_at=13, completed_at=16),
        ),
        completed_at=17,
    )
    assert writer.timer.times == expected
    assert next(clock) == 18, "the clock is not read for each delta"

    log = LoggedTimes()
    for event in writer.take():
        log.feed(event, float(next(numbers)))
    logged = log.times
    assert logged.created_at == 0 and logged.started_at == 1
    first, second = logged.items
    assert first.started_at is not None and first.written_at is not None
    assert first.started_at < first.written_at < (first.completed_at or 0)
    assert second.written_at is None

    timeline = timeline_of(response, expected)
    assert [(each.type, each.started_at) for each in timeline.items] == [
        ("mcp_call", 12),
        ("message", 13),
    ]
    assert timeline_of(response, None).items == ()
