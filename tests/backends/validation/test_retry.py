"""Answers whose format is not enforced: validated, cleaned, retried, or failed."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.backends.base import Reply
from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.validation import schema_validator as judge
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import Capabilities
from antiphon.errors import CannotContinue, InvalidRequest, RunError
from antiphon.inference.conversation import Conversation, Options, ResumePoint, ToolChoice
from antiphon.stream.deltas import Close, Delta, Finish, Open, SampledTokens, Text
from antiphon.testing.replies import batches_of, deltas_of
from antiphon.wire.extensions import read_structured_outputs
from antiphon.wire.items import FunctionCall, Message, OutputText, Reasoning
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat, TextConfig
from antiphon.wire.tools import Function
from tests.backends.local.test_backend import CALL, LOOK, ONLY_LOOK, WEATHER, engine, user

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
SCHEMA = TextConfig(format=JsonSchemaFormat(name="age", schema=AGE))
NO_GRAMMARS = Capabilities()
GRAMMARS = Capabilities(constraints=True)


async def played_deltas(
    *replies: str, can: Capabilities = NO_GRAMMARS, **options: Any
) -> tuple[list[Delta], Any]:
    played = engine(*replies, capabilities=can)
    reply = await reply_to(played, **options)
    return [delta async for delta in deltas_of(reply)], played


async def reply_to(played: Any, **options: Any) -> Reply:
    backend = LocalBackend(played, ChatDialect(played.card, played.tokenizer))
    return await backend.prepare(Conversation((user("How old?"),)), Options(**options))


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Text))


@pytest.mark.parametrize(
    ("output_text", "right"),
    [
        ('{"age": 7}', '{"age": 7}'),
        ('{ "age" :\n7 }', '{ "age" :\n7 }'),
        ('Sure!\n```json\n{"age": 7}\n```\nBye.', '{"age": 7}'),
        ('It is {"age": 7}, I think.', '{"age": 7}'),
    ],
)
async def test_valid_answer_is_extracted_from_text(output_text: str, right: str) -> None:
    deltas, played = await played_deltas(output_text, text=SCHEMA)
    assert text(deltas) == right and len(played.requests) == 1
    assert not any(isinstance(delta, SampledTokens) for delta in deltas)
    assert played.requests[0][1].constraint is None
    assert '"age"' in played.text(played.requests[0][0])  # the model was told


async def test_invalid_answer_is_retried_and_usage_is_summed() -> None:
    deltas, played = await played_deltas("I am seven.", '{"age": "x"}', '{"age": 7}', text=SCHEMA)
    assert text(deltas) == '{"age": 7}'
    assert [type(d.item) for d in deltas if isinstance(d, Open)] == [Message]
    second = played.text(played.requests[1][0])
    assert (
        "I am seven." in second and "not match the requested format" in second and '"age"' in second
    )
    finish = deltas[-1]
    assert isinstance(finish, Finish) and sum(isinstance(d, Finish) for d in deltas) == 1
    assert finish.usage.output_tokens == sum(map(len, played.sampled))
    assert finish.usage.input_tokens == sum(len(prompt.ids) for prompt, _ in played.requests)


async def test_persistently_invalid_answer_fails() -> None:
    with pytest.raises(RunError, match="not the requested JSON") as caught:
        await played_deltas("no", text=SCHEMA)
    assert caught.value.code == "server_error"


async def test_reasoning_is_not_buffered() -> None:
    deltas, _ = await played_deltas('<think>\nHm.\n</think>\n\n{"age": 7}', text=SCHEMA)
    assert [type(d.item) for d in deltas if isinstance(d, Open)] == [Reasoning, Message]
    assert text(deltas) == 'Hm.{"age": 7}'


async def test_truncated_answer_is_not_validated() -> None:
    deltas, _ = await played_deltas('{"age": 7}', text=SCHEMA, max_output_tokens=4)
    assert text(deltas) == '{"ag' and not any(isinstance(d, Close) for d in deltas)
    assert isinstance(deltas[-1], Finish) and deltas[-1].reason == "length"


@pytest.mark.parametrize("most", range(30, 45))
async def test_enforced_call_may_be_truncated_anywhere(most: int) -> None:
    """Also before any of its text."""
    schema = {**AGE, "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = Function(
        name="weather", strict=True, parameters={**schema, "additionalProperties": False}
    )
    deltas, _ = await played_deltas(CALL, can=GRAMMARS, tools=(tool,), max_output_tokens=most)
    finish = deltas[-1]
    assert isinstance(finish, Finish) and finish.reason == "length"
    assert finish.usage.output_tokens == most
    written = CALL[: most - 1 + len("<tool_call>")]  # which is one token
    assert written.endswith(text(deltas))
    assert any(isinstance(delta, Open) for delta in deltas) == ('"name": "weather"' in written)


@pytest.mark.parametrize(
    ("guides", "wrong", "right"),
    [
        ({"regex": "[0-9]{3}"}, "12", "123"),
        ({"choice": ["yes", "no"]}, "maybe", "no"),
        ({"grammar": 'start: "a" b\nb: /c+/'}, "c", "acc"),
    ],
)
async def test_other_formats_are_validated(guides: Any, wrong: str, right: str) -> None:
    deltas, played = await played_deltas(
        wrong, right, guide=read_structured_outputs(guides, "").guide
    )
    assert text(deltas) == right and len(played.requests) == 2


async def test_json_object_must_be_an_object() -> None:
    deltas, _ = await played_deltas("[1]", '{"a": 1}', text=TextConfig(format=JsonObjectFormat()))
    assert text(deltas) == '{"a": 1}'


STRICT = Function(
    name="weather",
    parameters={"type": "object", "properties": {"days": {"type": "integer"}}},
    strict=True,
)


def call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"tools": (STRICT,)}, call('{"days": "two"}')),
        ({"tools": (STRICT,), "tool_choice": ToolChoice("required")}, "Sunny."),
        ({"tools": (STRICT,), "text": SCHEMA}, "Sunny."),
        ({"tools": (WEATHER,), "text": SCHEMA}, "Sunny."),
    ],
)
async def test_calls_are_validated(options: Any, wrong: str) -> None:
    deltas, played = await played_deltas(wrong, call('{"days": 2}'), **options)
    assert text(deltas) == '{"days": 2}' and len(played.requests) == 2
    assert [type(d.item) for d in deltas if isinstance(d, Open)] == [FunctionCall]
    assert all(sampling.constraint is None for _, sampling in played.requests)


async def test_uncheckable_schema_is_rejected() -> None:
    format = JsonSchemaFormat(name="n", schema={"type": "object", "$ref": "file:///etc/passwd"})
    with pytest.raises(InvalidRequest) as caught:
        await played_deltas("{}", text=TextConfig(format=format))
    assert caught.value.param == "text.format.schema"


LETTERS = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}


@pytest.mark.requirement("VN-43")
@pytest.mark.parametrize("grammars", [True, False])
async def test_schema_beyond_grammars_is_validated(grammars: bool) -> None:
    format = JsonSchemaFormat(name="n", schema=LETTERS)
    played = engine('["a", "a"]', '["b", "a"]', capabilities=Capabilities(constraints=grammars))
    backend = LocalBackend(played, ChatDialect(played.card, played.tokenizer))
    options = Options(text=TextConfig(format=format))
    reply = await backend.prepare(Conversation((user("?"),)), options)
    assert text([delta async for delta in deltas_of(reply)]) == '["b", "a"]'
    constrained = [sampling.constraint is not None for _, sampling in played.requests]
    assert constrained == [grammars, grammars]
    assert "non-unique" in played.text(played.requests[1][0])


@pytest.mark.requirement("UP-XGRAMMAR")
@pytest.mark.parametrize("takes", [True, False])
async def test_output_of_unsupported_grammars_is_validated(takes: bool) -> None:
    can = Capabilities(grammars=lambda lark: takes and "%json" in lark)
    replies = ['{"age": 7}'] if takes else ["I am seven.", '{"age": 7}']
    deltas, played = await played_deltas(*replies, can=can, text=SCHEMA)
    assert text(deltas) == '{"age": 7}' and len(played.requests) == len(replies)
    assert {sampling.constraint is not None for _, sampling in played.requests} == {takes}


async def test_schema_engines_do_not_enforce_grammars() -> None:
    for output_text in ({"lenient": True}, 5, None):
        format = JsonSchemaFormat(name="n", schema={**LETTERS, "x-guidance": output_text})
        deltas, _ = await played_deltas('["a", "a"]', '["b"]', text=TextConfig(format=format))
        assert text(deltas) == '["b"]'


async def test_invalid_schema_is_rejected() -> None:
    schema = {"type": "array", "uniqueItems": True, "not": {"$ref": "#/$defs/nowhere"}}
    with pytest.raises(InvalidRequest) as caught:
        await played_deltas("[]", text=TextConfig(format=JsonSchemaFormat(name="n", schema=schema)))
    assert caught.value.param == "text.format.schema"


async def test_schema_engine_gets_the_schema() -> None:
    played = engine('{"age": 7}', capabilities=Capabilities(schemas=True))
    backend = LocalBackend(played, ChatDialect(played.card, played.tokenizer))
    reply = await backend.prepare(Conversation((user("?"),)), Options(text=SCHEMA))
    assert text([delta async for delta in deltas_of(reply)]) == '{"age": 7}'
    constraint = played.requests[0][1].constraint
    assert constraint is not None and constraint.schema == AGE


async def test_buffered_reply_cannot_be_resumed() -> None:
    played = engine('{"age": 7}', capabilities=NO_GRAMMARS)
    backend = LocalBackend(played, ChatDialect(played.card, played.tokenizer))
    reply = await backend.prepare(Conversation((user("?"),)), Options(text=SCHEMA))
    assert reply.prompt_tokens is None and reply.resume(ResumePoint((1,), ())) is reply
    with pytest.raises(CannotContinue):
        reply.resume(ResumePoint((1,), (2,)))


async def test_valid_json_outside_the_grammar_is_accepted() -> None:
    """Keys in another order and unnecessary escapes: an engine's grammar may allow them."""
    format = JsonSchemaFormat(
        name="n",
        schema={
            **AGE,
            "properties": {"of": {"enum": ["</a>"]}, **AGE["properties"]},
            "required": ["of", "age"],
        },
    )
    written = '{ "age" : 7.0, "\\u006ff":"<\\/a>"\n}'
    for can in (GRAMMARS, NO_GRAMMARS):
        deltas, played = await played_deltas(written, can=can, text=TextConfig(format=format))
        assert text(deltas) == written and len(played.requests) == 1


