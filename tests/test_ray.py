"""The app of Ray Serve: its options and its lifespan, without Ray."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from antiphon.errors import SetupError
from antiphon.ray import ServedApp, app
from tests.harness import asgi_client

SETTINGS = (
    'store = "memory:"\nsandbox.kind = "off"\n[models.m]\nengine = "scripted"\nsource = "Hello."\n'
)


class Deployment:
    """What ``serve.deployment(…)(…)`` returns. ``bind`` returns it as the application."""

    def __init__(self, options: Mapping[str, Any], served: Any) -> None:
        self.options, self.served = options, served

    def bind(self) -> Deployment:
        return self


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("ray.serve")

    def deployment(**options: Any) -> Callable[[Any], Deployment]:
        return lambda served: Deployment(options, served)

    fake.deployment = deployment  # type: ignore[attr-defined]
    fake.ingress = lambda asgi: lambda: asgi  # type: ignore[attr-defined]
    package = ModuleType("ray")
    package.serve = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", package)
    monkeypatch.setitem(sys.modules, "ray.serve", fake)


@pytest.mark.usefixtures("serve")
def test_arguments_become_options_of_the_deployment() -> None:
    built = app({"max_replicas": "4", "target_requests": "10", "shutdown_s": "30"})
    assert built.options["autoscaling_config"] == {
        "min_replicas": 1,
        "max_replicas": 4,
        "target_ongoing_requests": 10,
        "upscale_delay_s": 10,
        "downscale_delay_s": 600,
    }
    assert built.options["graceful_shutdown_timeout_s"] == 30
    assert built.options["max_ongoing_requests"] == 256
    assert isinstance(pickle.loads(pickle.dumps(built.served)), ServedApp)


@pytest.mark.usefixtures("serve")
@pytest.mark.parametrize("arguments", [{"replicas": "2"}, {"max_replicas": "many"}])
def test_invalid_argument_is_named(arguments: dict[str, str]) -> None:
    (name,) = arguments
    with pytest.raises(SetupError, match=name):
        app(arguments)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SetupError, match="ray"):
        app({})


class Lifespan:
    """Runs the lifespan of an app as Serve's replicas do."""

    def __init__(self, served: ServedApp) -> None:
        self._served = served
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[Any] = asyncio.Queue()

    async def start(self) -> Any:
        scope = {"type": "lifespan"}
        self._task = asyncio.create_task(self._served(scope, self._to_app.get, self._from_app.put))
        return await self._step("startup")

    async def stop(self) -> Any:
        answer = await self._step("shutdown")
        await self._task
        return answer

    async def _step(self, name: str) -> Any:
        self._to_app.put_nowait({"type": f"lifespan.{name}"})
        async with asyncio.timeout(60):
            return await self._from_app.get()


async def test_replica_opens_and_drains_the_app_in_its_lifespan(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(SETTINGS)
    served = ServedApp(str(file), has_several=False)
    lifespan = Lifespan(served)
    assert await lifespan.start() == {"type": "lifespan.startup.complete"}
    async with asgi_client(served) as client:
        answer = await client.post("/v1/responses", json={"model": "m", "input": "Hi"})
    assert answer.json()["output"][0]["content"][0]["text"] == "Hello."
    assert await lifespan.stop() == {"type": "lifespan.shutdown.complete"}


async def test_several_replicas_without_postgresql_do_not_start(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(SETTINGS)
    lifespan = Lifespan(ServedApp(str(file), has_several=True))
    answer = await lifespan.start()
    assert answer["type"] == "lifespan.startup.failed" and "PostgreSQL" in answer["message"]


async def test_missing_settings_file_fails_the_start(tmp_path: Path) -> None:
    lifespan = Lifespan(ServedApp(str(tmp_path / "none.toml"), has_several=False))
    answer = await lifespan.start()
    assert answer["type"] == "lifespan.startup.failed" and "none.toml" in answer["message"]
