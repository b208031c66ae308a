"""Upstreams that reject requests, hang, break off and die, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing
from typing import Any

import pytest
import structlog

from antiphon.errors import BackendError, SetupError
from antiphon.upstream.client import Upstream

from .fakes import Answer, Fake, fake, json_answer, sse

GOOD = Answer(sse({"n": 1}, {"n": 2}))
KEY = "sk-secret-of-the-operator"


class Pauses:
    def __init__(self) -> None:
        self.waited: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


async def read(upstream: Upstream, path: str = "/ask", **more: Any) -> list[bytes]:
    received: list[bytes] = []
    async with asyncio.timeout(60):
        await upstream.pump(upstream.url + path, b"{}", received.extend, **more)
    return received


def to(playing: Fake, pauses: Pauses, **more: Any) -> Upstream:
    return Upstream(playing.url, key=KEY, pause=pauses, **more)


@pytest.mark.parametrize(
    ("url", "root", "versioned"),
    [
        ("http://h:8000", "http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/v1", "http://h:8000", "http://h:8000/v1"),
        ("https://h/api/v1/", "https://h/api", "https://h/api/v1"),
        ("https://h/v1beta/openai", "https://h/v1beta/openai", "https://h/v1beta/openai"),
    ],
)
async def test_urls_are_built_from_the_configured_address(
    url: str, root: str, versioned: str
) -> None:
    upstream = Upstream(url)
    assert (upstream.root, upstream.versioned_url) == (root, versioned)
    await upstream.close()


def test_invalid_address_is_rejected() -> None:
    with pytest.raises(SetupError, match="invalid upstream address"):
        Upstream("localhost:8000")


async def test_streams_and_reuses_the_connection(pauses: Pauses) -> None:
    async with fake(ask=GOOD) as playing:
        upstream = to(playing, pauses, headers={"x-team": "one"})
        for _ in range(3):
            received = await read(upstream, headers={"traceparent": "00-1"})
            assert received == [b'{"n": 1}', b'{"n": 2}']
        await upstream.close()
    assert len(playing.ports) == 1
    sent = playing.asked[-1][2]
    assert sent["authorization"] == f"Bearer {KEY}"
    assert (sent["x-team"], sent["traceparent"]) == ("one", "00-1")
    assert pauses.waited == []


@pytest.mark.requirement("UP-RETRY")
@pytest.mark.parametrize(
    ("failing", "waits"),
    [
        (json_answer({}, 503), [0.25]),
        (json_answer({}, 500), [0.25]),
        (json_answer({}, 429, **{"retry-after": "7"}), [7.0]),
        (json_answer({}, 429, **{"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}), [0.25]),
        (Answer(cut=True), [0.25]),
    ],
    ids=["503", "500", "429", "429 with a date", "cut before anything"],
)
async def test_retries_before_the_first_payload(
    pauses: Pauses, failing: Answer, waits: list[float]
) -> None:
    async with fake(ask=[failing, GOOD]) as playing:
        upstream = to(playing, pauses)
        assert await read(upstream) == [b'{"n": 1}', b'{"n": 2}']
        await upstream.close()
    assert pauses.waited == waits
    assert len(playing.asked) == 2


@pytest.mark.requirement("UP-RETRY")
async def test_gives_up_after_the_last_attempt(pauses: Pauses) -> None:
    async with fake(ask=json_answer({"error": {"message": "down"}}, 503)) as playing:
        upstream = to(playing, pauses)
        with pytest.raises(BackendError, match="failed"):
            await read(upstream)
        await upstream.close()
    assert len(playing.asked) == 4
    assert pauses.waited == [0.25, 0.5, 1.0]


async def test_long_retry_after_is_not_waited_for(pauses: Pauses) -> None:
    async with fake(ask=json_answer({}, 429, **{"retry-after": "3600"})) as playing:
        upstream = to(playing, pauses)
        with pytest.raises(BackendError) as raised:
            await read(upstream)
        await upstream.close()
    assert raised.value.code == "rate_limit_exceeded"
    assert pauses.waited == [] and len(playing.asked) == 1


async def test_refused_connection_is_an_error(pauses: Pauses) -> None:
    async with fake() as playing:
        pass
    upstream = to(playing, pauses)
    with pytest.raises(BackendError, match="cannot be reached") as e:
        await read(upstream)
    assert "127.0.0.1" not in e.value.message
    assert len(pauses.waited) == 3
    with pytest.raises(BackendError, match="cannot be reached"):
        await upstream.request_json(playing.url)
    await upstream.close()


@pytest.mark.requirement("UP-RETRY")
async def test_broken_stream_is_an_error(pauses: Pauses) -> None:
    async with fake(ask=Answer(sse({"n": 1}, done=False), cut=True)) as playing:
        upstream = to(playing, pauses)
        received: list[bytes] = []
        with pytest.raises(BackendError, match="broke off"):
            await upstream.pump(playing.url + "/ask", b"{}", received.extend)
        await upstream.close()
    assert received == [b'{"n": 1}'] and len(playing.asked) == 1


@pytest.mark.parametrize("is_retried", [True, False])
async def test_broken_stream_is_logged_once(pauses: Pauses, is_retried: bool) -> None:
    async with fake(ask=Answer(sse({"n": 1}, done=False), cut=True)) as playing:
        upstream = to(playing, pauses)
        policy = upstream.retry_policy() if is_retried else None
        with structlog.testing.capture_logs() as logs:
            with pytest.raises(BackendError) as raised:
                await read(upstream, retry_policy=policy)
            if policy is not None:
                await policy.wait_before_retry(raised.value)
        await upstream.close()
    assert [log["event"] for log in logs] == ["upstream failed"]


@pytest.mark.requirement("UP-SILENCE")
async def test_silence_times_out(pauses: Pauses) -> None:
    async with fake(ask=Answer(sse({"n": 1}, done=False), hang=True)) as playing:
        upstream = to(playing, pauses, silence_s=0.05)
        with pytest.raises(BackendError, match="took too long"):
            await read(upstream)
        await upstream.close()
    async with fake(ask=Answer(hang=True)) as playing:
        upstream = to(playing, pauses, silence_s=0.05)
        with pytest.raises(BackendError, match="took too long"):
            await read(upstream)
        await upstream.close()


async def test_missing_end_of_body_is_not_waited_for(pauses: Pauses) -> None:
    async with fake(ask=Answer(sse({"n": 1}), hang=True)) as playing:
        upstream = to(playing, pauses)
        assert await read(upstream) == [b'{"n": 1}']
        await upstream.close()


@pytest.mark.requirement("UP-LEAVE")
async def test_closing_the_stream_ends_the_request(pauses: Pauses) -> None:
    async with fake(ask=Answer(sse({"n": 1}, done=False), hang=True)) as playing:
        upstream = to(playing, pauses)
        async with aclosing(upstream.stream(playing.url + "/ask", b"{}")) as batches:
            assert await anext(batches) == [b'{"n": 1}']
        async with asyncio.timeout(60):
            await playing.gone.wait()
        await upstream.close()


class Left(OSError):
    """Raised by a sink; an error of the upstream's connection is an ``OSError``, too."""


