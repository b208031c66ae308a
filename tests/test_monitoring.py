"""The dashboard and the alert rules in ``deploy/``, over the metrics of a server."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.http.metrics import Metrics
from antiphon.http.server.listening import bind
from antiphon.http.server.serve import serve
from antiphon.testing.memory_store.store import MemoryStore
from scripts.docs import PAGES, ROOT
from tests.conformance.server import Server, backend_of

ALERTS = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/antiphon.json"
_SUFFIX = re.compile("_(bucket|count|sum)$")


def dashboard_expressions() -> Iterator[str]:
    """Yield every expression of the dashboard."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def named_metrics(text: str) -> set[str]:
    return {_SUFFIX.sub("", name) for name in re.findall(r"\bantiphon_\w+", text)}


def known_metrics() -> set[str]:
    return set(re.findall(r"^\| `(\w+)`", PAGES["docs/metrics.md"](), re.MULTILINE))


def test_alerts_use_metrics_that_exist_and_are_documented() -> None:
    text = ALERTS.read_text(encoding="utf-8")
    assert named_metrics(text) <= known_metrics()
    page = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    assert set(re.findall(r"alert: (\w+)", text)) == set(re.findall(r"`(Antiphon\w+)`", page))


def test_dashboard_shows_every_metric() -> None:
    assert named_metrics(" ".join(dashboard_expressions())) == known_metrics()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_accepts_the_alerts() -> None:
    checked = subprocess.run(
        ["promtool", "check", "rules", ALERTS], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stderr


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@asynccontextmanager
async def prometheus(folder: Path, target: int) -> AsyncIterator[httpx.AsyncClient]:
    """Run Prometheus over a server's metrics and the alerts, and yield a client for it."""
    port = free_port()
    config = {
        "global": {"scrape_interval": "100ms", "evaluation_interval": "100ms"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {"job_name": "antiphon", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:

            async def is_ready() -> bool:
                try:
                    return (await client.get("/-/ready")).status_code == 200
                except httpx.TransportError:
                    return False

            await wait_until(is_ready)
            yield client
    finally:
        process.kill()
        await process.wait()


async def query(client: httpx.AsyncClient, expression: str) -> Any:
    answer = (await client.get("/api/v1/query", params={"query": expression})).json()
    assert answer["status"] == "success", (expression, answer)
    return answer["data"]["result"]


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def serve_app(server: Server) -> AsyncIterator[int]:
    """Serve the app of a server on a port of loopback, which is yielded."""
    sockets = bind("127.0.0.1", 0)
    started = asyncio.Event()
    serving = asyncio.create_task(
        serve(
            server.app,
            sockets,
            drain=server.service.drain,
            grace_s=0,
            started=started.set,
            max_frame_bytes=1 << 20,
        )
    )
    try:
        await asyncio.wait_for(started.wait(), 60)
        yield sockets[0].getsockname()[1]
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        for each in sockets:
            each.close()


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus")
async def test_prometheus_evaluates_dashboard_and_alerts(tmp_path: Path) -> None:
    server = Server(backend_of("Hello there!"), MemoryStore(), metrics=Metrics())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        port = await stack.enter_async_context(serve_app(server))
        await server.post(stream=True)
        client = await stack.enter_async_context(prometheus(tmp_path, port))

        async def has_rates() -> bool:
            return bool(await query(client, "count_over_time(antiphon_requests_total[1m]) > 2"))

        async def has_evaluated_rules() -> bool:
            groups = (await client.get("/api/v1/rules")).json()["data"]["groups"]
            health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
            assert "err" not in health.values(), health
            return set(health.values()) == {"ok"}

        await wait_until(has_rates)
        await wait_until(has_evaluated_rules)
        for expression in dashboard_expressions():
            await query(client, expression.replace("$__rate_interval", "1m"))
        first_token = 'antiphon_time_to_first_token_seconds_count{model="tiny"}'
        assert (await query(client, first_token))[0]["value"][1] == "1"