# --- enforced by the engine -----------------------------------------------------------------------


async def test_enforced_output_streams_and_its_tokens_are_stored() -> None:
    played = engine('<think>\nHm.\n</think>\n\n{"age": 7}', capabilities=GRAMMARS)
    reply = await reply_to(played, text=SCHEMA)
    texts, sampled, seen = 0, 0, 0
    async for known in batches_of(reply):
        seen = len(played.sampled[0])
        texts += sum(isinstance(delta, Text) for delta in known)
        sampled += sum(len(delta.ids) for delta in known if isinstance(delta, SampledTokens))
        assert seen == sampled  # nothing waits for its end
    assert texts >= len('{"age": 7}') and reply.prompt_tokens is not None
    assert reply.prompt_tokens.ids == played.requests[0][0].ids


@pytest.mark.requirement("VN-43")
@pytest.mark.parametrize(
    ("options", "text", "out"),
    [
        ({"text": SCHEMA}, '{"age": "x"}', '{"age": "x"}'),
        ({"text": SCHEMA}, '{"age": x}', '{"age":'),
        ({"text": SCHEMA}, '{"age": 7', '{"age": 7'),
        ({"text": SCHEMA}, '{"age": 7} I think.', '{"age": 7}'),
        ({"guide": read_structured_outputs({"regex": "[0-9]{3}"}, "").guide}, "12x", "12"),
        ({"guide": read_structured_outputs({"choice": ["no", "yes"]}, "").guide}, "ye", "ye"),
    ],
)
async def test_grammar_dropped_by_the_engine_is_detected(options: Any, text: str, out: str) -> None:
    played = engine(text, capabilities=GRAMMARS)
    reply, received = await reply_to(played, **options), ""
    with pytest.raises(RunError, match="does not match the requested format"):
        async for delta in deltas_of(reply):
            received += delta.text if isinstance(delta, Text) else ""
            assert not isinstance(delta, Close)
    assert received == out and len(played.requests) == 1
    assert len(played.sampled[0]) <= len(out) + 3  # the engine is stopped there