@pytest.mark.requirement("UP-LEAVE")
@pytest.mark.parametrize("is_late", [False, True])
async def test_error_of_the_sink_ends_the_request_and_is_not_the_upstreams(
    pauses: Pauses, is_late: bool
) -> None:
    async with fake(ask=Answer(sse({"n": 1}, done=False), hang=True)) as playing:
        upstream = to(playing, pauses)

        async def leave() -> None:
            raise Left

        def take(payloads: list[bytes]) -> Awaitable[None]:
            if is_late:
                return leave()
            raise Left

        with structlog.testing.capture_logs() as logs, pytest.raises(Left):
            async with asyncio.timeout(60):
                await upstream.pump(playing.url + "/ask", b"{}", take)
        async with asyncio.timeout(60):
            await playing.gone.wait()
        await upstream.close()
    assert logs == []


@pytest.mark.parametrize("is_done", [False, True])
async def test_pump_says_whether_the_stream_was_complete(pauses: Pauses, is_done: bool) -> None:
    async with fake(ask=Answer(sse({"n": 1}, {"n": 2}, done=is_done))) as playing:
        upstream = to(playing, pauses)
        received: list[bytes] = []

        async def take_slowly(payloads: list[bytes]) -> None:
            await asyncio.sleep(0)
            received.extend(payloads)

        async with asyncio.timeout(60):
            assert await upstream.pump(playing.url + "/ask", b"{}", take_slowly) is is_done
        await upstream.close()
    assert received == [b'{"n": 1}', b'{"n": 2}']


@pytest.mark.requirement("UP-KEY")
@pytest.mark.parametrize("status", [400, 401, 404, 422, 302])
async def test_client_error_is_final_and_hides_the_key(pauses: Pauses, status: int) -> None:
    answer = json_answer({"error": {"message": f"not with {KEY}"}}, status, location="/ask")
    async with fake(ask=answer) as playing:
        upstream = to(playing, pauses)
        with structlog.testing.capture_logs() as logs, pytest.raises(BackendError) as raised:
            await read(upstream)
        with pytest.raises(BackendError) as refusal:
            await upstream.request_json(playing.url + "/ask")
        await upstream.close()
    assert KEY not in f"{raised.value} {refusal.value} {logs}"
    assert logs and logs[0]["status"] == status
    assert len(playing.asked) == 2 and pauses.waited == []


async def test_truncated_error_body(pauses: Pauses) -> None:
    async with fake(ask=Answer([b"x" * 10], status=400, cut=True)) as playing:
        upstream = to(playing, pauses)
        with pytest.raises(BackendError, match=r"refused|broke off"):
            await read(upstream)
        await upstream.close()


async def test_json_request_returns_the_body_or_raises_backend_error(pauses: Pauses) -> None:
    async with fake(ask=json_answer({"n": 1}), broken=Answer([b"<html>"])) as playing:
        upstream = to(playing, pauses)
        assert await read(upstream) == [b'{"n": 1}']
        assert await upstream.request_json(f"{playing.url}/ask") == {"n": 1}
        assert await upstream.request_json(f"{playing.url}/ask", {"q": 1}) == {"n": 1}
        with pytest.raises(BackendError, match="not JSON"):
            await upstream.request_json(f"{playing.url}/broken")
        await upstream.close()
        await upstream.close()
        with pytest.raises(BackendError, match="closed"):
            await read(upstream)
