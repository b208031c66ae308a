"""Ollama's API, through the official client."""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import httpx
import ollama
import pytest
from pydantic import BaseModel

from antiphon.backends.base import BackendCapabilities
from antiphon.backends.reading import EmbeddingBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.compat.ollama.bodies import OllamaChat, OllamaGenerate
from antiphon.compat.ollama.models import ModelFacts
from antiphon.errors import BackendError
from antiphon.stream.deltas import Close, Finish, Open, Text
from antiphon.wire.items import FunctionCall, InputImage, Message, Reasoning
from antiphon.wire.response import Usage
from tests.conformance.conftest import Serve
from tests.conformance.server import Server, engine, local
from tests.conformance.test_messages import PIXEL
from tests.conformance.test_tool_search import rendered_prompts, tool_call
from tests.fakes.embedder import WordEmbedder

Json = dict[str, Any]
HI = [{"role": "user", "content": "hi"}]
USAGE = Usage(input_tokens=5, output_tokens=4, total_tokens=9)
ROME = tool_call("get_weather", {"city": "Rome"})
SAID: tuple[Any, ...] = (
    Open(Reasoning()),
    Text("Hmm."),
    Close(),
    Open(Message(role="assistant", content=())),
    Text("Let me "),
    Text("look."),
    Close(),
    Open(FunctionCall(call_id="call_1", name="get_weather", arguments="")),
    Text('{"city":'),
    Text(' "Rome"}'),
    Close(),
    Finish("stop", USAGE),
)


def get_weather(city: str) -> str:
    """Return the weather.

    Args:
      city: The city.
    """
    return f"Sun in {city}."


@pytest.fixture
async def clients() -> AsyncIterator[Any]:
    made: list[ollama.AsyncClient] = []

    def make(server: Server) -> ollama.AsyncClient:
        transport = httpx.ASGITransport(server.app)  # type: ignore[arg-type]
        made.append(ollama.AsyncClient(host="http://localhost", transport=transport))
        return made[-1]

    yield make
    for client in made:
        await client.close()


async def refused(server: Server, path: str = "chat", status: int = 400, **body: Any) -> str:
    """Return the message of an error, whose form is checked."""
    body = {"model": "tiny", "messages": HI, **body} if path == "chat" else body
    reply = await server.client.post(f"/api/{path}", json=body)
    assert reply.status_code == status, reply.text
    value = reply.json()
    assert list(value) == ["error"]
    return str(value["error"])


@pytest.mark.requirement("OL-CHAT")
async def test_chat_answers_with_counts_and_durations(server: Server, clients: Any) -> None:
    answer = await clients(server).chat("tiny:latest", HI)
    assert answer.message.content == "Hello there!" and answer.message.role == "assistant"
    assert answer.done and answer.done_reason == "stop" and answer.model == "tiny"
    assert answer.prompt_eval_count > 0 and answer.eval_count > 0
    assert answer.total_duration >= answer.prompt_eval_duration >= 0


@pytest.mark.requirement("OL-CHAT")
async def test_stream_has_one_object_per_line(serve: Serve, clients: Any) -> None:
    server = serve(ScriptedBackend([SAID]))
    lines = [line async for line in await clients(server).chat("tiny", HI, stream=True)]
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert "".join(line.message.thinking or "" for line in lines) == "Hmm."
    assert "".join(line.message.content for line in lines) == "Let me look."
    [call] = [call for line in lines for call in line.message.tool_calls or ()]
    assert call.function.name == "get_weather" and call.function.arguments == {"city": "Rome"}
    assert lines[-1].prompt_eval_count == 5 and lines[-1].eval_count == 4
    reply = await server.client.post("/api/chat", json={"model": "tiny", "messages": HI})
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert reply.text.endswith("}\n") and len(reply.text.splitlines()) == len(lines)


