"""Arguments of tool calls as models write them: the strict reader and the lenient one."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.errors import ToolError
from antiphon.tools.arguments import non_negative_int, parse_arguments, parse_lenient


@pytest.mark.parametrize("written", ["[]", "1", '"a"', "{", "nothing", "[" * 100_000])
def test_arguments_that_are_not_an_object_raise_tool_error(written: str) -> None:
    with pytest.raises(ToolError, match="not a JSON object"):
        parse_arguments(written)


def test_lone_surrogates_are_replaced_in_values_and_keys() -> None:
    assert parse_arguments("") == {}
    replaced = {"a": ["x\ufffd"], "\ufffd": 1}
    assert parse_arguments('{"a": ["x\\ud800"], "\\udfff": 1}') == replaced
    assert parse_arguments('{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("", {}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", {"code": [1]}),
        ("print(1)", {"code": "print(1)"}),
        ("x\ud800", {"code": "x\ufffd"}),
        ("[" * 100_000, {"code": "[" * 100_000}),
    ],
)
def test_the_lenient_reader_takes_anything(written: str, arguments: dict[str, Any]) -> None:
    assert parse_lenient(written, "code") == arguments


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0),
        (2.9, 2),
        (2**31 - 1, 2**31 - 1),
        (-1, None),
        (2**31, None),
        (True, None),
        ("1", None),
    ],
)
def test_only_numbers_that_fit_32_bits_are_accepted(value: Any, number: int | None) -> None:
    assert non_negative_int(value) == number
