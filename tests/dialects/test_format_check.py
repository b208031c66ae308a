"""A row that does not read what it writes is found out by that text."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from antiphon.dialects.format_check import round_trip_failure
from antiphon.dialects.formats.tool_formats import TOOLS


@pytest.mark.parametrize("name", TOOLS)
def test_every_row_parses_what_it_renders(name: str) -> None:
    assert round_trip_failure(TOOLS[name]) is None


@pytest.mark.parametrize("before", ['<call>\n{"name": "', '<tool_call>\n{"nom": "'])
def test_inconsistent_row_is_reported_with_its_output(before: str) -> None:
    row = TOOLS["hermes"]
    text = round_trip_failure(replace(row, written=replace(row.written, before=before)))
    assert text is not None and text.startswith(f"{before}look_up")