async def test_early_fault_is_buffered_and_retried() -> None:
    deltas, played = await played_deltas('Sure: {"age": 7}!', can=GRAMMARS, text=SCHEMA)
    assert text(deltas) == '{"age": 7}' and len(played.requests) == 1
    played = engine("Seven.", "Seven!", '{"age": 7}', capabilities=GRAMMARS)
    reply = await reply_to(played, text=SCHEMA)
    deltas = [delta async for delta in deltas_of(reply)]
    assert text(deltas) == '{"age": 7}' and reply.prompt_tokens is None
    assert all(sampling.constraint is not None for _, sampling in played.requests)
    assert [type(d.item) for d in deltas if isinstance(d, Open)] == [Message]


@pytest.mark.parametrize("sampled", ["<think>\nHm.\n</think>\n\n", ""])
async def test_output_that_was_generated_again_is_not_continued(sampled: str) -> None:
    """Such output reports no tokens: it would be in the response twice."""
    played = engine('{"age": 8}', capabilities=Capabilities(constraints=True, logit_bias=True))
    reply = await reply_to(played, text=SCHEMA)
    assert reply.prompt_tokens is not None
    ids = tuple(played.tokenizer.encode(sampled, special=True))
    answer = Message(role="assistant", content=(OutputText(text='{"age": 7}'),))
    resumed = reply.resume(ResumePoint(reply.prompt_tokens.ids, ids, (Reasoning(),), (answer,)))
    with pytest.raises(CannotContinue, match="generated again"):
        [delta async for delta in deltas_of(resumed)]


