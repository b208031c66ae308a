"""The reference pages of ``docs/``: the API, its errors and its metrics."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import httpx

from antiphon.http.app import create_app
from antiphon.http.metrics import Metrics
from antiphon.http.openapi.describe import FieldRow, OperationView, TextSpan, operations, rows
from antiphon.http.openapi.describe import type_spans as describe_type
from antiphon.http.routes.admin.managed_models import ModelAdministration
from antiphon.support.logs import open_log
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.error_codes import ERROR_CODES
from tests.conformance.server import Server, backend_of

Json = dict[str, Any]

_API_HEAD = """\
# API

Generated from the OpenAPI document by `make docs`. A running server serves the document at
`/openapi.json` and this page at `/docs`. [events.md](events.md) defines the order of events,
[extensions.md](extensions.md) the fields beyond OpenAI's, [errors.md](errors.md) the error codes.

{description}
"""


def api_page() -> str:
    """Render ``docs/api.md``."""
    document = asyncio.run(_document())
    sections = [_API_HEAD.format(description=document["info"]["description"])]
    views = tuple(operations(document))
    for tag in document["tags"]:
        sections.append(f"## {tag['name']}\n\n{tag['description']}\n")
        sections += [_operation(view) for view in views if view.tag == tag["name"]]
    sections.append("## Types\n")
    sections += [_type(name, schema) for name, schema in document["components"]["schemas"].items()]
    return "\n".join(sections)


async def _document() -> Json:
    server = Server(backend_of("one"), MemoryStore())
    app = create_app(
        server.service,
        ids=lambda prefix: prefix,
        log=open_log(io.StringIO()),
        manager=cast(ModelAdministration, object()),  # its routes are described, not called
    )
    transport = httpx.ASGITransport(app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            document: Json = (await client.get("/openapi.json")).json()
    finally:
        await server.close()
    return document


def _operation(view: OperationView) -> str:
    lines = [f"### {view.method} {view.path}", "", view.summary, ""]
    if view.params:
        lines += [*_table(view.params), ""]
    lines += [f"- Body: `{kind}` {_spans(body)}" for kind, body in view.bodies.items()]
    if view.form:
        fields = ", ".join(_field(row) for row in view.form)
        lines.append(f"- Body: `multipart/form-data`: {fields}")
    lines += [f"- Response: `{kind}` {_spans(body)}" for kind, body in view.answers.items()]
    lines += [f"- Response header: `{name}`. {text}" for name, text in view.headers.items()]
    lines.append(f"- Errors: {', '.join(view.errors)}")
    return "\n".join([*lines, ""])


def _field(row: FieldRow) -> str:
    required = ", required" if row.required else ""
    return f"`{row.name}` ({_spans(row.spans)}{required})"


def _type(name: str, schema: Json) -> str:
    lines = [f"### {name}", ""]
    if text := schema.get("description"):
        lines += [text, ""]
    if schema.get("properties"):
        lines += _table(rows(schema))
    else:
        lines.append(_spans(describe_type(schema)))
    return "\n".join([*lines, ""])


def _table(fields: Sequence[FieldRow]) -> list[str]:
    lines = ["| name | type | meaning |", "|---|---|---|"]
    for row in fields:
        meaning = [row.description] if row.description else []
        if row.location not in ("body", "query"):
            meaning.insert(0, f"In the {row.location}.")
        if row.required:
            meaning.insert(0, "Required.")
        if row.default is not None:
            meaning.append(f"Default: `{_json(row.default)}`.")
        lines.append(_row((f"`{row.name}`", _spans(row.spans), " ".join(meaning))))
    return lines


def _json(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _spans(spans: Iterable[TextSpan]) -> str:
    return "".join(
        span.text if span.ref is None else f"[{span.text}](#{span.ref.lower()})" for span in spans
    )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


_ERRORS_HEAD = """\
# Errors

Generated from `antiphon/wire/error_codes.py` by `make docs`.

An HTTP error has the body `{"error": {"message", "type", "param", "code"}}`. `param` is the path
of the faulty field, such as `input[1].role`. Programs should evaluate `code`, not the message. The
headers `retry-after` and `x-should-retry` say whether a retry makes sense. If a run fails after its
first event, there is no HTTP error: the stream ends with the events `error` and `response.failed`,
and the event `error` has one of the codes that the third column marks with *run*. If OpenAI's
client does not know this code, `response.error.code` is `invalid_prompt` or `server_error`, and
`response.error.original_code` is the code. [clients.md](clients.md) shows what users of each client
see.
"""


def errors_page() -> str:
    """Render ``docs/errors.md``."""
    lines = [_ERRORS_HEAD, "| code | status | | meaning | what to do |", "|---|---|---|---|---|"]
    for code, row in ERROR_CODES.items():
        status = ", ".join(map(str, (row.status, *row.other_statuses)))
        run = "run" if row.fails_run else ""
        lines.append(_row((f"`{code}`", status, run, row.meaning, row.action)))
    return "\n".join(lines) + "\n"


_METRICS_HEAD = """\
# Metrics

Generated from `antiphon/http/metrics.py` by `make docs`.

`GET /metrics` returns the metrics in Prometheus' or OpenMetrics' text format. The setting
`metrics` says who may read them without an API key. Labels never contain text that clients send.
Tenants whose names are not in the settings share the label value `other`. The name of a counter
ends with `_total`. A histogram has three kinds of series, whose names end with `_bucket`, `_sum`
and `_count`. [monitoring.md](monitoring.md) explains how to use the metrics.

With `metrics_export = "otlp"`, which needs the extra `otel`, Antiphon also sends these metrics to
the collector at `otlp_endpoint`, as OpenTelemetry's semantic conventions for generative AI define
them: `gen_ai.server.request.duration`, `gen_ai.server.time_to_first_token`,
`gen_ai.server.time_per_output_token`, `gen_ai.client.token.usage`, `gen_ai.execute_tool.duration`
and, for responses in which the model called server-side tools, `gen_ai.invoke_agent.duration`.

| name | type | labels | meaning |
|---|---|---|---|
"""


def metrics_page() -> str:
    """Render ``docs/metrics.md``."""
    return _METRICS_HEAD + "\n".join(_metric_rows(Metrics())) + "\n"


def _metric_rows(metrics: Metrics) -> Iterator[str]:
    labels = {
        collector._name: collector._labelnames for collector in metrics.registry._collector_to_names
    }
    for metric in metrics.registry.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        names = ", ".join(f"`{label}`" for label in labels[metric.name])
        text = re.sub(r"\s+", " ", metric.documentation)
        yield _row((f"`{name}`", metric.type, names, text))
