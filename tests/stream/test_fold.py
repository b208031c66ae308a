"""The fold: a log read back is the response it stands for, at every length of the log."""

from __future__ import annotations

import pytest

from antiphon.stream.fold import Fold, fold
from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.response import Response
from tests.stream.test_writer import answer, begun


def test_an_open_item_shows_its_text_so_far() -> None:
    writer = begun()
    item = writer.open(answer())
    item.write("Hel")
    item.write("lo")
    (shown,) = fold(writer.take()).output
    assert isinstance(shown, it.Message)
    assert shown.status == "in_progress"
    assert shown.content == (it.OutputText(text="Hello"),)


@pytest.mark.requirement("D-7")
def test_a_done_item_is_taken_from_its_done_event_not_from_its_deltas() -> None:
    writer = begun()
    item = writer.open(answer())
    item.write("Hello")
    item.close()
    events = [e for e in writer.take() if not isinstance(e, ev.OutputTextDelta)]
    (shown,) = fold(events).output
    assert isinstance(shown, it.Message)
    assert shown.content == (it.OutputText(text="Hello"),)


def test_logprobs_and_annotations_of_an_open_part_are_shown() -> None:
    writer = begun()
    item = writer.open(answer())
    logprob = it.Logprob(token="Hi", logprob=-0.5)
    item.write("Hi", (logprob,))
    note = it.FilePath(file_id="file_1", index=0)
    item.annotate(note)
    assert fold(writer.take()) == writer.response


def test_a_log_without_an_envelope_is_no_response() -> None:
    with pytest.raises(ValueError, match="envelope"):
        Fold().response  # noqa: B018


def test_events_of_an_item_nobody_announced_change_nothing() -> None:
    folded = Fold()
    snapshot = Response(id="resp_1", created_at=1, model="m")
    folded.feed(ev.Created(sequence_number=0, response=snapshot))
    folded.feed(
        ev.OutputTextDelta(
            sequence_number=1, item_id="x", output_index=0, content_index=0, delta="?"
        )
    )
    assert folded.response == snapshot


def test_what_a_shell_has_done_is_shown_and_kept_where_it_breaks_off() -> None:
    writer = begun()
    item = writer.open(it.ShellCallOutput(call_id="call_1", output=()))
    chunks = [
        {"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
        for text in ("one", "two")
    ]
    for at, chunk in enumerate(chunks):
        item.progress("output.delta", command_index=at, delta={"stdout": chunk["stdout"]})
        item.progress("output.done", command_index=at, output=(chunk,))
    log = writer.take()
    (shown,) = fold(log).output
    assert isinstance(shown, it.ShellCallOutput)
    assert shown.output == tuple(chunks) and fold(log) == writer.response
    broken = item.close("incomplete")
    assert isinstance(broken, it.ShellCallOutput) and broken.output == tuple(chunks)


def test_what_a_shell_says_at_its_end_is_all_of_it() -> None:
    writer = begun()
    item = writer.open(it.ShellCallOutput(call_id="call_1", output=()))
    chunk = {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}
    item.progress("output.done", command_index=0, output=(chunk,))
    done = item.close(output=(chunk,))
    assert isinstance(done, it.ShellCallOutput) and done.output == (chunk,)
