"""Rules for every chat template: which reasoning a prompt repeats, and the date."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import ModelCard
from antiphon.testing.tokenizer import END, ByteTokenizer
from antiphon.wire.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)
from tests.dialects.families import source

#: Repeats all the thinking it is given, so that only the dialect can leave some out.
REPEATS_THINKING = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{% endfor %}"
    "{% endfor %}"
)
CONTENTS = "{% for m in messages %}{{ m.content }}{% endfor %}"
#: The ways in which published templates ask for the date.
DATES = {
    "strftime_now": "{{ strftime_now('%Y-%m-%d') }}" + CONTENTS,
    "datetime": "{{ datetime }}" + CONTENTS,
}


TOKENIZER = ByteTokenizer(("<think>", "</think>"))


def prompt(template: str, *items: Item, tokenizer: ByteTokenizer = TOKENIZER) -> str:
    """Render ``items`` with ``template``."""
    return render(new_dialect(template, tokenizer), *items, tokenizer=tokenizer)


def new_dialect(
    template: str, tokenizer: ByteTokenizer, today: Callable[[], datetime] = datetime.now
) -> ChatDialect:
    """Return a dialect with the chat template ``template``."""
    card = ModelCard(
        name="m", context_size=1000, fingerprint="f", eos_token=END, chat_template=template
    )
    return ChatDialect(card, tokenizer, today=today)


def render(dialect: ChatDialect, *items: Item, tokenizer: ByteTokenizer = TOKENIZER) -> str:
    """Return the text of the prompt that ``dialect`` renders from ``items``."""
    ids = dialect.render(Conversation(items=items), Options()).prompt.ids
    return b"".join(map(tokenizer.piece, ids)).decode()


def user(text: str) -> Message:
    return Message(role="user", content=(InputText(text=text),))


def reasoning_item(text: str) -> Reasoning:
    return Reasoning(content=(ReasoningText(text=text),))


ANSWER = Message(role="assistant", content=(OutputText(text="Sunny."),))
CALL = FunctionCall(call_id="c1", name="weather", arguments="{}")
OUTPUT = FunctionCallOutput(call_id="c1", output="sun")


@pytest.mark.requirement("VO-4", "VN-35", "D-48")
def test_template_decides_which_thinking_is_repeated() -> None:
    earlier = (user("A"), reasoning_item("old"), CALL, OUTPUT, reasoning_item("older"), ANSWER)
    items = (*earlier, user("B"), reasoning_item("now"), CALL, OUTPUT)
    everything = prompt(REPEATS_THINKING, *items)
    for text in ("old", "older", "now"):
        assert f"<think>{text}</think>" in everything
    current = prompt(source("qwen"), *items)  # repeats the thinking of the current tool loop only
    assert "Sunny." in current and "<think>\nnow\n</think>" in current
    assert "old" not in current


@pytest.mark.requirement("VO-4", "VN-35", "D-48")
def test_thinking_never_becomes_text_of_a_template_without_it() -> None:
    items = (
        user("A"),
        reasoning_item("old"),
        ANSWER,
        user("B"),
        reasoning_item("now"),
        CALL,
        OUTPUT,
    )
    text = prompt(source("smol"), *items)
    assert "Sunny." in text and "old" not in text
    assert "<think>\nnow\n</think>" in text
    without_tags = ByteTokenizer(("<|im_start|>", "<|im_end|>"))
    text = prompt(source("smol"), *items, tokenizer=without_tags)
    assert "Sunny." in text and "old" not in text and "now" not in text


@pytest.mark.requirement("GO-4")
@pytest.mark.parametrize("template", DATES.values(), ids=DATES)
def test_date_is_the_day_of_the_request(template: str) -> None:
    days = [datetime(2026, 7, 9)]
    dialect = new_dialect(template, TOKENIZER, today=lambda: days[-1])
    first = render(dialect, user("Hi"))
    days.append(datetime(2027, 1, 31))  # the day changes while the server runs
    second = render(dialect, user("Hi"))
    assert "2026" in first and "09" in first
    assert "2027" in second and "31" in second


@pytest.mark.requirement("GO-4")
def test_template_that_asks_for_no_date_gets_none() -> None:
    dialect = new_dialect(REPEATS_THINKING, TOKENIZER, today=lambda: datetime(2026, 7, 9))
    assert "2026" not in render(dialect, user("Hi"))
