"""``/v1/containers``: lifecycle of containers and files, tenants, expiry."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.errors import NotFound, QuotaExceeded
from antiphon.testing.sandbox import FakeSandbox
from antiphon.tools.code_interpreter import CodeInterpreterProvider
from antiphon.tools.shell import ShellProvider
from antiphon.wire.resources.containers import AutoContainer
from tests.conformance.conftest import Serve
from tests.conformance.fake_containers import (
    Clock,
    code_interpreter_options,
    containers,
    run_command,
)
from tests.conformance.server import Ask, Server, engine, local
from tests.conformance.test_shells import HERE
from tests.conformance.test_tool_search import rendered_prompts, tool_call

URL = "/v1/containers"


async def create_container(server: Server, **body: Any) -> Any:
    answer = await server.client.post(URL, json={"name": "mine", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.requirement("API-CONTAINERS")
async def test_container_can_be_created_listed_read_and_deleted(serve: Serve) -> None:
    server = serve(**code_interpreter_options(containers()))
    first, second = (
        await create_container(server),
        await create_container(server, memory_limit="1g"),
    )
    assert first == {
        "id": first["id"],
        "object": "container",
        "created_at": 1_700_000_000,
        "name": "mine",
        "status": "active",
        "expires_after": {"anchor": "last_active_at", "minutes": 20},
        "last_active_at": 1_700_000_000,
        "memory_limit": "1g",
        "network_policy": {"type": "disabled"},
    }
    one = f"{URL}/{first['id']}"
    assert (await server.client.get(one)).json() == first
    listed = (await server.client.get(URL)).json()
    assert [c["id"] for c in listed["data"]] == [second["id"], first["id"]]
    page = (await server.client.get(URL, params={"limit": 1, "order": "asc"})).json()
    assert (page["first_id"], page["has_more"]) == (first["id"], True)
    page = (await server.client.get(URL, params={"after": second["id"]})).json()
    assert [c["id"] for c in page["data"]] == [first["id"]] and not page["has_more"]
    page = (await server.client.get(URL, params={"before": first["id"]})).json()
    assert [c["id"] for c in page["data"]] == [second["id"]] and not page["has_more"]
    other = await create_container(server, name="other")
    page = (await server.client.get(URL, params={"name": "other"})).json()
    assert [c["id"] for c in page["data"]] == [other["id"]]
    deleted = (await server.client.delete(one)).json()
    assert deleted == {"id": first["id"], "object": "container.deleted", "deleted": True}
    assert (await server.client.get(one)).status_code == 404


@pytest.mark.requirement("API-CONTAINERS")
async def test_container_files_lifecycle(serve: Serve) -> None:
    server = serve(**code_interpreter_options(containers()))
    container = await create_container(server, file_ids=["file-1"])
    url = f"{URL}/{container['id']}/files"
    (copied,) = (await server.client.get(url)).json()["data"]
    assert (copied["path"], copied["source"], copied["bytes"]) == (
        "/mnt/data/numbers.csv",
        "user",
        5,
    )
    added = (await server.client.post(url, files={"file": ("../b.txt", b"two")})).json()
    assert added["object"] == "container.file" and added["path"] == "/mnt/data/b.txt"
    assert added["container_id"] == container["id"] and added["source"] == "user"
    again = (await server.client.post(url, json={"file_id": "file-1"})).json()
    assert again["id"] == copied["id"]
    one = f"{url}/{added['id']}"
    assert (await server.client.get(one)).json() == added
    content = await server.client.get(one + "/content")
    assert content.content == b"two" and "attachment" in content.headers["content-disposition"]
    assert content.headers["x-content-type-options"] == "nosniff"
    deleted = (await server.client.delete(one)).json()
    assert deleted == {"id": added["id"], "object": "container.file.deleted", "deleted": True}
    for method, path in (("GET", one), ("GET", one + "/content"), ("DELETE", one)):
        assert (await server.client.request(method, path)).status_code == 404


async def test_unused_container_expires(serve: Serve) -> None:
    clock = Clock()
    registry = containers(clock=clock)
    server = serve(**code_interpreter_options(registry))
    short = await create_container(server, expires_after={"anchor": "last_active_at", "minutes": 5})
    long = await create_container(server)
    clock.now += 301
    await registry.local.close_expired()
    assert (await server.client.get(f"{URL}/{short['id']}")).json()["status"] == "expired"
    rejection = await server.client.get(f"{URL}/{short['id']}/files")
    assert rejection.status_code == 400 and rejection.json()["error"]["code"] == "container_expired"
    clock.now += 800
    assert (await server.client.get(f"{URL}/{long['id']}/files")).status_code == 200
    clock.now += 800
    assert (await server.client.get(f"{URL}/{long['id']}")).json()["status"] == "active"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": 1}, "name"),
        ({"name": "x", "memory_limit": "4g"}, "memory_limit"),
        ({"name": "x", "memory_limit": "3g"}, "memory_limit"),
        ({"name": "x", "file_ids": ["a"] * 51}, "file_ids"),
        (
            {"name": "x", "network_policy": {"type": "allowlist", "allowed_domains": ["x.org"]}},
            "network_policy.type",
        ),
        (
            {"name": "x", "network_policy": {"type": "allowlist"}},
            "network_policy.allowed_domains",
        ),
        (
            {"name": "x", "network_policy": {"allowed_domains": ["x.org"]}},
            "network_policy.allowed_domains",
        ),
        ({"name": "x", "network_policy": {"type": "open"}}, "network_policy.type"),
        ({"name": "x", "network_policy": "disabled"}, "network_policy"),
        ({"name": "x", "skills": [{"type": "inline"}]}, "skills[0].name"),
        ({"name": "x", "expires_after": {"anchor": "now", "minutes": 1}}, "expires_after.anchor"),
        (
            {"name": "x", "expires_after": {"anchor": "last_active_at", "minutes": 99}},
            "expires_after.minutes",
        ),
    ],
)
async def test_invalid_fields_are_rejected(serve: Serve, body: Any, param: str) -> None:
    answer = await serve(**code_interpreter_options(containers())).client.post(URL, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_exceeded_limits_are_reported(serve: Serve) -> None:
    server = serve(**code_interpreter_options(containers(max_containers=1, disk_bytes=4)))
    rejection = await server.client.post(URL, json={"name": "x", "file_ids": ["file-1"]})
    assert rejection.status_code == 400 and "No space" in rejection.json()["error"]["message"]
    unknown = await server.client.post(URL, json={"name": "x", "file_ids": ["file-9"]})
    assert unknown.status_code == 404
    await create_container(server)
    rejection = await server.client.post(URL, json={"name": "x"})
    assert rejection.status_code == 429
    assert rejection.json()["error"]["code"] == "insufficient_quota"
    assert "max_containers = 1" in rejection.json()["error"]["message"]


async def test_idle_auto_container_is_evicted_at_the_limit(serve: Serve) -> None:
    """Containers that clients created are never evicted."""
    script = [tool_call("shell", {"commands": ["say hi"]}), "Done."] * 4
    clock = Clock()
    registry = containers(max_containers=2, clock=clock)
    server = serve(
        local(engine(script)), providers={"shell": ShellProvider(registry)}, containers=registry
    )
    container = await create_container(server)
    used: list[str] = []
    for _ in range(3):
        clock.now += 1
        answer = await server.post(tools=[HERE])
        assert answer.json()["status"] == "completed", answer.text
        used.append(answer.json()["output"][0]["environment"]["container_id"])
    assert len(set(used)) == 3
    shown = [(await server.get(f"containers/{each}")).json()["status"] for each in used]
    assert shown == ["expired", "expired", "active"]
    assert (await server.get(f"containers/{container['id']}")).json()["status"] == "active"


async def test_container_in_use_is_not_evicted() -> None:
    registry = containers(max_containers=1)
    request = AutoContainer()
    first = await registry.acquire("t", request, ())
    await first.list_files()
    with pytest.raises(QuotaExceeded, match="max_containers = 1"):
        await registry.acquire("t", request, ())
    again = await registry.acquire("t", first.id)
    await first.release()
    with pytest.raises(QuotaExceeded):
        await registry.acquire("t", request, ())
    await again.release()
    new = await registry.acquire("t", request, ())
    assert new.id != first.id
    assert (await registry.retrieve("t", first.id)).status == "expired"


async def test_container_of_another_tenant_is_unknown() -> None:
    registry = containers()
    async with registry:
        from antiphon.wire.resources.containers import CreateContainer

        mine = await registry.create("a", CreateContainer(name="x"))
        with pytest.raises(NotFound):
            await registry.retrieve("b", mine.id)
        with pytest.raises(NotFound):
            await registry.delete("b", mine.id)


async def test_containers_without_a_sandbox_are_unsupported(serve: Serve) -> None:
    answer = await serve().client.get(URL)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "containers_disabled"


SECRETS = [{"domain": "X.org", "name": "KEY", "value": "real"}]
ALLOWED = {"type": "allowlist", "allowed_domains": ["x.org"], "domain_secrets": SECRETS}


@pytest.mark.requirement("API-NETWORK-POLICY")
async def test_permitted_domains_are_allowed_and_secrets_never_shown(serve: Serve) -> None:
    box = FakeSandbox(run_command)
    registry = containers(box, domains=frozenset({"x.org"}))
    script = [tool_call("shell", {"commands": ["say hi"]}), "Done."] * 4
    providers = {"shell": ShellProvider(registry)}
    server = serve(local(engine(script)), providers=providers, containers=registry)
    created = await create_container(server, network_policy=ALLOWED)
    assert created["network_policy"] == {"type": "allowlist", "allowed_domains": ["x.org"]}
    proxy = box.boxes[0].proxy
    assert proxy is not None and proxy.environment["KEY"] == "secret_hidden"
    previous, used = None, []
    for policy in (ALLOWED, ALLOWED, {"type": "disabled"}):
        tool = {
            "type": "shell",
            "environment": {"type": "container_auto", "network_policy": policy},
        }
        answer = await server.post(tools=[tool], previous_response_id=previous)
        assert answer.json()["status"] == "completed" and "real" not in answer.text
        previous = answer.json()["id"]
        used.append(answer.json()["output"][0]["environment"]["container_id"])
    assert used[0] == used[1] != used[2]
    prompts = rendered_prompts(server)
    assert "x.org" in prompts[0] and "KEY (for x.org)" in prompts[0] and "real" not in prompts[0]
    assert "without network" in prompts[-1]
    assert [each.proxy is not None for each in box.boxes] == [True, True, False]


@pytest.mark.requirement("API-NETWORK-POLICY")
@pytest.mark.parametrize(
    ("policy", "param"),
    [
        ({"allowed_domains": ["x.org", "y.org"]}, "allowed_domains[1]"),
        ({"allowed_domains": ["*.x.org"]}, "allowed_domains[0]"),
        ({"allowed_domains": ["https://x.org"]}, "allowed_domains[0]"),
        ({"allowed_domains": ["127.0.0.1"]}, "allowed_domains[0]"),
        ({"domain_secrets": SECRETS}, "allowed_domains"),
        (
            {**ALLOWED, "domain_secrets": [{**SECRETS[0], "domain": "y.org"}]},
            "domain_secrets[0].domain",
        ),
        ({**ALLOWED, "domain_secrets": SECRETS * 2}, "domain_secrets[1].name"),
        (
            {**ALLOWED, "domain_secrets": [{**SECRETS[0], "value": "a\r\nb"}]},
            "domain_secrets[0].value",
        ),
    ],
)
async def test_invalid_network_policies_are_rejected(
    serve: Serve, policy: dict[str, Any], param: str
) -> None:
    server = serve(**code_interpreter_options(containers(domains=frozenset({"x.org"}))))
    body = {"name": "x", "network_policy": {"type": "allowlist", **policy}}
    error = (await server.client.post(URL, json=body)).json()["error"]
    assert error["param"] == f"network_policy.{param}", error
    assert "real" not in error["message"]


@pytest.mark.requirement("API-NETWORK-POLICY")
async def test_only_the_disabled_network_policy_is_accepted(
    serve: Serve, ask_foreground: Ask
) -> None:
    registry = containers()
    providers = {
        "code_interpreter": CodeInterpreterProvider(registry),
        "shell": ShellProvider(registry),
    }
    server = serve("Fine.", providers=providers, containers=registry)
    none, some = {"type": "disabled"}, {"type": "allowlist", "allowed_domains": ["x.org"]}
    shown = await create_container(server, network_policy=none)
    assert shown["network_policy"] == none
    rejection = await server.client.post(URL, json={"name": "x", "network_policy": some})
    assert rejection.json()["error"]["param"] == "network_policy.type"
    for tool, place, kind in (
        ("code_interpreter", "container", "auto"),
        ("shell", "environment", "container_auto"),
    ):
        body = {"type": tool, place: {"type": kind, "network_policy": none}}
        assert (await ask_foreground(server, tools=[body])).text == "Fine."
        body = {"type": tool, place: {"type": kind, "network_policy": some}}
        error = (await ask_foreground(server, tools=[body])).rejection
        assert (error["http"], error["param"]) == (400, f"tools[0].{place}.network_policy.type")
        assert "have no network" in error["message"]
