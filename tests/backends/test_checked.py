"""Answers that nothing holds to their form: checked, cleaned, asked for again, or a failure."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.backends.base import singly
from antiphon.backends.local import Local
from antiphon.conversation import Begun, Conversation, Options
from antiphon.dialects.chat import Dialect
from antiphon.engines.base import Capabilities
from antiphon.errors import CannotContinue, InvalidRequest, RunError
from antiphon.stream.deltas import Close, Delta, Finish, Open, Sampled, Text
from antiphon.wire.extensions import read_guides
from antiphon.wire.items import FunctionCall, Message, Reasoning
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat, TextConfig
from antiphon.wire.tools import Function
from tests.backends.test_local import WEATHER, engine, user

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
SCHEMA = TextConfig(format=JsonSchemaFormat(name="age", schema=AGE))
NO_GRAMMARS = Capabilities()


async def told(*replies: str, **options: Any) -> tuple[list[Delta], Any]:
    played = engine(*replies, capabilities=NO_GRAMMARS)
    backend = Local(played, Dialect(played.card, played.tokenizer))
    reply = await backend.prepare(Conversation((user("How old?"),)), Options(**options))
    return [delta async for delta in singly(reply.deltas())], played


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Text))


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ('{"age": 7}', '{"age": 7}'),
        ('{ "age" :\n7 }', '{ "age" :\n7 }'),
        ('Sure!\n```json\n{"age": 7}\n```\nBye.', '{"age": 7}'),
        ('It is {"age": 7}, I think.', '{"age": 7}'),
    ],
)
async def test_a_right_answer_is_found_in_what_was_said(said: str, right: str) -> None:
    deltas, played = await told(said, text=SCHEMA)
    assert text(deltas) == right and len(played.requests) == 1
    assert not any(isinstance(delta, Sampled) for delta in deltas)
    assert played.requests[0][1].constraint is None
    assert '"age"' in played.text(played.requests[0][0])  # the model was told


async def test_a_wrong_answer_is_asked_for_again_and_all_of_it_counts() -> None:
    deltas, played = await told("I am seven.", '{"age": "x"}', '{"age": 7}', text=SCHEMA)
    assert text(deltas) == '{"age": 7}'
    assert [type(d.item) for d in deltas if isinstance(d, Open)] == [Message]
    second = played.text(played.requests[1][0])
    assert "I am seven." in second and "not have the right form" in second and '"age"' in second
    finish = deltas[-1]
    assert isinstance(finish, Finish) and sum(isinstance(d, Finish) for d in deltas) == 1
    assert finish.usage.output_tokens == sum(map(len, played.sampled))
    assert finish.usage.input_tokens == sum(len(prompt.ids) for prompt, _ in played.requests)


async def test_an_answer_that_stays_wrong_is_a_failure() -> None:
    with pytest.raises(RunError, match="not the JSON") as caught:
        await told("no", text=SCHEMA)
    assert caught.value.code == "server_error"


async def test_thinking_is_not_held_back() -> None:
    deltas, _ = await told('<think>\nHm.\n</think>\n\n{"age": 7}', text=SCHEMA)
    assert [type(d.item) for d in deltas if isinstance(d, Open)] == [Reasoning, Message]
    assert text(deltas) == 'Hm.{"age": 7}'


async def test_an_answer_that_was_cut_comes_as_it_is() -> None:
    deltas, _ = await told('{"age": 7}', text=SCHEMA, max_output_tokens=4)
    assert text(deltas) == '{"ag' and not any(isinstance(d, Close) for d in deltas)
    assert isinstance(deltas[-1], Finish) and deltas[-1].reason == "length"


@pytest.mark.parametrize(
    ("guides", "wrong", "right"),
    [
        ({"regex": "[0-9]{3}"}, "12", "123"),
        ({"choice": ["yes", "no"]}, "maybe", "no"),
        ({"grammar": 'start: "a" b\nb: /c+/'}, "c", "acc"),
    ],
)
async def test_other_forms_are_checked_as_well(guides: Any, wrong: str, right: str) -> None:
    deltas, played = await told(wrong, right, guide=read_guides(guides, "").guide)
    assert text(deltas) == right and len(played.requests) == 2


async def test_an_object_is_one() -> None:
    deltas, _ = await told("[1]", '{"a": 1}', text=TextConfig(format=JsonObjectFormat()))
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
        ({"tools": (STRICT,), "tool_choice": "required"}, "Sunny."),
        ({"tools": (STRICT,), "text": SCHEMA}, "Sunny."),
        ({"tools": (WEATHER,), "text": SCHEMA}, "Sunny."),
    ],
)
async def test_calls_are_checked_as_well(options: Any, wrong: str) -> None:
    deltas, played = await told(wrong, call('{"days": 2}'), **options)
    assert text(deltas) == '{"days": 2}' and len(played.requests) == 2
    assert [type(d.item) for d in deltas if isinstance(d, Open)] == [FunctionCall]
    assert all(sampling.constraint is None for _, sampling in played.requests)


async def test_a_schema_nobody_can_check_is_refused() -> None:
    format = JsonSchemaFormat(name="n", schema={"type": "object", "$ref": "file:///etc/passwd"})
    with pytest.raises(InvalidRequest) as caught:
        await told("{}", text=TextConfig(format=format))
    assert caught.value.param == "text.format.schema"


LETTERS = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}


@pytest.mark.requirement("VN-43")
@pytest.mark.parametrize("grammars", [True, False])
async def test_what_a_grammar_cannot_hold_to_is_judged(grammars: bool) -> None:
    format = JsonSchemaFormat(name="n", schema=LETTERS)
    played = engine('["a", "a"]', '["b", "a"]', capabilities=Capabilities(constraints=grammars))
    backend = Local(played, Dialect(played.card, played.tokenizer))
    options = Options(text=TextConfig(format=format))
    reply = await backend.prepare(Conversation((user("?"),)), options)
    assert text([delta async for delta in singly(reply.deltas())]) == '["b", "a"]'
    held = [sampling.constraint is not None for _, sampling in played.requests]
    assert held == [grammars, grammars]
    assert "non-unique" in played.text(played.requests[1][0])


async def test_a_schema_says_nothing_to_those_who_write_grammars() -> None:
    for said in ({"lenient": True}, 5, None):
        format = JsonSchemaFormat(name="n", schema={**LETTERS, "x-guidance": said})
        deltas, _ = await told('["a", "a"]', '["b"]', text=TextConfig(format=format))
        assert text(deltas) == '["b"]'


async def test_a_schema_that_cannot_even_be_judged_by_is_refused() -> None:
    schema = {"type": "array", "uniqueItems": True, "not": {"$ref": "#/$defs/nowhere"}}
    with pytest.raises(InvalidRequest) as caught:
        await told("[]", text=TextConfig(format=JsonSchemaFormat(name="n", schema=schema)))
    assert caught.value.param == "text.format.schema"


async def test_an_engine_that_knows_schemas_alone_is_given_them() -> None:
    played = engine('{"age": 7}', capabilities=Capabilities(schemas=True))
    backend = Local(played, Dialect(played.card, played.tokenizer))
    reply = await backend.prepare(Conversation((user("?"),)), Options(text=SCHEMA))
    assert text([delta async for delta in singly(reply.deltas())]) == '{"age": 7}'
    constraint = played.requests[0][1].constraint
    assert constraint is not None and constraint.schema == AGE


async def test_it_cannot_be_continued_after_an_interruption() -> None:
    played = engine('{"age": 7}', capabilities=NO_GRAMMARS)
    backend = Local(played, Dialect(played.card, played.tokenizer))
    reply = await backend.prepare(Conversation((user("?"),)), Options(text=SCHEMA))
    assert reply.kept is None and reply.resumed(Begun((1,), ())) is reply
    with pytest.raises(CannotContinue):
        reply.resumed(Begun((1,), (2,)))
