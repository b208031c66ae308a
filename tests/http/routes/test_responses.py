"""Endpoints of responses, over a fake service."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from antiphon.errors import InvalidRequest, Overloaded
from antiphon.http.middleware.errors import failed_response_reply
from antiphon.http.requests.query import IncludingPage
from antiphon.wire.items import CodeInterpreterCall, Item, Message
from antiphon.wire.response import Response, ResponseError

ErrorOf = Callable[[httpx.Response], dict[str, Any]]
ASK = {"model": "tiny", "input": "hi"}


def events(text: str) -> list[dict[str, Any]]:
    """Return a stream's events, after a check of their framing."""
    *frames, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    found = []
    for frame in frames:
        first, second = frame.split("\n")
        event = json.loads(second.removeprefix("data: "))
        assert first == f"event: {event['type']}"
        found.append(event)
    return found


async def test_request_without_streaming_returns_the_response(make_app: Any, service: Any) -> None:
    answer = await make_app().client.post("/v1/responses", json=ASK)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert (body["id"], body["status"]) == ("resp_1", "completed")
    assert body["output"][0]["content"][0]["text"] == "Hello"
    kind, tenant, request = service.calls[0]
    assert (kind, tenant, request.model) == ("create", "default", "tiny")
    assert answer.headers["x-request-id"]


async def test_stream_has_all_events_and_done(make_app: Any) -> None:
    answer = await make_app().client.post("/v1/responses", json={**ASK, "stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]
    observed = events(answer.text)
    assert [event["type"] for event in observed[:2]] == ["response.created", "response.in_progress"]
    assert [event["sequence_number"] for event in observed] == list(range(len(observed)))
    assert observed[-1]["type"] == "response.completed"
    deltas = [event["delta"] for event in observed if event["type"].endswith(".delta")]
    assert deltas == ["Hel", "lo"]


@pytest.mark.parametrize("stream", [True, False])
async def test_error_before_the_run_is_json(
    make_app: Any, service: Any, error_of: ErrorOf, stream: bool
) -> None:
    service.refusal = InvalidRequest("No.", param="input[0].role", code="invalid_value")
    answer = await make_app().client.post("/v1/responses", json={**ASK, "stream": stream})
    assert answer.status_code == 400
    assert error_of(answer) == {
        "message": "No.",
        "type": "invalid_request_error",
        "param": "input[0].role",
        "code": "invalid_value",
    }


async def test_invalid_json_is_400(make_app: Any, service: Any, error_of: ErrorOf) -> None:
    for content in (b"", b"{", b"[]", b'{"model": 5}', b"\xff"):
        answer = await make_app().client.post("/v1/responses", content=content)
        assert answer.status_code == 400, content
        assert error_of(answer)["type"] == "invalid_request_error"
    assert service.calls == []


@pytest.mark.parametrize(
    ("code", "output", "status", "type", "retry"),
    [
        ("server_error", (), 502, "server_error", None),
        ("server_error", ("a",), 502, "server_error", "false"),
        ("rate_limit_exceeded", (), 429, "rate_limit_error", None),
        ("context_length_exceeded", (), 400, "invalid_request_error", "false"),
        ("failed_to_download_image", (), 400, "invalid_request_error", "false"),
        ("a_code_from_the_future", (), 502, "server_error", None),
    ],
)
async def test_failed_run_without_streaming_is_an_http_error(
    make_app: Any,
    service: Any,
    error_of: ErrorOf,
    code: str,
    output: tuple[str, ...],
    status: int,
    type: str,
    retry: str | None,
) -> None:
    service.words = output
    service.script = {"error": ResponseError(code=code, message="It broke.")}
    answer = await make_app().client.post("/v1/responses", json=ASK)
    assert answer.status_code == status
    assert error_of(answer) == {"message": "It broke.", "type": type, "param": None, "code": code}
    assert answer.headers.get("x-should-retry") == retry


async def test_failed_run_with_streaming_ends_with_an_error_event(
    make_app: Any, service: Any
) -> None:
    service.script = {"error": ResponseError(code="server_error", message="It broke.")}
    answer = await make_app().client.post("/v1/responses", json={**ASK, "stream": True})
    assert answer.status_code == 200
    kinds = [event["type"] for event in events(answer.text)]
    assert kinds[-2:] == ["error", "response.failed"]


@pytest.mark.parametrize("stream", [True, False])
async def test_ignored_tools_are_reported_in_a_header(
    make_app: Any, service: Any, stream: bool
) -> None:
    service.script = {"ignored_tools": ("web_search", "image_generation")}
    answer = await make_app().client.post("/v1/responses", json={**ASK, "stream": stream})
    assert answer.headers["x-antiphon-ignored-tools"] == "web_search, image_generation"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "ask"),
    [
        ("/v1/responses", ASK),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_disconnect_cancels_the_run(
    make_app: Any, service: Any, path: str, ask: dict[str, Any], stream: bool
) -> None:
    service.script = {"step": asyncio.Semaphore(0)}
    app = make_app()
    disconnected = asyncio.Event()
    body = json.dumps({**ask, "stream": stream}).encode()
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])
    sent: list[Any] = []

    async def receive() -> Any:
        for message in messages:
            return message
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [],
    }
    context = asyncio.create_task(app.app(scope, receive, send))
    async with asyncio.timeout(60):
        await service.created.wait()
        disconnected.set()
        await service.runs[0].left.wait()
        await context
    finished = [message for message in sent if message["type"] == "http.response.body"]
    assert all(message["more_body"] for message in finished)
    (line,) = app.lines()
    assert (line["status"], line["response_id"]) == (499, "resp_1")
    text = (await app.client.get("/metrics")).text
    assert 'antiphon_requests_total{model="tiny",status="cancelled"} 1.0' in text
    assert "antiphon_num_requests_running 0.0" in text


