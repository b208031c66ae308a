"""The engine over HTTP against fake servers; the real servers are tested elsewhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.completions.constraints import SYNTAXES, ConstraintEncoder
from antiphon.engines.completions.engine import CompletionsEngine, load
from antiphon.engines.completions.servers import FLAVOURS, vllm_image_body
from antiphon.engines.completions.stream_parser import (
    LlamaParser,
    SglangParser,
    StreamRequest,
    VllmParser,
)
from antiphon.engines.huggingface.model_folder import read_folder
from antiphon.engines.llama.partial_tokens import PartialTokens
from antiphon.errors import BackendError, InvalidRequest, SetupError
from antiphon.inference.tokens import Constraint, ModelCard, Prompt
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.engine_check import CHECKS, Check, check_closed, collect
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.upstream.client import Upstream
from tests.engines.completions.fake_servers import SHAPES, serving
from tests.engines.huggingface import hf_files
from tests.upstream.fakes import Answer, fake, json_answer, sse

TEXT = "The sea was calm. Three boats left the harbour at dawn; one of them came back. Grüße 🦄!"
SKIPPED = {"seed_is_reproducible", "logit_bias_is_applied", "constraints_are_obeyed"}
CARD = ModelCard(name="tiny", context_size=1024, fingerprint="bytes")
PROMPT = Prompt(tuple(b"The sea"))


def flavour_of(shape: str) -> str:
    return shape.partition(",")[0]


@asynccontextmanager
async def connected(
    shape: str, scripted: ScriptedEngine | None = None
) -> AsyncIterator[tuple[CompletionsEngine, list[dict[str, Any]]]]:
    """An engine over a server that plays one without a model."""
    scripted = scripted or ScriptedEngine([TEXT], card=CARD, chunk=3)
    async with serving(SHAPES[shape], scripted) as (url, bodies):
        row = FLAVOURS[flavour_of(shape)]
        engine = CompletionsEngine(Upstream(url), "m", row, ByteTokenizer(), CARD)
        try:
            yield engine, bodies
        finally:
            await engine.close()


@pytest.mark.requirement("UP-CONTRACT")
@pytest.mark.parametrize("name", [name for name in CHECKS if name not in SKIPPED])
@pytest.mark.parametrize("shape", SHAPES)
async def test_keeps_the_contract(shape: str, name: str) -> None:
    check: Check = CHECKS[name]
    async with connected(shape) as (engine, _):
        await check(engine)


@pytest.mark.parametrize("shape", SHAPES)
async def test_closing_fails_running_requests(shape: str) -> None:
    async with connected(shape, ScriptedEngine([TEXT], card=CARD, wait_s=0.001)) as (engine, _):
        await check_closed(engine)


@pytest.mark.requirement("UP-LEAVE")
@pytest.mark.parametrize("shape", SHAPES)
async def test_closing_the_iterator_aborts_the_upstream(shape: str) -> None:
    scripted = ScriptedEngine([TEXT], card=CARD, wait_s=0.001)
    async with connected(shape, scripted) as (engine, _):
        endless = Sampling(max_tokens=900, ignore_eos=True)
        chunks = engine.generate(PROMPT, endless)
        async for chunk in chunks:
            if chunk.ids:
                break
        await chunks.aclose()
    assert scripted.aborted == 1
    assert len(scripted.sampled[0]) < 500


# --- what is asked -------------------------------------------------------------------------------

EVERYTHING = Sampling(
    max_tokens=5,
    temperature=0.5,
    top_p=0.9,
    top_k=0,
    min_p=0.1,
    presence_penalty=0.2,
    frequency_penalty=0.3,
    repetition_penalty=1.1,
    seed=7,
    stop=("never sent",),
    stop_ids=(3,),
    logit_bias={5: 1.5},
    ignore_eos=True,
)
SAMPLED = {
    "temperature": 0.5,
    "top_p": 0.9,
    "min_p": 0.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.3,
}
OPENAI = {
    **SAMPLED,
    "model": "m",
    "prompt": list(PROMPT.ids),
    "max_tokens": 5,
    "top_k": 0,
    "repetition_penalty": 1.1,
    "seed": 7,
    "stop_token_ids": [3],
    "logit_bias": {"5": 1.5},
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}
BODIES: dict[str, dict[str, Any]] = {
    "vllm": {**OPENAI, "return_token_ids": True},
    "tensorrt-llm": {**OPENAI, "detokenize": False},
    "sglang": {
        "input_ids": list(PROMPT.ids),
        "stream": True,
        "sampling_params": {
            **SAMPLED,
            "max_new_tokens": 5,
            "sampling_seed": 7,
            "top_k": -1,
            "repetition_penalty": 1.1,
            "skip_special_tokens": False,
            "stop_token_ids": [3],
            "logit_bias": {"5": 1.5},
            "ignore_eos": True,
        },
    },
    "llama-server": {
        **SAMPLED,
        "prompt": list(PROMPT.ids),
        "n_predict": 5,
        "top_k": 0,
        "repeat_penalty": 1.1,
        "seed": 7,
        "logit_bias": [[5, 1.5]],
        "ignore_eos": True,
        "stream": True,
        "cache_prompt": True,
        "return_tokens": True,
        "return_progress": True,
    },
}


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_request_body_of_each_server(flavour: str) -> None:
    async with connected(flavour) as (engine, bodies):
        await collect(engine, PROMPT, EVERYTHING)
        assert bodies == [BODIES[flavour]]


async def test_max_tokens_is_limited_to_the_context() -> None:
    async with connected("sglang") as (engine, bodies):
        await collect(engine, PROMPT, Sampling(max_tokens=CARD.context_size))
        (body,) = bodies
        assert body["sampling_params"]["max_new_tokens"] == CARD.context_size - len(PROMPT.ids)


LARK = Constraint('start: "a"', schema={"type": "object"})
LLGUIDANCE = "%llguidance {}\n" + LARK.lark
EBNF = 'root ::= r_start\nr_start ::= "a"'


@pytest.mark.parametrize(
    ("flavour", "kind", "field", "value"),
    [
        ("vllm", "schema", "structured_outputs", {"json": LARK.schema}),
        ("vllm", "lark", "structured_outputs", {"grammar": LLGUIDANCE}),
        ("vllm", "ebnf", "structured_outputs", {"grammar": EBNF}),
        ("sglang", "schema", "json_schema", '{"type":"object"}'),
        ("sglang", "lark", "ebnf", LLGUIDANCE),
        ("sglang", "ebnf", "ebnf", EBNF),
        (
            "tensorrt-llm",
            "schema",
            "response_format",
            {"type": "json_schema", "json_schema": {"schema": LARK.schema}},
        ),
        ("tensorrt-llm", "ebnf", "response_format", {"type": "ebnf", "ebnf": EBNF}),
        ("tensorrt-llm", "lark", "response_format", {"type": "ebnf", "ebnf": LLGUIDANCE}),
        ("llama-server", "schema", "json_schema", LARK.schema),
        ("llama-server", "lark", "grammar", LLGUIDANCE),
    ],
)
def test_constraint_fields_of_each_server(
    flavour: str, kind: str, field: str, value: object
) -> None:
    (words,) = (each for each in SYNTAXES[flavour] if each.kind == kind)
    constraint = ConstraintEncoder(words, ByteTokenizer()).encode(
        Sampling(max_tokens=9, constraint=LARK)
    )
    written = FLAVOURS[flavour].encode(stream_request(held=constraint))
    assert written.get("sampling_params", written)[field] == value


@pytest.mark.requirement("VN-37", "VN-45")
def test_optional_fields_of_each_server() -> None:
    more = {"priority": 2, "cache_salt": "s", "adapter": "lora"}
    vllm = FLAVOURS["vllm"].encode(stream_request(**more, logprobs=3, extra={"x": 1}))
    expected = {"priority": 2, "cache_salt": "s", "model": "lora", "vllm_xargs": {"x": 1}}
    assert {key: vllm[key] for key in expected} == expected
    assert (vllm["logprobs"], vllm["return_tokens_as_token_ids"]) == (3, True)
    sglang = FLAVOURS["sglang"].encode(stream_request(**more, logprobs=3))
    expected = {"priority": -2, "extra_key": "s", "lora_path": "lora", "top_logprobs_num": 3}
    assert {key: sglang[key] for key in expected} == expected


def test_cache_scope_is_the_salt_of_each_server() -> None:
    scoped = {"cache_salt": "of the client", "cache_scope": "1f"}
    assert FLAVOURS["vllm"].encode(stream_request(**scoped))["cache_salt"] == "1f"
    assert vllm_image_body(stream_request(**scoped), ["data:,"])["cache_salt"] == "1f"
    assert FLAVOURS["sglang"].encode(stream_request(**scoped))["extra_key"] == "1f"
    separated = {name for name, each in FLAVOURS.items() if each.capabilities.separates_caches}
    assert separated == {"vllm", "sglang"}


def stream_request(*, held: Mapping[str, Any] | None = None, **sampling: Any) -> StreamRequest:
    return StreamRequest(
        model="m",
        prompt=PROMPT,
        sampling=Sampling(**{"max_tokens": 9, **sampling}),
        partial_tokens=PartialTokens(ByteTokenizer()),
        constraint_fields=held or {},
    )


@pytest.mark.parametrize(
    ("kind", "lark"), [(None, "a"), ("schema", '"a"'), ("ebnf", '"a" & "b"'), ("lark", "/(/")]
)
def test_unsupported_grammar_is_refused(kind: str | None, lark: str) -> None:
    words = next((each for each in SYNTAXES["vllm"] if each.kind == kind), None)
    worded = ConstraintEncoder(words, ByteTokenizer())
    with pytest.raises(InvalidRequest):
        worded.encode(Sampling(max_tokens=5, constraint=Constraint(f"start: {lark}")))


# --- what is answered ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [VllmParser, SglangParser, LlamaParser])
@pytest.mark.parametrize(
    "payload",
    [b"nonsense", b"[]", b'{"error": {"message": "no", "code": 500}}', b'{"error": "no"}', b"\xff"],
)
def test_nonsense_and_errors_raise(kind: Any, payload: bytes) -> None:
    with pytest.raises(BackendError):
        kind(stream_request()).feed(payload)


def test_response_without_token_ids_raises() -> None:
    payload = b'{"choices": [{"text": "a", "finish_reason": null}]}'
    with pytest.raises(BackendError, match="no token ids"):
        VllmParser(stream_request()).feed(payload)


@pytest.mark.parametrize(
    ("kind", "reason"), [(VllmParser, "abort"), (VllmParser, "error"), (VllmParser, "timeout")]
)
def test_aborted_generation_raises(kind: Any, reason: str) -> None:
    payload = json.dumps({"choices": [{"token_ids": [97], "finish_reason": reason}]}).encode()
    with pytest.raises(BackendError, match=reason):
        kind(stream_request()).feed(payload)


def test_mismatched_logprobs_are_dropped() -> None:
    """No token is lost with them."""
    logprob = {"token_logprobs": [-1.0], "top_logprobs": [{"token_id:97": -1.0}]}
    choice = {"token_ids": [97, 98], "finish_reason": None, "logprobs": logprob}
    found = (
        VllmParser(stream_request(logprobs=1))
        .feed(json.dumps({"choices": [choice]}).encode())
        .tokens
    )
    assert [(each.id, each.logprob, each.top) for each in found] == [
        (97, -9999.0, ()),
        (98, -9999.0, ()),
    ]


def test_sglang_abort_raises() -> None:
    reason = {"type": "abort", "message": "The input is too long.", "status_code": 400}
    payload = json.dumps({"output_ids": [], "meta_info": {"finish_reason": reason}}).encode()
    with pytest.raises(BackendError) as raised:
        SglangParser(stream_request()).feed(payload)
    assert raised.value.code == "context_length_exceeded"


def test_withheld_token_search_is_bounded() -> None:
    pieces = LlamaParser(stream_request())
    result = {"content": "é" * 5000, "tokens": [169], "tokens_predicted": 9000}
    assert [each.id for each in pieces.feed(json.dumps(result).encode()).tokens] == [169]


def test_tokens_of_an_incomplete_character_are_counted() -> None:
    pieces = LlamaParser(stream_request())
    for result in (
        {"content": "a", "tokens": [97], "tokens_predicted": 1},
        {"tokens_predicted": 4},
    ):
        piece = pieces.feed(json.dumps({**result, "stop": "tokens" not in result}).encode())
    assert not piece.tokens and (piece.reason, piece.unreported_tokens) == ("stop", 3)


def test_withheld_ids_are_recovered() -> None:
    pieces = LlamaParser(stream_request(logprobs=0))
    unicorn = list("🦄".encode())
    result = {"content": "🦄", "tokens": unicorn[-1:], "tokens_predicted": 4}
    result["completion_probabilities"] = [{"id": unicorn[-1], "logprob": None}]
    found = pieces.feed(json.dumps(result).encode()).tokens
    assert [each.id for each in found] == unicorn
    assert {each.logprob for each in found} == {-9999.0}


async def _no_pause(seconds: float) -> None: ...


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (json_answer({"error": {"message": "no"}}, 400), "no"),
        (Answer([b"<html>"]), "broke off"),
        (Answer(sse({"choices": [{"token_ids": [97]}]}, done=False)), "broke off"),
        (Answer(sse({"choices": [{"token_ids": [97]}]}, done=False), cut=True), "broke off"),
        (Answer(sse("{")), "cannot be read"),
    ],
)
async def test_server_failures_raise_backend_error(answer: Answer, says: str) -> None:
    async with fake(v1__completions=answer) as playing:
        upstream = Upstream(playing.url, pause=_no_pause)
        engine = CompletionsEngine(upstream, "m", FLAVOURS["vllm"], ByteTokenizer(), CARD)
        with pytest.raises(BackendError, match=says):
            async for _ in engine.generate(PROMPT, Sampling(max_tokens=50)):
                pass
        await engine.close()


# --- what is found out ---------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {"max_position_embeddings": 4096}
    return hf_files.folder(
        tmp_path / "model", hf_files.byte_level(), config=config, chat_template=hf_files.TEMPLATE
    )


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_server_kind_is_detected(flavour: str, folder: Path) -> None:
    more = [{"id": "lora", "parent": "m"}, {"parent": "m", "owned_by": [{}]}]
    scripted = ScriptedEngine()
    async with serving(SHAPES[flavour], scripted, root=str(folder), more=more) as (url, _):
        engine = await load(url, LoadOptions(name="tiny"))
        assert engine.card.chat_template == hf_files.TEMPLATE
        assert (engine.card.name, engine.card.context_size) == ("tiny", 4096)
        adapts = flavour in ("vllm", "sglang")
        assert engine.capabilities.adapters == (frozenset({"lora"}) if adapts else frozenset())
        assert not engine.capabilities.constraints
        await engine.close()


@pytest.mark.parametrize("is_deterministic", [False, True])
async def test_sglang_capabilities_are_read_from_server_info(
    is_deterministic: bool, folder: Path
) -> None:
    listed = {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 300}]}
    facts = {"enable_deterministic_inference": is_deterministic}
    output = json_answer({**facts, "model_path": "m", "tokenizer_path": str(folder)})
    async with fake(v1__models=json_answer(listed), server_info=output) as playing:
        engine = await load(playing.url, LoadOptions(name="tiny"))
        assert engine.capabilities.seed is is_deterministic
        assert engine.card.context_size == 300
        await engine.close()


@pytest.mark.requirement("UP-XGRAMMAR")
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_constraint_syntax_is_probed(flavour: str, folder: Path) -> None:
    ids = read_folder(folder, name="tiny").tokenizer.encode('"qz"', special=False)
    for kind in ("lark", "ebnf", "schema", None):
        takes = (kind, bytes(ids).decode())
        engines = serving(SHAPES[flavour], ScriptedEngine(), root=str(folder), takes=takes)
        async with engines as (url, _):
            engine = await load(url, LoadOptions(name="tiny"))
        can, known = engine.capabilities, {words.kind for words in SYNTAXES[flavour]}
        assert can.constraints is (kind == "lark" and kind in known)
        assert (can.grammars is not None) is (kind == "ebnf" and kind in known)
        assert can.schemas is (kind == "schema" and kind in known)
        if can.grammars is not None:
            assert can.grammars('start: "a"') and not can.grammars('start: "a" & "b"')
        await engine.close()


async def test_context_size_is_read_from_the_server(folder: Path) -> None:
    async with serving(SHAPES["vllm"], ScriptedEngine(), max_model_len=300) as (url, bodies):
        options = {"tokenizer": str(folder), "body": {"x": 1}}
        adapters = {"poet": "poet-v2", "clerk": ""}
        engine = await load(
            url, LoadOptions(name="tiny", adapters=adapters, engine_options=options)
        )
        assert engine.capabilities.adapters == {"poet", "clerk"}
        for name, there in (("poet", "poet-v2"), ("clerk", "clerk")):
            request = Sampling(max_tokens=1, ignore_eos=True, adapter=name)
            await collect(engine, Prompt((5, 6)), request)
            assert bodies[-1]["model"] == there
        assert engine.card.context_size == 300
        await collect(engine, Prompt((5, 6)), Sampling(max_tokens=2, ignore_eos=True))
        assert bodies[-1]["x"] == 1
        await engine.close()
        smaller = await load(
            url, LoadOptions(name="tiny", context_size=200, engine_options=options)
        )
        assert smaller.card.context_size == 200
        await smaller.close()


@pytest.mark.parametrize(
    ("facts", "options", "says"),
    [
        ({}, {}, "tokenizer of m is not on this machine"),
        ({"root": "/nowhere"}, {}, "not on this machine"),
        ({}, {"tokenizer": "/nowhere"}, "does not exist"),
        ({"owned_by": "somebody"}, {}, "is a server of unknown kind"),
        ({}, {"flavour": "vlm"}, "unknown 'vlm'"),
        ({}, {"tokeniser": "x"}, "tokeniser"),
    ],
)
async def test_missing_configuration_is_named(
    facts: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    async with serving(SHAPES["vllm"], ScriptedEngine(), **facts) as (url, _):
        with pytest.raises(SetupError, match=says):
            await load(url, LoadOptions(name="tiny", engine_options=options))


@pytest.mark.parametrize("flavour", ["tensorrt-llm", "llama-server"])
async def test_adapters_are_refused_where_unsupported(flavour: str, folder: Path) -> None:
    async with serving(SHAPES[flavour], ScriptedEngine(), root=str(folder)) as (url, _):
        with pytest.raises(SetupError, match="takes no adapters"):
            await load(url, LoadOptions(name="tiny", adapters={"poet": "poet-v2"}))


async def test_unreachable_server_raises_setup_error() -> None:
    async with fake() as playing:
        pass
    with pytest.raises(SetupError, match="does not answer"):
        await load(playing.url, LoadOptions(name="tiny"))
