"""The grammars of replies: what each lets a model write and what it rejects."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest
from msgspec.structs import replace

from antiphon.dialects.formats.reasoning_formats import REASONING
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.grammar.builder import GrammarBuilder
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.tools import collect_tools
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Options, ToolChoice
from antiphon.inference.tokens import Constraint
from antiphon.testing.tokenizer import END, ByteTokenizer
from antiphon.wire.extensions import Guide, read_structured_outputs
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat, TextConfig
from antiphon.wire.tools import Custom, Function, GrammarFormat, Namespace, Tool
from tests.dialects.grammars import ConstrainedWriter
from tests.dialects.replies import (
    is_bare,
    items,
    read,
    reply,
    specials,
    thinking_of,
    write_calls,
)

SPECIAL = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]")
STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def closed_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


AGE = closed_object(age=INTEGER)
WEATHER = Function(name="weather", parameters=closed_object(city=STRING))
CLOCK = Function(name="clock", parameters=closed_object())


def grammar_builder(
    form: str = "hermes", *, special: tuple[str, ...] = SPECIAL, thinks: str | None = None
) -> tuple[GrammarBuilder, ByteTokenizer]:
    tokenizer = ByteTokenizer(special)
    reasoning = REASONING[thinks] if thinks else None
    return GrammarBuilder(tokenizer, TOOLS[form], reasoning), tokenizer


def constrained(
    form: str = "hermes",
    *,
    special: tuple[str, ...] = SPECIAL,
    thinks: str | None = None,
    thinking: bool = False,
    end: str = END,
    **option_fields: Any,
) -> ConstrainedWriter:
    maker, tokenizer = grammar_builder(form, special=special, thinks=thinks)
    options = Options(**option_fields)
    return ConstrainedWriter(
        tokenizer, maker.constraint(options, collect_tools(options, ()), thinking), end
    )


def refusal(form: str = "hermes", **option_fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        constrained(form, **option_fields)
    return caught.value


def schema(value: Any, *, strict: bool = True) -> TextConfig:
    return TextConfig(format=JsonSchemaFormat(name="n", schema=value, strict=strict))


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


OSLO = call("weather", '{"city": "Oslo"}')
TIME = call("clock", "{}")


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guide", "right", "wrong"),
    [
        (Guide(syntax="regex", definition="[0-9]{3}", path=""), "123", ("12", "1234", "abc")),
        (Guide(syntax="lark", definition='start: "a" b\nb: /c+/', path=""), "acc", ("a", "c")),
        (
            read_structured_outputs({"choice": ["yes", 'n"o']}, "").guide,
            'n"o',
            ("no", "yesyes", ""),
        ),
    ],
)
def test_answer_can_have_a_grammar_of_its_own(
    guide: Guide, right: str, wrong: tuple[str, ...]
) -> None:
    for before in ("", "<think>Hm.</think>\n\n"):
        grammar = constrained(thinks="think", guide=guide)
        assert grammar.may_write(before + right)
        assert not any(grammar.may_write(before + text) for text in wrong)
    with_tools = constrained(guide=guide, tools=(WEATHER,))
    assert with_tools.may_write(right) and with_tools.may_write(OSLO)
    assert not with_tools.may_write("anything")


def test_constraint_has_the_schema_where_it_suffices() -> None:
    maker, _ = grammar_builder(thinks="think")

    def alone(thinking: bool = False, **option_fields: Any) -> Any:
        options = Options(text=schema(AGE), **option_fields)
        constraint = maker.constraint(options, collect_tools(options, ()), thinking)
        assert constraint is not None
        return constraint.schema

    assert alone() == AGE
    assert alone(thinking=True) is None and alone(tools=(WEATHER,)) is None


def test_free_request_has_no_constraint() -> None:
    maker, _ = grammar_builder()
    assert maker.constraint(Options(), collect_tools(Options(), ()), False) is None


def test_only_calls_that_may_be_left_out_leave_free_text() -> None:
    maker, _ = grammar_builder()

    def leaves_text(**option_fields: Any) -> bool:
        options = Options(tools=(WEATHER,), **option_fields)
        constraint = maker.constraint(options, collect_tools(options, ()), False)
        assert constraint is not None
        return constraint.free_text

    assert leaves_text()
    assert not leaves_text(tool_choice=ToolChoice("required"))
    assert not leaves_text(text=schema(AGE))


def test_schema_is_enforced() -> None:
    answer = constrained(text=schema(AGE))
    assert answer.may_write('{"age": 3}')
    for wrong in (
        '{"age": "3"}',
        '{"age": 3, "b": 1}',
        "{}",
        "Three",
        '{"age": 3} so',
        ' {"age": 3}',
    ):
        assert not answer.may_write(wrong), wrong


def test_white_space_is_bounded() -> None:
    answer = constrained(
        text=schema(closed_object(a=INTEGER, b={"type": "array", "items": INTEGER}))
    )
    assert answer.may_write('{"a": 1, "b": [1, 2]}')
    assert not answer.may_begin('{"a":    ')
    assert not answer.may_begin('{\n\n  "a"')


def test_json_object_format_accepts_any_object() -> None:
    answer = constrained(text=TextConfig(format=JsonObjectFormat()))
    assert answer.may_write("{}") and answer.may_write('{"a": [{"b": null}]}')
    assert not answer.may_write("[1]") and not answer.may_begin("Sure")


def test_schema_that_is_not_strict() -> None:
    loose = {"type": "object", "properties": {"a": INTEGER}}
    answer = constrained(text=schema(loose, strict=False))
    assert answer.may_write('{"a": 1}') and answer.may_write("{}")
    assert not answer.may_write('{"a": "x"}')


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({"type": "object", "properties": {"a": STRING}}, "additionalProperties"),
        ({**AGE, "required": []}, "age"),
        (closed_object(a={**AGE, "additionalProperties": True}), "additionalProperties"),
        (closed_object(a={"anyOf": [{**AGE, "required": []}]}), "age"),
    ],
)  # fmt: skip
def test_strict_schema_must_be_closed(value: Any, word: str) -> None:
    error = refusal(text=schema(value))
    assert error.code == "invalid_json_schema"
    assert error.param is not None and error.param.startswith("text.format.schema")
    assert word in error.message


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({"type": "objekt"}, "objekt"),
        ({"$ref": "#/$defs/nowhere"}, "nowhere"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
    ],
)
def test_unenforceable_schemas_are_refused(value: Any, word: str) -> None:
    error = refusal(text=schema(value, strict=False))
    assert (error.code, error.param) == ("invalid_json_schema", "text.format.schema")
    assert word in error.message


UNIQUE = {"type": "array", "uniqueItems": True, "items": STRING}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (closed_object(a=UNIQUE), '{"a": ["x", "y"]}'),
        (closed_object(a={"not": STRING}), '{"a": 1}'),
        (closed_object(a={"oneOf": [STRING, {"type": "integer"}, {"minimum": 3}]}), '{"a": 2}'),
        (closed_object(a={"type": "string", "pattern": "^(?!x)"}), '{"a": "y"}'),
        ({"type": "string", "pattern": "^(?!x)"}, '"y"'),
        (
            closed_object(a={"enum": [{"pattern": "(?=x)"}]}, b=UNIQUE),
            '{"a": {"pattern": "(?=x)"}, "b": []}',
        ),
        ({**closed_object(a=STRING), "if": {}, "then": {"required": ["a"]}}, '{"a": "x"}'),
    ],
)
def test_unenforceable_keywords_are_left_to_the_validator(value: Any, written: str) -> None:
    maker, _ = grammar_builder("hermes")
    text = schema(value, strict=False)
    constraint = maker.constraint(Options(text=text), collect_tools(Options(), ()), False)
    assert constraint is not None and constraint.partial and constraint.schema is None
    assert constrained(text=text).may_write(written) and not constrained(text=text).may_begin(
        '{"b"'
    )


@pytest.mark.parametrize(("value", "word"), [(UNIQUE, "uniqueItems"), ({"not": STRING}, "not")])
def test_strict_schema_is_enforced_completely_or_refused(value: Any, word: str) -> None:
    error = refusal(text=schema(closed_object(a=value)))
    assert (error.code, error.param) == ("invalid_json_schema", "text.format.schema.properties.a")
    assert word in error.message


def test_definitions_and_recursion() -> None:
    tree = closed_object(next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}, n={"$ref": "#/$defs/n"})
    answer = constrained(text=schema({**tree, "$defs": {"n": INTEGER}}))
    assert answer.may_write('{"next": {"next": null, "n": 1}, "n": 2}')


# --- thinking ------------------------------------------------------------------------------------


@pytest.mark.requirement("VN-44")
@pytest.mark.parametrize("special", [SPECIAL, ()])
def test_constraint_starts_after_the_reasoning(special: tuple[str, ...]) -> None:
    opened = constrained(thinks="think", thinking=True, special=special, text=schema(AGE))
    assert opened.may_write('Hm, {"x": maybe.\n</think>\n\n{"age": 3}')
    assert opened.may_write('</think>{"age": 3}')
    assert not opened.may_write('{"age": 3}')
    assert not opened.may_write("Hm</think>\n\nThree")
    closed_ = constrained(thinks="think", special=special, text=schema(AGE))
    assert closed_.may_write('{"age": 3}')
    assert closed_.may_write('<think>\nHm\n</think>\n\n{"age": 3}')
    assert not closed_.may_write('Hm\n</think>\n\n{"age": 3}')


# --- forced calls --------------------------------------------------------------------------------


def test_required_call_is_enforced() -> None:
    must = constrained(tools=(WEATHER, CLOCK), tool_choice=ToolChoice("required"))
    assert must.may_write(OSLO) and must.may_write(TIME) and must.may_write(f"{OSLO}\n{TIME}")
    for wrong in (
        "Hello",
        "",
        call("weather", "{}"),
        call("other", "{}"),
        call("clock", '{"a": 1}'),
    ):
        assert not must.may_write(wrong), wrong


def test_one_call_at_most() -> None:
    one = constrained(
        tools=(WEATHER, CLOCK), tool_choice=ToolChoice("required"), parallel_tool_calls=False
    )
    assert one.may_write(OSLO)
    assert not one.may_begin(f"{OSLO}\n<tool_call>")


def test_named_function_is_enforced() -> None:
    named = constrained(
        tools=(WEATHER, CLOCK), tool_choice=ToolChoice("one", frozenset({("weather", None)}))
    )
    assert named.may_write(OSLO) and not named.may_write(TIME)


def test_named_function_of_a_namespace_is_enforced() -> None:
    space = Namespace(name="mcp__a", tools=(CLOCK,))
    choice = ToolChoice("one", frozenset({("clock", "mcp__a")}))
    named = constrained(tools=(CLOCK, space), tool_choice=choice)
    assert named.may_write(call("mcp__a__clock", "{}")) and not named.may_write(TIME)


def test_allowed_tools_are_enforced() -> None:
    allowed = frozenset({("clock", None)})
    must = ToolChoice("required", allowed)
    required = constrained(tools=(WEATHER, CLOCK), tool_choice=must)
    assert required.may_write(TIME)
    assert not required.may_write(OSLO) and not required.may_write("Hello")
    may = ToolChoice("auto", allowed)
    auto = constrained(tools=(WEATHER, CLOCK), tool_choice=may)
    assert auto.may_write(TIME) and auto.may_write("Hello")
    assert not auto.may_write(OSLO)


def test_forced_call_overrides_the_schema() -> None:
    """Libraries that want structure ask for both: the call is what counts."""
    both = constrained(tools=(WEATHER,), tool_choice=ToolChoice("required"), text=schema(AGE))
    assert both.may_write(OSLO) and not both.may_write('{"age": 3}')


def test_schema_allows_an_answer_or_calls() -> None:
    either = constrained(tools=(WEATHER,), text=schema(AGE))
    assert either.may_write('{"age": 3}') and either.may_write(OSLO)
    assert not either.may_write("Hello") and not either.may_write(call("weather", "{}"))


@pytest.mark.requirement("FM-BARE")
def test_schema_and_json_calls_are_told_apart() -> None:
    ages = {**closed_object(age={"$ref": "#/$defs/n"}), "$defs": {"n": INTEGER}}
    named = Function(
        name="named", parameters={**closed_object(n={"$ref": "#/$defs/n"}), "$defs": {"n": STRING}}
    )
    either = constrained("llama3_json", tools=(WEATHER, named), text=schema(ages))
    assert either.may_write('{"age": 3}')
    assert either.may_write('{"name": "weather", "parameters": {"city": "Oslo"}}')
    assert either.may_write('{"name": "named", "parameters": {"n": "x"}}')
    for wrong in ('{"age": "3"}', '{"name": "named", "parameters": {"n": 3}}', "Hello"):
        assert not either.may_write(wrong), wrong


def test_call_follows_the_reasoning() -> None:
    must = constrained(thinks="think", tools=(WEATHER,), tool_choice=ToolChoice("required"))
    assert must.may_write(f"<think>\nHm\n</think>\n\n{OSLO}") and must.may_write(OSLO)


# --- strict arguments in a free answer -----------------------------------------------------------


@pytest.mark.parametrize("special", [SPECIAL, ()])
def test_strict_arguments_are_enforced(special: tuple[str, ...]) -> None:
    strict = Function(name="weather", parameters={**WEATHER.parameters}, strict=True)  # type: ignore[dict-item]
    free = constrained(special=special, tools=(strict,))
    for right in ("", "Hello { there }", OSLO, f"Let me see.\n{OSLO}", f"{OSLO}\n{OSLO}"):
        assert free.may_write(right), right
    assert not free.may_write(call("weather", '{"city": 3}'))
    assert not free.may_begin('<tool_call>\n{"name": "other')


def test_strict_function_closes_open_objects() -> None:
    loose = {"type": "object", "properties": {"city": STRING, "days": INTEGER}}
    strict = Function(name="weather", parameters=loose, strict=True)
    must = constrained(tools=(strict,), tool_choice=ToolChoice("required"))
    assert must.may_write(call("weather", '{"city": "Oslo", "days": 2}'))
    assert not must.may_write(call("weather", '{"city": "Oslo"}'))
    assert not must.may_begin(call("weather", '{"city": "Oslo", "days": 2, "x"')[:-15])


def constraint(form: str, *tools: Tool, **option_fields: Any) -> Constraint | None:
    maker, _ = grammar_builder(form)
    options = Options(tools=tools, **option_fields)
    return maker.constraint(options, collect_tools(options, ()), False)


def test_function_that_is_not_strict_is_free_until_forced() -> None:
    assert constraint("hermes", Function(name="weather", parameters=AGE, strict=False)) is None


def test_arguments_are_enforced_where_strict_is_absent() -> None:
    tried = constraint("hermes", WEATHER)
    assert tried is not None and not tried.needed
    free = constrained(tools=(WEATHER, CLOCK))
    for right in ("", "Hello { there }", OSLO, f"Let me see.\n{OSLO}\n{TIME}"):
        assert free.may_write(right), right
    assert not free.may_write(call("weather", '{"city": 3}'))
    optional = {"type": "object", "properties": {"city": STRING, "days": INTEGER}}
    some = constrained(tools=(Function(name="weather", parameters=optional),))
    assert some.may_write(call("weather", '{"days": 3}')) and some.may_write(OSLO)
    assert not some.may_begin('<tool_call>\n{"name": "weather", "arguments": {"invented"')


@pytest.mark.requirement("FM-BARE")
def test_calls_without_an_opening_tag_are_enforced() -> None:
    """Nothing marks these calls: an answer that is JSON must stay possible."""
    free = constrained("llama3_json", tools=(WEATHER, CLOCK))
    right = '{"name": "weather", "parameters": {"city": "Oslo"}}'
    for text in ("", "Hello", "{", '{"a": 1}', '{"name": "weathered"}', right, f"{right}; {right}"):
        assert free.may_write(text), text
    for text in (right.replace('"Oslo"', "3"), right.replace("weather", "whether"), right[:-2]):
        assert not free.may_write(text), text
    python = constrained("pythonic", tools=(WEATHER, CLOCK))
    for text in ("", "[1] Oslo", "[Chorus(x=2)] La", '[weather(city="Oslo"), clock()]'):
        assert python.may_write(text), text
    assert not python.may_write("[weather(city=3)]")


def test_doubtful_opening_text_is_valid_in_an_answer() -> None:
    tokenizer, options = ByteTokenizer(()), Options(tools=(WEATHER, CLOCK))
    maker = GrammarBuilder(tokenizer, replace(TOOLS["hermes"], doubtful=True), None)
    free = ConstrainedWriter(
        tokenizer, maker.constraint(options, collect_tools(options, ()), False)
    )
    wrong = call("weather", '{"city": 3}')
    for text in ("", "<tool_call> is how", OSLO, f"So: {OSLO}", f"A <tool_call>\n{OSLO}\n{TIME}"):
        assert free.may_write(text), text
    for text in (wrong, f"So: {wrong}", f"<tool_call> {wrong}", f"{OSLO}\n{wrong}"):
        assert not free.may_write(text), text
    functionary = constrained("functionary_v3_2", thinks="functionary_v3_2", tools=(WEATHER, CLOCK))
    right, wrong = 'weather\n{"city": "Oslo"}', 'weather\n{"city": 3}'
    for text in (
        "all\n>>> a\n1",
        right,
        f"all\nSo\n>>>{right}",
        f"all\n>>> a>>>{right}>>>clock\n{{}}",
    ):
        assert functionary.may_write(text), text
    for text in (wrong, f"all\nSo>>>{wrong}", "other\n{}", f"all\n>>> a>>>{wrong}>>>{right}"):
        assert not functionary.may_write(text), text


@pytest.mark.parametrize(
    "option_fields",
    [
        {"tool_choice": ToolChoice("required")},
        {"text": schema(AGE)},
        {"tool_choice": ToolChoice("auto", frozenset())},
    ],
)
def test_requested_constraint_is_marked_as_needed(option_fields: Any) -> None:
    created = constraint("hermes", WEATHER, **option_fields)
    assert created is not None and created.needed
    strict = constraint("hermes", Function(name="weather", parameters=AGE, strict=True))
    assert strict is not None and strict.needed


def test_unenforceable_keywords_are_dropped_unless_strict() -> None:
    odd = {
        **closed_object(a={"type": "array", "items": STRING, "uniqueItems": True}),
        "$schema": "x",
    }
    loose = constrained(
        tools=(Function(name="f", parameters=odd),), tool_choice=ToolChoice("required")
    )
    assert loose.may_write(call("f", '{"a": ["x", "x"]}'))
    assert not loose.may_write(call("f", '{"a": "x"}'))
    error = refusal(tools=(Function(name="f", parameters=odd, strict=True),))
    assert "uniqueItems" in error.message
    assert error.param == "tools[0].parameters.properties.a"


def test_invalid_schema_does_not_stop_a_free_answer() -> None:
    free = constrained(tools=(WEATHER, Function(name="bad", parameters={"type": "objekt"})))
    assert free.may_write(call("bad", '{"any": 1}')) and not free.may_write(call("bad", "1"))


def test_bad_schema_of_a_function_is_refused_by_path_where_it_is_forced() -> None:
    bad = Function(name="bad", parameters={"type": "objekt"})
    error = refusal(tools=(WEATHER, bad), tool_choice=ToolChoice("required"))
    assert (error.param, error.code) == ("tools[1].parameters", "invalid_json_schema")


def test_schema_cannot_set_grammar_options() -> None:
    meddling = {**AGE, "x-guidance": {"whitespace_flexible": True}}
    assert not constrained(text=schema(meddling)).may_begin('{"age":    ')


def test_number_of_calls_is_bounded() -> None:
    must = constrained(tools=(CLOCK,), tool_choice=ToolChoice("required"))
    assert must.may_write("\n".join([TIME] * 16))
    assert not must.may_begin("\n".join([TIME] * 17))


# --- custom tools --------------------------------------------------------------------------------

PATCH = 'start: begin line+\nbegin: "*** Begin\\n"\nline: "+" /[^\\n]+/ "\\n"\n'


def custom(syntax: Any, definition: str, name: str = "tool") -> Custom:
    return Custom(name=name, format=GrammarFormat(syntax=syntax, definition=definition))


def forced_call(*tools: Tool, form: str = "hermes") -> ConstrainedWriter:
    return constrained(form, tools=tools, tool_choice=ToolChoice("required"))


def custom_call(text: str, name: str = "tool") -> str:
    return call(name, f'{{"input": "{text}"}}')


def test_custom_tool_takes_any_text() -> None:
    free = forced_call(Custom(name="tool"))
    assert free.may_write(custom_call('a \\"b\\" \\n c'))


@pytest.mark.requirement("VN-43", "API-CUSTOM-GRAMMAR")
def test_lark_grammar_is_enforced_inside_json() -> None:
    patch = forced_call(custom("lark", PATCH))
    assert patch.may_write(custom_call('*** Begin\\n+a\\n+b \\\\ \\"c\\"\\n'))
    assert not patch.may_write(custom_call("+a\\n"))
    assert not patch.may_write(custom_call("*** Begin\\n"))
    assert not patch.may_write(custom_call("*** Begin\\n-a\\n"))


def test_patch_grammar_is_enforced() -> None:
    """The grammar that coding agents send for patches."""
    definition = """
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
    patch = (
        "*** Begin Patch\n*** Update File: a.py\n@@ def f():\n-\treturn \"x\"\n+\treturn '\\\\'\n"
        "*** Add File: é.py\n+\n+# end\n*** End Patch\n"
    )
    for form in ("hermes", "mistral"):
        held_to = forced_call(custom("lark", definition), form=form)
        arguments = json.dumps({"input": patch}, ensure_ascii=False)
        reply_text = call("tool", arguments)
        if form == "mistral":
            reply_text = f'[TOOL_CALLS][{{"name": "tool", "arguments": {arguments}}}]'
        assert held_to.may_write(reply_text)
        assert not held_to.may_write(reply_text.replace("*** Update", "*** Udpate"))
        assert not held_to.may_write(reply_text.replace("@@ def", "def"))
    tagged = forced_call(custom("lark", definition), form="qwen3_coder")
    reply_text = f"<tool_call>\n<function=tool>\n<parameter=input>\n{patch}\n</parameter>\n"
    assert tagged.may_write(f"{reply_text}</function>\n</tool_call>")


