"""Calls that models write almost right are the calls that they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.formats.types import State
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.stream.deltas import Close
from tests.dialects.replies import (
    INTEGER,
    SHAPES,
    STRING,
    items,
    lexer_for,
    read,
    schema,
    specials,
    thinking_of,
    tokenizer_for,
    write_calls,
)

_NO_STATE = State(reads="gap")
#: Formats whose arguments are JSON. The values of `cwm` may be plain text.
JSON_FORMATS = sorted(
    name for name, row in TOOLS.items() if row.written.parameter is None and name != "cwm"
)
#: Formats whose values stand between tags. In `minicpm5`, CDATA may contain what follows it.
TAG_FORMATS = sorted(
    name
    for name, row in TOOLS.items()
    if row.written.parameter is not None
    and row.written.parameter.text_end.strip()
    and not row.quote
    and name != "minicpm5"
)
#: Formats whose calls are one JSON object, and those of them in which no tag need mark a call.
RECORD_FORMATS = sorted(
    name
    for name in JSON_FORMATS
    if re.search(r'"(?:tool_)?name": ', write_calls(TOOLS[name], [("now", {})]))
)
UNMARKED = frozenset({"llama3_json", "xlam"})
#: Formats in whose calls stands an opening tag that may also be text.
INNER_FORMATS = sorted(
    name
    for name in TAG_FORMATS
    if any(tag in write_calls(TOOLS[name], [("now", {})]) for tag in TOOLS[name].inner - {"\n"})
)


def found_in(
    name: str, output: str, shapes: Mapping[str, ToolShape] = SHAPES
) -> list[dict[str, Any]]:
    """Return the items of an output, which are the same token by token."""
    thinks, tokens = thinking_of(name), tuple(sorted(specials(TOOLS[name])))
    tokenizer = tokenizer_for(tokens)
    ids = tokenizer.encode(output, special=True)
    whole, parts = (
        items(
            read(
                FormatParser(
                    tokenizer,
                    reasoning=thinks,
                    tools=TOOLS[name],
                    shapes=shapes,
                    thinking=False,
                    lexer=lexer_for(tokens, thinks.name, name),
                ),
                chunks,
            )
        )
        for chunks in ([ids], [[token] for token in ids])
    )
    assert whole == parts and not whole[1]
    return whole[0]


def calls_in(name: str, output: str) -> list[tuple[str, Any]]:
    """Return the calls of an output that consists of calls and of nothing else."""
    return [(item["call"], json.loads(item["arguments"])) for item in found_in(name, output)]


@pytest.mark.parametrize("name", JSON_FORMATS)
@pytest.mark.parametrize(
    "arguments",
    [
        '{"query": "a"}}',
        '{"query": "a"',
        '"{\\"query\\": \\"a\\"}"',
        '{"input": "{\\"query\\": \\"a\\"}"}',
        '{"parameters": {"query": "a"}}}',
        '[{"query": "a"}]',
        '{{"query": "a"}}',
    ],
    ids=[
        "one bracket more",
        "one bracket less",
        "a string",
        "a string in an object",
        "an object in an object",
        "an object in a list",
        "doubled brackets",
    ],
)
def test_arguments_in_json(name: str, arguments: str) -> None:
    output = TOOLS[name].written.render_calls([("search", arguments), ("now", "{}")])
    assert calls_in(name, output) == [("search", {"query": "a"}), ("now", {})]


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_an_array_without_its_end(name: str) -> None:
    output = TOOLS[name].written.render_calls([("search", '{"tags": ["a"}'), ("now", "{}")])
    assert calls_in(name, output) == [("search", {"tags": ["a"]}), ("now", {})]


def section(name: str) -> tuple[str, str]:
    """Return the tags around the calls of a format, or "" for each that it does not have."""
    form, written = TOOLS[name], write_calls(TOOLS[name], [("now", {})])
    tags = {tag for state in form.states.values() for tag in state.on if len(tag) > 1}
    opening = max((tag for tag in form.opens if written.startswith(tag)), key=len, default="")
    closing = max((tag for tag in tags - {"```"} if written.endswith(tag)), key=len, default="")
    return opening, closing


#: Formats with a tag before calls, or before the name of a call, after which JSON may stand.
SECTIONS = sorted(
    name
    for name, row in TOOLS.items()
    if (opening := section(name)[0])
    and "fence record" in row.states[row.opens[opening]].on.values()
)
#: Formats in whose tags no JSON with the name and the arguments may stand.
OTHER_SECTIONS = {"beam", "cwm", "functionary", "llm_jp", "minicpm5", "muse"}


@pytest.mark.parametrize(
    "fence", ["```json\n{}\n```", "\n```\n{}\n```\n", "```tool_call\n{}```", "{}"]
)
@pytest.mark.parametrize("name", SECTIONS)
def test_json_in_a_section_of_calls(name: str, fence: str) -> None:
    """Also as a list, and in a fenced code block."""
    opening, closing = section(name)
    one, two = (
        '{"name": "search", "arguments": {"query": "```\\n"}}',
        '{"name": "now", "arguments": {}}',
    )
    for record in (one, f"[{one}]", f"{one}\n{two}", f"[{one}, {two}]"):
        calls = calls_in(name, f"{opening}{fence.format(record)}{closing}")
        assert calls == [("search", {"query": "```\n"}), ("now", {})][: record.count("name")]


def test_all_formats_with_a_section_read_json_in_it() -> None:
    assert {name for name in TOOLS if section(name)[0]} - {*SECTIONS} == OTHER_SECTIONS


@pytest.mark.parametrize(
    "name", sorted({*JSON_FORMATS, *TAG_FORMATS} - {*RECORD_FORMATS, "apertus", "deepseek_v3"})
)
def test_arguments_in_a_fenced_code_block(name: str) -> None:
    for arguments in (
        '```json\n{"query": "a"}\n```',
        '```\n{"query": "a"\n```\n',
        '{"query": "a"}',
    ):
        output = TOOLS[name].written.render_calls([("search", arguments), ("now", "")])
        assert calls_in(name, output) == [("search", {"query": "a"}), ("now", {})]


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name, row in TOOLS.items()
        if row.states.get("arguments", _NO_STATE).reads == "pairs"
    ),
)
def test_an_object_in_place_of_keyword_arguments(name: str) -> None:
    """If its fields are parameters, the object contains all arguments. Otherwise, the object is
    the first argument."""
    for written, calls in (
        ('{"query": "a", "limit": 2}', [("search", {"query": "a", "limit": 2})]),
        ('{"find": "a"}', [("search", {"query": '{"find": "a"}'})]),
        ("{}", [("search", {"query": "{}"})]),
    ):
        output = TOOLS[name].written.render_calls([("search", written), ("now", "")])
        assert calls_in(name, output) == [*calls, ("now", {})]


@pytest.mark.parametrize("name", sorted(name for name, row in TOOLS.items() if not row.begins))
def test_a_code_block_after_a_call_is_text(name: str) -> None:
    calls = write_calls(TOOLS[name], [("search", {"query": "a"})])
    for block in ('```json\n{"a": 1}\n```', "```\nx\n```", "```python\nf()\n```"):
        assert found_in(name, f"{calls}\n{block}")[1:] == [{"message": block}]


MESSAGES = (
    '{"tool_calls": [CALLS]}',
    '{"role": "assistant", "content": null, "refusal": null, "tool_calls": [CALLS]}',
    "```json\n[CALLS]\n```",
)


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize(
    "name", sorted(name for name, row in TOOLS.items() if not (row.has_messages or row.begins))
)
def test_an_answer_in_the_form_of_the_chat_completions_api(name: str, message: str) -> None:
    """Calls of functions that the request does not have leave it an answer."""
    inner = '{"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}'
    search = f'{{"id": "call_1", "type": "function", "function": {inner}}}'
    now = '{"type": "function", "function": {"name": "now", "arguments": "{}"}}'
    calls = [("search", {"query": "a"}), ("now", {})]
    assert calls_in(name, message.replace("CALLS", f"{search}, {now}")) == calls
    assert calls_in(name, f'{{"function_call": {inner}}}') == calls[:1]
    other = message.replace("CALLS", search.replace("search", "find"))
    assert found_in(name, other) == [{"message": other}]


DEFINITION = (
    '{"name": "search", "description": "d", "parameters": {"type": "object", "properties": '
    '{"query": {"type": "string"}}, "required": ["query"]}}'
)


@pytest.mark.parametrize(
    "answer",
    [
        DEFINITION,
        DEFINITION.replace('"description": "d", ', "")[:-1] + ', "strict": true}',
        f"```json\n{json.dumps(json.loads(DEFINITION), indent=2)}\n```",
        f'[{{"type": "function", "function": {DEFINITION}}}]',
        DEFINITION.replace("parameters", "input_schema"),
    ],
    ids=["chat", "strict", "fenced", "list", "messages"],
)
@pytest.mark.parametrize(
    "name", sorted(name for name, row in TOOLS.items() if not row.has_messages)
)
def test_the_definition_of_a_tool_is_an_answer(name: str, answer: str) -> None:
    """Users ask which tools there are. Arguments look otherwise, unless the tool has such ones."""
    assert found_in(name, answer) == [{"message": answer}]


def test_arguments_may_have_the_names_of_a_schema() -> None:
    shape = ToolShape(wire_name="f", schema=schema(type=STRING, properties={"type": "object"}))
    arguments = {"type": "object", "properties": {"a": {}}}
    output = json.dumps({"name": "f", "parameters": arguments})
    (item,) = found_in("llama3_json", output, {"f": shape})
    assert json.loads(item["arguments"]) == arguments


def test_a_long_field_before_the_name_is_no_part_of_a_call() -> None:
    """Only a short text is held back until it is known whether it belongs to a call."""
    for length in (250, 254, 255, 256, 257, 1000):
        answer = f'{{"content": "{"x" * length}", "name": "now", "arguments": {{}}}}'
        expected: list[dict[str, Any]] = [{"message": answer}]
        if length < 254:
            field = f'"content": "{"x" * length}"'
            expected = [{"call": "now", "arguments": "{}"}, {"message": field}]
        assert found_in("llama3_json", answer) == expected


@pytest.mark.parametrize("arguments", ["null", '""'])
@pytest.mark.parametrize("name", JSON_FORMATS)
def test_no_arguments(name: str, arguments: str) -> None:
    output = TOOLS[name].written.render_calls([("now", arguments), ("search", '{"query": "a"}')])
    assert calls_in(name, output) == [("now", {}), ("search", {"query": "a"})]


@pytest.mark.parametrize("name", TAG_FORMATS)
def test_the_last_value_has_no_closing_tag(name: str) -> None:
    """The line end before the next tag is then no part of the value."""
    form = TOOLS[name]
    assert form.written.parameter is not None
    end = form.written.parameter.text_end.replace("{line}", "").rstrip()
    head, found, tail = write_calls(form, [("search", {"query": "a"})]).rpartition(end)
    assert found
    assert calls_in(name, head + tail) == [("search", {"query": "a"})]


#: Formats with tags that close a parameter, as in XML.
XML_FORMATS = [
    name for name in TAG_FORMATS if "</" in write_calls(TOOLS[name], [("search", {"query": "a"})])
]


def closing_tag(name: str) -> str:
    parameter = TOOLS[name].written.parameter
    assert parameter is not None
    return parameter.text_end.replace("{line}", "").strip()


@pytest.mark.parametrize("name", XML_FORMATS)
def test_a_closing_tag_is_written_twice(name: str) -> None:
    """Unless the value contains the opening tag of the first one."""
    form, end = TOOLS[name], closing_tag(name)
    for arguments in ({"query": "a", "limit": 2}, {"limit": 2, "query": "a\nb"}):
        output = write_calls(form, [("search", arguments)])
        at = output.index(end, output.index("a", output.index("query") + 5))
        doubled = f"{output[:at]}{end}\n{output[at:]}"
        assert calls_in(name, doubled) == [("search", arguments)]
    query = f"{end.replace('/', '')}\n{end}\n"
    output = write_calls(form, [("search", {"query": query})])
    assert calls_in(name, output) == [("search", {"query": query})]


@pytest.mark.parametrize("name", XML_FORMATS)
def test_an_array_in_tags_without_its_end(name: str) -> None:
    output = write_calls(TOOLS[name], [("search", {"tags": ["a", "b"]})])
    output = output.replace(', "b"]', ', {"c": "b"')
    assert calls_in(name, output) == [("search", {"tags": ["a", {"c": "b"}]})]


@pytest.mark.parametrize("name", INNER_FORMATS)
def test_text_after_a_call_without_its_section(name: str) -> None:
    form = TOOLS[name]
    output = write_calls(form, [("search", {"query": "a"})])
    opening = next(tag for tag in sorted(form.inner - {"\n"}) if tag in output)
    closing = re.sub(r"(?: name)?=.*", ">", f"</{opening[1:]}")
    call = output[output.index(opening) : output.index(closing) + len(closing)]
    for before, after in (("Ok.", "Done."), ("<x>", "</x>")):
        first, *calls, last = found_in(name, f"{before}\n{call}\n{call}\n\n{after}")
        assert [first["message"].strip(), last["message"].strip()] == [before, after]
        assert [json.loads(each["arguments"]) for each in calls] == [{"query": "a"}] * 2


@pytest.mark.parametrize(
    "attributes",
    ['string="True">', 'type="string">', "string=true>", ">", ' string="true" type="string" >'],
)
@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "gigachat35", "minimax_m2"])
def test_attributes_of_a_parameter(name: str, attributes: str) -> None:
    output = write_calls(TOOLS[name], [("search", {"query": "a", "limit": 2})])
    begin, _, rest = output.partition('query"')
    output = f'{begin}query" {attributes}{rest[rest.index(">") + 1 :]}'
    assert calls_in(name, output) == [("search", {"query": "a", "limit": 2})]


@pytest.mark.parametrize(
    ("name", "quote"),
    [*product(("deepseek_v4", "minimax_m2"), ('"', "'")), ("minimax_m2", ""), ("dots", "")],
)
def test_quotes_in_tags(name: str, quote: str) -> None:
    form = TOOLS[name]
    calls = [("search", {"query": "it's", "limit": 2}), ("now", {})]
    output = re.sub(r'(?<==)"(\w+)"', rf"{quote}\1{quote}", write_calls(form, calls))
    assert calls_in(name, output) == calls
    assert calls_in(name, output[output.index(">") + 1 :]) == calls  # without their section


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "minimax_m2"])
def test_a_tag_that_closes_itself(name: str) -> None:
    output = write_calls(TOOLS[name], [("now", {}), ("search", {"query": "a"})])
    output = re.sub(r'"now">\s*</[^>]*>', '"now"/>', output)
    assert calls_in(name, output) == [("now", {}), ("search", {"query": "a"})]


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("hermes", "<tool_call>\n```json\nRECORD\n```\n</tool_call>"),
        ("hermes", "<tools>\nRECORD\n</tools>"),
        ("hermes", "<function_call>RECORD</function_call>"),
        ("hermes", "<tool_calls>\n<tool_call>\nRECORD\n</tool_call>\n</tool_calls>"),
        ("hermes", '<tool_call>{"search": ARGUMENTS}</tool_call>'),
        ("hermes", '<tool_call>\n[{"search": ARGUMENTS}]\n</tool_calls>'),
        ("hermes", "<tool_call>\nsearch ARGUMENTS\n</tool_call>"),
        ("hermes", "<tool_call>\nsearch(query='a')\n</tool_call>"),
        ("hermes", '<tool_call>[search(query="a")]</tool_call>'),
        ("llama3_json", '<|python_tag|>search(query="a")'),
        ("hermes", '{"tool_calls": [RECORD]}'),
        ("mistral", "[TOOL_CALLS] [RECORD][/TOOL_CALLS]"),
        ("mistral_v13", "[TOOL_CALLS]search[ARGS]ARGUMENTS[/TOOL_CALLS]"),
        ("llama3_json", "<function=search>ARGUMENTS</function>"),
        ("llama3_json", "<function=searchARGUMENTS</function>"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>search<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>"),
        (
            "deepseek_v31",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\nARGUMENTS\n```"
            "<｜tool▁call▁end｜>",
        ),
        (
            "kimi_k2",
            "<|tool_call_begin|>functions_search_0<|tool_call_argument_begin|>ARGUMENTS"
            "<|tool_call_end|>",
        ),
        (
            "seed_oss",
            "<tool_call>\n<function=search>\n<parameter=query>a</parameter>\n</function>\n"
            "</tool_call>",
        ),
    ],
)
def test_other_shapes_of_the_same_family(name: str, output: str) -> None:
    arguments = '{"query": "a"}'
    record = f'{{"name": "search", "arguments": {arguments}}}'
    output = output.replace("ARGUMENTS", arguments).replace("RECORD", record)
    assert calls_in(name, output) == [("search", {"query": "a"})]


@pytest.mark.parametrize("name", RECORD_FORMATS)
def test_calls_in_other_quotes_or_doubled_brackets(name: str) -> None:
    output = write_calls(TOOLS[name], [("search", {"query": "a b", "limit": 2})])
    begin, end = output.index('{"'), output.rindex("}}") + 2
    record = output[begin:end]
    without_wrapper = re.sub(r'"\w+": \{(.*)\}\}', r"\1}", record)
    written = [each.replace('"', "'") for each in (record, without_wrapper)]
    if name not in UNMARKED:
        written += [f"{{{record}}}", f"{{{record}"]
        written += [re.sub(r'"(\w+)":', r"\1:", each) for each in (record, without_wrapper)]
    for each in written:
        calls = calls_in(name, output[:begin] + each + output[end:])
        assert calls == [("search", {"query": "a b", "limit": 2})]


@pytest.mark.parametrize("around", [("", " "), (" ", ""), ("\n", "\n"), ('"', '"'), ("'", "'")])
@pytest.mark.parametrize("name", [*TAG_FORMATS, "minicpm5"])
def test_names_of_parameters_in_quotes_or_blanks(name: str, around: tuple[str, str]) -> None:
    """Also where the name tells that a value has ended."""
    form, (before, after) = TOOLS[name], around
    assert form.written.parameter is not None
    render = form.written.parameter.render
    arguments = [render(f"{before}{key}{after}", value) for key, value in _TWO_VALUES.items()]
    separator = form.written.parameter.separator
    output = form.written.render_calls([("search", separator.join(arguments))])
    assert calls_in(name, output) == [("search", _TWO_VALUES)]


_TWO_VALUES = {"query": "a", "limit": 2}


@pytest.mark.parametrize("quote", ['"', "'"])
def test_names_of_functions_in_quotes(quote: str) -> None:
    output = (
        f"<tool_call>\n<function={quote}search{quote}>\n<parameter=query>\na\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    for name in ("qwen3_coder", "hermes"):
        assert calls_in(name, output) == [("search", {"query": "a"})]


def test_json_in_the_tags_of_gemma() -> None:
    output = '<|tool_call>{"name": "search", "arguments": {"query": "a"}}<tool_call|>'
    assert calls_in("gemma4", output) == [("search", {"query": "a"})]


@pytest.mark.parametrize(
    "arguments",
    ['query=^a (b)^, tags=["c"]', 'query="a (b)", tags=[^c^]', "query='a (b)', tags=['c']"],
)
def test_calls_of_gemma_as_in_python(arguments: str) -> None:
    output = f"<|tool_call>call:search({arguments})<tool_call|><|tool_call>call:now()<tool_call|>"
    found = calls_in("gemma4", output.replace("^", GEMMA_MARK))
    assert found == [("search", {"query": "a (b)", "tags": ["c"]}), ("now", {})]


@pytest.mark.parametrize("end", ["<tool_call|>", ""])
def test_calls_of_gemma_without_their_opening_tag(end: str) -> None:
    output = f'call:search{{query:<|"|>a<|"|>}}{end}'
    assert calls_in("gemma4", output) == [("search", {"query": "a"})]
    before, found = found_in("gemma4", f"I do.\n{output}")
    assert (before["message"], found["call"]) == ("I do.", "search")
    for text in ("Please call: search", "Then call:ghost{a:1}", "call:"):
        assert found_in("gemma4", text) == [{"message": text}]


@pytest.mark.parametrize("end", [", ", ",limit", ",limit:"])
def test_output_ends_in_what_looks_like_the_next_key_of_gemma(end: str) -> None:
    """It belongs to the string, whose closing mark is missing, unless it has no letters."""
    output = f'<|tool_call>call:search{{query:<|"|>a, b{end}'
    assert calls_in("gemma4", output) == [("search", {"query": f"a, b{end}".rstrip(", ")})]


GEMMA_MARK = '<|"|>'


def gemma_pieces(value: Any) -> list[str]:
    """Return a value in Gemma's syntax, cut into marks, signs, and other texts."""
    if isinstance(value, str):
        return [GEMMA_MARK, value, GEMMA_MARK]
    if isinstance(value, list):
        inner = [[",", *gemma_pieces(each)] for each in value]
        return ["[", *[piece for pieces in inner for piece in pieces][1:], "]"]
    if isinstance(value, dict):
        inner = [[",", key, ":", *gemma_pieces(each)] for key, each in value.items()]
        return ["{", *[piece for pieces in inner for piece in pieces][1:], "}"]
    return [json.dumps(value)]


