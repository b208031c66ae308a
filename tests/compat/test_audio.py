"""Test the names of languages in transcripts."""

from __future__ import annotations

import pytest

from antiphon.compat.audio import language_name


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("en", "english"),
        ("ht", "haitian creole"),
        ("yue", "cantonese"),
        ("English", "english"),
        ("german", "german"),
        ("x-klingon", "x-klingon"),
        ("", ""),
    ],
)
def test_transcript_names_its_language(reported: str, name: str) -> None:
    assert language_name(reported) == name
