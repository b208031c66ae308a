"""Containers in Kubernetes by the settings of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog

from antiphon.bootstrap.containers import ContainerDependencies, open_containers
from antiphon.config.settings import Settings
from antiphon.config.tables import SandboxSettings
from antiphon.errors import InvalidRequest, SetupError, ToolError
from antiphon.limits.quotas import NO_QUOTAS
from antiphon.resources.skills import Skills
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.tools.containers.relay import ContainerRelay
from antiphon.wire.resources import containers as wc
from tests.conformance.fake_containers import Uploads
from tests.sandbox.kubernetes.fake_cluster import POOL, fake_cluster


def containers(**settings: Any) -> Any:
    numbers = iter(range(99))
    return open_containers(
        Settings(sandbox=SandboxSettings(kind="kubernetes", **settings)),
        structlog.get_logger(),
        ContainerDependencies(
            uploads=Uploads({}),
            library=Skills(MemoryStore(), clock=lambda: 0.0, ids=lambda prefix: prefix),
            clock=lambda: 0.0,
            ids=lambda prefix: f"{prefix}_{next(numbers)}",
            quotas=NO_QUOTAS,
            directory=MemoryStore().containers,
            relay=ContainerRelay(),
        ),
    )


async def test_container_runs_in_a_pod_and_expires_with_it(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        settings = {
            "kubernetes_url": cluster.url,
            "kubernetes_credentials": cluster.credentials,
            "router": cluster.url,
            "warm_pool": POOL,
        }
        async with containers(**settings) as opened:
            registry = opened.registry
            allowlist = wc.NetworkPolicy(type="allowlist", allowed_domains=("example.com",))
            with pytest.raises(InvalidRequest, match="have no network"):
                await registry.create("t", wc.CreateContainer(name="a", network_policy=allowlist))
            created = await registry.create("t", wc.CreateContainer(name="a"))
            handle = await registry.acquire("t", created.id)
            result, _ = await handle.run_python("6 * 7")
            assert result.output == "42\n" and len(cluster.claims) == 1
            await cluster.lose(next(iter(cluster.claims)))
            with pytest.raises(ToolError, match="has ended"):
                await handle.run_python("1")
            assert (await registry.retrieve("t", created.id)).status == "expired"
            assert not cluster.claims


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"domains": ("example.com",)}, "sandbox.domains: containers in Kubernetes have"),
        ({"python": Path("/usr/bin/python3")}, "sandbox.python: containers in Kubernetes"),
        ({"kubernetes_credentials": Path("/nowhere")}, "the service account in /nowhere cannot"),
    ],
)
async def test_settings_that_pods_cannot_honour_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        async with containers(**settings):
            pass
