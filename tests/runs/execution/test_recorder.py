"""The recorder: deltas become items, with extra fields."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence

import pytest

from antiphon.errors import BackendError
from antiphon.runs.execution.recorder import Recorder
from antiphon.stream.deltas import Close, Delta, Finish, FinishReason, Open, Progress, Text
from antiphon.stream.writer import ResponseWriter
from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.response import Response, Usage

MESSAGE = Open(it.Message(role="assistant", content=()))
CALL = Open(it.FunctionCall(call_id="c", name="f", arguments=""))


def record(*deltas: Delta, sealed: bool = False) -> tuple[Recorder, ResponseWriter]:
    numbers = itertools.count(1)
    out = ResponseWriter(
        Response(id="resp_1", created_at=1, model="m"),
        ids=lambda prefix: f"{prefix}_{next(numbers)}",
    )
    out.create()
    out.start()

    def reasoning_fields(item: it.Reasoning) -> dict[str, str]:
        return {"encrypted_content": "".join(part.text for part in item.content or ())[::-1]}

    recorder = Recorder(out, reasoning_fields=reasoning_fields) if sealed else Recorder(out)
    for delta in deltas:
        recorder.record([delta])
    return recorder, out


def test_result_of_close_is_set_on_the_item() -> None:
    _, out = record(
        Open(it.Compaction(encrypted_content="")),
        Progress("compacting"),
        Close({"encrypted_content": "sealed"}),
    )
    assert [item.encrypted_content for item in out.items] == ["sealed"]  # type: ignore[union-attr]
    kinds = [type(event) for event in out.take()]
    assert kinds[2:] == [ev.OutputItemAdded, ev.CompactionCompacting, ev.OutputItemDone]


@pytest.mark.parametrize(
    "end", [[Close()], [Open(it.Reasoning(summary=()))], [Finish("length", Usage())]],
    ids=["closed", "followed", "cut"],
)  # fmt: skip
def test_reasoning_fields_are_set_however_the_item_ends(end: Sequence[Delta]) -> None:
    _, out = record(Open(it.Reasoning(summary=())), Text("ab"), *end, sealed=True)
    done = next(event for event in out.take() if isinstance(event, ev.OutputItemDone))
    assert done.item.encrypted_content == "ba"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("deltas", "reason", "cut", "statuses"),
    [
        ([MESSAGE, Text("a")], "stop", False, ["completed"]),
        ([MESSAGE, Text("a")], "length", True, ["incomplete"]),
        ([MESSAGE, Text("a")], "content_filter", False, ["incomplete"]),
        ([MESSAGE, Text("a"), Close()], "length", True, ["completed"]),
        ([CALL, Text("{}"), Close()], "length", False, ["completed"]),
        ([CALL, Text("{")], "length", True, ["incomplete"]),
        ([CALL, Text("{}"), Close(), MESSAGE], "length", True, ["completed", "incomplete"]),
    ],
)
def test_open_item_gets_the_status_of_the_end(
    deltas: list[Delta], reason: FinishReason, cut: bool, statuses: list[str]
) -> None:
    recorder, out = record(*deltas, Finish(reason, Usage()))
    assert recorder.is_truncated is cut
    assert [item.status for item in out.items] == statuses  # type: ignore[union-attr]
    assert out.open_items == ()


@pytest.mark.parametrize("delta", [Text("a"), Progress("compacting")])
def test_text_outside_an_item_raises(delta: Delta) -> None:
    with pytest.raises(BackendError):
        record(delta)


def test_tool_usage_is_summed_and_unused_families_are_zero() -> None:
    details = {"image_tokens": 3, "text_tokens": 4}
    image = {"input_tokens": 7, "input_tokens_details": details, "output_tokens": 2}
    call = it.WebSearchCall(status="in_progress")

    def close(key: str, used: dict[str, object]) -> tuple[Delta, Delta]:
        return Open(call, key), Close({}, key, tool_usage=used)

    first = close("1", {"image_gen": {**image, "total_tokens": 9}})
    recorder, _ = record(*first)
    assert recorder.tool_usage["web_search"] == {"num_requests": 0}
    recorder, _ = record(
        *first,
        *close("2", {"image_gen": {**image, "total_tokens": 9, "cached_tokens": 1}}),
        *close("3", {"web_search": {"num_requests": 1}, "image_gen": {"model": "x"}}),
    )
    assert recorder.tool_usage == {
        "image_gen": {
            "input_tokens": 14,
            "input_tokens_details": {"image_tokens": 6, "text_tokens": 8},
            "output_tokens": 4,
            "total_tokens": 18,
            "cached_tokens": 1,
        },
        "web_search": {"num_requests": 1},
    }


@pytest.mark.parametrize("order", [("mcp_1", "msg_2"), ("msg_2", "mcp_1")])
def test_restored_call_and_message_are_closed_by_their_ids(order: Sequence[str]) -> None:
    """A call that only reads may run while the model writes the next item."""
    call = it.McpCall(server_label="s", name="f", arguments="")
    _, out = record(Open(call, "c"), Close(), MESSAGE, Text("a"))
    restored = Recorder(out)
    restored.resume(array("I"))
    restored.record([Close({}, id, "incomplete") for id in order])
    assert out.open_items == () and [item.status for item in out.items] == ["incomplete"] * 2  # type: ignore[union-attr]


def test_text_continues_the_restored_message_behind_a_call() -> None:
    call = it.McpCall(server_label="s", name="f", arguments="")
    _, out = record(Open(call, "c"), Close(), MESSAGE, Text("a"))
    restored = Recorder(out)
    restored.resume(array("I"))
    restored.record([Text("b"), Close()])
    (message,) = out.items
    assert message.content[0].text == "ab"  # type: ignore[union-attr]
