"""The value of an argument may contain the tags of its own format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.formats.types import ToolFormat
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.testing.tokenizer import ByteTokenizer
from tests.dialects.replies import (
    items,
    lexer_for,
    read,
    schema,
    specials,
    tokenizer_for,
    write_calls,
)

SHAPES = {
    "write": ToolShape(
        wire_name="write", schema=schema(text={"type": "string"}, path={"type": "string"})
    ),
    "edit": ToolShape(wire_name="edit", custom=True, schema=schema(input={"type": "string"})),
}
#: How the two values of a call contain a tag. Where tags are text, the values change places.
VALUES = (("a {} b", "{} b"), ("a\n{}\nb", "a {0}{0} b"))
#: Format → the tags that end a value where nothing in the format tells them from text: the whole
#: value is one of them, or it is followed by what may follow them.
AMBIGUOUS: dict[str, set[str]] = {"minicpm5": {"]]><![CDATA["}}


def tags(form: ToolFormat) -> Iterator[str]:
    """Return the tags of a format. Signs that are part of any text are left out."""
    parameter = form.written.parameter
    written = {parameter.text_end.strip()} if parameter is not None else set()
    for state in form.states.values():
        written |= {tag.strip() for tag in (*state.on, *state.peek)}
    written |= {tag.strip() for tag in (*form.opens, form.quote)}
    return iter(sorted(tag for tag in written if len(tag) > 2 and "{" not in tag))


class TripleTokenizer(ByteTokenizer):
    """A ``ByteTokenizer`` whose tokens are three bytes, as the parser searches after each token."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        content = text.encode()
        triples = (content[at : at + 3] for at in range(0, len(content), 3))
        # The first byte keeps leading zeros. The shift keeps the ids apart from those of bytes.
        return [int.from_bytes(b"\1" + triple) << 16 for triple in triples]

    def piece(self, token: int) -> bytes:
        content = (token >> 16).to_bytes(4).lstrip(b"\0")
        return content[1:] if content else super().piece(token)


def calls_in(
    name: str,
    output: str,
    *,
    special: bool,
    shapes: Mapping[str, ToolShape] = SHAPES,
) -> list[dict[str, object]]:
    """Return the calls in an output. If ``special``, the special tokens of the format are tokens,
    and each other byte is. ``tests.fuzz.laws`` tests that chunks change nothing."""
    tokens = tuple(sorted(specials(TOOLS[name]))) if special else ()
    tokenizer = tokenizer_for(tokens) if special else TripleTokenizer()
    parser = FormatParser(
        tokenizer,
        reasoning=None,
        tools=TOOLS[name],
        shapes=shapes,
        thinking=False,
        lexer=lexer_for(tokens, None, name),
    )
    ids = tokenizer.encode(output, special=True)
    found, is_open = items(read(parser, [ids]))
    assert not is_open
    return found


def broken(name: str, *, special: bool) -> set[str]:
    """Return the tags that change a call if they are part of its string arguments."""
    form = TOOLS[name]
    found: set[str] = set()
    for tag in tags(form):
        for pair in VALUES:
            first, last = pair if special else reversed(pair)
            arguments = {"text": first.format(tag), "path": last.format(tag)}
            output = write_calls(form, [("write", arguments)])
            parsed = calls_in(name, output, special=special)
            if len(parsed) != 1 or json.loads(str(parsed[0]["arguments"])) != arguments:
                found.add(tag)
    return found


