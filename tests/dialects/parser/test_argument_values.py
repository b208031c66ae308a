"""Values that are not JSON, as JSON: by their schema, and by how they are written."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.json_stream import JsonSpan, StringDecoder, ToolInputDecoder
from antiphon.dialects.parser.argument_values import (
    convert_string,
    to_json_text,
)
from antiphon.dialects.parser.delta_builder import ParserDeltaBuilder
from antiphon.dialects.parser.keyword_arguments import KeywordArgumentReader
from antiphon.dialects.parser.lexer import QUOTE
from antiphon.dialects.parser.tool_call import CallBuilder


@pytest.mark.parametrize(
    ("text", "types", "json_text"),
    [
        ("3", "integer", "3"),
        (" 3\n", "integer", "3"),
        ("3", "string null", '"3"'),
        ("null", "string null", "null"),
        ("None", "string null", "null"),
        ('"x"', "string null", '"\\"x\\""'),
        ("3.0", "number", "3.0"),
        ("3", "number string", "3"),
        ("True", "boolean", "true"),
        ("yes", "boolean", '"yes"'),
        ('{"a":  [1]}', "object", '{"a":  [1]}'),
        ("{'a': (1, None,), 2: 'b\"'}", "object", '{"a": [1, null], "2": "b\\""}'),
        ("[1", "array", "[1]"),
        ("[1", "string", '"[1"'),
        ("NaN", "number", '"NaN"'),
        ("1e999", "number", "1e999"),
        ("a\nb", "", '"a\\nb"'),
        ("12", "", "12"),
        ("", "", '""'),
        ("9" * 5000, "", json.dumps("9" * 5000)),
        ("[" * 100_000, "array", json.dumps("[" * 100_000)),
        (f"[{QUOTE}a'b{QUOTE}]", "array", '["a\'b"]'),
    ],
)
def test_values_are_converted_by_their_types(text: str, types: str, json_text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert to_json_text(text, frozenset(types.split())) == json_text


@given(st.text(), st.sets(st.sampled_from(["string", "integer", "object", "null", "array"])))
def test_converted_values_are_json(text: str, types: set[str]) -> None:
    found = to_json_text(text, frozenset(types))
    json.loads(found)
    found.encode()


class RecordingTarget(CallBuilder):
    """Record the calls of a KeywordArgumentReader."""

    def __init__(self) -> None:
        super().__init__(ParserDeltaBuilder(), {}, is_bare=False)
        self.events: list[tuple[str, str]] = []

    def start_parameter(self, key: str, *, is_object: bool = False) -> None:
        self.events.append(("key", key))

    def add_value(self, text: str) -> None:
        self.events.append(("value", to_json_text(text)))

    def add_string(self, text: str) -> None:
        if self.events[-1][0] == "string":
            text = self.events.pop()[1] + text
        self.events.append(("string", text))

    def end_string(self) -> None:
        self.events.append(("end", ""))


def read_pairs(form: str, text: str) -> tuple[list[tuple[str, str]], int]:
    how = TOOLS[form].written
    assert how.parameter is not None
    whole, single = RecordingTarget(), RecordingTarget()
    reader = KeywordArgumentReader(whole, how.parameter.json, how.after[0])
    taken = reader.read(text)
    reader.finish()
    slow = KeywordArgumentReader(single, how.parameter.json, how.after[0])
    for char in text:
        slow.read(char)
    slow.finish()
    assert single.events == whole.events
    return whole.events, taken


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (")", []),
        ("a=1)", [("key", "a"), ("value", "1")]),
        ("a = 1 , b=None)", [("key", "a"), ("value", "1"), ("key", "b"), ("value", "null")]),
        ("a='x\\'y\\n\\q\\x41\\u00e9\\U0001F600')", [("key", "a"), ("string", "x'y\n\\qAé😀")]),
        ("a='\\ud83d\\ude00\\ud83d')", [("key", "a"), ("string", "😀\ufffd")]),
        ("a='x\\", [("key", "a"), ("string", "x\\")]),
        ("'x')", [("key", ""), ("string", "x")]),
        ("[1, 2])", [("key", ""), ("value", "[1, 2]")]),
        ("True)", [("key", ""), ("value", "true")]),
        ("a=f(x, ')'))", [("key", "a"), ("value", '"f(x, \')\')"')]),
        ("a={'k': ')\\''})", [("key", "a"), ("value", '{"k": ")\'"}')]),
        ("a=[1, 2", [("key", "a"), ("value", "[1, 2]")]),
        ("a='x' \"y\"\n'z')", [("key", "a"), ("string", "xyz")]),
        ('a="""x"y""z\n""")', [("key", "a"), ("string", 'x"y""z\n')]),
        ("a='''''', b='')", [("key", "a"), ("string", ""), ("key", "b"), ("string", "")]),
        ('a="say "hi" now")', [("key", "a"), ("string", 'say "hi" now')]),
        ("a='sed '1p' /x')", [("key", "a"), ("string", "sed '1p' /x")]),
        ("a='f('b', c) + g('d'))', b=1)", [
            ("key", "a"), ("string", "f('b', c) + g('d'))"), ("key", "b"), ("value", "1"),
        ]),
        ("a='x',\n)", [("key", "a"), ("string", "x")]),
        ("a='x', b", [("key", "a"), ("string", "x")]),
        ('a="""x""', [("key", "a"), ("string", 'x""')]),
        ("a=Rb'\\n', b=u'\\n')", [("key", "a"), ("string", "\\n"), ("key", "b"), ("string", "\n")]),
    ],
)  # fmt: skip
def test_python_keyword_arguments_are_parsed(text: str, events: list[tuple[str, str]]) -> None:
    found, taken = read_pairs("pythonic", text + "] rest" if text.endswith(")") else text)
    assert [one for one in found if one[0] != "end"] == events
    assert taken == len(text)


