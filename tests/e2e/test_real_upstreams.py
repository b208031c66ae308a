"""Servers as people run them, behind ours: vLLM, SGLang, transformers serve, llama-server.

Those that are on this machine are started (``make vllm`` and ``make sglang`` make the first two
for the CPU); one that runs already is named by ``UPSTREAM=http://gpu:8000``, with
``UPSTREAM_TOKENIZER`` if it takes token ids, and ``UPSTREAM_MODEL`` if it lists none.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
import pytest_asyncio
from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import Backend
from antiphon.backends.remote.factory import create_chat_backend, create_responses_backend
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.completions.engine import CompletionsEngine, load
from antiphon.engines.transformers.engine import load as load_transformers
from antiphon.errors import InvalidRequest
from antiphon.http.app import create_app
from antiphon.models.catalog import load as load_catalog
from antiphon.runs.dependencies import RunDependencies
from antiphon.runs.policy import Policy
from antiphon.runs.service import Service
from antiphon.support.logs import open_log
from antiphon.testing.backend_check import CHECKS as BACKEND_CHECKS
from antiphon.testing.backend_check import Check as BackendCheck
from antiphon.testing.engine_check import CHECKS, Check, collect
from antiphon.testing.memory_store.store import MemoryStore
from tests.harness import official_client
from tests.tiny_models import tiny_eyes
from tests.tiny_models.tiny_eyes import image_message, picture
from tests.tiny_models.tiny_tools import FOLDER
from tests.upstream.real_servers import SERVERS, Missing, seeing_vllm, serving

pytestmark = [
    pytest.mark.engines,
    pytest.mark.filterwarnings("default"),
    pytest.mark.asyncio(loop_scope="module"),
]

#: Server, as it is by default or with another library for its grammars → the engines that speak
#: to it.
WAYS = {
    "named": ("completions", "chat_completions"),
    "vllm": ("completions", "chat_completions", "responses"),
    "sglang": ("completions", "chat_completions", "responses"),
    "vllm, guidance": ("completions",),
    "sglang, llguidance": ("completions",),
    "transformers": ("chat_completions", "responses"),
    "llama-server": ("completions", "chat_completions", "responses"),
}


class Upstream(Struct, frozen=True, kw_only=True):
    """A running server. ``model``: the name of its model, where it does not list it.
    ``tokenizer``: the path of the model's tokenizer; ``tiny``: it serves the tiny model."""

    name: str
    url: str
    model: str | None = None
    tokenizer: str | None = None
    tiny: bool = True


@pytest.fixture(scope="session")
def started() -> Iterator[Callable[[str], str]]:
    """Return the address of a server, which is started once."""
    running: dict[str, str | Missing] = {}
    with ExitStack() as stack:

        def start(name: str) -> str:
            if name not in running:
                try:
                    running[name] = stack.enter_context(serving(SERVERS[name]))
                except Missing as missing:
                    running[name] = missing
            found = running[name]
            if isinstance(found, Missing):
                pytest.skip(str(found))
            return found

        yield start


@pytest.fixture(scope="module", params=WAYS)
def upstream(request: pytest.FixtureRequest, started: Callable[[str], str]) -> Upstream:
    name: str = request.param
    if name == "named":
        url = os.environ.get("UPSTREAM")
        if url is None:
            pytest.skip("the environment names no UPSTREAM")
        model, tokenizer = (os.environ.get(f"UPSTREAM_{w}") for w in ("MODEL", "TOKENIZER"))
        return Upstream(name=name, url=url, model=model, tokenizer=tokenizer, tiny=False)
    return Upstream(name=name, url=started(name), model=SERVERS[name].model, tokenizer=str(FOLDER))


def model_name(upstream: Upstream, engine: str) -> str:
    if engine not in WAYS[upstream.name]:
        pytest.skip(f"{upstream.name} does not speak that")
    if engine == "completions" and upstream.tokenizer is None:
        pytest.skip("the environment names no UPSTREAM_TOKENIZER")
    return engine


def _options(upstream: Upstream, engine: str) -> dict[str, Any]:
    if engine != "completions":
        return {}
    return {"tokenizer": upstream.tokenizer}