def drifted(pieces: list[str]) -> Iterator[list[str]]:
    """Return the pieces with one mark missing, doubled, too much, or written as another quote."""
    for at, piece in enumerate(pieces):
        if piece == GEMMA_MARK:
            for marks in ([], [GEMMA_MARK] * 2, ['"'], ["'"]):
                yield [*pieces[:at], *marks, *pieces[at + 1 :]]
        elif piece == ":":
            yield [*pieces[:at], "=", *pieces[at + 1 :]]
        if GEMMA_MARK not in pieces[max(at - 1, 0) : at + 1] and at:
            yield [*pieces[:at], GEMMA_MARK, *pieces[at:]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "a b", "tags": ["c", "d e"]},
        {"limit": 3, "filters": {"k": "v w"}, "query": "it is, (x) ok"},
        {"filters": {"k": "v", "l": "m"}, "tags": ["c d"]},
    ],
)
def test_marks_of_gemma_that_are_missing_or_too_many(arguments: dict[str, Any]) -> None:
    for pieces in drifted(gemma_pieces(arguments)):
        output = f"<|tool_call>call:search{''.join(pieces)}<tool_call|>"
        assert calls_in("gemma4", output) == [("search", arguments)], output


def test_a_closing_mark_of_gemma_is_missing_and_no_mark_follows() -> None:
    """Nothing tells the rest of the call from the string, except the brackets at its end."""
    for written, arguments in (
        ("query:M a,limit:3", {"query": "a,limit:3"}),
        ("filters:{k:M v},limit:3", {"filters": {"k": "v},limit:3"}}),
        ("filters:{k:M v,l:2}", {"filters": {"k": "v,l:2"}}),
    ):
        output = f"<|tool_call>call:search{{{written.replace('M ', GEMMA_MARK)}}}<tool_call|>"
        assert calls_in("gemma4", output) == [("search", arguments)]


