"""Rewriting messages that a template does not support."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.dialects.chat.fallback import adapt_messages, tool_prompt, tools_as_text
from antiphon.dialects.chat.template_probe import TemplateCapabilities
from antiphon.dialects.formats.tool_formats import TOOLS

Message = dict[str, Any]


def capabilities(**more: Any) -> TemplateCapabilities:
    able: dict[str, Any] = {
        "content_parts": False,
        "system": True,
        "system_anywhere": True,
        "developer": True,
        "consecutive_roles": True,
        "user_after_results": True,
        "tools": True,
        "results": True,
        "argument_objects": True,
        "argument_strings": True,
        "parallel_calls": True,
        "short_ids": False,
        "named_ids": False,
        "reasoning": "reasoning_content",
        "end": "",
    }
    return TemplateCapabilities(**{**able, **more})


def messages_of(*messages: tuple[str, str]) -> list[Message]:
    return [{"role": role, "content": text} for role, text in messages]


def pairs(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


TALK = messages_of(
    ("system", "S1"), ("developer", "D1"), ("user", "U1"), ("assistant", "A1"), ("system", "S2"),
    ("user", "U2"), ("user", "U3"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("lacks", "expected"),
    [
        ({}, pairs(TALK)),
        (
            {"developer": False},
            [("system", "S1\n\nD1"), *pairs(TALK)[2:]],
        ),
        (
            {"developer": False, "system_anywhere": False},
            [
                ("system", "S1\n\nD1\n\nS2"),
                ("user", "U1"),
                ("assistant", "A1"),
                ("user", "U2"),
                ("user", "U3"),
            ],
        ),
        (
            {"developer": False, "system_anywhere": False, "consecutive_roles": False},
            [
                ("system", "S1\n\nD1\n\nS2"),
                ("user", "U1"),
                ("assistant", "A1"),
                ("user", "U2\n\nU3"),
            ],
        ),
        (
            {
                "developer": False,
                "system": False,
                "system_anywhere": False,
                "consecutive_roles": False,
            },
            [("user", "S1\n\nD1\n\nS2\n\nU1"), ("assistant", "A1"), ("user", "U2\n\nU3")],
        ),
    ],
)
def test_missing_roles_are_replaced(lacks: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert pairs(adapt_messages(TALK, capabilities(**lacks))) == expected


def test_answer_that_comes_first_gets_a_user_before_it() -> None:
    strict = capabilities(consecutive_roles=False)
    talk = messages_of(("system", "S"), ("assistant", "A"), ("user", "U"))
    assert pairs(adapt_messages(talk, strict)) == [
        ("system", "S"), ("user", ""), ("assistant", "A"), ("user", "U"),
    ]  # fmt: skip
    without = capabilities(consecutive_roles=False, system=False, system_anywhere=False)
    assert pairs(adapt_messages(talk, without)) == [
        ("user", "S"),
        ("assistant", "A"),
        ("user", "U"),
    ]


def test_system_message_alone_becomes_the_users() -> None:
    assert pairs(adapt_messages(messages_of(("system", "S")), capabilities(system=False))) == [
        ("user", "S")
    ]


def call(id: str, arguments: Any) -> Message:
    return {"type": "function", "id": id, "function": {"name": f"f_{id}", "arguments": arguments}}


def result(id: str, text: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": id, "name": f"f_{id}"}


CALLING: list[Message] = [
    {
        "role": "assistant",
        "content": "So:",
        "reasoning_content": "hm",
        "tool_calls": [call("a", {"x": "1"}), call("b", '{"x')],
    },
    result("a", "1"),
    result("b", "2"),
]


@pytest.mark.requirement("FM-ANSWERED")
def test_user_message_after_results_gets_an_answer_between() -> None:
    talk = [*messages_of(("user", "U1")), *CALLING, *messages_of(("user", "U2"))]
    assert [m["role"] for m in adapt_messages(talk, capabilities())][-2:] == ["tool", "user"]
    fit = adapt_messages(talk, capabilities(user_after_results=False))
    assert pairs(fit)[-3:] == [("tool", "2"), ("assistant", ""), ("user", "U2")]
    assert adapt_messages(fit, capabilities(user_after_results=False)) == fit


def test_parallel_calls_are_split_into_answers() -> None:
    first, one, second, two = adapt_messages(CALLING, capabilities(parallel_calls=False))
    assert [c["id"] for c in first["tool_calls"]] == ["a"]
    assert (first["content"], first["reasoning_content"], one["content"]) == ("So:", "hm", "1")
    assert [c["id"] for c in second["tool_calls"]] == ["b"]
    assert (second["content"], two["content"]) == ("", "2")


def test_forms_of_arguments() -> None:
    def arguments(**more: Any) -> list[Any]:
        message = adapt_messages(CALLING, capabilities(**more))[0]
        return [c["function"]["arguments"] for c in message["tool_calls"]]

    assert arguments() == [{"x": "1"}, '{"x']
    assert arguments(argument_objects=False) == ['{"x": "1"}', '{"x']
    assert arguments(argument_strings=False) == [{"x": "1"}, {"arguments": '{"x'}]


def test_short_ids_are_the_same_in_call_and_result() -> None:
    calls, one, two = adapt_messages(CALLING, capabilities(short_ids=True))
    ids = [c["id"] for c in calls["tool_calls"]]
    assert ids == [one["tool_call_id"], two["tool_call_id"]]
    assert len(set(ids)) == 2
    assert all(len(id) == 9 and id.isalnum() for id in ids)


def test_ids_with_names_number_the_calls() -> None:
    fit = adapt_messages([*CALLING, *CALLING], capabilities(named_ids=True))
    calls = [c["id"] for m in fit for c in m.get("tool_calls", ())]
    assert calls == ["functions.f_a:0", "functions.f_b:1", "functions.f_a:2", "functions.f_b:3"]
    results = [m["tool_call_id"] for m in fit if m["role"] == "tool"]
    assert results == calls


def test_parts_and_the_key_for_thinking() -> None:
    message = adapt_messages(CALLING, capabilities(content_parts=True, reasoning="thinking"))[0]
    assert message["content"] == [{"type": "text", "text": "So:"}]
    assert message["thinking"] == "hm" and "reasoning_content" not in message
    assert "hm" not in str(adapt_messages(CALLING, capabilities(reasoning=None)))


def test_calls_as_text() -> None:
    calls, answered = tools_as_text(CALLING, TOOLS["hermes"])
    assert calls["content"] == (
        'So:\n<tool_call>\n{"name": "f_a", "arguments": {"x": "1"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f_b", "arguments": {"x}\n</tool_call>'
    )
    assert answered["role"] == "user"
    assert answered["content"] == (
        "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
    )


def test_tool_instructions_show_the_call_syntax() -> None:
    definition = {"type": "function", "function": {"name": "weather", "description": "é"}}
    text = tool_prompt([definition], TOOLS["hermes"])
    assert json.dumps(definition, ensure_ascii=False) in text
    assert '<tool_call>\n{"name": "<function-name>", "arguments": <args-json-object>}' in text
    assert "[TOOL_CALLS][" in tool_prompt([definition], TOOLS["mistral"])