async def test_calls_are_validated_while_they_stream() -> None:
    strict, forced = (
        {"tools": (STRICT,)},
        {"tools": (STRICT,), "tool_choice": ToolChoice("required")},
    )
    for options, output in (
        (strict, call('{"days": "two"}')),
        (forced, "Sunny."),
        ({"tools": (WEATHER, LOOK), "tool_choice": ONLY_LOOK}, CALL),
    ):
        with pytest.raises(RunError, match="does not match the requested format"):
            await played_deltas(output, can=GRAMMARS, **options)
    deltas, _ = await played_deltas("Hm. " + call('{"days": 2}'), can=GRAMMARS, **strict)
    assert [type(d.item) for d in deltas if isinstance(d, Open)] == [Message, FunctionCall]


@pytest.mark.parametrize("can", [GRAMMARS, NO_GRAMMARS])
async def test_stop_string_may_truncate_valid_output(can: Capabilities) -> None:
    """vLLM's own example: a regex that ends with a line break, which is also a stop string."""
    guide = read_structured_outputs({"regex": "[a-z]+@[a-z]+\\.com\n"}, "").guide
    for output_text in ("ada@home.com\n", "ada@\nhome.com"):
        deltas, _ = await played_deltas(output_text, can=can, guide=guide, stop=("\n",))
        assert text(deltas) == output_text.partition("\n")[0]
        assert isinstance(deltas[-1], Finish) and deltas[-1].stop_text
    with pytest.raises(RunError, match="grammar"):
        await played_deltas("Ada\n", can=can, guide=guide, stop=("\n",))


async def test_expensive_grammar_is_checked_within_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guide = read_structured_outputs({"grammar": 'start: a\na: a a | "x" | ""'}, "").guide
    deltas, _ = await played_deltas("x" * 150, can=GRAMMARS, guide=guide)
    assert text(deltas) == "x" * 150
    played = engine("x" * 150 + "y" * 600, capabilities=GRAMMARS)
    with pytest.raises(RunError, match="grammar"):
        async for _ in batches_of(await reply_to(played, guide=guide)):
            pass
    assert len(played.sampled[0]) < 700  # it is not waited for the end
    monkeypatch.setattr(judge, "_SECONDS", 0.3)
    with pytest.raises(RunError, match="grammar"):
        await played_deltas("x" * 1000, can=GRAMMARS, guide=guide)


# --- restricted tools -----------------------------------------------------------------------------


@pytest.mark.requirement("API-TOOL-CHOICE")
async def test_disallowed_tools_are_hidden_without_enforcement() -> None:
    tools = {"tools": (WEATHER, LOOK), "tool_choice": ONLY_LOOK}
    look = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    deltas, played = await played_deltas(CALL, look, **tools)
    assert [d.item.name for d in deltas if isinstance(d, Open)] == ["look"]  # type: ignore[union-attr]
    first, second = (played.text(prompt) for prompt, _ in played.requests)
    assert "look" in first and "city" not in first
    assert "may not be called now" in second
    deltas, played = await played_deltas("Nothing to see.", **tools)
    assert text(deltas) == "Nothing to see." and len(played.requests) == 1
    required = ToolChoice("required", ONLY_LOOK.allowed)
    deltas, played = await played_deltas("No.", look, tools=tools["tools"], tool_choice=required)
    assert len(played.requests) == 2 and isinstance(deltas[-1], Finish)
    assert [d.item.name for d in deltas if isinstance(d, Open)] == ["look"]  # type: ignore[union-attr]