@pytest.mark.parametrize("length", [0, 1, 62, 63, 64, 1_000])
def test_white_space_after_a_mark_of_gemma_is_held_back_only_up_to_a_limit(length: int) -> None:
    blank = " " * length
    output = f'<|tool_call>call:search{{query:<|"|>a<|"|>{blank},limit:3}}<tool_call|>'
    arguments = (
        {"query": "a", "limit": 3} if length < 63 else {"query": f"a{GEMMA_MARK}{blank},limit:3"}
    )
    assert calls_in("gemma4", output) == [("search", arguments)]


@pytest.mark.parametrize("length", [1, 127, 128, 129, 1_000])
def test_white_space_after_a_quote_of_python_is_held_back_only_up_to_a_limit(length: int) -> None:
    blank = " " * length
    output = f"[search(query='a'{blank}, limit=3)]"
    arguments = {"query": "a", "limit": 3} if length < 126 else {"query": f"a'{blank}, limit=3)]"}
    assert calls_in("pythonic", output) == [("search", arguments)]
    assert calls_in("pythonic", f"[search(query='a'){blank}]") == [("search", {"query": "a"})]


def test_strings_of_gemma_without_marks() -> None:
    for value in ("Paris, France", 'see "a", "b"', "it's, (x) ok", "a, b,"):
        for rest, values in (("", {}), (",limit:3", {"limit": 3})):
            output = f"<|tool_call>call:search{{query:{value}{rest}}}<tool_call|>"
            assert calls_in("gemma4", output) == [
                ("search", {"query": value.rstrip(","), **values})
            ]


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "xlam", "qwen3_coder"])
def test_an_answer_in_json_with_other_fields_is_no_call(name: str) -> None:
    for fields in ('"age": 3', '"age": 3, "job": "x"'):
        answer = f'{{"name": "search", {fields}}}'
        assert found_in(name, answer) == [{"message": answer}]
    assert calls_in(name, '{"name": "search", "query": "a", "age": 3}') == [
        ("search", {"query": "a", "age": 3})
    ]


