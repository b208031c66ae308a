from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.backends.remote.chat_completions.messages import build_chat_messages
from antiphon.dialects.tools import PromptTools
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Conversation
from antiphon.wire.items import (
    ComputerCall,
    ComputerCallOutput,
    ComputerScreenshot,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    SummaryText,
)

IMAGE = "data:image/png;base64,AAAA"
ORIGIN = "http://h"


def user(*parts: Any, role: Any = "user") -> Message:
    content = tuple(InputText(text=part) if isinstance(part, str) else part for part in parts)
    return Message(role=role, content=content)


def answer(text: str) -> Message:
    return Message(role="assistant", content=(OutputText(text=text),))


def converted(*items: Item, instructions: str | None = None, **more: Any) -> list[dict[str, Any]]:
    return build_chat_messages(
        Conversation(items=items, instructions=instructions), PromptTools(), **more
    )


def test_developer_message_becomes_system_unless_supported() -> None:
    items = [
        user("be kind", role="developer"),
        user("hi"),
        user("then", role="system"),
        answer("a"),
    ]
    messages = [
        ("system", "short\n\nbe kind"),
        ("user", "hi"),
        ("system", "then"),
        ("assistant", "a"),
    ]
    assert [(m["role"], m["content"]) for m in converted(*items, instructions="short")] == messages
    knows = converted(*items, instructions="short", has_developer_role=True)
    assert [m["role"] for m in knows] == ["system", "developer", "user", "system", "assistant"]


def test_calls_and_results() -> None:
    messages = converted(
        user("look"),
        Reasoning(content=(ReasoningText(text="Hm"),)),
        answer("I look."),
        FunctionCall(call_id="a", name="look", arguments='{"at": "sea"}'),
        CustomToolCall(call_id="b", name="patch", input="*** é"),
        FunctionCall(call_id="c", name="look", arguments="no JSON"),
        CustomToolCallOutput(call_id="b", output="done"),
        FunctionCallOutput(call_id="a", output="blue"),
        FunctionCallOutput(call_id="c", output=(InputText(text="x"), InputText(text="y"))),
        reasoning_fields=("reasoning", "reasoning_content"),
    )
    assert messages[1] == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in (
                ("a", "look", '{"at": "sea"}'),
                ("b", "patch", '{"input": "*** é"}'),
                ("c", "look", "no JSON"),
            )
        ],
        "reasoning": "Hm",
        "reasoning_content": "Hm",
    }
    assert [(m["tool_call_id"], m["content"]) for m in messages[2:]] == [
        ("a", "blue"),
        ("b", "done"),
        ("c", "x\ny"),
    ]


def test_reasoning_is_dropped_if_the_server_has_no_field() -> None:
    messages = converted(
        user("a"), Reasoning(content=(ReasoningText(text="Hm"),)), answer("b"), user("c")
    )
    assert messages[1] == {"role": "assistant", "content": "b"}
    alone = converted(user("a"), Reasoning(content=(ReasoningText(text="Hm"),)), user("c"))
    assert [m["role"] for m in alone] == ["user", "user"]


