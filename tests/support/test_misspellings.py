"""Misspelt names."""

from __future__ import annotations

import pytest

from antiphon.support.misspellings import similar_name

NAMES = ["port", "host", "max_output_tokens", "top_p", "load", "log-format"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("potr", "port"),
        ("ports", "port"),
        ("maxOutputToken", "max_output_tokens"),
        ("TOP-P", "top_p"),
        ("log_fromat", "log-format"),
        ("path", None),
        ("posts", None),
        ("max_tokens", None),
        ("load-forms", None),
        ("hs", None),
        ("", None),
    ],
)
def test_only_misspellings_mean_a_known_name(name: str, meant: str | None) -> None:
    assert similar_name(name, NAMES) == meant
    assert similar_name(name, []) is None
