"""The writer: which events its methods emit, and that no order of calls breaks the grammar."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import GrammarError
from antiphon.stream.event_grammar import check
from antiphon.stream.fold import Fold, fold
from antiphon.stream.kinds import OPEN_RESPONSES_KINDS
from antiphon.stream.writer import Ids, ResponseWriter
from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.response import Response, ResponseError, Usage
from antiphon.wire.timeline import ItemTimes, RunTimes


def sequential_ids() -> Ids:
    numbers = itertools.count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


def started_writer(**fields: object) -> ResponseWriter:
    response = Response(id="resp_1", created_at=1, model="m", **fields)  # type: ignore[arg-type]
    writer = ResponseWriter(response, ids=sequential_ids())
    writer.create()
    writer.start()
    return writer


def names(writer: ResponseWriter) -> list[str]:
    return [str(e.__struct_config__.tag).removeprefix("response.") for e in writer.take()]


def assistant_message() -> it.Message:
    return it.Message(role="assistant", content=())


def test_a_message_emits_every_event_in_order() -> None:
    writer = started_writer()
    item = writer.open(assistant_message())
    item.write("Hello ")
    item.write("there")
    item.close()
    writer.finalize("completed", at=9, usage=Usage())
    writer.emit_terminal()
    events = writer.take()
    check(events)
    assert [type(e) for e in events] == [
        ev.Created,
        ev.InProgress,
        ev.OutputItemAdded,
        ev.ContentPartAdded,
        ev.OutputTextDelta,
        ev.OutputTextDelta,
        ev.OutputTextDone,
        ev.ContentPartDone,
        ev.OutputItemDone,
        ev.Completed,
    ]
    assert [e.sequence_number for e in events] == list(range(10))
    final = events[-1]
    assert isinstance(final, ev.Completed)
    assert final.response.completed_at == 9
    assert final.response.output == (
        it.Message(id="msg_1", role="assistant", content=(it.OutputText(text="Hello there"),)),
    )


def test_item_and_call_ids_are_assigned_once_and_stay() -> None:
    writer = started_writer()
    call = writer.open(it.FunctionCall(call_id="", name="f", arguments=""))
    call.write("{}")
    done = call.close()
    added = next(e for e in writer.take() if isinstance(e, ev.OutputItemAdded))
    assert added.item.id == done.id == "fc_1"
    assert isinstance(added.item, it.FunctionCall) and isinstance(done, it.FunctionCall)
    assert added.item.call_id == done.call_id == "call_2"


@pytest.mark.requirement("VN-5")
def test_a_call_id_written_by_the_model_is_unchanged() -> None:
    writer = started_writer()
    done = writer.open(it.FunctionCall(call_id="functions.f:0", name="f", arguments="")).close()
    assert isinstance(done, it.FunctionCall)
    assert done.call_id == "functions.f:0"


@pytest.mark.requirement("VN-5")
def test_a_call_without_an_id_of_the_model_gets_a_fresh_one() -> None:
    writer = started_writer()
    calls = [
        writer.open(it.FunctionCall(call_id=given, name="f", arguments="")).close()
        for given in ("", "functions.f:0", "")
    ]
    ids = [call.call_id for call in calls if isinstance(call, it.FunctionCall)]
    assert ids[0].startswith("call_") and ids[2].startswith("call_")
    assert len({*ids}) == 3


def test_a_call_without_arguments_emits_arguments_done() -> None:
    writer = started_writer()
    writer.open(it.FunctionCall(call_id="", name="f", arguments="")).close()
    assert names(writer)[2:] == [
        "output_item.added",
        "function_call_arguments.done",
        "output_item.done",
    ]


def test_arguments_done_names_the_function() -> None:
    writer = started_writer()
    writer.open(it.FunctionCall(call_id="", name="f", arguments="")).close()
    (done,) = (e for e in writer.take() if isinstance(e, ev.FunctionCallArgumentsDone))
    assert (done.name, done.arguments) == ("f", "")


def test_text_of_another_channel_opens_a_second_part() -> None:
    writer = started_writer()
    item = writer.open(assistant_message())
    item.write("I could say it, but ")
    item.write("no.", channel="refusal")
    done = item.close()
    assert isinstance(done, it.Message)
    assert done.content == (
        it.OutputText(text="I could say it, but "),
        it.Refusal(refusal="no."),
    )
    indices = [e.content_index for e in writer.take() if isinstance(e, ev.ContentPartAdded)]
    assert indices == [0, 1]


def test_reasoning_and_its_summary_have_separate_indices() -> None:
    writer = started_writer()
    item = writer.open(it.Reasoning())
    item.write("raw")
    item.write("short", channel="summary")
    done = item.close()
    assert isinstance(done, it.Reasoning)
    assert done.content == (it.ReasoningText(text="raw"),)
    assert done.summary == (it.SummaryText(text="short"),)
    check(writer.take())


def test_a_whole_part_of_the_summary_leaves_the_text_open() -> None:
    writer = started_writer()
    item = writer.open(it.Reasoning())
    item.write("one ")
    item.add_summary("First")
    item.write("two")
    item.add_summary("Second")
    done = item.close()
    assert isinstance(done, it.Reasoning)
    assert done.content == (it.ReasoningText(text="one two"),)
    assert done.summary == (it.SummaryText(text="First"), it.SummaryText(text="Second"))
    check(writer.take())


def test_open_responses_kinds_change_the_names_of_reasoning_events() -> None:
    response = Response(id="resp_1", created_at=1, model="m")
    writer = ResponseWriter(response, ids=sequential_ids(), kinds=OPEN_RESPONSES_KINDS)
    writer.create()
    writer.start()
    writer.open(it.Reasoning()).write("hm")
    events = writer.take()
    check(events)
    assert isinstance(events[-1], ev.ReasoningDelta)


def test_a_hosted_tool_works_between_seal_and_close() -> None:
    writer = started_writer()
    item = writer.open(it.CodeInterpreterCall(container_id="cntr_1"))
    item.progress("in_progress")
    item.write("print(1)")
    item.seal()
    item.progress("interpreting")
    item.progress("completed")
    done = item.close(outputs=({"type": "logs", "logs": "1"},))
    assert isinstance(done, it.CodeInterpreterCall)
    assert done.code == "print(1)"
    assert done.outputs == ({"type": "logs", "logs": "1"},)
    writer.finalize("completed", at=1, usage=Usage())
    writer.emit_terminal()
    check(writer.take())


def test_annotations_are_numbered_from_zero_and_stored_in_the_part() -> None:
    writer = started_writer()
    item = writer.open(assistant_message())
    item.write("see")
    note = it.UrlCitation(url="u", title="t", start_index=0, end_index=3)
    item.annotate(note)
    done = item.close()
    event = next(e for e in writer.take() if isinstance(e, ev.OutputTextAnnotationAdded))
    assert event.annotation_index == 0
    assert isinstance(done, it.Message)
    assert done.content == (it.OutputText(text="see", annotations=(note,)),)


def test_finalize_incomplete_closes_open_items_as_incomplete() -> None:
    writer = started_writer()
    writer.open(assistant_message()).write("Once upon")
    response = writer.finalize(
        "incomplete", at=1, usage=Usage(output_tokens=2), reason="max_output_tokens"
    )
    writer.emit_terminal()
    events = writer.take()
    check(events)
    assert isinstance(events[-1], ev.Incomplete)
    assert response.completed_at is None
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [getattr(i, "status", None) for i in response.output] == ["incomplete"]


def test_a_failure_closes_open_items_and_emits_error_before_failed() -> None:
    writer = started_writer()
    writer.open(assistant_message()).write("Once")
    error = ResponseError(code="server_error", message="It broke.")
    writer.finalize("failed", at=1, usage=None, error=error)
    writer.emit_terminal()
    events = writer.take()
    check(events)
    error_event, failed = events[-2:]
    assert isinstance(error_event, ev.Error) and isinstance(failed, ev.Failed)
    assert (error_event.code, error_event.message) == (
        error_event.error.code,
        error_event.error.message,
    )
    assert failed.response.error == error


def test_a_cancelled_stream_has_no_terminal_event() -> None:
    writer = started_writer()
    writer.open(assistant_message()).write("Once")
    response = writer.finalize("cancelled", at=1, usage=None)
    writer.emit_terminal()
    events = writer.take()
    check(events)
    assert isinstance(events[-1], ev.OutputItemDone)
    assert response.status == "cancelled"


def test_finalize_can_be_repeated_before_emit_terminal() -> None:
    writer = started_writer()
    writer.finalize("completed", at=1, usage=Usage())
    error = ResponseError(code="server_error", message="It could not be stored.")
    writer.finalize("failed", at=1, usage=Usage(), error=error)
    writer.emit_terminal()
    events = writer.take()
    check(events)
    assert isinstance(events[-1], ev.Failed)
    assert events[-1].response.completed_at is None


def test_a_queued_response_emits_queued_after_created() -> None:
    response = Response(id="resp_1", created_at=1, model="m", status="queued", background=True)
    writer = ResponseWriter(response, ids=sequential_ids())
    writer.create()
    writer.start()
    events = writer.take()
    check(events)
    assert [type(e) for e in events] == [ev.Created, ev.Queued, ev.InProgress]
    assert isinstance(events[2], ev.InProgress) and events[2].response.status == "in_progress"


def test_a_restored_run_continues_the_sequence_numbers() -> None:
    response = Response(id="resp_1", created_at=1, model="m")
    writer = ResponseWriter(response, ids=sequential_ids(), first_number=7)
    writer.create()
    assert writer.take()[0].sequence_number == 7


@pytest.mark.parametrize("step", ["completed", "failed"])
def test_restored_call_reports_the_end_of_its_tool_once(step: str) -> None:
    writer = started_writer()
    writer.open(it.McpCall(name="f", arguments="", server_label="s")).progress(step)
    log = Fold()
    for event in (before := writer.take()):
        log.feed(event)
    times = RunTimes(items=(ItemTimes(),))
    writer = ResponseWriter.restore(log, ids=sequential_ids(), number=writer.number, times=times)
    (call,) = writer.open_items
    call.progress("completed")  # the tool ran again
    call.close(output="x")
    events = (*before, *writer.take())
    assert [type(event) for event in events[len(before) :]] == [ev.OutputItemDone]


@pytest.mark.parametrize("misuse", ["close twice", "write after close", "unknown channel"])
def test_misuse_raises_a_grammar_error(misuse: str) -> None:
    item = started_writer().open(assistant_message())
    with pytest.raises(GrammarError):
        match misuse:
            case "close twice":
                item.close()
                item.close()
            case "write after close":
                item.close()
                item.write("late")
            case _:
                item.write("?", channel="summary")


# --- laws ----------------------------------------------------------------------------------------

_SHELLS = {
    "message": (assistant_message, ("text", "refusal")),
    "reasoning": (it.Reasoning, ("text", "summary")),
    "function": (lambda: it.FunctionCall(call_id="", name="f", arguments=""), ("text",)),
    "custom": (lambda: it.CustomToolCall(call_id="", name="f", input=""), ("text",)),
}
_ITEM_STORIES = st.tuples(
    st.sampled_from(sorted(_SHELLS)), st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3)))
)


@pytest.mark.requirement("D-81", "API-LADDER")
@given(
    item_stories=st.lists(_ITEM_STORIES, max_size=5),
    keep_open=st.booleans(),
    status=st.sampled_from(["completed", "incomplete", "failed"]),
)
def test_any_run_obeys_the_grammar_and_equals_the_fold_of_its_events(
    item_stories: list[tuple[str, list[tuple[int, str]]]], keep_open: bool, status: str
) -> None:
    writer = started_writer()
    opened = []
    for name, texts in item_stories:
        make, channels = _SHELLS[name]
        item = writer.open(make())
        opened.append(item)
        for way, text in texts:
            if way == 2 and name == "reasoning":
                item.add_summary(text)
            else:
                item.write(text, channel=channels[-1] if way else channels[0])  # type: ignore[arg-type]
        if not keep_open:
            item.close()
    error = ResponseError(code="server_error", message="!") if status == "failed" else None
    running = writer.response
    first_events = writer.take()
    assert fold(first_events) == running
    final = writer.finalize(status, at=2, usage=Usage(), error=error)
    writer.emit_terminal()
    events = first_events + writer.take()
    check(events)
    assert fold(events) == final
    for length in range(1, len(events)):
        fold(events[:length])