@pytest.mark.parametrize("name", TAG_FORMATS)
def test_quotes_that_do_not_belong_to_a_value(name: str) -> None:
    form = TOOLS[name]
    assert form.written.parameter is not None
    for text, value in (('"42"', 42), ('"forty"', '"forty"')):
        written = form.written.parameter.render("limit", "VALUE").replace("VALUE", text)
        calls = calls_in(name, form.written.render_calls([("search", written)]))
        assert calls == [("search", {"limit": value})]


def test_a_parameter_with_the_name_of_a_wrapper() -> None:
    """What is no object wraps no arguments."""
    for name in ("minimax_m3", "qwen3_coder", "deepseek_v4"):
        output = write_calls(TOOLS[name], [("search", {"parameters": "a", "query": "b"})])
        assert calls_in(name, output) == [("search", {"parameters": "a", "query": "b"})]


@pytest.mark.parametrize("name", [name for name in TAG_FORMATS if not TOOLS[name].has_messages])
def test_text_after_the_last_value(name: str) -> None:
    """A closing tag that no other one follows before the call ends is the end of the value."""
    end = closing_tag(name)
    for values in ({"query": f"a {end} b"}, {"limit": 2, "query": "a"}):
        head, _, tail = write_calls(TOOLS[name], [("search", values)]).rpartition(end)
        call, *rest = found_in(name, f"{head}{end}\nOk.\n{tail.lstrip()}")
        assert json.loads(call["arguments"]) == values
        assert [each["message"].strip() for each in rest] == ["Ok."]


