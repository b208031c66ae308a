"""Query strings as clients write them."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct, field
from starlette.requests import Request

from antiphon.errors import InvalidRequest
from antiphon.http.requests.query import OldestFirst, params_of, read_query
from antiphon.wire.cursors import PageParams


class Listing(PageParams, frozen=True, kw_only=True):
    include: Annotated[tuple[Literal["a", "b"], ...], Meta(description="More data.")] = ()
    ids: Annotated[tuple[str, ...] | None, Meta(description="Only these.")] = None
    stream: Annotated[bool, Meta(description="Stream.")] = False
    failed: Annotated[bool | None, Meta(description="Only failed ones.")] = None
    start: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="Begin.")] = None
    metadata: Annotated[dict[str, str], Meta(description="Only with these.")] = field(
        default_factory=dict
    )


class Range(Struct, frozen=True):
    start: Annotated[int, Meta(description="Begin.")]


def request(text: str) -> Request:
    return Request({"type": "http", "query_string": text.encode()})


def query(text: str) -> Listing:
    return read_query(request(text), Listing)


def refused(text: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        query(text)
    return refusal.value


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
    assert query(text).include == ("a", "b")


def test_missing_and_empty_parameters_have_defaults() -> None:
    for text in ("", "limit=&order=&after=&include=&ids=&stream=&failed=&start="):
        assert query(text) == Listing()
    assert query("").order == "desc"
    assert read_query(request(""), OldestFirst).order == "asc"


def test_values_are_parsed() -> None:
    given = query(
        "stream=true&failed=False&limit=7&order=asc&after=a_1&before=a_9&start=0&ids=x&unknown=x"
        "&metadata[one]=1&metadata[two]=2"
    )
    assert given == Listing(
        stream=True,
        failed=False,
        limit=7,
        order="asc",
        after="a_1",
        before="a_9",
        start=0,
        ids=("x",),
        metadata={"one": "1", "two": "2"},
    )


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
    error = refused(f"limit={limit}")
    assert (error.param, error.code) == ("limit", code)
    assert says in error.message


@pytest.mark.parametrize(
    ("text", "param", "says"),
    [
        ("stream=yes", "stream", "a boolean"),
        ("include[]=a&include[]=c", "include", "'c'"),
        ("order=up", "order", "'asc' and 'desc'"),
        ("start=-1", "start", ">= 0"),
        ("metadata=x", "metadata", "metadata[key]=value"),
        (f"order={'x' * 5000}", "order", "'xxx"),
        (f"limit={'x' * 5000}", "limit", "'xxx"),
    ],
)
def test_invalid_value_is_refused_by_name_and_shortened(text: str, param: str, says: str) -> None:
    error = refused(text)
    assert error.param == param
    assert says in error.message
    assert len(error.message) < 150


def test_required_parameter_must_be_there() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read_query(request("start="), Range)
    assert (refusal.value.param, refusal.value.code) == ("start", "missing_required_parameter")


def test_unsupported_parameter_is_refused_if_it_has_a_value() -> None:
    assert read_query(request("start=1&batch="), Range, refused=("batch",)) == Range(1)
    with pytest.raises(InvalidRequest) as refusal:
        read_query(request("start=1&batch[]=x"), Range, refused=("batch",))
    assert refusal.value.param == "batch"


def test_too_many_parameters_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        query("a=1&" * 1000)


def test_documentation_shows_bounds_and_defaults_but_no_null() -> None:
    params = {each.name: each for each in params_of(Listing)}
    assert params["limit"].default == 20
    assert params["start"].type == Annotated[int, Meta(ge=0)]
    assert params["ids"].type == tuple[str, ...]
    assert params_of(Range)[0].is_required
