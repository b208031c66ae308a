"""Fields of forms as texts. ``tests/http/requests/test_query.py`` tests those of query strings."""

from __future__ import annotations

import pytest
from msgspec import UNSET, Struct, UnsetType
from msgspec import field as renamed

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.text_fields import read_texts


class Form(Struct):
    name: str | UnsetType = UNSET
    weight: float | None = None
    seconds: int | UnsetType = renamed(name="expires_after[seconds]", default=UNSET)


def test_fields_have_the_types_of_json() -> None:
    pairs = [("name", "a"), ("name", "b"), ("weight", "0.5"), ("expires_after[seconds]", "7")]
    found = {"name": "b", "weight": 0.5, "expires_after[seconds]": 7}
    assert read_texts([*pairs, ("other", "x")], Form) == found
    assert read_texts([("name", ""), ("weight", "")], Form) == {}


def test_invalid_number_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="a number") as refusal:
        read_texts([("weight", "much")], Form)
    assert (refusal.value.param, refusal.value.code) == ("weight", "invalid_type")