@pytest.mark.parametrize(
    ("name", "closing"),
    [
        ("qwen3_coder", "</function>"),
        ("deepseek_v4", "</｜DSML｜invoke>"),
        ("minimax_m2", "</invoke>"),
        ("hy_v3", "</tool_call:opensource>"),
    ],
)
def test_text_after_a_call_in_its_section(name: str, closing: str) -> None:
    output = write_calls(TOOLS[name], [("search", {"query": "a"})])
    for rest in (output[output.index(closing) + len(closing) :], ""):
        written = output[: output.index(closing)] + f"{closing}\nOk.\n{rest}"
        call, message = found_in(name, written)
        assert (json.loads(call["arguments"]), message["message"].strip()) == (
            {"query": "a"},
            "Ok.",
        )


def test_values_on_lines_that_end_as_in_windows() -> None:
    for query in ("a", "a\r\nb", "\r\n", ""):
        calls = [("search", {"query": query, "limit": 2})]
        output = write_calls(TOOLS["qwen3_coder"], calls).replace("\r\n", "\n")
        assert calls_in("qwen3_coder", output.replace("\n", "\r\n")) == calls
    output = write_calls(TOOLS["qwen3_coder"], [("search", {"query": "a\r"})])
    assert calls_in("qwen3_coder", output) == [("search", {"query": "a\r"})]