@pytest.mark.requirement("OL-THINK")
@pytest.mark.parametrize("stream", [False, True])
async def test_think_false_hides_the_reasoning(serve: Serve, clients: Any, stream: bool) -> None:
    server = serve(ScriptedBackend([SAID]))
    answer = await clients(server).chat("tiny", HI, think=False, stream=stream)
    lines = [line async for line in answer] if stream else [answer]
    assert not any(line.message.thinking for line in lines)
    assert "".join(line.message.content for line in lines) == "Let me look."


@pytest.mark.requirement("OL-THINK")
async def test_model_that_does_not_reason_refuses_think(serve: Serve) -> None:
    backend = ScriptedBackend()
    backend.capabilities = BackendCapabilities(thinks=False)
    server = serve(backend)
    assert "does not support thinking" in await refused(server, think=True)
    assert "think" in await refused(server, think="very")


@pytest.mark.requirement("OL-TOOLS")
async def test_tools_run_in_a_loop(serve: Serve, clients: Any) -> None:
    server = serve(local(engine([ROME, "Sunny."])))
    client = clients(server)
    messages: list[Any] = list(HI)
    answer = await client.chat("tiny", messages, tools=[get_weather])
    [call] = answer.message.tool_calls
    messages.append(answer.message)
    result = {"role": "tool", "content": "Sun.", "tool_name": "get_weather"}
    answer = await client.chat("tiny", [*messages, result], tools=[get_weather])
    assert call.function.arguments == {"city": "Rome"}
    assert answer.message.content == "Sunny."
    prompt = rendered_prompts(server)[-1]
    assert "Sun." in prompt and "The city." in prompt


@pytest.mark.requirement("OL-TOOLS")
async def test_result_belongs_to_the_call_that_it_names(server: Server) -> None:
    call = {"function": {"name": "get_weather", "arguments": {}}}
    other = {"function": {"name": "get_time", "arguments": {}}}
    said = {"role": "assistant", "content": "", "tool_calls": [call, other]}
    late = {"role": "tool", "content": "noon", "tool_name": "get_time"}
    messages = [*HI, said, late, {"role": "tool", "content": "sun"}]
    body = {"model": "tiny", "messages": messages, "stream": False}
    assert (await server.client.post("/api/chat", json=body)).status_code == 200
    message = await refused(server, messages=[*messages, {"role": "tool", "content": "what?"}])
    assert message.startswith("messages[4]: ")


@pytest.mark.requirement("OL-FORMAT")
async def test_format_constrains_the_answer(serve: Serve, clients: Any) -> None:
    class City(BaseModel):
        name: str

    server = serve(engine(lambda prompt: '{"name": "Oslo"}'))
    answer = await clients(server).chat("tiny", HI, format=City.model_json_schema())
    assert City.model_validate_json(answer.message.content).name == "Oslo"
    answer = await clients(serve('{"a": 1}')).generate("tiny", "hi", format="json")
    assert answer.response == '{"a": 1}'
    assert "format" in await refused(server, format="xml")


@pytest.mark.requirement("OL-OPTIONS")
async def test_options_reach_the_engine(serve: Serve, clients: Any) -> None:
    script = engine(lambda prompt: "Hello there!")
    options = {"temperature": 0.1, "seed": -1, "num_predict": 3, "stop": ["x"], "num_ctx": 512}
    answer = await clients(serve(script)).generate("tiny", "hi", options=options)
    assert answer.done_reason == "length" and answer.eval_count == 3


@pytest.mark.requirement("OL-OPTIONS")
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"num_predict": "many"}}, "options.num_predict"),
        ({"options": []}, "options"),
        ({"messages": [{"role": "bot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "images": [1]}]}, "messages[0].images[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"stream": "no"}, "stream"),
        ({"logprobs": 1}, "logprobs"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"model": ""}, "model"),
    ],
)
async def test_faulty_field_is_named(server: Server, fields: Json, path: str) -> None:
    assert path in await refused(server, **fields)


