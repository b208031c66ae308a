"""The Completions API, through the official client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from openai.types import Completion

from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.on_demand import OnDemandBackend, ProgressCallback
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.compat.completion_request import parse_completion_request
from antiphon.errors import BackendError, InvalidRequest
from antiphon.inference.tokens import ModelCard
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.tokenizer import END
from tests.conformance.conftest import Serve
from tests.conformance.server import Server, engine, local
from tests.harness import official_client
from tests.wire.test_fuzz import JSON, check_error, mutated, property_test

Json = dict[str, Any]


async def post(server: Server, **body: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": "Once", **body}
    return await server.client.post("/v1/completions", json=body)


async def plain(server: Server, **body: Any) -> Json:
    reply = await post(server, **body)
    assert reply.status_code == 200, reply.text
    Completion.model_validate_json(reply.content, strict=True)
    answer: Json = reply.json()
    return answer


async def streamed(server: Server, **body: Any) -> list[Json]:
    reply = await post(server, stream=True, **body)
    assert reply.status_code == 200, reply.text
    *frames, last, rest = reply.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


@pytest.mark.requirement("CO-ANSWER")
async def test_prompt_is_continued_verbatim(serve: Serve) -> None:
    scripted_engine = engine([" upon a time"])
    answer = await plain(serve(scripted_engine), prompt="<|im_start|>Once")
    (choice,) = answer["choices"]
    assert choice["text"] == " upon a time" and choice["finish_reason"] == "stop"
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    prompt, sampling = scripted_engine.requests[0]
    assert prompt.ids == tuple(scripted_engine.tokenizer.encode("<|im_start|>Once", special=True))
    assert len(prompt.ids) == 5 and sampling.max_tokens == 16
    assert answer["usage"]["prompt_tokens"] == 5


@pytest.mark.requirement("CO-ANSWER")
async def test_output_is_not_parsed(serve: Serve) -> None:
    """Reasoning and calls stay text, and white space is kept."""
    output = "\n <think>x</think>\n<tool_call>{}</tool_call> \n"
    answer = await plain(serve(engine([output])), max_tokens=99)
    assert answer["choices"][0]["text"] == output


@pytest.mark.requirement("CO-STREAM")
async def test_stream_ends_with_finish_reason_and_requested_usage(serve: Serve) -> None:
    server = serve(engine([" upon"]))
    *pieces, end, usage = await streamed(server, stream_options={"include_usage": True})
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == " upon"
    assert end["choices"] == [{"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 6
    assert all(piece["usage"] is None for piece in (*pieces, end))
    assert [one["choices"][0]["finish_reason"] for one in await streamed(server, max_tokens=2)][
        -1
    ] == "length"


@pytest.mark.requirement("CO-PROMPTS")
async def test_multiple_prompts_and_choices(serve: Serve) -> None:
    scripted_engine = engine(lambda prompt: prompt.upper())
    answer = await plain(serve(scripted_engine), prompt=["a", "bc"], n=2)
    text = [(choice["index"], choice["text"]) for choice in answer["choices"]]
    assert text == [(0, "A"), (1, "A"), (2, "BC"), (3, "BC")]
    assert answer["usage"]["prompt_tokens"] == 3, "a prompt is read once"
    pieces = await streamed(serve(scripted_engine), prompt=["a", "bc"])
    texts = ["", ""]
    for piece in pieces:
        for choice in piece["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["A", "BC"]


@pytest.mark.requirement("CO-TOKENS")
async def test_prompt_of_token_ids_reaches_the_engine_unchanged(serve: Serve) -> None:
    scripted_engine = engine(["x"])
    server = serve(scripted_engine)
    await plain(server, prompt=[72, 105])
    await plain(server, prompt=[[72], [105]])
    assert [prompt.ids for prompt, _ in scripted_engine.requests] == [(72, 105), (72,), (105,)]
    for ids in ([10**9], [-1]):
        error = (await post(server, prompt=ids)).json()["error"]
        assert (error["param"], error["code"]) == ("prompt", "invalid_value")


async def test_bos_token_is_added_once(serve: Serve) -> None:
    card = ModelCard(
        name="m", context_size=4096, bos_token="<s>", add_bos=True, eos_token=END, fingerprint="b"
    )
    scripted_engine = ScriptedEngine(["x"], special=("<s>",), card=card)
    server = serve(local(scripted_engine))
    for prompt in ("hi", "<s>hi", ""):
        await plain(server, prompt=prompt)
    bos = scripted_engine.tokenizer.special["<s>"]
    assert [requests.ids for requests, _ in scripted_engine.requests] == [
        (bos, 104, 105),
        (bos, 104, 105),
        (bos,),
    ]


@pytest.mark.requirement("CO-ECHO")
async def test_echo_returns_the_prompt_before_the_completion(serve: Serve) -> None:
    server = serve(engine([" upon"]))
    assert (await plain(server, echo=True))["choices"][0]["text"] == "Once upon"
    pieces = await streamed(server, echo=True)
    assert "".join(one["choices"][0]["text"] for one in pieces) == "Once upon"
    for body in ({"logprobs": 1}, {"prompt": [1]}):
        reply = await post(server, echo=True, **body)
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "echo"


@pytest.mark.requirement("CO-LOGPROBS")
async def test_every_token_has_log_probabilities_and_an_offset(serve: Serve) -> None:
    server = serve(engine(["abc"]))
    logprobs = (await plain(server, logprobs=2))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "c"] and logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["token_logprobs"] == [-0.5, -0.5, -0.5]
    assert [len(top) for top in logprobs["top_logprobs"]] == [2, 2, 2]
    assert (await plain(server, logprobs=0))["choices"][0]["logprobs"]["top_logprobs"] is None
    pieces = [one["choices"][0]["logprobs"] for one in await streamed(server, logprobs=2)]
    for name, values in logprobs.items():
        assert [value for piece in pieces if piece for value in piece[name]] == values


async def test_text_offsets_count_characters(serve: Serve) -> None:
    """Also where a character has several tokens."""
    server = serve(engine(["é!"]))  # a token a byte
    logprobs = (await plain(server, logprobs=0))["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 0, 1]
    pieces = [one["choices"][0]["logprobs"] for one in await streamed(server, logprobs=0)]
    assert [at for piece in pieces if piece for at in piece["text_offset"]] == [0, 0, 1]


async def test_options_reach_the_engine(serve: Serve) -> None:
    scripted_engine = engine(["Hello END"])
    body = {
        "temperature": 0.5,
        "seed": 3,
        "stop": ["END"],
        "top_k": 2,
        "suffix": "",
        "best_of": 1,
        "store": False,
    }
    answer = await plain(serve(scripted_engine), max_tokens=40, **body)
    _, sampling = scripted_engine.requests[0]
    assert (sampling.temperature, sampling.seed, sampling.top_k) == (0.5, 3, 2)
    assert answer["choices"][0]["text"] == "Hello "


@pytest.mark.requirement("CO-ERRORS")
@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": []}, "prompt", "empty_array"),
        ({"prompt": [[]]}, "prompt[0]", "empty_array"),
        ({"prompt": 5}, "prompt", "invalid_type"),
        ({"prompt": ["a", 5]}, "prompt[1]", "invalid_type"),
        ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),
        ({"prompt": ["a"] * 33}, "prompt", "array_above_max_length"),
        ({"prompt": ["a", "b"], "n": 20}, "prompt", "invalid_value"),
        ({"prompt": "x" * 5000}, "prompt", "context_length_exceeded"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"logprobs": 21}, "logprobs", "integer_above_max_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"echo": 1}, "echo", "invalid_type"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"suffix": "end"}, "suffix", "unsupported_parameter"),
        ({"response_format": {}}, "response_format", "unsupported_parameter"),
        ({"messages": []}, "messages", "unsupported_parameter"),
        ({"use_beam_search": True}, "use_beam_search", "unsupported_parameter"),
        ({"tools": []}, "tools", "unsupported_parameter"),
        ({"reasoning": {"effort": "low"}}, "reasoning", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"temperature": 3}, "temperature", "decimal_above_max_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"model": "nope"}, "model", "model_not_found"),
    ],
)
async def test_invalid_fields_are_rejected(
    serve: Serve, body: Json, param: str, code: str | None
) -> None:
    reply = await post(serve(engine(["x"])), **body)
    assert reply.status_code == (404 if code == "model_not_found" else 400)
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert len(reply.content) < 1000


@pytest.mark.requirement("CO-MODELS")
@pytest.mark.parametrize("lazy", [False, True])
async def test_backend_without_token_ids_is_rejected(serve: Serve, lazy: bool) -> None:
    async def make(progress: ProgressCallback) -> ScriptedBackend:
        return ScriptedBackend()

    reply = await post(serve(OnDemandBackend("tiny", make) if lazy else ScriptedBackend()))
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "unsupported_model"


async def test_on_demand_model_is_loaded(serve: Serve) -> None:
    async def make(progress: ProgressCallback) -> LocalBackend:
        return local(engine([" upon"]))

    answer = await plain(serve(OnDemandBackend("tiny", make)))
    assert answer["choices"][0]["text"] == " upon"


async def test_engine_failure_returns_502_or_an_error_event(serve: Serve) -> None:
    server = serve(engine([BackendError("The engine is gone.")]))
    reply = await post(server)
    assert (reply.status_code, reply.json()["error"]["message"]) == (
        502,
        "The engine is gone. You can retry your request.",
    )
    *_, last = await streamed(server)
    assert last["error"]["message"] == "The engine is gone. You can retry your request."


@pytest.mark.requirement("CO-STREAM")
async def test_official_client_reads_completions_and_streams(serve: Serve) -> None:
    server = serve(engine([" upon"]))
    async with official_client(server.app) as client:
        answer = await client.completions.create(model="tiny", prompt="Once", logprobs=1)
        assert answer.choices[0].text == " upon"
        stream = await client.completions.create(model="tiny", prompt="Once", stream=True)
        assert "".join([piece.choices[0].text async for piece in stream]) == " upon"


SAMPLE = {
    "model": "m",
    "prompt": ["a", [1]],
    "n": 2,
    "echo": False,
    "logprobs": 1,
    "max_tokens": 5,
    "stop": ["a"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "logit_bias": {"1": 2},
}


@property_test
@given(mutated(SAMPLE) | JSON)
def test_any_request_is_answered_or_rejected(value: Any) -> None:
    try:
        parse_completion_request(json.dumps(value).encode())
    except InvalidRequest as error:
        check_error(error)