# --- the contracts -------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ids(upstream: Upstream) -> AsyncIterator[CompletionsEngine]:
    options = _options(upstream, model_name(upstream, "completions"))
    loaded = await load(
        upstream.url, LoadOptions(name="elsewhere", engine_options=options), model=upstream.model
    )
    yield loaded
    await loaded.close()


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["chat_completions", "responses"]
)
async def backend(upstream: Upstream, request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    make = (
        create_chat_backend
        if model_name(upstream, request.param) == "chat_completions"
        else create_responses_backend
    )
    created = await make("elsewhere", upstream.url, model=upstream.model)
    yield created
    await created.close()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_the_engine_keeps_its_contract(ids: CompletionsEngine, check: Check) -> None:
    await check(ids)


@pytest.mark.parametrize("check", BACKEND_CHECKS.values(), ids=BACKEND_CHECKS)
async def test_the_backend_keeps_its_contract(backend: Backend, check: BackendCheck) -> None:
    await check(backend)


# --- the whole server before it, as clients see it -----------------------------------------------

_WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "strict": False,
}
_SIZE: Any = {
    "format": {
        "type": "json_schema",
        "name": "size",
        "schema": {
            "type": "object",
            "properties": {"size": {"enum": [1, 2, 3]}},
            "required": ["size"],
            "additionalProperties": False,
        },
        "strict": True,
    }
}
#: Who does not hold an answer to a form.
_FREE = {
    ("transformers", "chat_completions"),
    ("transformers", "responses"),
    ("llama-server", "responses"),
}
#: Who was started without a parser, and so tells no thinking apart by itself.
_UNPARSED = {"vllm", "sglang"}
#: What is within our bounds, and not within those of the server.
_REFUSED = {
    ("vllm", "chat_completions"): {"top_p": 0},
    ("vllm", "responses"): {"top_p": 0},
    ("sglang", "completions"): {"repetition_penalty": 3},
    ("sglang", "chat_completions"): {"top_p": 0},
    ("sglang", "responses"): {"top_p": 0},
}


#: Who does not count the tokens of thinking, nor tells of all at each step.
_UNCOUNTED = {
    ("vllm", "responses"),
    ("sglang", "responses"),
    ("transformers", "chat_completions"),
    ("transformers", "responses"),
    ("llama-server", "responses"),
}


class Forced(Struct, frozen=True):
    """A request, and a field of its one output item with the pattern that it must match."""

    asked: dict[str, Any]
    field: str
    right: str


_SUM: Any = {
    "type": "custom",
    "name": "sum",
    "description": "Adds.",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": 'start: sum\nsum: N | "(" sum ("+" sum)? ")"\nN: /[0-9]{1,3}/',
    },
}
_CLOCK: Any = {
    "type": "function",
    "name": "get_time",
    "parameters": {
        "type": "object",
        "properties": {
            "zone": {"enum": ["UTC", "CET"]},
            "hour": {"type": "integer", "minimum": 1, "maximum": 12},
            "on": {"type": "string", "format": "date"},
        },
        "required": ["zone", "hour", "on"],
        "additionalProperties": False,
    },
    "strict": True,
}
_TIME = r'\{"zone": "(UTC|CET)", "hour": ([1-9]|1[0-2]), "on": "\d{4}-\d\d-\d\d"\}'
_FORCED = {
    "a grammar": Forced(
        {"tools": [_SUM, _CLOCK], "tool_choice": {"type": "custom", "name": "sum"}},
        "input",
        r"[()+0-9]+",
    ),
    "a tool by name": Forced(
        {
            "tools": [_WEATHER, _CLOCK],
            "tool_choice": {"type": "function", "name": "get_time"},
            "parallel_tool_calls": False,
        },
        "arguments",
        _TIME,
    ),
    "any tool": Forced(
        {"tools": [_CLOCK], "tool_choice": "required", "parallel_tool_calls": False},
        "arguments",
        _TIME,
    ),
    "a form": Forced({"text": _SIZE}, "", r'\{"size": [123]\}'),
    "a regex": Forced(
        {"extra_body": {"structured_outputs": {"regex": "[xyz]{4}"}}}, "", "[xyz]{4}"
    ),
}
each_engine = pytest.mark.parametrize("engine", ["completions", "chat_completions", "responses"])
each_way = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(upstream: Upstream) -> AsyncIterator[openai.AsyncOpenAI]:
    """Yield the official client of a server with one model for each way to reach the upstream."""
    ways = [w for w in WAYS[upstream.name] if w != "completions" or upstream.tokenizer]
    models = {
        way: Model(
            source=upstream.url,
            engine=way,
            upstream_model=upstream.model,
            engine_options=_options(upstream, way),
            reasoning_format="think" if upstream.tiny and way == "chat_completions" else None,
        )
        for way in ways
    }
    catalog = await load_catalog(Settings(models=models))
    store = MemoryStore()
    patient = Policy(first_delta_wait_s=60)  # a busy machine reads its longest prompt for a while
    service = Service(
        RunDependencies(models=catalog, store=store, clock=lambda: 0.0, ids=_ids(), policy=patient)
    )
    service.start()
    app = create_app(service, ids=_ids(), log=open_log(io.StringIO()))
    async with official_client(app) as client:
        yield client
    await service.drain(0)
    await catalog.close()
    await store.close()


def _ids() -> Callable[[str], str]:
    numbers = itertools.count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


async def ask(client: openai.AsyncOpenAI, *, stream: bool, **fields: Any) -> Any:
    """Return the response, streamed or plain."""
    answer = await client.responses.create(**{"stream": stream, "temperature": 0, **fields})
    if not stream:
        return answer
    events = [event async for event in answer]
    last = events[-1].response
    text = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(text) == last.output_text
    return last