def test_text_after_a_quote_is_read_once() -> None:
    how = TOOLS["pythonic"].written
    assert how.parameter is not None
    target = RecordingTarget()
    reader = KeywordArgumentReader(target, how.parameter.json, how.after[0])
    reader.read("a='x', so b=2)")
    reader.finish()
    assert target.events == [("key", "a"), ("string", "x', so b=2)"), ("end", "")]
    assert target.stray_text == []


def test_braced_arguments_are_parsed() -> None:
    text = f"a:{QUOTE}x, \\n}}{QUOTE},b:{{c:[{QUOTE}]{QUOTE},true]}},d:e f}}"
    found, taken = read_pairs("functiongemma", text)
    assert [one for one in found if one[0] != "end"] == [
        ("key", "a"),
        ("string", "x, \\n}"),
        ("key", "b"),
        ("value", '{"c": ["]", true]}'),
        ("key", "d"),
        ("value", '"e f"'),
    ]
    assert taken == len(text)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_end_of_a_value_is_found(value: Any) -> None:
    text = json.dumps([value])
    span = JsonSpan()
    assert span.read(text + ", more") == len(text) and span.complete
    slow = JsonSpan()
    assert all(slow.read(char) == 1 for char in text) and slow.complete


@given(st.text())
def test_string_literals_are_decoded(text: str) -> None:
    for ascii_only in (True, False):
        written = json.dumps(text, ensure_ascii=ascii_only)[1:]
        string = StringDecoder()
        assert string.read(written + "x") == (text, len(written))
        slow = StringDecoder()
        assert "".join(slow.read(char)[0] for char in written) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        (' { "patch" : "a" , "b": 1}', "a"),
        ('{"input": "cut \\ud83d', "cut \ufffd"),
        ('{"input": 3}', '{"input": 3}'),
        ("free text", "free text"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("{}", ""),
        ("", ""),
        ('{"' + "x" * 200, '{"' + "x" * 200),
    ],
)
def test_custom_tool_input_is_decoded(written: str, text: str) -> None:
    whole = ToolInputDecoder()
    assert whole.read(written) + whole.finish() == text
    slow = ToolInputDecoder()
    assert "".join(slow.read(char) for char in written) + slow.finish() == text


@pytest.mark.parametrize("text", ["1e999", '"1e999"', "[1e999]", '"[-1e999]"'])
def test_a_number_that_json_cannot_express_stays_a_string(text: str) -> None:
    types = frozenset({"number", "array"})
    assert json.loads(convert_string(text, types)) == text
    json.loads(to_json_text(text, types))
