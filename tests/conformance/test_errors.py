"""Errors: every rejection has OpenAI's shape and the field's path, before the first byte."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import BackendError, InvalidRequest, RunError, StoreError, Unavailable
from antiphon.http.middleware.errors import run_error_reply
from antiphon.stream.deltas import Open, Text
from antiphon.wire.items import Message
from tests.conformance import oracle
from tests.conformance.conftest import Serve
from tests.conformance.server import Ask, Json, engine
from tests.conformance.stepped_backend import SteppedBackend
from tests.wire.samples import SENT_TO_CODEX

#: Of a client that sends something else where an id stands.
LONG = "x" * 100_000


@pytest.mark.requirement("VN-10", "API-UNKNOWN-MODEL", "CL-UNKNOWN-MODEL")
async def test_unknown_model_returns_404(serve: Serve, ask: Ask) -> None:
    assert (await ask(serve(), model="gpt-7")).rejection == {
        "http": 404,
        "message": "The model 'gpt-7' does not exist or you do not have access to it."
        " This server has: tiny.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.requirement("HF-3", "API-MODEL-NAMES")
async def test_model_aliases_are_served(serve: Serve, ask: Ask) -> None:
    server = serve()
    assert (await ask(server, model="gpt-5.5")).terminal_response["model"] == "gpt-5.5"
    assert (await ask(server, model=None)).terminal_response["model"] == "tiny"


@pytest.mark.requirement("HF-1", "VN-19", "D-61", "D-95", "API-400", "API-ERROR-BODY", "CL-400")
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": {"role": "user"}}, "input[0].content", "missing_required_parameter"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"temperature": 3}, "temperature", "decimal_above_max_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"include": ["all"]}, "include[0]", "invalid_value"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        ({"prompt": {"version": "1"}}, "prompt.id", "missing_required_parameter"),
        ({"context_management": [{"type": "forget"}]}, "context_management[0].type",
         "invalid_value"),
        ({"context_management": [{"compact_threshold": 9999}]}, "context_management[0].type",
         "missing_required_parameter"),
        ({"context_management": [{"type": "compaction", "compact_threshold": 999}]},
         "context_management[0].compact_threshold", "integer_below_min_value"),
        ({"context_management": [{"type": "compaction", "compact_threshold": "9999"}]},
         "context_management[0].compact_threshold", "invalid_type"),
        ({"context_management": []}, "context_management", "empty_array"),
        ({"context_management": {"type": "compaction"}}, "context_management", "invalid_type"),
        ({"moderation": {"model": "m"}}, "moderation", "unsupported_parameter"),
        ({"input": [{"role": "user", "content": "x" * 5_000_000, "id": 7}]}, "input[0].id",
         "invalid_type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_invalid_field_returns_400_with_its_path(
    serve: Serve, ask: Ask, fields: Json, param: str, code: str
) -> None:
    rejection = (await ask(serve(), **fields)).rejection
    assert (rejection["http"], rejection["param"], rejection["code"]) == (400, param, code)
    assert rejection["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": LONG}]}]}, 404),
        ({"tools": [{"type": "file_search", "vector_store_ids": [LONG]}]}, 404),
        ({"input": [{"role": LONG, "content": "Hi"}]}, 400),
        ({"model": "m" * 250}, 404),
    ],
    ids=["file", "vector store", "role", "model"],
)
async def test_error_messages_truncate_rejected_values(
    serve: Serve, ask: Ask, fields: Json, status: int
) -> None:
    rejection = (await ask(serve(), **fields)).rejection
    assert rejection["http"] == status
    assert len(rejection["message"]) < 1_100


@pytest.mark.requirement("D-63", "API-EFFORT")
@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
async def test_every_reasoning_effort_is_accepted(serve: Serve, ask: Ask, effort: str) -> None:
    answer = await ask(serve(engine(["ok"])), reasoning={"effort": effort})
    assert answer.terminal_response["reasoning"]["effort"] == effort


@pytest.mark.requirement("VN-11")
async def test_unsupported_options_are_rejected_by_name(serve: Serve, ask: Ask) -> None:
    scripted_engine = engine(["ok"])
    rejection = (
        await ask(
            serve(scripted_engine), include=["message.output_text.logprobs"], logit_bias={"1": 5},
            top_logprobs=20,
        )
    )  # fmt: skip
    assert rejection.terminal_response["top_logprobs"] == 20
    from antiphon.engines.base import Capabilities

    weak = engine(["ok"])
    weak.capabilities = Capabilities()
    for request, param in (
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"seed": 1}, "seed"),
    ):
        error = (await ask(serve(weak), **request)).rejection
        assert (error["http"], error["param"], error["code"]) == (
            400, param, "unsupported_parameter",
        )  # fmt: skip


@pytest.mark.requirement("VN-18", "API-TOO-LONG", "CL-TOO-LONG")
async def test_too_long_prompt_is_rejected_before_the_run(serve: Serve, ask: Ask) -> None:
    scripted_engine = engine(["ok"])
    rejection = (await ask(serve(scripted_engine), input="word " * 2000)).rejection
    assert rejection == {
        "http": 400,
        "message": "Your input exceeds the context window of this model. Please adjust your input "
        "and try again.",
        "type": "invalid_request_error",
        "param": "input",
        "code": "context_length_exceeded",
    }
    assert scripted_engine.requests == []


@pytest.mark.requirement("VN-38", "API-TRUNCATION")
async def test_truncation_drops_the_oldest_items(serve: Serve, ask: Ask) -> None:
    scripted_engine = engine(["ok"])
    talk = [{"role": "user", "content": f"{n} " + "word " * 300} for n in range(4)]
    answer = await ask(serve(scripted_engine), input=talk, truncation="auto")
    assert answer.text == "ok"
    prompt = scripted_engine.text(scripted_engine.requests[0][0])
    assert "0 word" not in prompt
    assert "3 word" in prompt


@pytest.mark.requirement("VN-17")
async def test_backend_rejection_is_an_http_error(serve: Serve, ask: Ask) -> None:
    error = InvalidRequest("Not with this template.", param="input[2]", code="invalid_value")
    rejection = (await ask(serve(ScriptedBackend([error])))).rejection
    assert (rejection["http"], rejection["param"]) == (400, "input[2]")


@pytest.mark.requirement("VN-14", "D-70", "D-95", "API-UNEXPECTED")
async def test_internal_exception_is_not_exposed(serve: Serve, ask: Ask) -> None:
    answer = await ask(serve(SteppedBackend([KeyError("secret/path")])))
    assert answer.error is not None
    kind = "internal_server_error" if answer.events else "server_error"
    assert (answer.error["type"], answer.error["code"]) == (kind, "server_error")
    assert "secret" not in str(answer)
    assert answer.http == (200 if answer.events else 500)


@pytest.mark.requirement("API-UNEXPECTED")
async def test_failure_of_the_model_is_no_internal_error(serve: Serve, ask: Ask) -> None:
    answer = await ask(serve(SteppedBackend([BackendError("The engine broke.")])))
    assert answer.error is not None
    assert answer.error["type"] == answer.error["code"] == "server_error"
    assert answer.http == (200 if answer.events else 502)


@pytest.mark.requirement("API-FAILURE-CODES", "CL-RETRY-AFTER")
async def test_failure_keeps_its_code(serve: Serve) -> None:
    server = serve(ScriptedBackend([RunError("Slow down.", code="rate_limit_exceeded")]))
    reply = await server.post()
    assert reply.status_code == 429 and int(reply.headers["retry-after"]) > 0
    assert oracle.error(reply)["code"] == "rate_limit_exceeded"
    assert '"code":"rate_limit_exceeded"' in (await server.post(stream=True)).text


@pytest.mark.requirement("API-FAILURE-CODES")
@pytest.mark.parametrize("code", sorted(SENT_TO_CODEX))
async def test_begun_stream_fails_with_the_codes_of_openais_server(serve: Serve, code: str) -> None:
    answer = Open(Message(role="assistant", content=()))
    server = serve(SteppedBackend([answer, Text("one "), BackendError("It broke.", code=code)]))
    events = oracle.stream((await server.post(stream=True)).content)
    assert events[-1]["response"]["error"]["code"] == code


@pytest.mark.requirement("CL-RETRY-AFTER")
async def test_stopping_server_is_no_internal_error(serve: Serve) -> None:
    server = serve(SteppedBackend([asyncio.Event()]))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        requests = [
            group.create_task(server.post(input="hi", stream=each)) for each in (False, True)
        ]
        while server.service.active_runs < 2:
            await asyncio.sleep(0)
        await server.service.drain(0)
    plain, streamed = [request.result() for request in requests]
    assert plain.status_code == 503 and plain.headers["retry-after"]
    error = plain.json()["error"]
    assert (error["type"], error["code"]) == ("service_unavailable_error", "server_error")
    assert error["message"].endswith("You can retry your request.")
    assert streamed.status_code in (200, 503) and "server_error" in streamed.text


@pytest.mark.requirement("CL-RETRY-AFTER")
@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (StoreError("The store does not answer."), 503),
        (Unavailable("The server stops."), 503),
        (BackendError("Slow down.", code="rate_limit_exceeded"), 429),
    ],
)
def test_temporary_failure_has_retry_after(failure: RunError, status: int) -> None:
    reply = run_error_reply(failure)
    assert reply.status_code == status and int(reply.headers["retry-after"]) > 0


@pytest.mark.requirement("D-95", "API-404")
@pytest.mark.parametrize(
    ("method", "path", "status", "param"),
    [
        ("GET", "responses/resp_none", 404, "response_id"),
        ("DELETE", "responses/resp_none", 404, "response_id"),
        ("GET", "responses/resp_none/input_items", 404, "response_id"),
        ("POST", "responses/resp_none/cancel", 404, "response_id"),
        ("GET", "models/none", 404, "model"),
        ("GET", "nowhere", 404, None),
        ("PUT", "responses", 405, None),
    ],
)
async def test_unknown_routes_and_objects_have_the_same_error_shape(
    serve: Serve, method: str, path: str, status: int, param: str | None
) -> None:
    reply = await serve().client.request(method, f"/v1/{path}")
    assert reply.status_code == status
    assert oracle.error(reply)["param"] == param


@pytest.mark.requirement("D-95", "API-REQUEST-ID", "HF-8")
async def test_every_answer_has_a_request_id_header(serve: Serve) -> None:
    server = serve()
    for body in ({}, {"stream": True}, {"temperature": 9}):
        assert (await server.post(**body)).headers["x-request-id"].startswith("req_")
    reply = await server.client.get("/v1/nowhere", headers={"x-request-id": "mine"})
    assert reply.headers["x-request-id"] == "mine"
    result: Any = await server.post()
    assert result.headers["x-request-id"] not in result.text  # ids of responses are their own