@each_engine
@each_way
async def test_model_calls_a_tool_and_reads_its_result(
    upstream: Upstream, client: openai.AsyncOpenAI, engine: str, stream: bool
) -> None:
    if not upstream.tiny:
        pytest.skip("only of the tiny model it is known what it does")
    body = {"model": model_name(upstream, engine), "tools": [_WEATHER], "max_output_tokens": 200}
    first = await ask(client, stream=stream, input="What is the weather in Rome?", **body)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"})
    if upstream.name not in _UNPARSED or engine != "responses":
        assert first.output[0].type == "reasoning"
    thought = first.usage.output_tokens_details.reasoning_tokens
    if upstream.name in _UNPARSED and engine == "chat_completions":
        assert thought in (9, 10, 11)  # a busy server may send the end of it with what follows
    else:
        assert thought == (0 if (upstream.name, engine) in _UNCOUNTED else 11)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 21 °C"}
    second = await ask(client, stream=stream, input=[result], previous_response_id=first.id, **body)
    assert second.status == "completed"
    if upstream.name != "transformers":  # which keeps what was thought from its model
        assert second.output_text.endswith("The weather in Rome is sunny, 21 °C.")


@each_engine
async def test_output_matches_the_requested_format(
    upstream: Upstream, client: openai.AsyncOpenAI, engine: str
) -> None:
    if (upstream.name, engine) in _FREE:
        pytest.skip("it holds to no form, and the model is too small to do so by itself")
    answer = await ask(
        client, stream=True, model=model_name(upstream, engine), input="How big is it?", text=_SIZE
    )
    assert json.loads(answer.output_text)["size"] in (1, 2, 3)


@pytest.mark.requirement("UP-XGRAMMAR")
@each_way
async def test_grammars_are_enforced_over_token_ids(
    upstream: Upstream, client: openai.AsyncOpenAI, stream: bool
) -> None:
    """The format holds whichever library enforces it, with a model sampled at random."""
    body = {"model": model_name(upstream, "completions"), "input": "Add.", "temperature": 1.5}
    for name, created in _FORCED.items():
        answer = await ask(client, stream=stream, **body | created.asked)
        (message,) = [item for item in answer.output if item.type != "reasoning"]
        assert re.fullmatch(created.right, getattr(message, created.field, answer.output_text)), (
            name
        )


@each_engine
@each_way
async def test_long_prompt_is_refused_like_openai(
    upstream: Upstream, client: openai.AsyncOpenAI, engine: str, stream: bool
) -> None:
    if upstream.name == "transformers":
        pytest.skip("it has no bound")
    engine = model_name(upstream, engine)
    with pytest.raises(openai.BadRequestError) as raised:
        await ask(client, stream=stream, model=engine, input="word " * 200_000)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")


@each_engine
@each_way
async def test_upstream_refusal_names_the_field(
    upstream: Upstream, client: openai.AsyncOpenAI, engine: str, stream: bool
) -> None:
    if (refused := _REFUSED.get((upstream.name, engine))) is None:
        pytest.skip("it takes whatever is within our bounds")
    (field,) = refused
    with pytest.raises(openai.BadRequestError) as raised:
        await ask(client, stream=stream, model=engine, input="hi", extra_body=refused)
    assert raised.value.param == field and f"{field} must be in" in raised.value.message


# --- images beside token ids ---------------------------------------------------------------------


@pytest.mark.requirement("UP-IMAGES")
async def test_vllm_and_transformers_see_the_same_image() -> None:
    pytest.importorskip("transformers")
    here = await load_transformers(tiny_eyes.FOLDER)
    red, blue = picture("red", "circle"), picture("blue", "square")
    before, after = "<|im_start|>user\nWhat do you see?\n", "<|im_end|>\n<|im_start|>assistant\n"
    question = [image_message(here, before, *each, after) for each in ((red,), (blue, red), ())]
    greedy = Sampling(max_tokens=4, temperature=0, logprobs=2)
    expected = [await collect(here, prompt, greedy) for prompt in question]
    try:
        with serving(seeing_vllm(tiny_eyes.FOLDER)) as url:
            there = await load(
                url,
                LoadOptions(name="elsewhere", engine_options={"tokenizer": str(tiny_eyes.FOLDER)}),
            )
            assert there.capabilities.images == "template"
            for prompt, right in zip(question, expected, strict=True):
                found = await collect(there, prompt, greedy)
                assert found.ids == right.ids
                for one, other in zip(found.logprobs, right.logprobs, strict=True):
                    assert one.logprob == pytest.approx(other.logprob, abs=0.01)
                    assert [each.id for each in one.top] == [each.id for each in other.top]
                for image in prompt.images:
                    assert await there.image_tokens(image) == await here.image_tokens(image)
            torn = replace(question[0].images[0], content=red[:60])
            with pytest.raises(InvalidRequest, match="Invalid image"):
                await there.image_tokens(torn)
            await there.close()
    except Missing as missing:
        pytest.skip(str(missing))
    finally:
        await here.close()
