"""Replies whose server dies in the middle continue on another one behind their last token."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import blake2b
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from antiphon.engines.base import Engine, Sampling
from antiphon.engines.common.continued_engine import ContinuedEngine
from antiphon.engines.common.grammar_state import GrammarState, GrammarTracker
from antiphon.engines.common.watched_generation import GrammarWatch
from antiphon.engines.completions.constraints import SYNTAXES
from antiphon.engines.completions.engine import CompletionsEngine
from antiphon.engines.completions.servers import FLAVOURS
from antiphon.errors import BackendError
from antiphon.inference.sampling import Session
from antiphon.inference.tokens import Chunk, Constraint, ModelCard, Prompt
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.engine_check import Outcome, collect
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.upstream.client import Upstream
from tests.engines.completions.fake_servers import SHAPES, serving
from tests.upstream.fakes import Answer, fake, sse

TEXT = "The sea was calm. Three boats left the harbour at dawn; one came back."
CARD = ModelCard(name="tiny", context_size=1024, fingerprint="bytes")
PROMPT = Prompt(tuple(b"Once"))
TOKENIZER = ByteTokenizer(["<|call|>"])


def text(reply: Outcome) -> str:
    return b"".join(map(TOKENIZER.piece, reply.ids)).decode()


pytestmark = pytest.mark.requirement("UP-FAILOVER")


async def _no_pause(seconds: float) -> None: ...


def telling() -> ScriptedEngine:
    """A deterministic model: it continues the text wherever the prompt has left it."""

    def rest(prompt: str) -> str:
        return TEXT[len(prompt) - len("Once") :]

    return ScriptedEngine(rest, card=CARD, chunk=3)


@asynccontextmanager
async def fleet(shape: str, dies_after: Sequence[int | None]) -> AsyncIterator[Engine]:
    """An engine over one server for each number of chunks after which it dies."""
    async with AsyncExitStack() as stack:
        urls = []
        for number in dies_after:
            server = serving(SHAPES[shape], telling(), dies_after=number)
            urls.append((await stack.enter_async_context(server))[0])
        row = FLAVOURS[shape.partition(",")[0]]
        upstream = Upstream(",".join(urls), pause=_no_pause)
        engine = ContinuedEngine(CompletionsEngine(upstream, "m", row, ByteTokenizer(), CARD))
        stack.push_async_callback(engine.close)
        yield engine


@pytest.mark.parametrize("dies_after", [[4, 4, None], [4, 4], [3]], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
async def test_reply_continues_behind_its_last_token(
    shape: str, dies_after: Sequence[int | None]
) -> None:
    if shape == "llama-server" and dies_after == [3]:
        dies_after = [8]  # its last chunk has no tokens, and it reports its progress first
    sampling = Sampling(max_tokens=200)
    async with fleet(shape, [None]) as engine:
        undisturbed = await collect(engine, PROMPT, sampling)
    async with fleet(shape, dies_after) as engine:
        continued = await collect(engine, PROMPT, sampling)
    assert text(continued).startswith(TEXT)
    assert (continued.ids, continued.last.finish) == (undisturbed.ids, "stop")
    assert continued.last.unreported_tokens == undisturbed.last.unreported_tokens


@pytest.mark.parametrize(
    "sampling", [Sampling(max_tokens=25), Sampling(max_tokens=99, stop=("at dawn",))]
)
async def test_limits_hold_over_all_servers(sampling: Sampling) -> None:
    """A stop string may begin on one server and end on the next."""
    async with fleet("vllm", [None]) as engine:
        undisturbed = await collect(engine, PROMPT, sampling)
    for number in (2, 3, 4, 5):
        async with fleet("vllm", [number, number]) as engine:
            continued = await collect(engine, PROMPT, sampling)
        assert continued.ids == undisturbed.ids
        assert continued.last.stop_text == undisturbed.last.stop_text


async def test_only_a_finish_reason_ends_a_reply() -> None:
    """Neither the end of the body nor its end mark, nor a finish reason of a failure."""

    def piece(text: str, **more: Any) -> dict[str, Any]:
        return {"choices": [{"token_ids": list(text.encode()), **more}]}

    answers = [
        Answer(sse(piece("a"), done=False)),
        Answer(sse(piece("b"))),
        Answer(sse(piece("c"), {"error": {"message": "engine", "type": "stream_error"}})),
        Answer(sse(piece("d", finish_reason="abort"))),
        Answer(sse(piece("e"), piece("", finish_reason="stop"), done=False), cut=True),
    ]
    async with fake(v1__completions=answers) as playing:
        upstream = Upstream(playing.url, pause=_no_pause)
        inner = CompletionsEngine(upstream, "m", FLAVOURS["vllm"], ByteTokenizer(), CARD)
        engine = ContinuedEngine(inner)
        reply = await collect(engine, PROMPT, Sampling(max_tokens=50))
        await engine.close()
    assert text(reply) == "abce" and reply.last.finish == "stop"
    prompts = [bytes(body["prompt"]) for body in playing.bodies]
    assert prompts[:3] == [b"Once", b"Oncea", b"Onceab"]
    assert [body["max_tokens"] for body in playing.bodies[:3]] == [50, 49, 48]


async def test_continuation_avoids_the_server_that_failed() -> None:
    """Also if it answers: the failure of one stream does not mark it as down."""
    failing = Answer(sse({"choices": [{"token_ids": [97]}]}, {"error": {"message": "engine"}}))
    good = Answer(sse({"choices": [{"token_ids": [98], "finish_reason": "stop"}]}))
    async with (
        fake(v1__completions=[failing, failing]) as one,
        fake(v1__completions=[failing, good]) as two,
    ):
        upstream = Upstream(f"{one.url},{two.url}", pause=_no_pause)
        engine = ContinuedEngine(
            CompletionsEngine(upstream, "m", FLAVOURS["vllm"], ByteTokenizer(), CARD)
        )
        session = Session(tenant="t", identity="i", digest=lambda content, **purpose: "d")
        reply = await collect(engine, PROMPT, Sampling(max_tokens=50, session=session))
        await engine.close()
    used = [(len(server.bodies)) for server in (one, two)]
    assert set(reply.ids) <= {97, 98} and min(used) >= 1 and abs(used[0] - used[1]) <= 1


async def test_request_that_kills_every_server_fails() -> None:
    async with fleet("vllm", [1]) as engine:
        with pytest.raises(BackendError, match="broke off"):
            await collect(engine, PROMPT, Sampling(max_tokens=200))


# --- grammars ------------------------------------------------------------------------------------

OBJECT = """start: %json {"type": "object", "properties": {
 "name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "maximum": 999},
 "kind": {"enum": ["boat", "sea"]}},
 "required": ["name", "count", "kind"], "additionalProperties": false}"""
GRAMMARS = {
    "object": OBJECT,
    "choice": 'start: "harbour" | "harvest" | "dawn"',
    "call": 'start: "call " /[a-z]{3,9}/ <|call|>',
}


def _preference(prompt: Sequence[int], id: int) -> float:
    """The score of a token: pseudo-random, the same for the same prompt."""
    digest = blake2b(bytes(prompt[-3:]) + id.to_bytes(2), digest_size=4).digest()
    return int.from_bytes(digest) / 2**32 - (id <= 32)  # endless white space is of no use


def _greedy(body: dict[str, Any]) -> list[int]:
    """What a greedy server samples: under the grammar of the request and its bias."""
    prompt, ids = [id % 256 for id in body["prompt"]], list[int]()
    ends = {*TOKENIZER.end_ids, *body.get("stop_token_ids", ())}
    grammar = body.get("structured_outputs", {}).get("grammar")
    state: GrammarState | None = None
    if grammar is not None:
        state = GrammarTracker(TOKENIZER).start(grammar.partition("\n")[2], [], ends)
        assert state is not None
    while len(ids) < body["max_tokens"]:
        bias = {int(id): value for id, value in body.get("logit_bias", {}).items()}
        for id, value in (state.bias() if state else {}).items():
            bias[id] = bias.get(id, 0) + value
        best = max(range(TOKENIZER.size), key=lambda id: _preference(prompt, id) + bias.get(id, 0))
        ids.append(best)
        prompt.append(best % 256)
        if state is not None:
            assert state.accept([best]) == 1
        if best in ends:
            break
    return ids


@asynccontextmanager
async def greedy_fleet(
    dies: Callable[[int], int | None], *, biases: bool = True
) -> AsyncIterator[Engine]:
    """An engine over a greedy server. ``dies``: number of the request → tokens until it dies.
    ``biases``: whether the server knows ``logit_bias``."""
    numbers = iter(range(10_000))

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        left = dies(next(numbers))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        ids = _greedy(body)
        for at, id in enumerate(ids):
            if at == left and request.transport is not None:
                request.transport.close()
                return response
            last = at == len(ids) - 1
            reason = ("length" if at + 1 == body["max_tokens"] else "stop") if last else None
            piece = {"choices": [{"token_ids": [id], "finish_reason": reason}]}
            await response.write(f"data: {json.dumps(piece)}\n\n".encode())
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app, host="127.0.0.1", handler_cancellation=True) as server:
        upstream = Upstream(f"http://127.0.0.1:{server.port}", pause=_no_pause)
        syntax = next(each for each in SYNTAXES["vllm"] if each.kind == "lark")
        row = FLAVOURS["vllm"]
        row = replace(row, capabilities=replace(row.capabilities, logit_bias=biases))
        engine = _WatchedEngine(
            CompletionsEngine(upstream, "m", row, TOKENIZER, CARD, constraint_syntax=syntax)
        )
        yield engine
        await engine.close()


class _WatchedEngine(ContinuedEngine):
    """An engine as the local backend uses it."""

    def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        return GrammarWatch(ContinuedEngine(self._inner)).generate(prompt, sampling)


@pytest.mark.parametrize(
    ("grammar", "dies_after"),
    [("object", 4), ("call", 1), ("call", 9), ("choice", 1), ("choice", 4)],
)
async def test_grammar_holds_over_all_servers(grammar: str, dies_after: int) -> None:
    """The greedy text is that of an undisturbed run."""
    sampling = Sampling(
        max_tokens=200,
        stop_ids=(TOKENIZER.special["<|call|>"],),
        constraint=Constraint(GRAMMARS[grammar]),
    )
    async with greedy_fleet(lambda number: None) as engine:
        undisturbed = await collect(engine, PROMPT, sampling)
    assert undisturbed.last.finish == "stop" and len(undisturbed.ids) > 4
    async with greedy_fleet(lambda number: None if number else dies_after) as engine:
        continued = await collect(engine, PROMPT, sampling)
    assert continued.ids == undisturbed.ids
    assert continued.last.finish == "stop"


@pytest.mark.parametrize("is_needed", [True, False])
async def test_grammar_without_logit_bias_is_dropped_or_fails(is_needed: bool) -> None:
    constraint = Constraint(GRAMMARS["object"], needed=is_needed)
    sampling = Sampling(max_tokens=20, constraint=constraint)
    async with greedy_fleet(lambda number: None if number else 4, biases=False) as engine:
        if is_needed:
            with pytest.raises(BackendError, match="broke off"):
                await collect(engine, PROMPT, sampling)
        else:
            assert len((await collect(engine, PROMPT, sampling)).ids) == 20


def test_grammar_state_knows_where_the_output_may_end() -> None:
    ends = TOKENIZER.end_ids
    state = GrammarTracker(TOKENIZER).start('start: "ab" "c"?', tuple(b"a"), ends)
    assert state is not None and not state.may_end
    assert state.accept([*b"b", *ends]) == 2
    state = GrammarTracker(TOKENIZER).start('start: "ab" "c"?', tuple(b"ab"), ends)
    assert state is not None and state.may_end
    assert set(state.bias()) == {*b"c", *ends} and state.accept(b"d") == 0


def test_grammar_may_contain_the_token_that_ends_the_output() -> None:
    """As the grammar of a call of gpt-oss does."""
    (end,) = TOKENIZER.end_ids
    state = GrammarTracker(TOKENIZER).start(f'start: "ab" <[{end}]>', tuple(b"a"), {end})
    assert state is not None and state.match([end], "stop") == (0, True)
    assert state.accept(b"b") == 1 and not state.may_end
    assert set(state.bias()) == {end} and state.match([end], "stop") == (1, False)


def test_grammar_that_crashes_the_library_is_not_compiled_here() -> None:
    """It is compiled in a process of its own first: this one overflows the stack."""
    rules = "\n".join(f"r{n}: r{n + 1}" for n in range(30_000))
    lark = f'start: r0\n{rules}\nr30000: "a"'
    assert GrammarTracker(TOKENIZER).start(lark, tuple(b"a"), TOKENIZER.end_ids) is None


def test_tokens_that_do_not_match_cannot_be_continued() -> None:
    assert GrammarTracker(TOKENIZER).start('start: "ab"', tuple(b"x"), TOKENIZER.end_ids) is None