def test_images_audio_and_documents_become_parts() -> None:
    pdf = "data:application/pdf;base64,JVBERi0="
    (messages,) = converted(
        user(
            "see",
            InputImage(image_url=IMAGE),
            "and",
            InputImage(image_url="https://h/x.png", detail="high"),
            InputAudio(input_audio={"data": "AA", "format": "wav"}),
            InputFile(file_data=pdf, filename="a.pdf"),
            InputFile(file_data="data:text/plain;base64,aGk=", filename="a.txt"),
        )
    )
    assert messages["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": IMAGE}},
        {"type": "text", "text": "and"},
        {"type": "image_url", "image_url": {"url": "https://h/x.png", "detail": "high"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": pdf}},
        {"type": "text", "text": "[file 'a.txt']\nhi"},
    ]


def test_images_of_results_follow_all_results() -> None:
    messages = converted(
        user("look"),
        FunctionCall(call_id="a", name="look", arguments="{}"),
        FunctionCall(call_id="b", name="look", arguments="{}"),
        FunctionCallOutput(
            call_id="a", output=(InputText(text="this:"), InputImage(image_url=IMAGE))
        ),
        FunctionCallOutput(call_id="b", output="dark"),
        user("well?"),
    )
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert messages[2]["content"].startswith("this:\n[")
    assert messages[4]["content"] == [{"type": "image_url", "image_url": {"url": IMAGE}}]


def test_image_without_content_is_rejected_with_its_path() -> None:
    with pytest.raises(InvalidRequest) as raised:
        converted(user("a"), user("b", InputImage(file_id="file_1")))
    assert raised.value.param == "input[1].content[1]"


@pytest.mark.parametrize("number", ["0", "7"])
def test_marks_in_user_text_are_ignored(number: str) -> None:
    mark = f"a\U0010ff00{number}\U0010ff01b"
    call = FunctionCall(call_id="c", name="f", arguments="{}")
    items = (user(mark, InputImage(image_url=IMAGE)), answer(mark), user("b"), call)
    output = FunctionCallOutput(call_id="c", output=mark)
    thinking = Reasoning(summary=(), content=(ReasoningText(text=mark),))
    messages = converted(
        *items, output, thinking, answer("c"), instructions=mark, reasoning_fields=["thinking"]
    )
    picture = {"type": "image_url", "image_url": {"url": IMAGE}}
    assert [each["content"] for each in messages[:3]] == [
        mark,
        [{"type": "text", "text": mark}, picture],
        mark,
    ]
    assert (messages[5]["content"], messages[6]["thinking"]) == (mark, mark)


@pytest.mark.parametrize("role", ["developer", "assistant"])
def test_images_outside_user_messages_are_deferred(role: str) -> None:
    """The API allows only text for these roles."""
    picture = {"type": "image_url", "image_url": {"url": IMAGE}}
    shown = user("see", InputImage(image_url=IMAGE), role=role)
    messages = converted(
        user("be kind", role="developer"), shown, user("more", role=role), user("hi")
    )
    assert [each["content"] for each in messages if each["role"] == "user"] == [[picture], "hi"]
    texts = [each["content"] for each in messages if each["role"] != "user"]
    assert "\n\n".join(texts).split() == ["be", "kind", "see", "more"]
    alone = converted(user(InputImage(image_url=IMAGE), role="developer"))
    assert alone == [{"role": "user", "content": [picture]}]


def test_screenshot_becomes_an_image() -> None:
    call = ComputerCall(call_id="c", action={"type": "screenshot"})  # type: ignore[arg-type]
    for shot, expected in (
        (ComputerScreenshot(image_url=IMAGE), [{"type": "image_url", "image_url": {"url": IMAGE}}]),
        (ComputerScreenshot(file_id="file_gone"), None),
    ):
        messages = converted(user("a"), call, ComputerCallOutput(call_id="c", output=shot))
        behind = [each["content"] for each in messages[3:]]
        assert behind == ([] if expected is None else [expected])
        assert ("omitted" in messages[2]["content"]) == (expected is None)


def encrypted_reasoning(origin: str, *details: dict[str, Any]) -> str:
    return f"{origin}\n{json.dumps(details)}"


FIRST = {"type": "reasoning.text", "text": "Hm", "signature": "s"}
LATE = {"type": "reasoning.encrypted", "data": "=="}


@pytest.mark.requirement("UP-SEALED")
@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (Reasoning(encrypted_content=encrypted_reasoning(ORIGIN, FIRST)), [FIRST]),
        (
            Reasoning(
                summary=(SummaryText(text="Hm"),),
                encrypted_content=encrypted_reasoning(ORIGIN, FIRST),
            ),
            [FIRST],
        ),
        (Reasoning(encrypted_content=encrypted_reasoning("http://other", FIRST)), None),
        (Reasoning(encrypted_content="gAAAA"), None),
    ],
)
def test_reasoning_details_return_to_their_upstream(
    thinking: Reasoning, expected: Sequence[Any] | None
) -> None:
    messages = converted(user("a"), thinking, answer("b"), user("c"), origin=ORIGIN)
    assert messages[1].get("reasoning_details") == expected
    assert "\U0010ff00" not in json.dumps(messages, ensure_ascii=False)


def test_late_reasoning_details_join_the_previous_answer() -> None:
    messages = converted(
        user("a"),
        Reasoning(encrypted_content=encrypted_reasoning(ORIGIN, FIRST)),
        FunctionCall(call_id="a", name="look", arguments="{}"),
        Reasoning(encrypted_content=encrypted_reasoning(ORIGIN, LATE)),
        FunctionCallOutput(call_id="a", output="dark"),
        origin=ORIGIN,
    )
    assert [m["role"] for m in messages] == ["user", "assistant", "tool"]
    assert messages[1]["reasoning_details"] == [FIRST, LATE]
