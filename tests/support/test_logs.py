"""Log lines as JSON and as text, without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from antiphon.support import logs
from antiphon.support.logs import (
    LogLevel,
    Style,
    capture_libraries,
    line_values,
    open_log,
    redact,
)
from antiphon.tracing.opentelemetry import OtelTracer

CANARY = "CANARY-3fd1"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MANY_STATES = ",".join(f"k{number}=v" for number in range(33))


@pytest.mark.parametrize("style", ["json", "human"])
@pytest.mark.parametrize(
    "values",
    [
        {"headers": {"Authorization": CANARY, "accept": "*/*"}},
        {"authorization": CANARY},
        {"tools": [{"server": {"headers": ({"X-API-Key": CANARY},)}}]},
        {"url": f"https://user:{CANARY}@host.test/path"},
        {"text": f"header was 'Bearer {CANARY}'"},
        {"text": f"got sk-{CANARY}, expected another"},
        {"encrypted_content": CANARY},
    ],
)
def test_secrets_are_redacted(style: Style, values: dict[str, object]) -> None:
    stream = io.StringIO()
    open_log(stream, style=style).info("values", **values, kept="harmless")
    assert CANARY not in stream.getvalue()
    assert "[redacted]" in stream.getvalue()
    assert "harmless" in stream.getvalue()


@pytest.mark.parametrize("style", ["json", "human"])
def test_tracebacks_omit_secrets_and_local_variables(style: Style) -> None:
    stream = io.StringIO()

    def broken() -> None:
        local = "".join(reversed(CANARY))
        raise ValueError(f"refused Bearer {CANARY} of {len(local)}")

    log = open_log(stream, style=style)
    try:
        broken()
    except ValueError:
        log.exception("it broke")
    text = stream.getvalue()
    assert "it broke" in text
    assert "ValueError: refused Bearer [redacted]" in text
    assert CANARY not in text
    assert CANARY[::-1] not in text


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"status": 200, "ms": 1.5, "path": "/v1/responses", "model": None},
        {"text": "with blanks", "quote": "it's", "line": "a\nb", "equals": "a=b", "empty": ""},
        {"nested": {"a": [1, "b c"]}, "event": "longer than the column of the event, by far"},
        {"logger": "uvicorn"},
    ],
)
def test_human_line_is_what_structlog_renders(fields: dict[str, Any]) -> None:
    stream = io.StringIO()
    event = {"event": "request", **fields}
    open_log(stream, style="human").warning(**event)
    line = stream.getvalue().rstrip("\n")
    event |= {"level": "warning", "timestamp": line.split(" ")[0]}
    assert line == structlog.dev.ConsoleRenderer(colors=False)(None, "warning", event)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"path": "/v1/responses", "model": "m", "input_tokens": 21, "output_tokens": 12},
            "200 POST /v1/responses m 21+12 tokens 18 ms",
        ),
        ({"path": "/v1/files"}, "200 POST /v1/files 18 ms"),
        ({"path": "/a\x1b[31m\n"}, "200 POST '/a\\x1b[31m\\n' 18 ms"),
    ],
)
def test_requests_are_one_short_line_for_people(fields: dict[str, Any], line: str) -> None:
    stream = io.StringIO()
    log = open_log(stream, style="human")
    log.info("request", method="POST", status=200, ms=17.7, tenant="t", key="k", **fields)
    time, _, rest = stream.getvalue().rstrip("\n").partition(" ")
    assert (len(time), rest) == (len("12:00:00"), line)


def test_token_counts_are_not_redacted() -> None:
    stream = io.StringIO()
    open_log(stream).info("request", input_tokens=3, output_tokens=4)
    line = json.loads(stream.getvalue())
    assert (line["input_tokens"], line["output_tokens"]) == (3, 4)


def test_ports_are_not_redacted() -> None:
    stream = io.StringIO()
    url = "http://127.0.0.1:8000/v1"
    open_log(stream).info("serving", url=url, store=f"postgresql://me:{CANARY}@db.test:5432/all")
    line = json.loads(stream.getvalue())
    assert line["url"] == url
    assert line["store"] == "postgresql://me:[redacted]@db.test:5432/all"


def test_json_line_has_bound_values() -> None:
    stream = io.StringIO()
    log = open_log(stream)
    bound = copy_context()
    bound.run(line_values.set, {"request_id": "req_1"})
    bound.run(partial(log.info, "values \u00e9", odd=object, model="m"))
    line = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert line["event"] == "values \u00e9"
    assert (line["level"], line["request_id"], line["model"]) == ("info", "req_1", "m")
    assert line["timestamp"].endswith("Z")


def test_lines_below_the_level_are_dropped() -> None:
    stream = io.StringIO()
    log = open_log(stream, level="warning")
    log.info("quiet")
    log.warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


@pytest.fixture
def global_state() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in logs.CLIENT_LOGGERS:
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()


@pytest.mark.usefixtures("global_state")
def test_other_loggers_are_captured() -> None:
    stream = io.StringIO()
    capture_libraries(open_log(stream))
    logging.getLogger("some.library").info("quiet")
    logging.getLogger("some.library").warning("it is %s", "late")
    logging.getLogger("python_multipart.multipart").warning("a client sent a broken form")
    structlog.get_logger("ours").info("run ended", response="resp_1", authorization=CANARY)
    try:
        raise KeyError("lost")
    except KeyError:
        logging.getLogger("some.library").exception("oh")
        structlog.get_logger().exception("ah")
    late, ended, oh, ah = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (late["event"], late["logger"], late["level"]) == (
        "it is late",
        "some.library",
        "warning",
    )
    assert (ended["event"], ended["response"]) == ("run ended", "resp_1")
    assert ended["authorization"] == "[redacted]"
    assert "KeyError" in oh["exception"]
    assert "KeyError" in ah["exception"]


@pytest.mark.usefixtures("global_state")
@pytest.mark.parametrize("name", ["mcp.client.sse", "client", "aiohttp.client"])
def test_what_servers_send_is_one_line_for_debugging(name: str) -> None:
    hidden, shown = io.StringIO(), io.StringIO()
    for stream, level in ((hidden, "info"), (shown, "debug")):
        capture_libraries(open_log(stream, level=level))
        try:
            json.loads(CANARY)
        except ValueError:
            logging.getLogger(name).exception("it sent %s\nmore", "x" * 1_000)
    assert hidden.getvalue() == ""
    line = json.loads(shown.getvalue())
    assert line["level"] == "debug" and line["error"] == "JSONDecodeError"
    assert line["reason"].startswith("it sent xx") and len(line["reason"]) == 200
    assert CANARY not in shown.getvalue()


@pytest.mark.usefixtures("global_state")
@pytest.mark.parametrize(
    ("traceparent", "tracestate"),
    [("0" * 513, ""), (TRACEPARENT, "a" * 9000), (TRACEPARENT, "?"), (TRACEPARENT, MANY_STATES)],
)
def test_trace_headers_of_clients_are_not_logged(traceparent: str, tracestate: str) -> None:
    stream = io.StringIO()
    capture_libraries(open_log(stream))
    tracer = OtelTracer(SimpleSpanProcessor(InMemorySpanExporter()))
    tracer.start("span", {"traceparent": traceparent, "tracestate": tracestate}).end()
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    "text",
    [
        f"://a://user:{CANARY}@host",
        f"://a:1,://user:{CANARY}@host",
        f"://x:y://user:{CANARY}@host",
        f"http://host:80/ and https://user:{CANARY}@host, more",
        f"://us,er:{CANARY}@host",
        f"Bearer\t{CANARY}://x:",
        f"://x:sk-{CANARY} ://",
        f"https://one:{CANARY}@a https://two:{CANARY}@b",
    ],
)
def test_secrets_between_near_misses_are_redacted(text: str) -> None:
    assert CANARY not in redact(text)
    assert "[redacted]" in redact(text)


@pytest.mark.parametrize("text", ["://x:", "://:@", "://x:y z@", "http://host:80/a"])
def test_texts_without_secrets_stay(text: str) -> None:
    assert redact(text) == text


def test_level_can_change() -> None:
    stream, level = io.StringIO(), LogLevel("warning")
    log = open_log(stream, level=level)
    log.info("hidden")
    log.warning("first")
    level.set("debug")
    log.debug("second")
    level.set("error")
    log.warning("hidden")
    log.error("third")
    lines = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert lines == ["first", "second", "third"]


def test_every_line_has_the_fields_of_the_logger() -> None:
    stream = io.StringIO()
    open_log(stream, worker=2).info("ready", port=1)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["worker"], line["port"]) == ("ready", 2, 1)