@pytest.mark.requirement("OL-GENERATE")
async def test_generate_answers_a_prompt(serve: Serve, clients: Any) -> None:
    def say(prompt: str) -> str:
        server.now += 1
        return "Hello there!"

    server = serve(engine(say))
    client = clients(server)
    answer = await client.generate("tiny", "hi", system="Be brief.")
    assert answer.response == "Hello there!" and answer.done
    assert "Be brief." in rendered_prompts(server)[-1]
    lines = [line async for line in await client.generate("tiny", "hi", stream=True)]
    assert "".join(line.response for line in lines) == "Hello there!"
    continued = await client.generate("tiny", "Once upon", raw=True)
    assert rendered_prompts(server)[-1] == "Once upon"
    assert continued.total_duration == answer.total_duration == 1_000_000_000
    refusals = {"context": [1], "suffix": "end", "template": "a"}
    for name, value in refusals.items():
        body = {"model": "tiny", "prompt": "a", name: value}
        assert f"'{name}' is not supported" in await refused(server, "generate", **body)


@pytest.mark.requirement("OL-IMAGES")
async def test_images_become_data_urls(serve: Serve, clients: Any) -> None:
    backend = ScriptedBackend([SAID])
    client = clients(serve(backend))
    image = base64.b64decode(PIXEL)
    await client.generate("tiny", "What is this?", images=[image])
    await client.chat("tiny", [{"role": "user", "content": "This?", "images": [image]}])
    for conversation, _ in backend.requests:
        [part] = [each for each in conversation.items[0].content if isinstance(each, InputImage)]
        assert part.image_url == f"data:image/png;base64,{PIXEL}"


@pytest.mark.requirement("OL-LOAD")
async def test_request_without_prompt_loads_the_model(server: Server, clients: Any) -> None:
    client = clients(server)
    assert (await client.generate("tiny")).done_reason == "load"
    assert (await client.chat("tiny", keep_alive="5m")).done_reason == "load"
    with pytest.raises(ollama.ResponseError) as refusal:
        await client.generate("tiny", keep_alive=0)
    assert refusal.value.status_code == 403


@pytest.mark.requirement("OL-MODELS")
async def test_models_are_listed_and_described(serve: Serve, clients: Any) -> None:
    client = clients(serve(engine(lambda prompt: "Hello there!")))
    listed = (await client.list()).models
    assert [each.model for each in listed] == ["tiny:latest", "gpt-5.5:latest"]
    assert all(len(each.digest) == 64 for each in listed)
    [running] = (await client.ps()).models
    assert running.model == "tiny:latest" and running.context_length
    shown = await client.show("TINY")
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert "<|im_start|>" in shown.template
    architecture = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{architecture}.context_length"] == running.context_length
    assert (await client.pull("tiny")).status == "success"
    lines = [line async for line in await client.pull("tiny:latest", stream=True)]
    assert [line.status for line in lines] == ["success"]


@pytest.mark.requirement("OL-MODELS")
async def test_open_webui_can_use_the_server_as_ollama(server: Server) -> None:
    """The requests that Open WebUI sends to a connection of the kind Ollama, as its source makes
    them: OpenAI's endpoint gets the names that ``/api/tags`` has listed."""
    client, user = server.client, {"x-openwebui-user-name": "Anna", "x-openwebui-user-id": "1"}
    assert (await client.get("/api/version", headers=user)).json()["version"]
    for model in (await client.get("/api/tags", headers=user)).json()["models"]:
        asked = {"name": model["model"], "model": model["model"]}
        assert (await client.post("/api/show", json=asked)).json()["capabilities"]
    for running in (await client.get("/api/ps", headers=user)).json()["models"]:
        assert datetime.fromisoformat(running["expires_at"]).timestamp() > 0
    name = model["model"]
    assert name.endswith(":latest")
    body = {"model": name, "messages": HI, "stream": True}
    # It puts some options beside the field ``options``, too, and sends options that are gone.
    options = {"temperature": 0.1, "num_ctx": 2048, "num_predict": 8, "tfs_z": 1.0}
    native = {**body, "options": options, "temperature": 0.2, "mirostat": 0, "keep_alive": "5m"}
    reply = await client.post("/api/chat", json=native, headers=user)
    assert reply.status_code == 200 and json.loads(reply.text.splitlines()[-1])["done"]
    usage = {"stream_options": {"include_usage": True}}
    reply = await client.post("/v1/chat/completions", json={**body, **usage, "max_tokens": 8})
    assert reply.status_code == 200 and reply.text.rstrip().endswith("data: [DONE]")
    assert '"usage":{' in reply.text


