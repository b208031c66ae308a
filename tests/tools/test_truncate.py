"""What is too long is cut in its middle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.tools.truncate import truncate_middle


@given(st.text(max_size=300), st.integers(1, 200))
def test_it_keeps_within_its_room_but_for_a_word(text: str, room: int) -> None:
    cut = truncate_middle(text, room)
    if len(text.encode("utf-8", "replace")) <= room:
        assert cut == text
        return
    head, middle, tail = cut.split("\n[… ")[0], "characters left out", cut.split(" …]\n")[-1]
    assert middle in cut and text.startswith(head) and text.endswith(tail)
    assert len(head) + len(tail) <= max(2, room)


@pytest.mark.parametrize("letter", ["x", "я", "語"])
def test_scripts_are_measured_by_their_bytes(letter: str) -> None:
    cut = truncate_middle(letter * 10_000, 900)
    assert 850 < cut.count(letter) * len(letter.encode()) <= 900
