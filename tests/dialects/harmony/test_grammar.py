"""What gpt-oss is held to: thinking in its channel, then the call or the answer that is asked."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from antiphon.dialects.harmony.grammar import HarmonyGrammar
from antiphon.dialects.harmony.parser import CONTROL_TOKENS, HarmonyParser, TokenCodes
from antiphon.dialects.tools import collect_tools
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Options, ToolChoice
from antiphon.inference.tokens import Chunk
from antiphon.testing.delta_reader import read_reply
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.wire import items as it
from antiphon.wire.extensions import Guide
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat, TextConfig
from antiphon.wire.tools import Custom, Function, GrammarFormat, Namespace
from tests.dialects.grammars import ConstrainedWriter

END = "<|endoftext|>"
TOKENIZER = ByteTokenizer([*CONTROL_TOKENS.values(), END])


def closed_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WEATHER = Function(name="weather", parameters=closed_object(city={"type": "string"}), strict=True)
LOOSE = Function(name="loose", parameters=closed_object(), strict=False)
PATCH = Custom(name="patch", format=GrammarFormat(syntax="regex", definition=r'[a-z"]+\n'))


def make_writer(
    begun: Any = None, *, reasoning_done: bool = False, **fields: Any
) -> ConstrainedWriter:
    options = Options(**fields)
    shown = collect_tools(options, ())
    found = HarmonyGrammar(TOKENIZER).constraint_for_reply(
        options, shown, begun, reasoning_done=reasoning_done
    )
    return ConstrainedWriter(TOKENIZER, found, END)


TURN = "<|start|>assistant"
THINK = f'<|channel|>analysis<|message|>Hm, "so" < it is.<|end|>{TURN}'
WAIT = f"<|channel|>commentary<|message|>Wait.<|end|>{TURN}"
OSLO = '{"city":"Oslo"}'
CALL = f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{OSLO}<|call|>"
BEFORE = f" to=functions.weather<|channel|>commentary json<|message|>{OSLO}<|call|>"
FINAL = "<|channel|>final<|message|>Hello.<|return|>"


@pytest.mark.requirement("D-57")
def test_required_call_is_enforced() -> None:
    grammar = make_writer(tools=(WEATHER, LOOSE), tool_choice=ToolChoice("required"))
    for before in ("", THINK, THINK + WAIT, THINK * 3):
        assert grammar.may_write(before + CALL)
        assert grammar.may_write(before + BEFORE)
        assert not grammar.may_begin(f"{before}<|channel|>final")
    assert grammar.may_write("<|channel|>commentary to=functions.loose<|message|>{}<|call|>")
    assert not grammar.may_begin("Hello")
    assert not grammar.may_begin("<|channel|>commentary to=functions.other")
    assert not grammar.may_begin(f"{CALL}{TURN}")
    assert not grammar.may_write(CALL.replace("<|call|>", "<|end|>"))


@pytest.mark.requirement("D-57")
def test_named_call_is_enforced() -> None:
    named = ToolChoice("one", frozenset({("loose", None)}))
    allowed = ToolChoice("auto", frozenset({("loose", None)}))
    must = make_writer(tools=(WEATHER, LOOSE), tool_choice=named)
    assert must.may_begin(f"{THINK}<|channel|>commentary to=functions.loose<|message|>{{}}")
    assert not must.may_begin("<|channel|>commentary to=functions.weather")
    may = make_writer(tools=(WEATHER, LOOSE), tool_choice=allowed)
    assert may.may_write(FINAL) and not may.may_begin("<|channel|>commentary to=functions.weather")


def test_strict_arguments_in_a_free_answer() -> None:
    grammar = make_writer(tools=(WEATHER,))
    assert grammar.may_write(THINK + FINAL) and grammar.may_write(WAIT + CALL)
    assert grammar.may_write("<|channel|>final<|message|>a <| b |> c<|return|>")
    assert not grammar.may_begin('<|channel|>commentary to=functions.weather<|message|>{"town"')
    assert not grammar.may_write("<|channel|>final<|message|>Hello.")


def test_free_request_has_no_constraint() -> None:
    for fields in ({}, {"tools": (LOOSE,)}):
        options = Options(**fields)  # type: ignore[arg-type]
        assert (
            HarmonyGrammar(TOKENIZER).constraint_for_reply(
                options, collect_tools(options, ()), None
            )
            is None
        )
    options = Options(tools=(Function(name="f", parameters=closed_object()),))
    found = HarmonyGrammar(TOKENIZER).constraint_for_reply(
        options, collect_tools(options, ()), None
    )
    assert found is not None and not found.needed


AGE = TextConfig(
    format=JsonSchemaFormat(name="n", schema=closed_object(age={"type": "integer"}), strict=True)
)
OBJECT = TextConfig(format=JsonObjectFormat())


@pytest.mark.requirement("D-59")
def test_json_in_the_final_channel_only() -> None:
    grammar = make_writer(text=AGE)
    for head in ("<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>"):
        assert grammar.may_write(f'{THINK}{head}{{"age":3}}<|return|>')
        assert not grammar.may_begin(f'{head}{{"name"')
    assert not grammar.may_begin('{"age"') and not grammar.may_begin("<|channel|>final<|message|>A")
    assert make_writer(text=OBJECT).may_write('<|channel|>final<|message|>{"a":[1]}<|return|>')
    both = make_writer(text=AGE, tools=(WEATHER,))
    assert both.may_write(CALL) and both.may_write(THINK + BEFORE)
    for each in (grammar, both):  # nothing is said besides
        assert not each.may_begin("<|channel|>commentary<|message|>")
    assert both.may_write('<|channel|>final<|message|>{"age":3}<|return|>')


def test_unenforceable_schemas_are_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_writer(text=TextConfig(format=JsonSchemaFormat(name="n", schema={"type": "x"})))
    assert caught.value.param == "text.format.schema"


def test_guide_of_the_answer_is_enforced() -> None:
    grammar = make_writer(guide=Guide(syntax="regex", definition="yes|no", path="p"))
    assert grammar.may_write(f"{THINK}<|channel|>final<|message|>yes<|return|>")
    assert not grammar.may_begin("<|channel|>final<|message|>maybe")


@pytest.mark.requirement("D-56")
def test_grammar_of_a_custom_tool_is_enforced() -> None:
    grammar = make_writer(tools=(PATCH,))
    head = "<|channel|>commentary to=functions.patch <|constrain|>json<|message|>"
    assert grammar.may_write(head + r'{"input":"ab\"c\n"}<|call|>')
    assert not grammar.may_begin(head + '{"input":"A')


def test_grammar_continues_a_started_reply() -> None:
    fields: dict[str, Any] = {"tools": (WEATHER,), "tool_choice": ToolChoice("required")}
    thinking = make_writer("analysis", **fields)
    assert thinking.may_write(f"m.<|end|>{TURN}{CALL}") and not thinking.may_begin("<|channel|>")
    assert make_writer("final", text=AGE).may_write('{"age":3}<|return|>')


def test_grammar_follows_truncated_reasoning() -> None:
    must = make_writer(reasoning_done=True, tools=(WEATHER,), tool_choice=ToolChoice("required"))
    assert must.may_write(CALL) and not must.may_begin(THINK)
    assert make_writer(reasoning_done=True, text=AGE).may_write('{"age":3}<|return|>')
    assert make_writer(reasoning_done=True, tools=(WEATHER,)).may_write("Hello.<|return|>")


def test_builtin_tools_are_called_in_reasoning() -> None:
    python = Custom(name="python")
    browser = Namespace(name="browser", description="", tools=(WEATHER,))
    grammar = make_writer(tools=(python, browser), tool_choice=ToolChoice("required"))
    assert grammar.may_write(f"{THINK}<|channel|>analysis to=python code<|message|>1 + 1<|call|>")
    assert grammar.may_write(f" to=browser.weather<|channel|>analysis<|message|>{OSLO}<|call|>")
    assert not grammar.may_begin("<|channel|>commentary to=python")
    assert not grammar.may_begin("<|channel|>commentary to=functions.")


# --- what a grammar allows is read as what was asked ---------------------------------------------

ODD = Custom(name="odd", format=GrammarFormat(syntax="regex", definition="[a-c<|>]+"))
FORM = TextConfig(
    format=JsonSchemaFormat(
        name="n", schema=closed_object(a={"type": "string"}, n={"type": "integer"}), strict=True
    )
)
REQUESTS: dict[str, dict[str, Any]] = {
    "a call": {"tools": (WEATHER,), "tool_choice": ToolChoice("required")},
    "a custom call": {"tools": (ODD,), "tool_choice": ToolChoice("required")},
    "an answer": {"text": FORM},
    "an answer or a call": {"text": FORM, "tools": (WEATHER,)},
    "anything": {"tools": (WEATHER,)},
}
#: llama.cpp takes these for text.
TEXTUAL = [CONTROL_TOKENS[name] for name in ("start", "channel", "constrain", "message", "end")]


@pytest.mark.parametrize("textual", [(), TEXTUAL], ids=["special", "textual"])
@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS)
def test_grammar_output_is_parsed(fields: dict[str, Any], textual: list[str]) -> None:
    options = Options(**fields)
    shown = collect_tools(options, ())
    constraint = HarmonyGrammar(TOKENIZER).constraint_for_reply(options, shown, None)
    grammar = ConstrainedWriter(TOKENIZER, constraint, END, textual)
    for seed in range(60):
        ids = grammar.written(random.Random(seed))
        parser = HarmonyParser(
            TOKENIZER,
            TokenCodes.from_tokenizer(TOKENIZER),
            shapes=shown.shapes,
            constrained=True,
            json_answer="text" in fields,
        )
        reading = read_reply([*parser.feed(Chunk(tuple(ids))), *parser.finish("stop")])
        if not reading.items:
            assert "tools" in fields and not shown.required, "an empty answer"
            continue
        *before, last = reading.items
        assert all(isinstance(delta.item, it.Reasoning | it.Message) for delta in before)
        text = last.text.get("text", "")
        match last.item:
            case it.FunctionCall():
                assert json.loads(text).keys() == {"city"}
            case it.CustomToolCall():
                assert text and set(text) <= set("abc<|>")
            case it.Message() if "text" in fields:
                assert json.loads(text).keys() == {"a", "n"}
            case _:
                assert not shown.required