def test_an_opening_tag_without_its_end() -> None:
    output = write_calls(TOOLS["qwen3_coder"], [("search", {"query": "a"}), ("now", {})])
    for name in ("search", "now"):
        output = output.replace(f"={name}>", f"={name}")
    assert calls_in("qwen3_coder", output) == [("search", {"query": "a"}), ("now", {})]


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v31"])
def test_only_the_end_of_a_fenced_code_block(name: str) -> None:
    arguments = '{"query": "a"}\n```'
    output = TOOLS[name].written.render_calls([("search", arguments)]).replace("```json\n", "")
    output = output.replace("```\n```", "```")
    assert calls_in(name, output) == [("search", {"query": "a"})]


@pytest.mark.parametrize("name", ["pythonic", "lfm2"])
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("filters=dict(a=1, b=dict())", {"filters": {"a": 1, "b": {}}}),
        ("tags=list(['a', (1, 2)])", {"tags": ["a", [1, 2]]}),
        ("tags=[dict(k='v'), set(), tuple((1,))]", {"tags": [{"k": "v"}, [], [1]]}),
        ("filters=dict({'a': 1})", {"filters": {"a": 1}}),
        ("**{'query': 'a', 'limit': 2}", {"query": "a", "limit": 2}),
    ],
)
def test_constructors_of_python(name: str, written: str, arguments: dict[str, Any]) -> None:
    output = TOOLS[name].written.render_calls([("search", written), ("now", "")])
    assert calls_in(name, output) == [("search", arguments), ("now", {})]


def test_a_python_call_without_its_bracket() -> None:
    assert calls_in("pythonic", "[search(limit=2]") == [("search", {"limit": 2})]


@pytest.mark.parametrize("output", ['[search(query="a, limit=3)]', "[search(query='a"])
def test_a_python_string_without_its_end_makes_a_call_incomplete(output: str) -> None:
    tokenizer = tokenizer_for(())
    parser = FormatParser(
        tokenizer, reasoning=None, tools=TOOLS["pythonic"], shapes=SHAPES, thinking=False
    )
    *_, last = read(parser, [tokenizer.encode(output, special=False)])
    assert last == Close(status="incomplete")


def test_tags_and_sections_of_minicpm() -> None:
    """Quotes may be single, and a value may stand in several CDATA sections, as in XML."""
    for raw, query in (("a", "a"), ("a]]><![CDATA[b", "ab"), ("a]]]]><![CDATA[>b", "a]]>b")):
        output = (
            f"<function name='search'><param name='query'><![CDATA[{raw}]]></param>"
            "<param name='limit'>2</param></function>"
        )
        calls = [("search", {"query": query, "limit": 2})]
        assert calls_in("minicpm5", output) == calls
        assert calls_in("minicpm5", output.replace("'", '"')) == calls


def test_apertus_writes_names_and_arguments_as_other_models_do() -> None:
    record = '{"name": "search", "arguments": {"query": "a"}}'
    for calls in (f"[{record}]", f'[{{"search": {{"query": "a"}}}}, {record}]'):
        found = calls_in("apertus", f"<|tools_prefix|>{calls}<|tools_suffix|>")
        assert found == [("search", {"query": "a"})] * calls.count("search")


_REQUIRED = ToolShape(
    wire_name="find", schema={**schema(query=STRING, limit=INTEGER), "required": ["query"]}
)


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "qwen3_coder", "glm45"])
def test_an_answer_of_json_without_required_arguments_is_no_call(name: str) -> None:
    shapes = {"find": _REQUIRED, "now": SHAPES["now"]}
    for answer in ('{"tool": "find"}', '{"name": "find", "limit": 2}'):
        assert found_in(name, answer, shapes) == [{"message": answer}]
    for answer in ('{"name": "find", "query": "a"}', '{"tool": "now"}'):
        assert "call" in found_in(name, answer, shapes)[0]


@pytest.mark.parametrize(
    "rest",
    [
        '"description": "d", "parameters": {}',
        '"description": "d", "input_schema": {"type": "object", "properties": {}}',
        '"description": "d"',
        '"input_schema": {}',
    ],
)
@pytest.mark.parametrize("name", ["hermes", "llama3_json", "qwen3_coder"])
def test_the_definition_of_a_tool_without_parameters_is_an_answer(name: str, rest: str) -> None:
    answer = f'{{"name": "now", {rest}}}'
    assert found_in(name, answer) == [{"message": answer}]


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "glm45"])
def test_the_text_of_a_message_with_calls_is_text(name: str) -> None:
    call = '{"function": {"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}}'
    answer = f'{{"role": "assistant", "content": "I \\"look\\".", "tool_calls": [{call}]}}'
    message, found = found_in(name, answer)
    assert (message["message"], found["call"]) == ('I "look".', "search")


#: Formats with a tag before each key and one before each value.
KEY_FORMATS = sorted(
    name
    for name, row in TOOLS.items()
    if row.written.parameter is not None
    and "value" in row.states.get("parameters", _NO_STATE).on.values()
)


@pytest.mark.parametrize("name", KEY_FORMATS)
def test_keys_without_their_opening_tags(name: str) -> None:
    """The names of parameters tell where a value ends."""
    form = TOOLS[name]
    assert form.written.parameter is not None
    opening = form.written.parameter.before
    for arguments in ({"query": "a", "limit": 2}, {"limit": 2, "query": "a\nb"}):
        written = write_calls(form, [("search", arguments), ("now", {})])
        head, *rest = written.split(opening)
        for first in ("\n", opening):
            output = head + first + "\n".join(rest)
            assert calls_in(name, output) == [("search", arguments), ("now", {})]
    query = f"a\nwords{form.written.parameter.text}2"
    output = write_calls(form, [("search", {"query": query})])
    assert calls_in(name, output) == [("search", {"query": query})]