async def test_each_batch_is_written_at_once(make_app: Any, service: Any) -> None:
    """A batch is written before the run emits the next."""
    step = asyncio.Semaphore(0)
    service.script = {"step": step}
    writes: asyncio.Queue[bytes] = asyncio.Queue()
    body = json.dumps({**ASK, "stream": True}).encode()
    call = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        for message in call:
            return message
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            writes.put_nowait(message["body"])

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/responses",
        "query_string": b"",
        "headers": [],
    }
    context = asyncio.create_task(make_app().app(scope, receive, send))
    async with asyncio.timeout(60):
        assert (await writes.get()).count(b"\n\n") == 2  # created, in_progress
        step.release()
        assert b'"delta":"Hel"' in await writes.get()
        assert writes.empty()
        step.release()
        assert b'"delta":"lo"' in await writes.get()
        await context
    last = [writes.get_nowait() for _ in range(writes.qsize())]
    assert last[-1] == b"data: [DONE]\n\n"
    assert all(write.endswith(b"\n\n") for write in last)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EIO, "the disk reports an error"),
    ],
)
async def test_obstacle_of_the_disk_of_temporary_files_is_named(
    make_app: Any, service: Any, error_of: ErrorOf, code: int, cause: str
) -> None:
    service.refusal = OSError(code, "the file of another tenant")
    answer = await make_app().client.post("/v1/responses", json=ASK)
    assert answer.status_code == 503
    message = f"A file could not be written or read: {cause}. You can retry your request."
    assert error_of(answer)["message"] == message


async def test_unexpected_error_is_500_without_details(
    make_app: Any, service: Any, error_of: ErrorOf
) -> None:
    service.script = {"breaks": True}
    app = make_app()
    answer = await app.client.post("/v1/responses", json=ASK)
    assert answer.status_code == 500
    error = error_of(answer)
    assert (error["type"], error["code"]) == ("server_error", "server_error")
    assert "CANARY" not in answer.text
    broken = next(line for line in app.lines() if line["event"] == "unexpected error")
    assert "RuntimeError" in broken["exception"]
    assert broken["request_id"] == answer.headers["x-request-id"]


