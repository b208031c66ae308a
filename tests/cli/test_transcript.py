"""What the chat in the terminal prints about calls and their results."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from antiphon.cli.transcript import AnswerPrinter
from antiphon.stream.kinds import KINDS
from antiphon.wire import items as it
from antiphon.wire.tags import tag_of
from tests.wire.samples import OUTPUTS, Json

#: Items that contain a call or a result that the model is shown.
SHOWN = [
    tag_of(cls)
    for cls, kind in KINDS.items()
    if not kind.hidden and (kind.call is not None or kind.result is not None)
]


def printed(item: Json) -> str:
    file = io.StringIO()
    printer = AnswerPrinter(
        Console(file=file, width=500, markup=False, highlight=False), "http://server"
    )
    printer.print({"type": "response.output_item.done", "item": item})
    return file.getvalue()


@pytest.mark.parametrize("kind", SHOWN)
def test_each_call_and_each_result_is_printed(kind: str) -> None:
    lines = printed(OUTPUTS[kind]).splitlines()
    name = "image" if kind == "image_generation_call" else kind.removesuffix("_call")
    assert lines[0].startswith(f"[{name}")
    assert len(lines[0]) > len(f"[{name}]") or len(lines) > 1


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"type": "function_call", "name": "f", "arguments": '{"a": 1}'}, 'f({"a": 1})'),
        ({"type": "custom_tool_call", "name": "apply", "input": "+a"}, "apply(+a)"),
        ({"type": "apply_patch_call", "operation": {"path": "a"}}, '{"path": "a"}'),
        ({"type": "program", "code": "text(1)", "fingerprint": "f"}, "text(1)"),
    ],
)
def test_call_is_printed_as_the_model_sees_it(item: Json, text: str) -> None:
    name = item["type"].removesuffix("_call")
    assert printed({"call_id": "c", **item}) == f"[{name}] {text}\n"


def test_result_of_an_mcp_call_follows_the_call() -> None:
    call = {"type": "mcp_call", "server_label": "toys", "name": "add", "arguments": "{}"}
    assert printed({**call, "output": "42"}) == "[mcp] toys: add({})\n  42\n"
    assert "gone" in printed({**call, "error": "gone", "status": "failed"})


@pytest.mark.parametrize("cls", [it.AdditionalTools, it.McpListTools])
def test_items_that_call_nothing_are_not_printed(cls: type[it.ItemBase]) -> None:
    assert printed(OUTPUTS[tag_of(cls)]) == ""


def test_items_of_unknown_types_are_not_printed() -> None:
    assert printed({"type": "dream_call", "id": "d_1"}) == ""
