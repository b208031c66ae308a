"""Any body is either parsed or refused with a short 400."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.requests import parse_create_response, parse_input_tokens_request
from antiphon.wire.request import CreateResponse
from tests.hypothesis_settings import examples
from tests.wire.samples import CHOICES, INPUT_PARTS, ITEMS, OUTPUT_PARTS, REQUIRED, TOOLS, noisy

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
#: Words that open doors: with them arbitrary JSON gets past the first check.
WORDS = st.sampled_from(
    [
        *ITEMS,
        *TOOLS,
        "user",
        "assistant",
        "input_text",
        "output_text",
        "text",
        "auto",
        "json_schema",
    ]
)
NAMES = st.sampled_from(
    sorted({name for sample in (*ITEMS.values(), *TOOLS.values()) for name in sample})
    + list(CreateResponse.__struct_fields__)
)
JSON = st.recursive(
    SCALARS | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=12,
)


def mutated(sample: Any) -> st.SearchStrategy[Any]:
    """The sample with some fields, at any depth, replaced by arbitrary JSON."""
    if isinstance(sample, dict):
        return st.fixed_dictionaries(
            {
                name: st.one_of(mutated(value), mutated(value), mutated(value), JSON)
                for name, value in sample.items()
            }
        )
    if isinstance(sample, list) and sample:
        return st.lists(st.one_of([mutated(value) for value in sample]) | JSON, max_size=3)
    return st.just(sample)


ITEM = st.sampled_from(list(ITEMS.values())).flatmap(mutated)
TOOL = st.sampled_from(list(TOOLS.values())).flatmap(mutated)
PART = st.sampled_from([*INPUT_PARTS, *OUTPUT_PARTS]).flatmap(mutated)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": st.lists(PART, max_size=3),
    }
)
REQUEST = st.fixed_dictionaries(
    {"input": st.lists(ITEM | MESSAGE, max_size=3) | JSON},
    optional={
        **{name: JSON for name in CreateResponse.__struct_fields__ if name != "input"},
        "tools": st.lists(TOOL, max_size=3),
        "tool_choice": st.sampled_from(CHOICES) | JSON,
    },
)

property_test = examples(60, suppress_health_check=[HealthCheck.too_slow])


def read(body: bytes) -> CreateResponse | None:
    """Parse with both endpoints. Return the request, or None if it was refused with a valid
    error."""
    try:
        parse_input_tokens_request(body)
    except InvalidRequest as error:
        check_error(error)
    try:
        return parse_create_response(body)
    except InvalidRequest as error:
        check_error(error)
        return None


def check_error(error: InvalidRequest) -> None:
    assert error.status == 400
    assert 0 < len(error.message) < 800
    assert error.param is None or 0 < len(error.param) < 200


@property_test
@given(st.binary(max_size=64))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    read(body)


@property_test
@given(JSON)
def test_any_json_is_parsed_or_refused(value: Any) -> None:
    read(json.dumps(value).encode())


@pytest.mark.requirement("API-400")
@property_test
@given(REQUEST)
def test_mutated_request_is_parsed_or_refused(value: Any) -> None:
    request = read(json.dumps(value).encode())
    if request is not None:
        msgspec.json.encode(request)


@st.composite
def thinned(draw: st.DrawFn, sample: dict[str, Any]) -> dict[str, Any]:
    """The sample with some optional fields absent or null, perhaps with unknown fields."""
    needed = REQUIRED.get(sample["type"], set()) | {"type"}
    fate = {name: draw(st.sampled_from(["kept", "kept", "null", "absent"])) for name in sample}
    remaining = {
        name: value if name in needed or fate[name] == "kept" else None
        for name, value in sample.items()
        if name in needed or fate[name] != "absent"
    }
    if remaining["type"] == "message" and isinstance(remaining["content"], list):
        remaining["content"] = [draw(thinned(part)) for part in remaining["content"]]
    return noisy(remaining) if draw(st.booleans()) else remaining


VALID = st.fixed_dictionaries(
    {
        "input": st.lists(
            st.sampled_from(
                [item for item in ITEMS.values() if item["type"] != "compaction_trigger"]
            ).flatmap(thinned),
            min_size=1,
            max_size=4,
            unique_by=lambda item: item.get("id") or object(),
        ),
        "tools": st.lists(
            st.sampled_from(list(TOOLS.values())).flatmap(thinned),
            max_size=4,
            unique_by=lambda tool: tool.get("server_label") or object(),
        ),
    }
)


@property_test
@given(VALID)
def test_encoded_request_parses_to_the_same_value(value: Any) -> None:
    request = read(json.dumps(value).encode())
    assert request is not None
    assert read(msgspec.json.encode(request)) == request


@property_test
@given(
    st.dictionaries(
        st.text(st.characters(codec=None), max_size=4),
        st.text(
            st.characters(min_codepoint=0xD700, max_codepoint=0xE000, exclude_categories=()),
            max_size=4,
        ),
        max_size=3,
    )
)
def test_any_lone_surrogates_are_parsed(labels: dict[str, str]) -> None:
    request = read(json.dumps({"input": "hi", "metadata": labels}).encode())
    assert request is not None
    msgspec.json.encode(request)