def test_all_formats_with_keys_in_tags_are_tested() -> None:
    assert len(KEY_FORMATS) == 9


#: Formats in which no text is expected between the parameters of a call.
GAP_FORMATS = sorted(
    name
    for name, row in TOOLS.items()
    if row.written.parameter is not None
    and row.states.get("parameters", _NO_STATE).ends
    and name not in KEY_FORMATS
)


def is_complete(name: str, output: str) -> bool:
    """Return whether the first item of an output is complete."""
    tokenizer = tokenizer_for(tuple(sorted(specials(TOOLS[name]))))
    parser = FormatParser(
        tokenizer, reasoning=None, tools=TOOLS[name], shapes=SHAPES, thinking=False
    )
    deltas = read(parser, [tokenizer.encode(output, special=True)])
    return next(each for each in deltas if isinstance(each, Close)).status == "completed"


@pytest.mark.parametrize("name", GAP_FORMATS)
def test_elements_with_the_names_of_parameters(name: str) -> None:
    """Also if the first one has the closing tag of the format's own parameters, or if another
    element contains them. A value may contain tags."""
    form, line = TOOLS[name], "\n" if TOOLS[name].trims else ""
    two = f"<query>{line}a <b>c</b>{line}</query>\n<limit>2</limit>\n"
    closing = closing_tag(name).removeprefix("]]>")
    for written in (two, two.replace("</query>", closing), f"<arguments>{two}</arguments>"):
        output = form.written.render_calls([("search", written), ("now", "")])
        expected = {"query": "a <b>c</b>", "limit": 2}
        assert calls_in(name, output) == [("search", expected), ("now", {})]
    for written in ("<find>a</find>", "a"):
        output = form.written.render_calls([("search", written), ("now", "")])
        assert not is_complete(name, output)
        assert [item.get("call") for item in found_in(name, output)] == ["search", None, "now"]


def test_all_formats_with_tags_of_parameters_read_elements() -> None:
    assert len(GAP_FORMATS) == 14


@pytest.mark.parametrize("end", ["</param>", "]]</param>", "]></param>"])
def test_a_section_of_cdata_without_its_end(end: str) -> None:
    """Another section may follow, in the same call or in the next one."""
    call = f'<function name="search"><param name="query"><![CDATA[a\nb{end}REST</function>'
    for rest, more in (
        ("", {}),
        ('<param name="limit">2</param>', {"limit": 2}),
        ('<param name="tags"><![CDATA[["a"]]]></param>', {"tags": ["a"]}),
    ):
        calls = [("search", {"query": "a\nb", **more})] * 2
        assert calls_in("minicpm5", "\n".join([call.replace("REST", rest)] * 2)) == calls


@pytest.mark.parametrize("name", [*TAG_FORMATS, "minicpm5"])
def test_a_value_without_its_end_that_contains_tags_is_incomplete(name: str) -> None:
    """Any of the tags may have been its end."""
    end = closing_tag(name)
    output = write_calls(TOOLS[name], [("search", {"query": f"a\n{end}bEND\n{end}"})])
    assert not is_complete(name, output[: output.index("END")])


def test_a_parameter_without_a_name() -> None:
    shapes = {"find": ToolShape(wire_name="find", schema=schema(**{"": STRING, "query": STRING}))}
    output = write_calls(TOOLS["glm45"], [("find", {"query": "a"})])
    (found,) = found_in("glm45", output, shapes)
    assert json.loads(found["arguments"]) == {"query": "a"}
    for without_key in ("<arg_value>a</arg_value>", "\n<arg_value>a</arg_value>"):
        found_in("glm45", f"<tool_call>find{without_key}</tool_call>", shapes)


@pytest.mark.parametrize("tag", ["tools", "tool_calls", "function_calls", "json"])
@pytest.mark.parametrize("name", ["qwen3_coder", "minimax_m2", "glm45", "hermes"])
def test_other_tags_around_calls(name: str, tag: str) -> None:
    """In an answer without calls, such a tag is text. A value may end before its closing tag."""
    form, call = TOOLS[name], ("search", {"query": "a"})
    written = write_calls(replace(form, written=replace(form.written, first="", last="")), [call])
    output = f"One.\n<{tag}>\n{written}\n</{tag}>\nTwo."
    assert found_in(name, output) == [
        {"message": "One."},
        {"call": "search", "arguments": '{"query": "a"}'},
        {"message": "Two."},
    ]
    for text in (f"The tag <{tag}> opens it.", f"<{tag}>\n{{}}\n</{tag}>"):
        assert found_in(name, text) == [{"message": text}]


@pytest.mark.parametrize("output", ['{"find": {"query": "a"}}', 'find(query="a")'])
def test_other_shapes_of_calls_of_unknown_functions_are_text(output: str) -> None:
    text = f"<tool_call>{output}</tool_call>"
    assert found_in("hermes", text) == [{"message": text}]


@pytest.mark.parametrize("name", ["nemotron_json", "granite", "apertus"])
def test_an_empty_list_of_calls_is_no_text(name: str) -> None:
    output = re.sub(r"\[.*\]", "[]", write_calls(TOOLS[name], [("now", {})]))
    if name != "granite":  # whose list has no closing tag
        assert found_in(name, f"{output}Hello.") == [{"message": "Hello."}]
    assert found_in(name, output) in ([], [{"message": output}])


