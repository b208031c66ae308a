"""A real vision model through the real server: the tiny model names colours and shapes.

Nothing but the picture tells it what to answer, so a picture that is lost, mixed up with another or
shown in the wrong place is a wrong answer.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.attachments.samples import data_url
from tests.e2e.server import Server
from tests.harness import ServerSetup, official_client
from tests.tiny_models.tiny_eyes import FOLDER, GGUF, IMAGE_TOKENS, PROJECTOR, picture
from tests.upstream.started import llama_server

pytestmark = pytest.mark.e2e

#: Engine → its package.
HERE = {"llama": "xllamacpp", "transformers": "transformers"}
#: Engines that reach llama.cpp's own server.
REMOTE_ENGINES = ("completions", "chat_completions")
WHAT = "What is in the picture?"
LOOK: Any = {
    "type": "function",
    "name": "look",
    "description": "Look at what is there.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    "strict": False,
}


@pytest.fixture(scope="module")
def server_setup() -> Iterator[ServerSetup]:
    """Serve the model over every installed engine, named after the engine."""
    with ExitStack() as stack:
        upstream = stack.enter_context(llama_server(GGUF, PROJECTOR))
        rows = [(name, upstream, "") for name in REMOTE_ENGINES]
        for name, package in HERE.items():
            if find_spec(package) is not None:
                rows.append((name, str(FOLDER), "context_size = 1024\nthreads = 1\n"))
        models = "\n".join(
            f'[models.{name}]\nengine = "{name}"\nsource = "{source}"\nload = "demand"\n{expected}'
            for name, source, expected in rows
        )
        yield ServerSetup(model=models)


@pytest.fixture(
    params=[
        *REMOTE_ENGINES,
        "llama",
        pytest.param("transformers", marks=pytest.mark.engines),
    ],
)
def ask(request: pytest.FixtureRequest) -> Any:
    """The fields of every request."""
    pytest.importorskip(HERE.get(request.param, "xllamacpp"))
    return {"model": request.param, "temperature": 0}


def image(content: bytes, mime: str = "image/png", **more: Any) -> Any:
    return {"type": "input_image", "image_url": data_url(content, mime), **more}


def picture_question(text: str, *images: Any) -> Any:
    """Return a question about images."""
    return [{"role": "user", "content": [{"type": "input_text", "text": text}, *images]}]


def named(colour: str, shape: str) -> str:
    return f"{'An' if colour == 'orange' else 'A'} {colour} {shape}."


@pytest.mark.requirement("HF-6", "FILE-IMAGES", "UP-IMAGES")
@pytest.mark.parametrize("shape", ["circle", "square", "triangle", "cross"])
def test_model_describes_an_image(client: OpenAI, ask: Any, shape: str) -> None:
    for colour in ("red", "green", "blue", "yellow", "purple", "orange"):
        question = picture_question(WHAT, image(picture(colour, shape)))
        assert client.responses.create(**ask, input=question).output_text == named(colour, shape)


def test_model_reports_a_missing_image(client: OpenAI, ask: Any) -> None:
    assert client.responses.create(**ask, input=WHAT).output_text == "I see no picture."


def test_images_count_as_input_tokens(client: OpenAI, ask: Any) -> None:
    pictures = [image(picture("red", "circle")), image(picture("blue", "cross", 90, 60))]
    tokens = []
    for count, text in enumerate(("I see no picture.", "A red circle.", "")):
        answer = client.responses.create(**ask, input=picture_question(WHAT, *pictures[:count]))
        assert not text or answer.output_text == text
        assert answer.usage is not None
        tokens.append(answer.usage.input_tokens)
    # each on a line of its own, or not
    assert tokens[2] - tokens[1] == tokens[1] - tokens[0]
    assert tokens[1] - tokens[0] in (IMAGE_TOKENS, IMAGE_TOKENS + 1)


@pytest.mark.requirement("FILE-IMAGES")
@pytest.mark.parametrize("form", ["jpeg", "gif", "webp"])
def test_every_image_source_is_accepted(client: OpenAI, ask: Any, form: str) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for colour, shape in (("red", "square"), ("blue", "cross")):
        out = io.BytesIO()
        pillow.open(io.BytesIO(picture(colour, shape, 200, 160))).save(out, form)
        question = picture_question(WHAT, image(out.getvalue(), f"image/{form}"))
        assert client.responses.create(**ask, input=question).output_text == named(colour, shape)


def test_truncated_image_is_refused(client: OpenAI, ask: Any) -> None:
    broken = image(picture("red", "circle")[:60])
    with pytest.raises(BadRequestError) as raised:
        client.responses.create(**ask, input=picture_question(WHAT, broken))
    if ask["model"] != "chat_completions":
        path = "input[0].content[1].image_url"
        assert (raised.value.param, raised.value.code) == (path, "image_parse_error")


@pytest.mark.requirement("FILE-IMAGES")
def test_image_given_by_file_id(client: OpenAI, ask: Any) -> None:
    for colour, shape in (("green", "circle"), ("red", "triangle")):
        content = ("it.png", picture(colour, shape), "image/png")
        file = client.files.create(file=content, purpose="vision")
        question = picture_question(
            WHAT, {"type": "input_image", "file_id": file.id, "detail": "auto"}
        )
        assert client.responses.create(**ask, input=question).output_text == named(colour, shape)


@pytest.mark.parametrize("detail", ["low", "high", "auto"])
def test_every_detail_level_is_accepted(client: OpenAI, ask: Any, detail: str) -> None:
    question = picture_question(
        "What colour is it?", image(picture("yellow", "cross", 300, 200), detail=detail)
    )
    assert client.responses.create(**ask, input=question).output_text == "Yellow."


def test_several_images_keep_their_order(client: OpenAI, ask: Any) -> None:
    red, blue = image(picture("red", "circle")), image(picture("blue", "square"))
    for pictures, first, second in (
        ((red, blue), "a red circle", "a blue square"),
        ((blue, red), "a blue square", "a red circle"),
    ):
        for question, answer in (
            ("What is in the pictures?", f"{first} and {second}."),
            ("What is in the first picture?", f"{first}."),
            ("What is in the second picture?", f"{second}."),
        ):
            reply = client.responses.create(**ask, input=picture_question(question, *pictures))
            assert reply.output_text == f"A{answer[1:]}"


def test_follow_up_question_about_an_image(client: OpenAI, ask: Any) -> None:
    message = picture_question(WHAT, image(picture("green", "triangle")))
    first = client.responses.create(**ask, input=message)
    assert first.output_text == "A green triangle."
    second = client.responses.create(
        **ask, previous_response_id=first.id, input="What colour is it?"
    )
    assert second.output_text == "Green."
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens or ask["model"] == "transformers"
    for question, other, answer in (
        ("What is in the picture?", ("blue", "circle"), "A blue circle."),
        ("What is in the first picture?", ("red", "cross"), "A green triangle."),
        ("How many pictures are there?", ("red", "square"), "Two."),
    ):
        third = client.responses.create(
            **ask,
            previous_response_id=second.id,
            input=picture_question(question, image(picture(*other))),
        )
        assert third.output_text == answer


def test_streamed_answer_about_an_image(client: OpenAI, ask: Any) -> None:
    question = picture_question(WHAT, image(picture("purple", "square")))
    with client.responses.stream(**ask, input=question) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert text == "A purple square."


@pytest.mark.parametrize(("colour", "shape"), [("orange", "circle"), ("blue", "triangle")])
def test_tool_result_with_an_image(client: OpenAI, ask: Any, colour: str, shape: str) -> None:
    ask |= {"tools": [LOOK]}
    response = client.responses.create(**ask, input="What is in front of you?")
    (call,) = response.output
    assert call.type == "function_call" and call.name == "look"
    output = [image(picture(colour, shape))]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": output}
    observed = client.responses.create(**ask, previous_response_id=response.id, input=[result])
    assert observed.output_text == named(colour, shape)
    again = client.responses.create(
        **ask, previous_response_id=observed.id, input="What shape is it?"
    )
    assert again.output_text == f"A {shape}."


def test_image_in_a_chat_completion(client: OpenAI, ask: Any) -> None:
    for colour, shape in (("red", "cross"), ("green", "square")):
        url = data_url(picture(colour, shape))
        content: Any = [
            {"type": "text", "text": WHAT},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        answer = client.chat.completions.create(
            **ask, messages=[{"role": "user", "content": content}]
        )
        assert answer.choices[0].message.content == named(colour, shape)


async def test_concurrent_requests_see_their_own_images(server: Server, ask: Any) -> None:
    things = [(c, s) for c in ("red", "blue", "green") for s in ("circle", "square", "cross")]
    async with official_client(server.url) as client:

        async def seen(colour: str, shape: str) -> str:
            question = picture_question(WHAT, image(picture(colour, shape)))
            return (await client.responses.create(**ask, input=question)).output_text

        async with asyncio.timeout(60):
            output = await asyncio.gather(*(seen(*thing) for thing in things))
    assert output == [named(*thing) for thing in things]
