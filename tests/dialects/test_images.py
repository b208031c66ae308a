"""Images in prompts: where they stand, whatever the users write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.dialects.chat.template import Template
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import ModelCard
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.wire import items as it
from tests.attachments.samples import data_url, png

RED, BLUE = png(color=(250, 0, 0)), png(color=(0, 0, 250))
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{% if p.type == 'image' %}<|image|>{% else %}{{ p.text }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER = ByteTokenizer(["<|im_start|>", "<|im_end|>", "<|image|>"])
IMAGE = TOKENIZER.special["<|image|>"]


def dialect(images: str | None, template: str = TEMPLATE) -> ChatDialect:
    card = ModelCard(name="m", context_size=10_000, chat_template=template)
    return ChatDialect(card, TOKENIZER, images=images, unreadable="describe")  # type: ignore[arg-type]


def message(*parts: str | bytes, role: str = "user") -> it.Message:
    """Texts, and images by their bytes."""
    content = [
        it.InputText(text=part)
        if isinstance(part, str)
        else it.InputImage(image_url=data_url(part))
        for part in parts
    ]
    return it.Message(id="m", role=role, content=tuple(content))  # type: ignore[arg-type]


def rendered(created: ChatDialect, *items: it.Item) -> tuple[str, list[tuple[str, bytes]]]:
    """The text, and for each image the text that it stands before, with its content."""
    prompt = created.render(Conversation(items), Options()).prompt

    def text(ids: tuple[int, ...]) -> str:
        return b"".join(map(TOKENIZER.piece, ids)).decode()

    return text(prompt.ids), [
        (text(prompt.ids[each.position :]), each.content) for each in prompt.images
    ]


@pytest.mark.requirement("HF-6")
def test_images_keep_their_position() -> None:
    text, images = rendered(dialect("apart"), message("one", RED, "two", BLUE))
    assert text == "<|im_start|>user\nonetwo<|im_end|>\n<|im_start|>assistant\n"
    assert images == [
        ("two<|im_end|>\n<|im_start|>assistant\n", RED),
        ("<|im_end|>\n<|im_start|>assistant\n", BLUE),
    ]


def test_template_placeholder_for_images_is_used() -> None:
    text, images = rendered(
        dialect("template"), message("one", RED), message("two", role="assistant")
    )
    assert text.count("<|image|>") == 1
    assert images == [(text[text.index("<|image|>") :], RED)]


@pytest.mark.parametrize("behind", ["", "\n"])
@pytest.mark.parametrize("before", ["", "{{ '\\n' }}"])
@pytest.mark.parametrize(
    "parts", [("one", RED), (RED, "one"), ("one", RED, "two"), ("one", "two", RED), (RED, BLUE)]
)
def test_text_around_an_image_comes_from_the_template(
    before: str, behind: str, parts: tuple[Any, ...]
) -> None:
    """Between parts: a space before the first or behind the last is another matter. Texts side by
    side have a line each."""
    source = TEMPLATE.replace("<|image|>", f"{before}<|image|>{behind}")
    content: list[dict[str, str]] = []
    for part in parts:
        is_text = isinstance(part, str)
        if is_text and content and content[-1]["type"] == "text":
            content[-1]["text"] += f"\n{part}"
        else:
            content.append({"type": "text", "text": part} if is_text else {"type": "image"})
    written = Template(source).render([{"role": "user", "content": content}], tools=None)
    ends = ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
    between = written.removeprefix(ends[0]).removesuffix(ends[1]).strip()
    if parts == (RED, BLUE):
        between = between.replace("\n\n", "\n")
    text, _ = rendered(dialect("template", source), message(*parts))
    assert text == f"{ends[0]}{between}{ends[1]}"


def test_images_in_the_outputs_of_tools() -> None:
    call = it.FunctionCall(id="f", call_id="c", name="look", arguments="{}")
    output = it.FunctionCallOutput(
        id="o", call_id="c", output=(it.InputImage(image_url=data_url(RED)),)
    )
    text, images = rendered(dialect("apart"), message("go"), call, output)
    assert [content for _, content in images] == [RED]
    assert images[0][0] != text


def test_model_without_images_gets_notes() -> None:
    for created in (dialect(None), dialect("template", TEMPLATE.replace("<|image|>", ""))):
        assert not created.supports_images
        text, images = rendered(created, message("one", RED))
        assert "[image omitted: this model cannot read it]" in text and images == []


def test_image_given_by_reference_becomes_a_note() -> None:
    item = it.Message(
        id="m", role="user", content=(it.InputImage(image_url="https://a.example/b.png"),)
    )
    assert "[image omitted" in rendered(dialect("apart"), item)[0]


@given(st.text(max_size=20), st.text(alphabet="\U0010f000\U0010f001\U0010fffd<|image>", max_size=9))
def test_text_cannot_spell_an_image(before: str, after: str) -> None:
    created = dialect("template")
    text, images = rendered(created, message(before + "<|image|>", RED, after))
    assert len(images) == 1
    prompt = created.render(
        Conversation((message(before + "<|image|>", RED, after),)), Options()
    ).prompt
    assert prompt.ids.count(IMAGE) == 1 and prompt.ids[prompt.images[0].position] == IMAGE
    assert before in text and after in text


def test_template_that_drops_an_image_is_reported() -> None:
    """It shows the last message alone."""
    source = TEMPLATE.replace("for m in messages", "for m in messages[-1:]")
    with pytest.raises(InvalidRequest, match="does not show all images"):
        rendered(dialect("apart", source), message("one", RED), message("two", role="assistant"))
