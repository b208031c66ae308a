"""The fold: a log, or any prefix of it, is read back into its response."""

from __future__ import annotations

import pytest

from antiphon.stream.fold import Fold, fold
from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.response import Response
from tests.stream.test_writer import assistant_message, started_writer


def test_an_open_item_has_its_text_so_far() -> None:
    writer = started_writer()
    item_writer = writer.open(assistant_message())
    item_writer.write("Hel")
    item_writer.write("lo")
    (item,) = fold(writer.take()).output
    assert isinstance(item, it.Message)
    assert item.status == "in_progress"
    assert item.content == (it.OutputText(text="Hello"),)


@pytest.mark.requirement("D-7")
def test_a_done_item_comes_from_its_done_event_not_from_its_deltas() -> None:
    writer = started_writer()
    item_writer = writer.open(assistant_message())
    item_writer.write("Hello")
    item_writer.close()
    events = [e for e in writer.take() if not isinstance(e, ev.OutputTextDelta)]
    (item,) = fold(events).output
    assert isinstance(item, it.Message)
    assert item.content == (it.OutputText(text="Hello"),)


def test_an_open_part_has_its_logprobs_and_annotations() -> None:
    writer = started_writer()
    item_writer = writer.open(assistant_message())
    logprob = it.Logprob(token="Hi", logprob=-0.5)
    item_writer.write("Hi", (logprob,))
    note = it.FilePath(file_id="file_1", index=0)
    item_writer.annotate(note)
    assert fold(writer.take()) == writer.response


def test_a_log_without_an_envelope_raises() -> None:
    with pytest.raises(ValueError, match="no event with a response"):
        Fold().response  # noqa: B018


def test_events_of_an_unknown_item_change_nothing() -> None:
    log_fold = Fold()
    snapshot = Response(id="resp_1", created_at=1, model="m")
    log_fold.feed(ev.Created(sequence_number=0, response=snapshot))
    log_fold.feed(
        ev.OutputTextDelta(
            sequence_number=1, item_id="x", output_index=0, content_index=0, delta="?"
        )
    )
    assert log_fold.response == snapshot


def test_shell_output_accumulates_and_survives_an_interruption() -> None:
    writer = started_writer()
    item_writer = writer.open(it.ShellCallOutput(call_id="call_1", output=()))
    chunks = [
        {"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
        for text in ("one", "two")
    ]
    for at, chunk in enumerate(chunks):
        item_writer.progress("output.delta", command_index=at, delta={"stdout": chunk["stdout"]})
        item_writer.progress("output.done", command_index=at, output=(chunk,))
    log = writer.take()
    (item,) = fold(log).output
    assert isinstance(item, it.ShellCallOutput)
    assert item.output == tuple(chunks) and fold(log) == writer.response
    broken = item_writer.close("incomplete")
    assert isinstance(broken, it.ShellCallOutput) and broken.output == tuple(chunks)


def test_the_result_of_close_replaces_accumulated_shell_output() -> None:
    writer = started_writer()
    item_writer = writer.open(it.ShellCallOutput(call_id="call_1", output=()))
    chunk = {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}
    item_writer.progress("output.done", command_index=0, output=(chunk,))
    done = item_writer.close(output=(chunk,))
    assert isinstance(done, it.ShellCallOutput) and done.output == (chunk,)
