"""What models write as arguments, and what is made of it."""

from __future__ import annotations

import pytest

from antiphon.errors import ToolError
from antiphon.tools.arguments import parse_arguments


@pytest.mark.parametrize("written", ["[]", "1", '"a"', "{", "nothing", "[" * 100_000])
def test_what_is_no_object_is_a_word_to_the_model(written: str) -> None:
    with pytest.raises(ToolError, match="not a JSON object"):
        parse_arguments(written)


def test_half_a_sign_is_none() -> None:
    assert parse_arguments("") == {}
    assert parse_arguments('{"a": ["x\\ud800"], "\\udfff": 1}') == {"a": ["x?"], "?": 1}
    assert parse_arguments('{"a": "\\ud83d\\ude00"}') == {"a": "😀"}
