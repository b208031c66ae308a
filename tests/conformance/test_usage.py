"""What requests used: counted for every kind of request, and read by operators."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import httpx
import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import BackendError, StoreError
from antiphon.http.app import create_app
from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.clients import Client
from antiphon.limits.key_ring import AuthKey
from antiphon.runs.execution.run import EventSink, ReaderGone
from antiphon.runs.usage_counter import Prices
from antiphon.store.base import Store
from antiphon.store.usage import UsageQuery, UsageTotals
from antiphon.stream.deltas import Open
from antiphon.support.logs import open_log
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.items import Message
from antiphon.wire.parsing.requests import parse_create_response
from tests.conformance.conftest import Clients, Serve
from tests.conformance.fake_containers import code_interpreter_options, containers
from tests.conformance.server import NOW, Ask, Server, engine, local
from tests.conformance.stepped_backend import SteppedBackend
from tests.conformance.test_code_interpreter import python_call
from tests.conformance.test_tool_search import tool_call
from tests.harness import asgi_client

DAY = 86_400
MIDNIGHT = NOW - NOW % DAY


async def totals(server: Server, **fields: Any) -> list[UsageTotals]:
    query = UsageQuery(**{"start": MIDNIGHT, "end": MIDNIGHT + DAY, "width": DAY, **fields})
    return list(await server.service.usage_counter.totals(query))


async def results(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    reply = await client.get(
        "/v1/organization/usage/completions", params={"start_time": NOW, **query}
    )
    assert reply.status_code == 200, reply.text
    return [result for bucket in reply.json()["data"] for result in bucket["results"]]


@pytest.mark.requirement("API-USAGE-LOG")
async def test_every_response_counts_once(ask: Ask, serve: Serve) -> None:
    server = serve()
    answer = await ask(server)
    stored = answer.terminal_response["store"]
    (sums,) = await totals(server, group_by={"tenant", "api_key", "model"})
    usage = answer.terminal_response["usage"]
    assert (sums.tenant, sums.api_key, sums.model) == ("default", "", "tiny")
    assert (sums.requests, sums.failed_requests, sums.cancelled_requests) == (1, 0, 0)
    assert (sums.input_tokens, sums.output_tokens) == (
        usage["input_tokens"],
        usage["output_tokens"],
    )
    assert stored and usage["output_tokens"] > 0


@pytest.mark.requirement("API-USAGE-LOG")
async def test_requests_that_are_not_stored_count(serve: Serve) -> None:
    server = serve(["Hello!"] * 4)
    assert (await server.post(store=False)).status_code == 200
    assert (await server.post(store=False, background=True)).status_code == 200
    body: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "n": 2,
    }
    answer = await server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    (sums,) = await totals(server)
    assert sums.requests >= 3, "the background run may still be running"
    assert sums.output_tokens > 0


@pytest.mark.requirement("API-USAGE-LOG")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "prompt", "choices"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, 3),
        ("completions", {"prompt": "one two"}, 3),
        ("completions", {"prompt": ["one two", "three"]}, 6),
    ],
)
async def test_choices_of_a_prompt_count_its_tokens_once(
    path: str, prompt: dict[str, Any], choices: int, stream: bool, serve: Serve
) -> None:
    """The usage log, which the token limits read, agrees with the usage in the answer."""
    server = serve(local(engine(["Hello!"] * choices)))
    options = {"stream_options": {"include_usage": True}, "stream": True} if stream else {}
    body = {"model": "tiny", "n": 3, **prompt, **options}
    answer = await server.client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200
    last = answer.text.split("data: ")[-2] if stream else answer.text
    usage = json.loads(last)["usage"]
    (sums,) = await totals(server)
    assert sums.requests == choices
    assert sums.input_tokens == usage["prompt_tokens"] > 0
    assert sums.output_tokens == usage["completion_tokens"] > 0


@pytest.mark.requirement("API-USAGE-LOG")
async def test_tool_calls_count(serve: Serve) -> None:
    server = serve(local(engine([tool_call("f", {})])))
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    assert (await server.post(tools=[tool])).status_code == 200
    (sums,) = await totals(server)
    assert (sums.requests, sums.tool_calls) == (1, 1)


@pytest.mark.requirement("API-USAGE-LOG")
@pytest.mark.parametrize("is_stored", [True, False])
async def test_failed_responses_count(serve: Serve, is_stored: bool) -> None:
    server = serve(SteppedBackend([Open(Message(role="assistant", content=())), BackendError("x")]))
    assert (await server.post(store=is_stored)).status_code >= 500
    (sums,) = await totals(server)
    assert (sums.requests, sums.failed_requests, sums.input_tokens) == (1, 1, 3)


class _DisconnectedReader(EventSink):
    """A reader that has left."""

    def write(self, events: Any) -> None:
        raise ReaderGone


@pytest.mark.requirement("API-USAGE-LOG")
@pytest.mark.parametrize("is_stored", [True, False])
async def test_an_abandoned_response_counts_what_was_read(serve: Serve, is_stored: bool) -> None:
    server = serve(["Hello!"])
    body = b'{"model": "tiny", "input": "hi", "store": %s}' % (b"true" if is_stored else b"false")
    run = await server.service.create(
        "default", parse_create_response(body), client=Client(key="k")
    )
    with pytest.raises(ReaderGone):
        await run.drive(_DisconnectedReader())
    (sums,) = await totals(server, group_by={"api_key"})
    assert (sums.api_key, sums.requests, sums.cancelled_requests) == ("k", 1, 1)


@pytest.mark.requirement("API-USAGE-LOG")
async def test_a_cancelled_background_response_counts(serve: Serve) -> None:
    backend = SteppedBackend([asyncio.Event()])
    server = serve(backend)
    queued = (await server.post(background=True)).json()
    await server.client.post(f"/v1/responses/{queued['id']}/cancel")
    (sums,) = await totals(server)
    assert (sums.requests, sums.cancelled_requests) == (1, 1)


class _Client:
    """Clients of one server with the keys ``root`` (an operator), ``a`` and ``b``."""

    def __init__(self, server: Server) -> None:
        keys = tuple(
            AuthKey(name=name, tenant=tenant, sha256=hashlib.sha256(name.encode()).hexdigest())
            for name, tenant in (("root", "ops"), ("a", "t"), ("b", "t"))
        )
        numbers = iter(range(1000))
        self._app = create_app(
            server.service,
            AuthConfig(keys=keys, roles={"operator": ("root",)}),
            ids=lambda prefix: f"{prefix}_k{next(numbers)}",
            log=open_log(server.log),
        )

    def of(self, key: str) -> httpx.AsyncClient:
        return asgi_client(self._app, headers={"authorization": f"Bearer {key}"})


@pytest.mark.requirement("API-USAGE-OPERATORS")
async def test_operators_read_the_usage_of_all_keys(serve: Serve) -> None:
    server = serve(ScriptedBackend(["Hello!"] * 9))
    clients = _Client(server)
    async with clients.of("root") as root, clients.of("a") as a, clients.of("b") as b:
        body = {"model": "gpt-5.5", "input": "hi"}
        for client, extra in ((a, {}), (a, {"store": False}), (b, {"background": True})):
            assert (await client.post("/v1/responses", json=body | extra)).status_code == 200
        while sum(each.requests for each in await totals(server)) < 3:
            await asyncio.sleep(0)  # until the background run has ended
        refused = await a.get("/v1/organization/usage/completions", params={"start_time": NOW})
        assert refused.status_code == 403
        by_key = await results(root, **{"group_by[]": ["api_key_id", "project_id"]})
        assert [
            (each["project_id"], each["api_key_id"], each["num_model_requests"]) for each in by_key
        ] == [("t", "a", 2), ("t", "b", 1)]
        (by_model,) = await results(root, group_by="model", api_key_ids="a")
        assert (by_model["model"], by_model["num_model_requests"]) == ("tiny", 2)
        assert by_model["project_id"] is None and by_model["api_key_id"] is None
        assert await results(root, models="other") == []


@pytest.mark.requirement("API-USAGE-OPERATORS")
async def test_usage_comes_in_pages_of_buckets(serve: Serve) -> None:
    server = serve(["Hello!"] * 2)
    await server.post()
    server.now += 2 * DAY
    await server.post()
    query = {"start_time": NOW, "limit": 2}
    first = (await server.get("organization/usage/completions", **query)).json()
    assert first["object"] == "page" and first["has_more"]
    assert [bucket["start_time"] - MIDNIGHT for bucket in first["data"]] == [0, DAY]
    assert [len(bucket["results"]) for bucket in first["data"]] == [1, 0]
    page = {**query, "page": first["next_page"]}
    second = (await server.get("organization/usage/completions", **page)).json()
    assert [bucket["start_time"] - MIDNIGHT for bucket in second["data"]] == [2 * DAY]
    assert not second["has_more"] and second["next_page"] is None
    assert second["data"][0]["results"][0]["num_model_requests"] == 1


@pytest.mark.requirement("API-USAGE-OPERATORS")
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"start_time": ""}, "start_time"),
        ({"start_time": "x"}, "start_time"),
        ({"end_time": "1"}, "end_time"),
        ({"bucket_width": "1w"}, "bucket_width"),
        ({"limit": "32"}, "limit"),
        ({"group_by": "user_id"}, "group_by"),
        ({"user_ids": "x"}, "user_ids"),
        ({"context_levels": "low"}, "context_levels"),
        ({"page": "page_1"}, "page"),
        ({"page": "page_²"}, "page"),
    ],
)
async def test_invalid_queries_name_the_parameter(
    query: dict[str, str], param: str, serve: Serve
) -> None:
    reply = await serve().get("organization/usage/completions", **{"start_time": NOW, **query})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.requirement("API-USAGE-LOG")
async def test_usage_waits_for_a_store_that_does_not_answer(serve: Serve) -> None:
    store: Store = MemoryStore()
    server = serve(["Hello!"], on=store)
    await server.post(store=False)
    add = store.usage_log.add
    store.usage_log.add = _fail  # type: ignore[method-assign]
    await server.service.usage_counter.flush()
    store.usage_log.add = add  # type: ignore[method-assign]
    (sums,) = await totals(server)
    assert sums.requests == 1


async def _fail(records: Any) -> None:
    raise StoreError("The store does not answer.")


@pytest.mark.requirement("API-USAGE-COSTS")
async def test_costs_follow_the_prices_of_the_settings(serve: Serve) -> None:
    server = serve(prices={"tiny": Prices(1_000_000, 500_000, 2_000_000)})
    await server.post()
    await server.post(store=False)
    await server.service.usage_counter.flush()
    (sums,) = await totals(server)
    query = {"start_time": MIDNIGHT, "group_by[]": ["line_item", "project_id"]}
    page = (await server.get("organization/costs", **query)).json()
    assert [bucket["start_time"] for bucket in page["data"]] == [MIDNIGHT]
    (cost,) = page["data"][0]["results"]
    assert cost["amount"] == {
        "value": sums.input_tokens + 2 * sums.output_tokens,
        "currency": "usd",
    }
    assert (cost["line_item"], cost["project_id"], cost["api_key_id"]) == ("tiny", "default", None)
    plain = (await server.get("organization/costs", start_time=MIDNIGHT)).json()
    assert plain["data"][0]["results"][0]["amount"] == cost["amount"]
    hourly = await server.get("organization/costs", start_time=MIDNIGHT, bucket_width="1h")
    assert hourly.status_code == 400


@pytest.mark.requirement("API-USAGE-COSTS")
async def test_calls_of_tools_cost_what_the_settings_say(serve: Serve, client_of: Clients) -> None:
    answers = [python_call("say four"), python_call("say four"), "Four."]
    prices = {"code_interpreter": Prices(calls=500)}
    options = code_interpreter_options(containers())
    server = serve(local(engine(answers)), prices=prices, **options)
    client = client_of(server.app)
    tool: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
    await client.responses.create(model="tiny", input="hi", tools=[tool])
    costs = client.copy(admin_api_key="none").admin.organization.usage.costs
    page = await costs(start_time=MIDNIGHT, group_by=["line_item"])
    found = {each.line_item: each for each in page.data[0].results}  # type: ignore[union-attr]
    assert found.keys() == {"tiny", "code_interpreter"}
    tool_costs = found["code_interpreter"]
    assert tool_costs.amount is not None
    assert (tool_costs.amount.value, tool_costs.quantity) == (1.0, 2)


async def test_models_without_a_price_cost_nothing(serve: Serve) -> None:
    server = serve()
    await server.post()
    page = (await server.get("organization/costs", start_time=MIDNIGHT)).json()
    assert page["data"][0]["results"][0]["amount"]["value"] == 0


@pytest.mark.requirement("API-USAGE-LOG")
@pytest.mark.parametrize("is_stored", [True, False])
async def test_calls_of_a_tool_are_read_by_tool(
    serve: Serve, client_of: Clients, is_stored: bool
) -> None:
    answers = [python_call("say four"), python_call("say four"), "Four."]
    server = serve(local(engine(answers)), **code_interpreter_options(containers()))
    client = client_of(server.app)
    tool: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
    await client.responses.create(model="tiny", input="hi", tools=[tool], store=is_stored)
    usage = client.copy(admin_api_key="none").admin.organization.usage
    page = await usage.code_interpreter_sessions(start_time=NOW)
    [result] = page.data[0].results
    assert result.object == "organization.usage.code_interpreter_sessions.result"
    assert result.num_sessions == 2
    searches = await usage.web_search_calls(start_time=NOW)
    assert searches.data[0].results == []
