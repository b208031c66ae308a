"""Bodies that are read by their types: errors name the field, and the values that it may have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.vector_stores import parse_file_batch

WORDS = "Supported values are: 'auto' and 'static'."


@pytest.mark.parametrize(
    ("file", "param", "message"),
    [
        ({"chunking_strategy": {"type": "s"}}, "chunking_strategy.type", WORDS),
        ({"chunking_strategy": {"type": "auto", "size": 1}}, "chunking_strategy.size", "Unknown"),
        ({"attributes": {"a": 1, "b": []}}, "attributes.b", "got an array"),
        ({"attributes": {"a": "", "b": "x" * 513}}, "attributes.b", "maximum length 512"),
        ({"attributes": {"x" * 65: ""}}, "attributes", "with length 65"),
        ({"attributes": dict.fromkeys("abcdefghijklmnopq", 1)}, "attributes", "17 properties"),
    ],
)
def test_errors_in_nested_fields_name_them(file: dict[str, Any], param: str, message: str) -> None:
    body = {"files": [{"file_id": "file_1"}, {"file_id": "file_2", **file}]}
    with pytest.raises(InvalidRequest) as refusal:
        parse_file_batch(json.dumps(body).encode())
    assert refusal.value.param == f"files[1].{param}"
    assert message in refusal.value.message