async def test_reraise_lets_unexpected_errors_through(make_app: Any, service: Any) -> None:
    service.script = {"breaks": True}
    with pytest.raises(RuntimeError):
        await make_app(reraise=True).client.post("/v1/responses", json=ASK)


@pytest.mark.parametrize(
    ("item", "retry"),
    [
        (Message(role="assistant", content=()), "true"),
        (CodeInterpreterCall(container_id="cntr_1"), "false"),
    ],
)
def test_client_may_retry_a_transient_failure_unless_tools_ran(item: Item, retry: str) -> None:
    error = ResponseError(code="server_error", message="It broke off. You can retry your request.")
    response = Response(id="resp_1", created_at=1, model="m", output=(item,), error=error)
    assert failed_response_reply(response).headers["x-should-retry"] == retry


@pytest.mark.requirement("CL-RETRY-AFTER")
async def test_overload_has_retry_after(make_app: Any, service: Any, error_of: ErrorOf) -> None:
    service.refusal = Overloaded(
        "Stopping.", status=503, retry_after_s=5, code="server_is_overloaded"
    )
    answer = await make_app().client.post("/v1/responses", json=ASK)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert error_of(answer)["type"] == "server_error"


@pytest.mark.requirement("CL-RETRY-AFTER")
async def test_exhausted_quota_forbids_retries(make_app: Any, service: Any) -> None:
    service.refusal = Overloaded("Used up.", code="insufficient_quota")
    answer = await make_app().client.post("/v1/responses", json=ASK)
    assert answer.headers["x-should-retry"] == "false"


# --- stored responses ----------------------------------------------------------------------------


async def test_retrieve_delete_and_cancel(make_app: Any) -> None:
    client = make_app().client
    assert (await client.get("/v1/responses/resp_known")).json()["id"] == "resp_known"
    assert (await client.delete("/v1/responses/resp_known")).json() == {
        "id": "resp_known",
        "object": "response",
        "deleted": True,
    }
    cancelled = await client.post("/v1/responses/resp_known/cancel")
    assert cancelled.json()["status"] == "completed"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "?stream=true")]
)
async def test_unknown_response_is_404(
    make_app: Any, error_of: ErrorOf, method: str, path: str
) -> None:
    answer = await make_app().client.request(method, f"/v1/responses/resp_none{path}")
    assert answer.status_code == 404
    assert error_of(answer)["param"] == "response_id"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true", "stream"),
        ("stream=maybe", "stream"),
        ("starting_after=3", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("include_obfuscation=x", "include_obfuscation"),
        ("include[]=everything", "include"),
    ],
)
async def test_retrieve_refuses_invalid_parameters(
    make_app: Any, error_of: ErrorOf, query: str, param: str
) -> None:
    answer = await make_app().client.get(f"/v1/responses/resp_known?{query}")
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param


async def test_retrieve_accepts_parameters_of_common_clients(make_app: Any) -> None:
    query = "include[]=message.output_text.logprobs&stream=false&include_obfuscation=false&x=1"
    assert (await make_app().client.get(f"/v1/responses/resp_known?{query}")).status_code == 200


async def test_input_items_are_paginated(make_app: Any, service: Any, error_of: ErrorOf) -> None:
    client = make_app().client
    path = "/v1/responses/resp_known/input_items"
    answer = await client.get(path)
    assert answer.json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    await client.get(f"{path}?limit=3&order=asc&after=msg_1&before=msg_9")
    defaults, given = (call[3] for call in service.calls)
    assert defaults == IncludingPage(limit=20, order="desc")
    assert given == IncludingPage(limit=3, order="asc", after="msg_1", before="msg_9")
    answer = await client.get(f"{path}?limit=101")
    assert (answer.status_code, error_of(answer)["param"]) == (400, "limit")


async def test_input_tokens_are_counted(make_app: Any, service: Any) -> None:
    answer = await make_app().client.post("/v1/responses/input_tokens", json=ASK)
    assert answer.json() == {"object": "response.input_tokens", "input_tokens": 42}
    assert service.calls[0][2].model == "tiny"