def test_regex_is_enforced() -> None:
    number = forced_call(custom("regex", r"[0-9]{1,3}(\.[0-9]+)?"))
    assert number.may_write(custom_call("12.5"))
    assert not number.may_write(custom_call("1234")) and not number.may_write(custom_call("x"))


def test_rules_of_two_grammars_do_not_collide() -> None:
    """Both have rules of the same names."""
    one = custom("lark", 'start: WORD\nWORD: "a"+', "one")
    two = custom("lark", 'start: WORD\nWORD: "b"+', "two")
    both = forced_call(one, two)
    assert both.may_write(custom_call("aa", "one")) and both.may_write(custom_call("bb", "two"))
    assert not both.may_write(custom_call("aa", "two"))


def test_grammar_may_use_internal_rule_names() -> None:
    own = forced_call(custom("lark", 'start: calls one\ncalls: "a"\none: body\nbody: "b"'))
    assert own.may_write(custom_call("ab")) and not own.may_write(custom_call("a"))


def test_invalid_grammar_is_refused_with_its_path() -> None:
    surrogate = r"\ud800"
    larks = ("", "// x", "%import common.INT", "begin: x", "start: nowhere", 'start: "b".."a"')
    larks += (f'start: "{surrogate}"', f"start: /{surrogate}/")
    for syntax, definition in (
        *(("lark", each) for each in larks),
        ("regex", "("),
        ("regex", surrogate),
    ):
        error = refusal(
            tools=(WEATHER, custom(syntax, definition)), tool_choice=ToolChoice("required")
        )
        assert (error.code, error.param) == ("invalid_grammar", "tools[1].format.definition")


