"""What is counted, as a scraper reads it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.errors import NotFound

ASK = {"model": "tiny", "input": "hi"}


async def numbers(here: Any) -> dict[str, float]:
    """``name{label,label}`` → value, without the series that only say when they began."""
    text = (await here.client.get("/metrics")).text
    return {
        sample.name + "{" + ",".join(sample.labels.values()) + "}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    }


@pytest.mark.requirement("TR-10")
async def test_a_stream_is_measured_once_at_its_end(deps: Any, service: Any) -> None:
    step = asyncio.Semaphore(0)
    service.script = {"step": step}
    here = deps()
    context = asyncio.create_task(here.client.post("/v1/responses", json={**ASK, "stream": True}))
    async with asyncio.timeout(5):
        await service.created.wait()
        await turns()
        assert (await numbers(here))["responses_num_requests_running{}"] == 1
        here.now += 2
        step.release()
        await turns()
        here.now += 4
        step.release()
        await context
    seen = await numbers(here)
    assert seen["responses_num_requests_running{}"] == 0
    assert seen["responses_requests_total{tiny,completed}"] == 1
    assert seen["responses_time_to_first_token_seconds_sum{tiny}"] == 2
    assert seen["responses_time_per_output_token_seconds_sum{tiny}"] == 2  # 4 s for two more
    assert seen["responses_e2e_latency_seconds_sum{tiny}"] == 6
    assert seen["responses_prompt_tokens_total{tiny}"] == 7
    assert seen["responses_generation_tokens_total{tiny}"] == 3
    assert seen["responses_events_total{tiny}"] == 10
    assert seen["responses_http_requests_total{POST,/v1/responses,200}"] == 1


async def test_a_plain_answer_has_no_first_token(deps: Any) -> None:
    here = deps()
    await here.client.post("/v1/responses", json=ASK)
    seen = await numbers(here)
    assert seen["responses_e2e_latency_seconds_count{tiny}"] == 1
    assert seen["responses_time_to_first_token_seconds_count{tiny}"] == 0


async def test_who_waits_is_counted(deps: Any, service: Any) -> None:
    from antiphon.http.middleware.auth import RequestLimits

    service.script = {"step": asyncio.Semaphore(0)}
    here = deps(limits=RequestLimits(max_concurrent_requests=1, max_queued_requests=5))
    tasks = [asyncio.create_task(here.client.post("/v1/responses", json=ASK)) for _ in range(3)]
    await turns()
    seen = await numbers(here)
    assert seen["responses_num_requests_running{}"] == 1
    assert seen["responses_num_requests_waiting{}"] == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_labels_are_ours_and_never_what_clients_write(deps: Any, service: Any) -> None:
    service.refusal = NotFound("no", code="model_not_found")
    here = deps()
    for number in range(3):
        await here.client.post("/v1/responses", json={**ASK, "model": f"made-up-{number}"})
        await here.client.get(f"/made-up-{number}")
        await here.client.get(f"/v1/responses/made-up-{number}")
    seen = await numbers(here)
    assert not [name for name in seen if "made-up" in name]
    assert seen["responses_http_requests_total{GET,unknown,404}"] == 3
    assert seen["responses_http_requests_total{GET,/v1/responses/{response_id},404}"] == 3


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [("", "text/plain"), ("application/openmetrics-text", "application/openmetrics-text")],
)
async def test_the_scraper_chooses_the_format(deps: Any, accept: str, media_type: str) -> None:
    answer = await deps().client.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith(media_type)


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)