@pytest.mark.parametrize("name", sorted(name for name, row in TOOLS.items() if not row.quote))
def test_value_contains_the_tags_between_two_parameters(name: str) -> None:
    """Without the name of a parameter, they are text."""
    parameter = TOOLS[name].written.parameter
    if parameter is not None and parameter.text_end.strip() and parameter.before.strip():
        text = f"a {parameter.text_end}{parameter.before}</b> c".replace("{line}", "\n")
        arguments = {"text": text.replace("{key}", "text"), "path": "x"}
        output = write_calls(TOOLS[name], [("write", arguments)])
        (found,) = calls_in(name, output, special=True)
        assert json.loads(str(found["arguments"])) == arguments


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_input_of_a_custom_tool_contains_another_parameter(name: str) -> None:
    """A custom tool has one parameter, so the tags of another one are text."""
    parameter = TOOLS[name].written.parameter
    tags = "" if parameter is None else f"{parameter.before}x{parameter.text}"
    text = f"+ {tags}\n```\n{tags} y".replace("{line}", "\n").replace("{key}", "x")
    output = write_calls(TOOLS[name], [("edit", {"input": text})])
    assert [item["input"] for item in calls_in(name, output, special=True)] == [text]


#: Formats that write each parameter between tags or marks, in a reply without messages.
TAGGED = {
    name
    for name, row in TOOLS.items()
    if row.written.parameter is not None and not row.has_messages
}


@pytest.mark.parametrize("special", [True, False], ids=["special", "text"])
@pytest.mark.parametrize("name", sorted(TOOLS))
def test_value_quotes_a_whole_call(name: str, special: bool) -> None:
    """The closing tags of the quoted call do not end the value, nor do the keys inside it."""
    form = TOOLS[name]
    special |= bool(form.begins)
    for quoted in ({"city": "Oslo"}, {"path": "q", "text": "r"}):
        call = write_calls(form, [("write", quoted)])
        for pattern in ("{}", "a {0}{0} b"):
            arguments = {"text": pattern.format(call), "path": "x"}
            for written in (arguments, dict(reversed(arguments.items()))):
                output = write_calls(form, [("write", written)])
                (found,) = calls_in(name, output, special=special)
                assert json.loads(str(found["arguments"])) == arguments


@pytest.mark.parametrize("name", sorted(TAGGED))
def test_value_quotes_a_call_whose_value_quotes_a_call(name: str) -> None:
    """A quoted call ends in the value of another one only if this value ends there, too: the
    beginning of a call before a whole one is no call around it."""
    form = TOOLS[name]
    call = text = write_calls(form, [("write", {"text": "q", "path": "x"})])
    for _ in range(3):
        for written in ({"text": f"a {text}", "path": "x"}, {"path": "x", "text": text}):
            output = write_calls(form, [("write", written)])
            (found,) = calls_in(name, output, special=True)
            assert json.loads(str(found["arguments"])) == written
        text = output
    arguments = {"text": f"{call[: call.index('q')]} and {call}, or so", "path": "x"}
    (found,) = calls_in(name, write_calls(form, [("write", arguments)]), special=True)
    assert json.loads(str(found["arguments"])) == arguments


def test_inner_values_have_the_types_of_schemas_behind_references() -> None:
    """As in schemas of Pydantic, where an optional model is an alternative."""
    inner = schema(code={"type": "string"}, size={"type": "integer"})
    maybe = {"anyOf": [{"$ref": "#/$defs/inner"}, {"type": "null"}]}
    parameters = schema(one=maybe, rows={"type": "array", "items": maybe})
    shape = ToolShape(wire_name="write", schema={**parameters, "$defs": {"inner": inner}})
    element = "{0}<code>5{0}</code>{0}<size>7{0}</size>"
    output = (
        '{0}<tool_call>\n{0}<invoke name="write">{0}<one>'
        f"{element}{{0}}</one>{{0}}<rows>{{0}}<item>{element}{{0}}</item>{{0}}</rows>"
        "{0}</invoke>\n{0}</tool_call>"
    ).format("]<]minimax[>[")
    (found,) = calls_in("minimax_m3", output, special=True, shapes={"write": shape})
    value = {"code": "5", "size": 7}
    assert json.loads(str(found["arguments"])) == {"one": value, "rows": [value]}