def test_named_custom_tool() -> None:
    choice = ToolChoice("one", frozenset({("tool", None)}))
    named = constrained(tools=(WEATHER, Custom(name="tool")), tool_choice=choice)
    assert named.may_write(custom_call("x")) and not named.may_write(OSLO)


# --- formats -------------------------------------------------------------------------------------

TRIP = Function(
    name="trip",
    parameters={
        "type": "object",
        "properties": {"city": STRING, "days": INTEGER},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
OUTPUTS = {
    "hermes": call("trip", '{"city": "Oslo", "days": 2}'),
    "mistral": '[TOOL_CALLS][{"name": "trip", "arguments": {"city": "Oslo", "days": 2}}]',
    "mistral_v11": '[TOOL_CALLS]trip[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo", "days": 2}',
    "mistral_v13": '[TOOL_CALLS]trip[ARGS]{"city": "Oslo", "days": 2}',
    "llama3_json": '{"name": "trip", "parameters": {"city": "Oslo", "days": 2}}',
    "granite": '<|tool_call|>[{"name": "trip", "arguments": {"city": "Oslo", "days": 2}}]',
    "qwen3_coder": "<tool_call>\n<function=trip>\n<parameter=city>\nOslo\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>trip\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "lfm2": '<|tool_call_start|>[trip(city="Oslo", days=2)]<|tool_call_end|>',
    "functiongemma": "<start_function_call>call:trip{city:<escape>Oslo<escape>,days:2}"
    "<end_function_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="trip">\n<parameter name="city">Oslo'
    '</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>trip<｜tool▁sep｜>"
    '{"city": "Oslo", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.trip:0"
    '<|tool_call_argument_begin|>{"city": "Oslo", "days": 2}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
}


@pytest.mark.parametrize("form", OUTPUTS)
@pytest.mark.parametrize("free", [False, True])
def test_every_call_syntax_has_a_grammar(form: str, free: bool) -> None:
    tool = Function(name="trip", parameters=TRIP.parameters, strict=True)
    option_fields: dict[str, Any] = {} if free else {"tool_choice": ToolChoice("required")}
    right = OUTPUTS[form]
    answer = constrained(form, tools=(tool, CLOCK), **option_fields)
    assert answer.may_write(right)
    assert not answer.may_write(right.replace("trip", "trap"))
    assert not answer.may_write(right.replace("2", "two"))
    assert answer.may_write("Hello") is free


#: What begins an answer, where a reply consists of messages.
IN_MESSAGES = {
    "beam": "<|channel|>final<|message|>",
    "functionary_v3_2": "all\n",
    "inkling": "<|content_text|>",
    "llm_jp": "<|channel|>final<|message|>",
    "muse": " to=user<|message|>",
    "solar_open": "<|content|>",
}
#: What ends a reply, where the tokenizer's usual end is written within one.
ENDS = dict.fromkeys(("beam", "llm_jp", "solar_open"), "<|return|>")


@pytest.mark.requirement("FM-HELD", "D-57")
@pytest.mark.parametrize("free", [False, True], ids=["forced", "free"])
@pytest.mark.parametrize("special", [False, True], ids=["spelled", "special"])
@pytest.mark.parametrize("form", TOOLS)
def test_every_format_has_a_grammar(form: str, special: bool, free: bool) -> None:
    row = TOOLS[form]
    end = ENDS.get(form, END)
    tokens = (*sorted(specials(row)), end) if special else (end,)
    thinks = form if form in IN_MESSAGES else None
    tool = Function(name="trip", parameters=TRIP.parameters, strict=True)
    option_fields: dict[str, Any] = {} if free else {"tool_choice": ToolChoice("required")}
    answer = constrained(
        form, special=tokens, thinks=thinks, end=end, tools=(tool, CLOCK), **option_fields
    )
    calls = [("trip", {"city": "Oslo", "days": 2}), ("clock", {})]
    assert answer.may_write(write_calls(row, calls[:1])) and answer.may_write(
        write_calls(row, calls)
    )
    for wrong in ({"city": "Oslo", "days": "two"}, {"city": "Oslo"}, {"town": "Oslo", "days": 2}):
        assert not answer.may_write(write_calls(row, [("trip", wrong)])), wrong
    if not (is_bare(row) and row.written.parameter and free):  # which is only text
        assert not answer.may_write(write_calls(row, [("trap", {"city": "Oslo", "days": 2})]))
    assert answer.may_write(IN_MESSAGES.get(form, "") + "Hello") is free


@pytest.mark.requirement("FM-HELD", "API-PARALLEL")
@pytest.mark.parametrize("free", [False, True], ids=["forced", "free"])
@pytest.mark.parametrize("form", TOOLS)
def test_every_format_can_force_one_call_after_reasoning(form: str, free: bool) -> None:
    row, thinks = TOOLS[form], thinking_of(form)
    end = ENDS.get(form, END)
    tokens = sorted({*specials(row), *thinks.open, *thinks.close, end})
    tool = Function(name="trip", parameters=TRIP.parameters, strict=True)
    option_fields: dict[str, Any] = {} if free else {"tool_choice": ToolChoice("required")}
    answer = constrained(
        form,
        special=tuple(token for token in tokens if token),
        thinks=thinks.name,
        end=end,
        tools=(tool, CLOCK),
        parallel_tool_calls=False,
        **option_fields,
    )
    trip, wrong = ("trip", {"city": "Oslo", "days": 2}), ("trip", {"city": "Oslo", "days": "two"})
    reasoning_done = "Where?" if thinks.open else ""
    assert answer.may_write(reply(row, reasoning_done, "", write_calls(row, [trip])))
    assert not answer.may_write(reply(row, reasoning_done, "", write_calls(row, [wrong])))
    if not free:  # what follows the one call is read by nobody
        assert not answer.may_write(
            reply(row, reasoning_done, "", write_calls(row, [trip, ("clock", {})]))
        )


@pytest.mark.requirement("FM-HELD")
@pytest.mark.parametrize("form", TOOLS)
def test_grammar_output_is_parsed(form: str) -> None:
    """Whatever a model writes that is forced to call, it is a call that follows its schema."""
    row, thinks = TOOLS[form], thinking_of(form)
    end = ENDS.get(form, END)
    tokens = sorted({*specials(row), *thinks.open, *thinks.close, end})
    tokenizer = ByteTokenizer(tokens)
    cities = ["Oslo", "São Paulo", "'s-Hertogenbosch", "<br>"]
    colour = {"$ref": "#/$defs/colour"}
    parameters = closed_object(
        city={"type": "string", "enum": cities},
        days=INTEGER,
        sure=BOOLEAN,
        colour=colour,
        other={"anyOf": [colour, {"type": "null"}]},
        mixed={"enum": ["red", None, 3]},
    )
    parameters["$defs"] = {"colour": {"type": "string", "enum": ["red", "5", "null"]}}
    validator = jsonschema_rs.validator_for(parameters)
    trip = Function(name="trip", parameters=parameters)
    options = Options(tools=(trip, CLOCK), tool_choice=ToolChoice("required"))
    shown = collect_tools(options, ())
    grammar = GrammarBuilder(tokenizer, row, None).constraint(options, shown, False)
    for seed in range(3):
        ids = ConstrainedWriter(tokenizer, grammar, end=end).written(random.Random(seed))
        parser = FormatParser(
            tokenizer, reasoning=thinks, tools=row, shapes=shown.shapes, thinking=False
        )
        found, is_open = items(read(parser, [ids]))
        assert found and not is_open
        for item in found:
            arguments = json.loads(item["arguments"])
            if item["call"] == "trip":
                validator.validate(arguments)
            else:
                assert item["call"] == "clock" and arguments == {}


@pytest.mark.parametrize(
    "note", [{"type": ["string", "null"]}, {"anyOf": [STRING, {"type": "null"}]}, {}], ids=str
)
def test_text_that_may_be_missing_is_written_without_quotes(note: dict[str, Any]) -> None:
    """A parameter that may be a string or something else is read as text, quotes included."""
    tool = Function(name="f", parameters=closed_object(note=note))
    forced = {"tools": (tool,), "tool_choice": ToolChoice("required")}
    tagged, marked = constrained("qwen3_coder", **forced), constrained("deepseek_v32", **forced)
    for value in ("Oslo", "null"):
        assert tagged.may_write(write_calls(TOOLS["qwen3_coder"], [("f", {"note": value})]))
        assert marked.may_write(write_calls(TOOLS["deepseek_v32"], [("f", {"note": value})]))
    missing = write_calls(TOOLS["deepseek_v32"], [("f", {"note": None})])
    assert 'string="false">null<' in missing and marked.may_write(missing)
    assert not marked.may_write(missing.replace("null", '"Oslo"'))


@pytest.mark.parametrize(
    ("form", "tight"),
    [
        (
            "mimo",
            "<tool_call><function=trip><parameter=city>Oslo</parameter><parameter=days>2</parameter>"
            "</function></tool_call>",
        ),
        (
            "hermes",
            '<tool_call>{"name": "trip", "arguments": {"city": "Oslo", "days": 2}}</tool_call>',
        ),
        (
            "glm45",
            "<tool_call>trip<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
            "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
        ),
    ],
)
def test_line_ends_may_be_missing(form: str, tight: str) -> None:
    """What must have them cannot end where a model writes none, and goes on for ever."""
    answer = constrained(form, tools=(TRIP, CLOCK), tool_choice=ToolChoice("required"))
    assert answer.may_write(tight) and answer.may_write(tight + tight)
    assert answer.may_write(write_calls(TOOLS[form], [("trip", {"city": "Oslo", "days": 2})] * 2))
    assert not answer.may_write(tight.replace("2", "two"))


@pytest.mark.requirement("FM-ROOT")
@pytest.mark.parametrize("form", TOOLS)
def test_schema_with_references_is_enforced_in_every_format(form: str) -> None:
    """The root of the schema is a reference, or leaves several objects open."""
    trip = {**TRIP.parameters, "title": "Trip"}  # type: ignore[dict-item]
    refers = {"$ref": "#/$defs/trip", "$defs": {"trip": trip}}
    either = {
        "anyOf": [{"$ref": "#/$defs/trip"}, closed_object(city=STRING)],
        "$defs": {"trip": trip},
    }
    for parameters, rights in (
        (refers, [{"city": "Oslo", "days": 2}]),
        (either, [{"city": "Oslo", "days": 2}, {"city": "Oslo"}]),
    ):
        answer = constrained(
            form,
            tools=(Function(name="trip", parameters=parameters),),
            tool_choice=ToolChoice("required"),
        )
        for right in rights:
            assert answer.may_write(write_calls(TOOLS[form], [("trip", right)])), (form, right)
        assert not answer.may_write(write_calls(TOOLS[form], [("trip", {})]))


def test_undeclared_parameters_may_have_any_name() -> None:
    anything = Function(name="log", parameters={"type": "object"}, strict=False)
    for form in ("qwen3_coder", "glm45", "minimax_m2", "gemma4", "lfm2", "hermes"):
        answer = constrained(form, tools=(anything,), tool_choice=ToolChoice("required"))
        for reply_text in ({}, {"a": "b"}, {"a": "b", "c_1": "d"}):
            assert answer.may_write(write_calls(TOOLS[form], [("log", reply_text)])), (
                form,
                reply_text,
            )
