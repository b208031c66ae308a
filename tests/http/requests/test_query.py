"""Query strings as clients write them."""

from __future__ import annotations

import pytest

from antiphon.errors import InvalidRequest
from antiphon.http.requests.query import Query
from antiphon.wire.cursors import PageParams


def query(text: str) -> Query:
    return Query({"query_string": text.encode()})


@pytest.mark.parametrize(
    "text",
    [
        "include[]=a&include[]=b",
        "include%5B%5D=a&include%5B%5D=b",
        "include=a&include=b",
        "include[0]=a&include[1]=b",
    ],
)
def test_list_in_every_notation(text: str) -> None:
    assert query(text).choices("include", "abc") == ("a", "b")


def test_missing_parameters_have_defaults() -> None:
    empty = query("")
    assert empty.choices("include", "abc") == ()
    assert empty.value("after") is None
    assert empty.flag("stream") is False
    assert empty.number("limit", low=1) is None
    assert empty.choice("order", ("asc", "desc"), "desc") == "desc"


def test_values_are_parsed() -> None:
    given = query("stream=true&obf=False&limit=7&order=asc&after=msg_1&unknown=x")
    assert given.flag("stream") is True
    assert given.flag("obf") is False
    assert given.number("limit", low=1, high=100) == 7
    assert given.choice("order", ("asc", "desc"), "desc") == "asc"
    assert given.value("after") == "msg_1"


@pytest.mark.parametrize(
    ("limit", "code", "says"),
    [
        ("0", "integer_below_min_value", ">= 1"),
        ("101", "integer_above_max_value", "<= 100"),
        ("ten", "invalid_type", "an integer"),
        ("1.5", "invalid_type", "an integer"),
        ("9" * 5000, "invalid_type", "an integer"),
        ("\u0663", "invalid_type", "an integer"),
    ],
)
def test_invalid_number_is_refused_by_name(limit: str, code: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refusal:
        query(f"limit={limit}").number("limit", low=1, high=100)
    assert (refusal.value.param, refusal.value.code) == ("limit", code)


def test_invalid_flag_or_choice_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        query("stream=yes").flag("stream")
    assert refusal.value.param == "stream"
    with pytest.raises(InvalidRequest, match="'c'") as refusal:
        query("include[]=a&include[]=c").choices("include", "ab")
    assert refusal.value.param == "include"
    with pytest.raises(InvalidRequest, match="'asc' and 'desc'") as refusal:
        query("order=up").choice("order", ("asc", "desc"), "desc")
    assert refusal.value.param == "order"


def test_page_params_are_parsed() -> None:
    params = PageParams(limit=7, order="asc", after="a_1", before="a_9")
    assert query("limit=7&order=asc&after=a_1&before=a_9").page_params() == params
    assert query("").page_params() == PageParams(limit=20, order="desc", after=None, before=None)
    for wrong in ("limit=0", "limit=101", "order=up"):
        with pytest.raises(InvalidRequest) as refusal:
            query(wrong).page_params()
        assert refusal.value.param == wrong.partition("=")[0]


def test_error_message_shortens_the_value() -> None:
    for wrong in ("limit", "order"):
        with pytest.raises(InvalidRequest) as refusal:
            query(f"{wrong}={'x' * 5000}").page_params()
        assert len(refusal.value.message) < 150


def test_too_many_parameters_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        query("a=1&" * 1000)
