"""Metrics as a scraper reads them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.errors import NotFound

ASK = {"model": "tiny", "input": "hi"}


async def scrape(app: Any) -> dict[str, float]:
    """Return ``name{label,label}`` → value, without the ``_created`` series."""
    text = (await app.client.get("/metrics")).text
    return {
        sample.name + "{" + ",".join(sample.labels.values()) + "}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    }


@pytest.mark.requirement("TR-10")
async def test_stream_is_recorded_once_at_its_end(make_app: Any, service: Any) -> None:
    step = asyncio.Semaphore(0)
    service.script = {"step": step}
    app = make_app()
    context = asyncio.create_task(app.client.post("/v1/responses", json={**ASK, "stream": True}))
    async with asyncio.timeout(60):
        await service.created.wait()
        await run_pending_tasks()
        assert (await scrape(app))["antiphon_num_requests_running{}"] == 1
        app.now += 2
        step.release()
        await run_pending_tasks()
        app.now += 4
        step.release()
        await context
    metrics = await scrape(app)
    assert metrics["antiphon_num_requests_running{}"] == 0
    assert metrics["antiphon_requests_total{tiny,completed}"] == 1
    assert metrics["antiphon_time_to_first_token_seconds_sum{tiny}"] == 2
    assert metrics["antiphon_time_per_output_token_seconds_sum{tiny}"] == 2  # 4 s for two more
    assert metrics["antiphon_e2e_latency_seconds_sum{tiny}"] == 6
    assert metrics["antiphon_prompt_tokens_total{tiny}"] == 7
    assert metrics["antiphon_generation_tokens_total{tiny}"] == 3
    assert metrics["antiphon_events_total{tiny}"] == 10
    assert metrics["antiphon_http_requests_total{POST,/v1/responses,200}"] == 1


async def test_response_without_streaming_has_no_first_token_time(make_app: Any) -> None:
    app = make_app()
    await app.client.post("/v1/responses", json=ASK)
    metrics = await scrape(app)
    assert metrics["antiphon_e2e_latency_seconds_count{tiny}"] == 1
    assert metrics["antiphon_time_to_first_token_seconds_count{tiny}"] == 0


async def test_waiting_requests_are_counted(make_app: Any, service: Any) -> None:
    from antiphon.limits.requests import RequestLimits

    service.script = {"step": asyncio.Semaphore(0)}
    app = make_app(limits=RequestLimits(max_concurrent_requests=1, max_queued_requests=5))
    tasks = [asyncio.create_task(app.client.post("/v1/responses", json=ASK)) for _ in range(3)]
    await run_pending_tasks()
    metrics = await scrape(app)
    assert metrics["antiphon_num_requests_running{}"] == 1
    assert metrics["antiphon_num_requests_waiting{}"] == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_labels_never_contain_client_input(make_app: Any, service: Any) -> None:
    service.refusal = NotFound("no", code="model_not_found")
    app = make_app()
    for number in range(3):
        await app.client.post("/v1/responses", json={**ASK, "model": f"made-up-{number}"})
        await app.client.get(f"/made-up-{number}")
        await app.client.get(f"/v1/responses/made-up-{number}")
    metrics = await scrape(app)
    assert not [name for name in metrics if "made-up" in name]
    assert metrics["antiphon_http_requests_total{GET,unknown,404}"] == 3
    assert metrics["antiphon_http_requests_total{GET,/v1/responses/{response_id},400}"] == 3


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [("", "text/plain"), ("application/openmetrics-text", "application/openmetrics-text")],
)
async def test_accept_header_selects_the_format(
    make_app: Any, accept: str, media_type: str
) -> None:
    answer = await make_app().client.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith(media_type)


async def run_pending_tasks() -> None:
    for _ in range(30):
        await asyncio.sleep(0)
