"""The event grammar agrees with ``KINDS``, and the checker detects every kind of wrong stream."""

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
from tests.stream.test_writer import assistant_message, started_writer

MACHINES: dict[str, Machine] = {"response": RESPONSE, "": PLAIN_ITEM, **ITEM}

#: Events of the wire types that no run here emits.
NOT_EMITTED = {
    "audio.delta",
    "audio.done",
    "audio.transcript.delta",
    "audio.transcript.done",
    "steer.accepted",
    "steer.pending",
    "steer.failed",
}


def event_name(event: type[ev.Event]) -> str:
    return str(event.__struct_config__.tag).removeprefix("response.")


def test_every_event_type_has_an_edge() -> None:
    in_grammar = {name.partition("/")[0] for machine in MACHINES.values() for _, name in machine}
    known = {event_name(event) for event in ev.EVENTS.values()}
    assert in_grammar | set(ANYWHERE) | NOT_EMITTED == known


def test_every_edge_names_a_known_source() -> None:
    edges = [edge for machine in MACHINES.values() for edge in machine.values()]
    assert {edge.source for edge in edges} <= set(SOURCES)


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_every_state_can_be_entered_and_left(name: str) -> None:
    machine = MACHINES[name]
    start, end = ("start", "ended") if name == "response" else ("open", "closed")
    reached = {start} | {edge.to for edge in machine.values()}
    left = {state for state, _ in machine}
    assert left <= reached
    assert reached - {end} <= left


def test_kinds_and_grammar_agree_on_the_events_of_each_item() -> None:
    for table in (KINDS, OPEN_RESPONSES_KINDS):
        for cls, kind in table.items():
            emitted = {event_name(event) for event in kind.progress.values()}
            for text_channel in kind.channels.values():
                emitted |= {event_name(text_channel.delta), event_name(text_channel.done)}
                for event in (text_channel.part_added, text_channel.part_done):
                    emitted |= {event_name(event)} if event is not None else set()
            tag = str(cls.__struct_config__.tag)
            legal = {name.partition("/")[0] for _, name in ITEM.get(tag, PLAIN_ITEM)}
            assert emitted <= legal, tag


def valid_stream() -> list[ev.Event]:
    writer = started_writer()
    item = writer.open(assistant_message())
    item.write("one")
    item.write("two")
    item.close()
    call = writer.open(it.FunctionCall(call_id="", name="f", arguments=""))
    call.write("{}")
    call.close()
    writer.finalize("completed", at=1, usage=Usage())
    writer.emit_terminal()
    return list(writer.take())


def test_a_valid_stream_and_every_prefix_pass() -> None:
    events = valid_stream()
    for length in range(len(events) + 1):
        check(events[:length])


def test_a_missing_event_is_detected_at_every_position() -> None:
    events = valid_stream()
    for position in range(len(events) - 1):
        cut = events[:position] + events[position + 1 :]
        renumbered = [replace(event, sequence_number=n) for n, event in enumerate(cut)]
        if isinstance(events[position], ev.OutputTextDelta | ev.FunctionCallArgumentsDelta):
            check(renumbered)  # the done events repeat what deltas say
        else:
            with pytest.raises(GrammarError):
                check(renumbered)


def test_a_repeated_event_is_detected_at_every_position() -> None:
    events = valid_stream()
    for position in range(len(events)):
        copy = events[: position + 1] + events[position:]
        renumbered = [replace(event, sequence_number=n) for n, event in enumerate(copy)]
        if isinstance(events[position], ev.OutputTextDelta | ev.FunctionCallArgumentsDelta):
            continue
        with pytest.raises(GrammarError):
            check(renumbered)


@pytest.mark.parametrize(
    ("event_type", "change"),
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
def test_a_wrong_index_or_id_is_detected(
    event_type: type[ev.Event], change: dict[str, object]
) -> None:
    events = valid_stream()
    at = next(n for n, event in enumerate(events) if type(event) is event_type)
    events[at] = replace(events[at], **change)
    with pytest.raises(GrammarError):
        check(events)


def test_a_terminal_response_without_all_items_is_detected() -> None:
    events = valid_stream()
    final = events[-1]
    assert isinstance(final, ev.Completed)
    events[-1] = replace(final, response=replace(final.response, output=()))
    with pytest.raises(GrammarError):
        check(events)


def test_a_keepalive_is_legal_only_between_created_and_the_end() -> None:
    writer = started_writer()
    writer.keepalive()
    item = writer.open(assistant_message())
    writer.keepalive()
    item.write("x")
    writer.keepalive()
    item.close()
    check(writer.take())
    with pytest.raises(GrammarError):
        check([ev.Keepalive(sequence_number=0)])