@pytest.mark.parametrize("name", sorted(TAGGED - {"minimax_m3", "minicpm5"}))
def test_parameters_behind_references_and_alternatives_end_a_value(name: str) -> None:
    """Also where the closing tag of the value is missing, or its mark."""
    parameter = TOOLS[name].written.parameter
    assert parameter is not None
    if parameter.quoted:
        return
    one, two = schema(text={"type": "string"}), schema(path={"type": "string"})
    for root in ({"$ref": "#/$defs/all"}, {"anyOf": [one, two]}, {"allOf": [one, two]}):
        shape = ToolShape(
            wire_name="write",
            schema={
                **root,
                "$defs": {"all": schema(text={"type": "string"}, path={"type": "string"})},
            },
        )
        arguments = {"text": "a", "path": "x"}
        first, second = (parameter.render(*pair) for pair in arguments.items())
        end = parameter.text_end.replace("{line}", "").rstrip()
        written = f"{first.rpartition(end)[0]}{parameter.separator}{second}"
        output = TOOLS[name].written.render_calls([("write", written)])
        (found,) = calls_in(name, output, special=True, shapes={"write": shape})
        assert json.loads(str(found["arguments"])) == arguments


def test_inner_values_have_the_type_of_additional_properties() -> None:
    variables = {"type": "object", "additionalProperties": {"type": "string"}}
    shape = ToolShape(wire_name="write", schema=schema(env=variables))
    output = (
        '{0}<tool_call>\n{0}<invoke name="write">{0}<env>{0}<A>1{0}</A>{0}<B>true{0}</B>{0}</env>'
        "{0}</invoke>\n{0}</tool_call>"
    ).format("]<]minimax[>[")
    (found,) = calls_in("minimax_m3", output, special=True, shapes={"write": shape})
    assert json.loads(str(found["arguments"])) == {"env": {"A": "1", "B": "true"}}


@pytest.mark.parametrize("special", [True, False], ids=["special", "text"])
def test_strings_in_arrays_and_objects_quote_whole_calls(special: bool) -> None:
    mark, tag = '<|"|>', "]<]minimax[>["
    gemma = "<|tool_call>call:write{{text:[{0}{1}{0}],path:{{k:{0}{1}{0}}}}}<tool_call|>"
    elements = (
        '{0}<tool_call>\n{0}<invoke name="write">{0}<text>{0}<item>{1}{0}</item>{0}</text>'
        "{0}<path>{0}<k>{1}{0}</k>{0}</path>{0}</invoke>\n{0}</tool_call>"
    )
    shape = ToolShape(
        wire_name="write", schema=schema(text={"type": "array"}, path={"type": "object"})
    )
    for name, form, tokens in (("gemma4", gemma, mark), ("minimax_m3", elements, tag)):
        call = form.format(tokens, "q")
        output = form.format(tokens, f"a {call} b")
        (found,) = calls_in(name, output, special=special, shapes={"write": shape})
        text = f"a {call} b"
        assert json.loads(str(found["arguments"])) == {"text": [text], "path": {"k": text}}


@pytest.mark.parametrize("name", sorted(TAGGED))
def test_quoted_call_without_its_end_does_not_hide_the_end_of_the_reply(name: str) -> None:
    form = TOOLS[name]
    call = write_calls(form, [("write", {"city": "Oslo"})])
    text = call[: call.index("Oslo")] + "O"
    output = write_calls(form, [("write", {"path": "x", "text": text})])
    (found,) = calls_in(name, output, special=True)
    assert json.loads(str(found["arguments"])) == {"path": "x", "text": text}


@pytest.mark.requirement("FM-ROWS")
@pytest.mark.parametrize("special", [True, False], ids=["special", "text"])
@pytest.mark.parametrize("name", sorted(TOOLS))
def test_values_contain_the_tags_of_their_format(name: str, special: bool) -> None:
    special |= bool(TOOLS[name].begins)
    assert broken(name, special=special) == AMBIGUOUS.get(name, set())
