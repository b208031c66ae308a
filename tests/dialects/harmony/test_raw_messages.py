"""Token ids of prompts and replies are divided into harmony messages."""

from __future__ import annotations

from typing import Any

import pytest
from openai_harmony import Author, Conversation, Message, Role

from tests.dialects.gpt_oss import dialect, encoding, tokenizer


def split(ids: list[int]) -> list[dict[str, Any]]:
    found = dialect().split_messages(ids)
    assert [id for part, _ in found for id in part] == ids
    return [dict(fields) for _, fields in found]


def written(text: str) -> list[int]:
    return tokenizer().encode(text, special=True)


def text(content: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}]


def test_messages_of_a_prompt_have_the_fields_of_the_library() -> None:
    messages = [
        Message.from_role_and_content(Role.USER, "Say <|start|>."),
        Message.from_role_and_content(Role.ASSISTANT, '{"a":1}')
        .with_channel("commentary")
        .with_recipient("functions.f")
        .with_content_type("<|constrain|>json"),
        Message.from_author_and_content(Author.new(Role.TOOL, "functions.f"), "2")
        .with_channel("commentary")
        .with_recipient("assistant"),
        Message.from_role_and_content(Role.ASSISTANT, "Two.").with_channel("final"),
    ]
    ids = encoding().render_conversation_for_completion(
        Conversation.from_messages(messages), Role.ASSISTANT
    )
    fields = [each.to_dict() for each in messages]
    assert split(ids) == [{**each, "role": each["role"].value} for each in fields]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
            " to=functions.f <|constrain|>json<|message|>{}<|call|>",
            [
                {"role": "assistant", "name": None, "content": text("Hm."), "channel": "analysis"},
                {
                    "role": "assistant",
                    "name": None,
                    "content": text("{}"),
                    "channel": "commentary",
                    "recipient": "functions.f",
                    "content_type": "<|constrain|>json",
                },
            ],
        ),
        ("Yes.<|return|>", [{"role": "assistant", "name": None, "content": text("Yes.")}]),
        (
            " to=python<|channel|>analysis code<|message|>1",
            [
                {
                    "role": "assistant",
                    "name": None,
                    "content": text("1"),
                    "channel": "analysis",
                    "recipient": "python",
                }
            ],
        ),
        ("", []),
    ],
)
def test_messages_of_a_reply_begin_in_the_middle(
    reply: str, expected: list[dict[str, Any]]
) -> None:
    assert split(written(reply)) == expected
