"""Several replicas of one upstream, and routers, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from antiphon.errors import BackendError, SetupError
from antiphon.inference.sampling import Session
from antiphon.upstream import replicas
from antiphon.upstream.client import Upstream
from antiphon.upstream.endpoint import connecting
from antiphon.upstream.retries import RetryPolicy, UpstreamHealth
from antiphon.upstream.routers import ROUTERS, find_router

from .fakes import Answer, Fake, fake, json_answer, sse

GOOD = Answer(sse({"n": 1}))
MODELS = json_answer({"data": []})
KEY = "0123456789abcdef"
TENANT_KEY = "fedcba"


def session_of(key: str) -> Session:
    def digest(content: bytes, *, purpose: str, tenant: str) -> str:
        return key if purpose == "session" else TENANT_KEY

    return Session(tenant="t", identity="", digest=digest)


SESSION = session_of(KEY)


class Pauses:
    def __init__(self) -> None:
        self.waited: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)


@asynccontextmanager
async def fleet(
    *answers: Answer | list[Answer], **more: Any
) -> AsyncIterator[tuple[Upstream, list[Fake], Pauses]]:
    """An upstream with one fake replica for each answer."""
    pauses = Pauses()
    async with AsyncExitStack() as stack:
        fakes = [
            await stack.enter_async_context(fake(ask=answer, v1__models=MODELS))
            for answer in answers
        ]
        upstream = Upstream(",".join(each.url for each in fakes), pause=pauses, **more)
        stack.push_async_callback(upstream.close)
        yield upstream, fakes, pauses


async def ask(upstream: Upstream, key: str | None = None) -> list[bytes]:
    session = None if key is None else session_of(key)
    received: list[bytes] = []
    policy = upstream.retry_policy(session)
    async with asyncio.timeout(60):
        await upstream.pump(
            upstream.root + "/ask", b'{"a": 1}', received.extend, retry_policy=policy
        )
    return received


def recorded_replicas(patch: pytest.MonkeyPatch) -> list[replicas.Replica]:
    """Record each replica that is created from now on, and return the list of them."""
    made: list[replicas.Replica] = []
    make = replicas.Replica

    def record(**fields: Any) -> replicas.Replica:
        made.append(make(**fields))
        return made[-1]

    patch.setattr(replicas, "Replica", record)
    return made


def request_count(playing: Fake) -> int:
    return sum(path == "/ask" for path, _, _ in playing.asked)


@pytest.mark.requirement("UP-FLEET")
async def test_conversation_stays_on_one_replica() -> None:
    async with fleet(GOOD, GOOD, GOOD) as (upstream, fakes, _):
        for key in ("one", "two", "three", "four", "five", "six", "seven", "eight"):
            before = [request_count(each) for each in fakes]
            for _ in range(3):
                await ask(upstream, key)
            counts = [request_count(each) - old for each, old in zip(fakes, before, strict=True)]
            assert sorted(counts) == [0, 0, 3]


@pytest.mark.requirement("UP-FLEET")
@pytest.mark.parametrize(
    "bad",
    [
        Answer(cut=True),
        json_answer({}, 500),
        json_answer({}, 503),
        json_answer({}, 429, **{"retry-after": "60"}),
    ],
    ids=["cut", "500", "503", "429"],
)
async def test_failed_request_is_sent_to_another_replica_at_once(bad: Answer) -> None:
    async with fleet(bad, bad, GOOD) as (upstream, fakes, pauses):
        assert await ask(upstream) == [b'{"n": 1}']
        assert sum(map(request_count, fakes)) == 3
    assert pauses.waited == []


@pytest.mark.requirement("UP-FLEET")
async def test_dead_replica_costs_one_request_one_retry() -> None:
    async with fake() as dead:
        pass
    async with fake(ask=GOOD, v1__models=MODELS) as good:
        pauses = Pauses()
        upstream = Upstream(f"{dead.url},{good.url}", pause=pauses)
        # the fewest requests are the first one's, which does not listen
        for number in range(5):
            assert await ask(upstream, str(number)) == [b'{"n": 1}']
        await upstream.close()
    assert pauses.waited == [] and request_count(good) == 5


@pytest.mark.requirement("UP-FLEET")
async def test_fleet_that_is_down_fails_as_one_upstream() -> None:
    bad = json_answer({"error": {"message": "http://10.1.2.3:8000 is down"}}, 503)
    async with fleet(bad, bad) as (upstream, fakes, pauses):
        with pytest.raises(BackendError) as raised:
            await ask(upstream, "one")
        assert raised.value.code == "server_is_overloaded"
        assert "10.1.2.3" not in raised.value.message
        assert pauses.waited == [0.25, 0.5, 1.0]
        assert sum(map(request_count, fakes)) == 5
        with pytest.raises(BackendError):
            await ask(upstream, "one")
        assert len(pauses.waited) == 3


@pytest.mark.requirement("UP-FLEET")
async def test_replica_that_is_up_again_is_found_without_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicas, "_FIRST_PROBE_S", 0.01)
    made = recorded_replicas(monkeypatch)
    async with fleet([Answer(cut=True), GOOD], [Answer(cut=True), GOOD]) as (upstream, fakes, _):
        assert await ask(upstream, "one") == [b'{"n": 1}']
        async with asyncio.timeout(60):
            while any(each.is_down for each in made):
                await asyncio.sleep(0.01)
        assert sum(map(request_count, fakes)) == 3


async def test_reply_that_has_begun_is_retried_as_long_as_a_request_may_wait() -> None:
    pauses = Pauses()
    pool = replicas.ReplicaPool(["http://engine"], lambda: 0.0)
    policy = RetryPolicy(pool, pauses, UpstreamHealth(is_failing=True))
    policy.next_replica()
    policy.restart(BackendError("The upstream failed."))
    with pytest.raises(BackendError):
        while True:
            await policy.wait_before_retry(BackendError("The upstream failed."))
    assert len(pauses.waited) > 4 and 10 < sum(pauses.waited) <= 20


async def test_first_retry_behind_a_router_follows_at_once_as_another_session() -> None:
    bad = json_answer({}, 502)
    async with fleet([bad, bad, GOOD], router=ROUTERS["vllm-router"]) as (upstream, fakes, pauses):
        assert await ask(upstream, KEY) == [b'{"n": 1}']
        assert pauses.waited == [2.0]
        keys = [sent["x-session-id"] for _, _, sent in fakes[0].asked]
    assert keys[0] == KEY and len(set(keys)) == 3


async def test_rejected_request_is_not_sent_to_another_replica() -> None:
    bad = json_answer({"error": {"message": "no such field"}}, 400)
    async with fleet(bad, bad) as (upstream, fakes, _):
        with pytest.raises(BackendError, match="no such field"):
            await ask(upstream)
        assert sum(map(request_count, fakes)) == 1


async def test_short_requests_are_answered_by_any_replica() -> None:
    async with fake() as dead:
        pass
    async with fake(v1__models=MODELS) as good:
        upstream = Upstream(f"{dead.url},{good.url}")
        assert await upstream.request_json(f"{upstream.versioned_url}/models") == {"data": []}
        await upstream.close()


@pytest.mark.requirement("UP-FLEET")
async def test_name_stands_for_several_replicas() -> None:
    answers = [["127.0.0.1"]]
    hosts: list[str] = []

    async def resolve(host: str) -> list[str]:
        hosts.append(host)
        return answers[0]

    async with fake(ask=GOOD) as playing:
        port = playing.url.rpartition(":")[2]
        upstream = Upstream(f"dns+http://engines.example:{port}/v1", resolve=resolve)
        assert upstream.versioned_url == f"http://engines.example:{port}/v1"
        assert await ask(upstream) == [b'{"n": 1}']
        assert await ask(upstream) == [b'{"n": 1}']
        await upstream.close()
    assert hosts == ["engines.example"]
    assert playing.asked[-1][2]["host"] == f"engines.example:{port}"


# --- routers -------------------------------------------------------------------------------------


@pytest.mark.requirement("UP-SESSION")
@pytest.mark.parametrize(
    ("router", "headers"),
    [
        ("vllm-router", {"x-session-id": KEY}),
        ("smg", {"x-smg-routing-key": KEY}),
        ("llm-d", {"x-gateway-inference-fairness-id": "fedcba"}),
        ("dynamo", {"x-dynamo-session-id": KEY}),
        ("vllm", {"x-session-id": KEY}),
    ],
)
async def test_router_gets_the_session_key(router: str, headers: dict[str, str]) -> None:
    async with fake(ask=GOOD) as playing:
        upstream = Upstream(playing.url, router=find_router(router))
        batches = upstream.stream(
            playing.url + "/ask", b"{}", {"traceparent": "00-1"}, upstream.retry_policy(SESSION)
        )
        assert [each async for each in batches]
        await upstream.close()
    sent = playing.asked[0][2]
    assert {name: sent[name] for name in headers} == headers
    assert sent["traceparent"] == "00-1"


@pytest.mark.requirement("UP-SESSION")
async def test_request_id_begins_with_the_session_key() -> None:
    async with fleet(GOOD, router=ROUTERS["sglang"]) as (upstream, (playing,), _):
        await ask(upstream, KEY)
        await ask(upstream, KEY)
    rids = [body["rid"] for body in playing.bodies]
    assert all(body["a"] == 1 for body in playing.bodies)
    assert [rid.partition("_")[0] for rid in rids] == [KEY, KEY]
    assert rids[0] != rids[1]


@pytest.mark.requirement("UP-SESSION")
async def test_engine_gets_the_session_key_in_the_body() -> None:
    async with fleet(GOOD, router=ROUTERS["sglang-sessions"]) as (upstream, (playing,), _):
        await ask(upstream, KEY)
    assert playing.bodies[0]["session_id"] == KEY


@pytest.mark.parametrize("router", ROUTERS)
async def test_end_of_a_session_is_told_to_those_who_understand_it(router: str) -> None:
    expected = {
        "vllm-router": ("/finish_session", {"session_id": KEY}, None),
        "sglang-sessions": ("/close_session", {}, {"session_id": KEY}),
    }
    done = json_answer({"status": "ok"})
    async with fake(ask=GOOD, finish_session=done, close_session=done) as playing:
        upstream = Upstream(playing.url, router=find_router(router))
        await upstream.end_session(KEY)  # the upstream has not heard of it
        policy = upstream.retry_policy(SESSION)
        assert [each async for each in upstream.stream(playing.url + "/ask", b"{}", None, policy)]
        for _ in range(2):
            await upstream.end_session(KEY)
        await upstream.close()
    told = [(path, body) for path, body, _ in playing.asked if path != "/ask"]
    if router not in expected:
        assert told == []
        return
    path, query, body = expected[router]
    assert told == [(path, body)]
    assert playing.queries[1:] == [query]


async def test_failure_at_the_end_of_a_session_is_ignored() -> None:
    async with fake(ask=GOOD) as playing:
        upstream = Upstream(playing.url, router=ROUTERS["vllm-router"])
        policy = upstream.retry_policy(SESSION)
        assert [each async for each in upstream.stream(playing.url + "/ask", b"{}", None, policy)]
    await upstream.end_session(KEY)
    await upstream.close()


@pytest.mark.requirement("UP-SESSION")
async def test_session_token_is_echoed() -> None:
    tokens = [
        Answer(sse({"n": 1}), headers={"content-type": "text/event-stream", "x-session-token": t})
        for t in ("first", "second")
    ]
    async with fleet(tokens, router=ROUTERS["llm-d"]) as (upstream, (playing,), _):
        for key in (KEY, KEY, KEY, "other"):
            await ask(upstream, key)
    sent = [headers.get("x-session-token") for _, _, headers in playing.asked]
    assert sent == [None, "first", "second", None]


@pytest.mark.requirement("UP-SESSION")
async def test_retry_behind_a_router_leaves_the_engine_of_the_session() -> None:
    bad = json_answer({}, 500)
    async with fleet([bad, GOOD], router=ROUTERS["vllm-router"]) as (upstream, (playing,), pauses):
        await ask(upstream, KEY)
    keys = [headers["x-session-id"] for _, _, headers in playing.asked]
    assert keys[0] == KEY and keys[1] != KEY
    assert pauses.waited == []


async def test_retries_do_not_multiply_with_those_of_a_router() -> None:
    async with fleet(json_answer({}, 500), router=ROUTERS["smg"]) as (upstream, (playing,), _):
        with pytest.raises(BackendError):
            await ask(upstream, KEY)
    assert request_count(playing) == 4


async def test_unknown_router_is_named() -> None:
    with pytest.raises(SetupError, match=r"models\.tiny\.router: there is no router 'nginx'"):
        async with connecting("tiny", "http://engine", None, {"router": "nginx"}):
            pass