@pytest.mark.requirement("OL-ERRORS")
async def test_errors_are_texts(server: Server, clients: Any) -> None:
    client = clients(server)
    for call in (client.chat("none", HI), client.show("none"), client.pull("none")):
        with pytest.raises(ollama.ResponseError) as refusal:
            await call
        assert refusal.value.status_code == 404
        assert refusal.value.error == "model 'none' not found. This server has: tiny, gpt-5.5."
    with pytest.raises(ollama.ResponseError, match="This server has: tiny"):
        [line async for line in await client.pull("none", stream=True)]
    for path in ("create", "copy", "push"):
        message = await refused(server, path, 404, model="tiny")
        assert "This server does not offer" in message


@pytest.mark.requirement("OL-ERRORS")
@pytest.mark.parametrize("stream", [False, True])
async def test_failure_of_the_model_is_an_error(serve: Serve, clients: Any, stream: bool) -> None:
    client = clients(serve([BackendError("The engine is gone.")]))
    with pytest.raises(ollama.ResponseError, match="The engine is gone"):
        answer = await client.chat("tiny", HI, stream=stream)
        [line async for line in answer]


@pytest.mark.requirement("OL-EMBED")
async def test_texts_are_embedded(serve: Serve, clients: Any) -> None:
    client = clients(serve(EmbeddingBackend("tiny", WordEmbedder(8))))
    answer = await client.embed("tiny", ["a cat", "a dog"])
    assert len(answer.embeddings) == 2 and len(answer.embeddings[0]) == 8
    assert answer.prompt_eval_count == 4
    older = await client.embeddings("tiny", "a cat")
    assert older.embedding == answer.embeddings[0]
    assert (await client.embed("tiny", [])).embeddings == []
    assert (await client.show("tiny")).capabilities == ["embedding"]


def test_default_options_have_ollamas_names() -> None:
    defaults = {
        "max_output_tokens": 9,
        "repetition_penalty": 1.1,
        "stop": ["a b", "c"],
        "user": "x",
    }
    facts = ModelFacts(name="tiny", created=0, capabilities=(), defaults=defaults)
    lines = [line.split(maxsplit=1) for line in facts.show().parameters.splitlines()]
    assert lines == [
        ["num_predict", "9"],
        ["stop", '"a b"'],
        ["stop", '"c"'],
        ["repeat_penalty", "1.1"],
    ]


def test_documented_fields_are_those_of_the_client() -> None:
    for ours, theirs in (
        (OllamaChat, ollama.Client.chat),
        (OllamaGenerate, ollama.Client.generate),
    ):
        unknown = set(inspect.signature(theirs).parameters) - set(ours.__struct_fields__) - {"self"}
        assert unknown <= {"context", "height", "steps", "suffix", "template", "width"}


async def documented_calls(call: Any) -> None:
    await call("ollamaVersion")
    await call("ollamaTags")
    await call("ollamaPs")
    await call("ollamaShow", json={"model": "tiny"})
    await call("ollamaShow", json={"model": "none"}, status=404)
    await call("ollamaChat", json={"model": "tiny", "messages": HI})
    await call("ollamaChat", json={"model": "tiny", "messages": HI, "stream": False})
    await call("ollamaGenerate", json={"model": "tiny", "prompt": "hi"})
    await call("ollamaPull", json={"model": "tiny"})
    await call("ollamaPull", json={"model": "tiny", "stream": False})
    await call("ollamaDelete", json={"model": "tiny"}, status=403)  # no model is managed here