@pytest.mark.parametrize("count", [2, 3])
def test_a_closing_tag_several_times(count: int) -> None:
    call = write_calls(TOOLS["qwen3_coder"], [("search", {"query": "a"})])
    end = "</parameter>"
    assert calls_in("qwen3_coder", call.replace(end, "\n".join([end] * count))) == [
        ("search", {"query": "a"})
    ]


def test_the_end_of_a_section_of_cdata_without_its_beginning() -> None:
    output = '<function name="search"><param name="query">QUERY]]></param></function>'
    assert calls_in("minicpm5", output.replace("QUERY", "a b")) == [("search", {"query": "a b"})]
    inner = "x <![CDATA[y"
    assert calls_in("minicpm5", output.replace("QUERY", inner)) == [
        ("search", {"query": f"{inner}]]>"})
    ]


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("hermes", '<tool_call>\n{"name": "search", "arguments": {"query": "a'),
        ("hermes", '<tool_call>\n{"name": "search", "arguments": {"limit": 1'),
        ("glm45", "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>a"),
    ],
)
def test_a_draft_that_breaks_off_ends_with_the_reasoning(name: str, draft: str) -> None:
    """Its value would otherwise go on to the end of the reply."""
    found = found_in(name, f"<think>\nPerhaps {draft}\n</think>\n\nHello.")
    assert found == [{"reasoning": f"Perhaps {draft}"}, {"message": "Hello."}]
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    if name == "hermes":
        found = found_in(name, f"<think>\n{draft}\n</think>\n\n{call}")
        assert found == [{"reasoning": draft}, {"call": "now", "arguments": "{}"}]


_CALL = {"call": "search", "arguments": '{"query": "a"}'}


@pytest.mark.parametrize(
    "parameter", ['<parameter name="query">', '<parameter name="query" string="true">']
)
@pytest.mark.parametrize("section", ["", "tool_calls", "function_calls", "own"])
@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "deepseek_v41", "gigachat35"])
def test_tags_without_the_prefix_of_their_family(name: str, section: str, parameter: str) -> None:
    first, last = f"<{section}>\n" if section else "", f"</{section}>" if section else ""
    if section == "own":
        first, last = TOOLS[name].written.first, TOOLS[name].written.last
    call = f'<invoke name="search">\n{parameter}a</parameter>\n</invoke>\n'
    assert found_in(name, f"{first}{call}{call}{last}") == [_CALL, _CALL]
    assert found_in(name, f"Ok.\n\n{first}{call}{last}") == [{"message": "Ok."}, _CALL]


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "deepseek_v41", "gigachat35"])
def test_tags_without_the_prefix_of_their_family_may_be_text(name: str) -> None:
    for text in (
        'Write <invoke name="search"> for it.',
        'Not <invoke name="other"><parameter name="query">a</parameter></invoke>.',
    ):
        assert found_in(name, text) == [{"message": text}]
    quoted = 'x</parameter>\n</invoke>\n</tool_calls>\n<invoke name="search">'
    calls = [("search", {"query": quoted})]
    assert calls_in(name, write_calls(TOOLS[name], calls)) == calls


#: Formats with a tag for each key and one for each value.
KEY_VALUE_FORMATS = sorted(
    {*TAG_FORMATS} & {name for name in TOOLS if "line" in TOOLS[name].states}
)


@pytest.mark.parametrize("name", KEY_VALUE_FORMATS)
def test_a_name_on_its_own_line_in_place_of_the_tag_of_a_call(name: str) -> None:
    form = TOOLS[name]
    written = form.written.parameter
    assert written is not None
    closing = form.written.after.replace("{line}", "")
    argument = written.render("query", "a")
    for before in ("", "Ok.\n", "Ok.\n\n"):
        message = [{"message": "Ok."}] if before else []
        for after in ("", closing, f"\n{closing}\n"):
            for line in ("", "\n"):
                output = f"{before}search{line}{argument}{after}"
                assert found_in(name, output) == [*message, _CALL], output
        for text in (f"{before}other\n{argument}{closing}", f"{before}search:\n{argument}"):
            assert found_in(name, text) == [{"message": text}]
    for text in ("search\n", "Ok.\nsearch", "Ok.\nsearch\nthe web", "The\nsearch is over.\n"):
        assert found_in(name, text) == [{"message": text}]


#: Formats in which the tag of a section contains the same special token as that of a parameter.
SHARED_TOKENS = frozenset({"deepseek_v32", "deepseek_v4", "deepseek_v41", "kimi_k3"})


@pytest.mark.parametrize("name", sorted({*TAG_FORMATS} - SHARED_TOKENS))
def test_tags_that_stand_only_in_calls_are_text_in_an_answer(name: str) -> None:
    written = TOOLS[name].written.parameter
    assert written is not None
    argument = written.render("query", "a")
    text = f"The tags {argument} are tags of a parameter."
    assert found_in(name, text) == [{"message": text}]


@pytest.mark.parametrize(
    "body",
    [
        '<name>search</name>\n<arguments>{"query": "a"}</arguments>',
        '<name>search</name><arguments>\n{"query": "a"}\n</arguments>\n',
        'search.call(query="a")',
        'search.call(query="a")\n',
    ],
)
@pytest.mark.parametrize("name", ["hermes", "llama3_json"])
def test_names_in_tags_and_calls_of_a_method(name: str, body: str) -> None:
    opening = min(TOOLS[name].opens.keys() & {"<tool_call>", "<|python_tag|>"}, key=len)
    assert found_in(name, f"Ok.\n{opening}{body}") == [{"message": "Ok."}, _CALL]
    other = f"{opening}{body}".replace("search", "other")
    assert found_in(name, other) == [{"message": other}]
