"""The grammar: it and the table of kinds are two truths, compared here; and it catches lies."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from antiphon.errors import GrammarError
from antiphon.stream.event_grammar import (
    ANYWHERE,
    ITEM,
    PLAIN_ITEM,
    RESPONSE,
    SOURCES,
    Machine,
    check,
)
from antiphon.stream.kinds import KINDS, OPEN_RESPONSES_KINDS
from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.response import Usage
from tests.stream.test_writer import answer, begun

MACHINES: dict[str, Machine] = {"response": RESPONSE, "": PLAIN_ITEM, **ITEM}

#: Events of the wire that no run of ours can bring into a stream.
ELSEWHERE = {
    "audio.delta",
    "audio.done",
    "audio.transcript.delta",
    "audio.transcript.done",
    "steer.accepted",
    "steer.pending",
    "steer.failed",
}


def bare(event: type[ev.Event]) -> str:
    return str(event.__struct_config__.tag).removeprefix("response.")


def test_every_event_of_the_wire_has_an_edge() -> None:
    named = {name.partition("/")[0] for machine in MACHINES.values() for _, name in machine}
    known = {bare(event) for event in ev.EVENTS.values()}
    assert named | set(ANYWHERE) | ELSEWHERE == known


def test_every_edge_names_a_source_we_cite() -> None:
    edges = [edge for machine in MACHINES.values() for edge in machine.values()]
    assert {edge.source for edge in edges} <= set(SOURCES)


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_every_state_can_be_reached_and_left(name: str) -> None:
    machine = MACHINES[name]
    start, end = ("start", "ended") if name == "response" else ("open", "closed")
    reached = {start} | {edge.to for edge in machine.values()}
    left = {state for state, _ in machine}
    assert left <= reached
    assert reached - {end} <= left


def test_kinds_and_grammar_agree_on_the_events_of_each_item() -> None:
    for table in (KINDS, OPEN_RESPONSES_KINDS):
        for item, kind in table.items():
            made = {bare(event) for event in kind.progress.values()}
            for stem in kind.channels.values():
                made |= {bare(stem.delta), bare(stem.done)}
                for event in (stem.part_added, stem.part_done):
                    made |= {bare(event)} if event is not None else set()
            tag = str(item.__struct_config__.tag)
            legal = {name.partition("/")[0] for _, name in ITEM.get(tag, PLAIN_ITEM)}
            assert made <= legal, tag


def story() -> list[ev.Event]:
    writer = begun()
    item = writer.open(answer())
    item.write("one")
    item.write("two")
    item.close()
    call = writer.open(it.FunctionCall(call_id="", name="f", arguments=""))
    call.write("{}")
    call.close()
    writer.finalize("completed", at=1, usage=Usage())
    writer.emit_terminal()
    return list(writer.take())


def test_a_true_story_passes_and_so_does_any_prefix() -> None:
    events = story()
    for length in range(len(events) + 1):
        check(events[:length])


def test_a_missing_event_is_noticed_wherever_it_is_missing() -> None:
    events = story()
    for missing in range(len(events) - 1):
        cut = events[:missing] + events[missing + 1 :]
        renumbered = [replace(event, sequence_number=n) for n, event in enumerate(cut)]
        if isinstance(events[missing], ev.OutputTextDelta | ev.FunctionCallArgumentsDelta):
            check(renumbered)  # deltas are previews; the fold notices
        else:
            with pytest.raises(GrammarError):
                check(renumbered)


def test_a_doubled_event_is_noticed() -> None:
    events = story()
    for doubled in range(len(events)):
        copy = events[: doubled + 1] + events[doubled:]
        renumbered = [replace(event, sequence_number=n) for n, event in enumerate(copy)]
        if isinstance(events[doubled], ev.OutputTextDelta | ev.FunctionCallArgumentsDelta):
            continue
        with pytest.raises(GrammarError):
            check(renumbered)


OTHER = it.FunctionCall(id="fc_9", call_id="x", name="f", arguments="")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (ev.OutputTextDelta, {"content_index": 1}),
        (ev.OutputTextDelta, {"item_id": "msg_other"}),
        (ev.OutputTextDelta, {"output_index": 1}),
        (ev.OutputTextDone, {"content_index": 1}),
        (ev.OutputItemAdded, {"output_index": 5}),
        (
            ev.OutputItemDone,
            {"item": it.FunctionCall(id="fc_9", call_id="x", name="f", arguments="")},
        ),
        (ev.Created, {"sequence_number": 4}),
    ],
)
def test_a_lie_about_a_position_or_an_id_is_noticed(
    kind: type[ev.Event], change: dict[str, object]
) -> None:
    events = story()
    at = next(n for n, event in enumerate(events) if type(event) is kind)
    events[at] = replace(events[at], **change)
    with pytest.raises(GrammarError):
        check(events)


def test_the_terminal_response_must_hold_every_item() -> None:
    events = story()
    final = events[-1]
    assert isinstance(final, ev.Completed)
    events[-1] = replace(final, response=replace(final.response, output=()))
    with pytest.raises(GrammarError):
        check(events)


def test_a_keepalive_may_come_anywhere_between_created_and_the_end() -> None:
    writer = begun()
    writer.keepalive()
    item = writer.open(answer())
    writer.keepalive()
    item.write("x")
    writer.keepalive()
    item.close()
    check(writer.take())
    with pytest.raises(GrammarError):
        check([ev.Keepalive(sequence_number=0)])
