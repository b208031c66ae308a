"""JSON piece by piece: where a value ends, what a string says, however it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.json_stream import (
    JsonSpan,
    StringDecoder,
    ToolInputDecoder,
    dump,
    escape_string,
    load,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
characters = st.text(st.sampled_from('ab"\\/\n\t\x00é😀{}[]'), max_size=20)


@given(values.filter(lambda value: isinstance(value, str | list | dict)), st.booleans())
def test_value_ends_as_json_defines(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    whole, single = JsonSpan(), JsonSpan()
    assert whole.read(text + ', "more"') == len(text) and whole.complete
    for char in text[:-1]:
        assert single.read(char) == 1 and not single.complete
    assert single.read(text[-1]) == 1 and single.complete and not single.in_string


@pytest.mark.parametrize("word", ["12", "-1.5e3", "true", "null"])
@pytest.mark.parametrize("after", [",", "}", "]", " "])
def test_scalar_ends_before_the_next_character(word: str, after: str) -> None:
    span = JsonSpan()
    assert span.read(word) == len(word) and not span.complete
    assert span.read(after) == 0 and span.complete


@pytest.mark.parametrize("quote", ['"', "'"])
def test_brackets_in_strings_are_text(quote: str) -> None:
    span = JsonSpan()
    assert span.read('{"a": "}\\"'.replace('"', quote)) == 10
    assert span.in_string and not span.complete
    assert span.read(f"]{quote}}}") == 3 and span.complete
    span = JsonSpan()
    assert span.read(f"{quote}a b, }}{quote}, 1") == 8 and span.complete


@given(characters, st.booleans())
def test_string_decodes_as_json(decoded: str, ascii_only: bool) -> None:
    text = json.dumps(decoded, ensure_ascii=ascii_only)[1:]
    whole, single = StringDecoder(), StringDecoder()
    assert whole.read(text + "rest") == (decoded, len(text)) and whole.complete
    assert "".join(single.read(char)[0] for char in text) + single.finish() == decoded
    assert single.complete


@pytest.mark.parametrize(
    ("written", "decoded"),
    [
        (r"\ud83d", "\ufffd"),
        (r"\ud83dx", "\ufffdx"),
        (r"\ud83d\n", "\ufffd\n"),
        (r"\ud83d\ud83d\ude00", "\ufffd😀"),
        (r"\ude00", "\ufffd"),
        (r"\q\8", r"\q\8"),
        (r"\u00zz", r"\u00zz"),
        (r"\u00", r"\u00"),
        ("\\", "\\"),
    ],
)
def test_invalid_escapes_stay_and_lone_surrogates_are_replaced(written: str, decoded: str) -> None:
    whole, single = StringDecoder(), StringDecoder()
    assert whole.read(written)[0] + whole.finish() == decoded
    assert "".join(single.read(char)[0] for char in written) + single.finish() == decoded


@given(characters, st.sampled_from(["input", "patch"]))
def test_custom_input_is_the_only_string(decoded: str, key: str) -> None:
    text = json.dumps({key: decoded})
    whole, single = ToolInputDecoder(), ToolInputDecoder()
    assert whole.read(text) + whole.finish() == decoded
    assert "".join(map(single.read, text)) + single.finish() == decoded


def test_custom_input_streams() -> None:
    text = ToolInputDecoder()
    assert text.read('{"input": "') == ""
    assert [text.read(piece) for piece in ("ab", "\\", "n", '"}')] == ["ab", "", "\n", ""]


@pytest.mark.parametrize("text", ["plain text", '{"input": 3}', "[1]", '{"', "{input: x}", "3"])
def test_arguments_of_another_form_are_the_input(text: str) -> None:
    whole, single = ToolInputDecoder(), ToolInputDecoder()
    assert whole.read(text) + whole.finish() == text
    assert "".join(map(single.read, text)) + single.finish() == text


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "[" * 100_000, "", "{'a': 1}", "1 2"])
def test_invalid_json_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        load(text)


def test_infinite_numbers_raise() -> None:
    with pytest.raises(ValueError):
        dump(float("inf"))


@given(st.text(max_size=10), st.text(max_size=10))
def test_pieces_of_a_string_make_the_string(one: str, other: str) -> None:
    assert load(f'"{escape_string(one)}{escape_string(other)}"') == one + other
