"""A Kubernetes cluster with agent-sandbox, for tests: its API server, its router and its pods.

The API has the requests that sandbox claims need: create, get, watch, patch and delete. A claim
takes a pod from the warm pool, or waits for a new one. Pods are processes in bubblewrap boxes. The
router sends requests to the pod that the header names.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from antiphon.errors import SetupError
from antiphon.sandbox.bubblewrap import BoxSetup

TOKEN, POOL, NAMESPACE = "token-1", "python", "boxes"
_RUNTIME = Path(__file__).with_name("fake_runtime.py")
_PREFIX = f"/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{NAMESPACE}"


class _Pod:
    """The process of a runtime, in a box."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.port = port

    @classmethod
    async def start(cls, folder: Path) -> _Pod:
        setup = BoxSetup.detect()
        process = await asyncio.create_subprocess_exec(
            *(setup.bwrap, "--ro-bind", "/", "/", "--bind", str(folder), "/mnt"),
            *("--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "--unshare-pid"),
            *("--die-with-parent", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"),
            *("--", setup.python, "-I", "-c", _RUNTIME.read_text("utf-8")),
            stdout=PIPE,
        )
        assert process.stdout is not None
        return cls(process, int(await process.stdout.readline()))

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class FakeCluster:
    """``claims``: the claims that exist. ``patches``: the changes that were sent, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.claims: dict[str, dict[str, Any]] = {}
        self.created: list[dict[str, Any]] = []
        self.pods: dict[str, _Pod] = {}
        self.warm: list[_Pod] = []
        #: Claims that are not made ready until ``make_ready``.
        self.holds_claims = False
        #: A reason for which claims never become ready.
        self.failure: str | None = None
        self._version = 1
        self._changed = asyncio.Condition()
        self._session = aiohttp.ClientSession()

    @property
    def credentials(self) -> Path:
        """The folder of a service account."""
        (self.folder / "token").write_text(f"{TOKEN}\n")
        (self.folder / "namespace").write_text(NAMESPACE)
        return self.folder

    async def add_warm_pod(self) -> None:
        """Start a pod for the warm pool."""
        self.warm.append(await _Pod.start(Path(tempfile.mkdtemp(dir=self.folder))))

    async def make_ready(self, name: str) -> None:
        """Give a claim its pod, or the reason for which it gets none."""
        claim = self.claims[name]
        condition = {"type": "Ready", "status": "False", "reason": self.failure, "message": "m"}
        status: dict[str, Any] = {"conditions": [condition]}
        if self.failure is None:
            if not self.warm:
                await self.add_warm_pod()
            self.pods[name] = self.warm.pop()
            condition |= {"status": "True", "reason": "SandboxReady"}
            status["sandbox"] = {"name": f"pod-{name}", "podIPs": ["127.0.0.1"]}
        await self._change(claim, status=status)

    async def lose(self, name: str) -> None:
        """End the pod of a claim. The status of the claim then reports this."""
        await self.pods[name].end()
        condition = {"type": "Ready", "status": "False", "reason": "PodFailed", "message": "lost"}
        await self._change(self.claims[name], status={"conditions": [condition]})

    async def _change(self, claim: dict[str, Any], **fields: Any) -> None:
        async with self._changed:
            self._version += 1
            claim.update(fields)
            claim["metadata"]["resourceVersion"] = str(self._version)
            self._changed.notify_all()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request to the API."""
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        kind, name = request.match_info["kind"], request.match_info.get("name")
        if kind == "sandboxwarmpools":
            found = name == POOL
            return web.json_response({"kind": "SandboxWarmPool"}) if found else _status(404, "none")
        if request.method == "POST":
            return await self._create(await request.json())
        if name is None:
            return await self._watch(request)
        if name not in self.claims:
            return _status(404, f'sandboxclaims "{name}" not found')
        claim = self.claims[name]
        if request.method == "PATCH":
            assert request.content_type == "application/merge-patch+json"
            lifecycle = (await request.json())["spec"]["lifecycle"]
            claim["spec"]["lifecycle"].update(lifecycle)
            await self._change(claim)
        elif request.method == "DELETE":
            await self.delete(name)
        return web.json_response(claim)

    async def delete(self, name: str) -> None:
        """Delete a claim and its pod."""
        claim = self.claims.pop(name)
        if name in self.pods:
            await self.pods.pop(name).end()
        await self._change(claim)

    async def _create(self, claim: dict[str, Any]) -> web.Response:
        assert claim["kind"] == "SandboxClaim"
        assert claim["apiVersion"] == "extensions.agents.x-k8s.io/v1beta1"
        assert claim["spec"]["warmPoolRef"] == {"name": POOL}
        name = claim["metadata"]["name"]
        claim["metadata"]["resourceVersion"] = str(self._version)
        self.claims[name] = claim
        self.created.append(claim)
        answer = json.loads(json.dumps(claim))
        if not self.holds_claims:
            await self.make_ready(name)
        return web.json_response(answer, status=201)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        assert request.query["watch"] == "true"
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        seen = int(request.query["resourceVersion"])
        claim = self.claims[name]
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            async with self._changed:
                while int(claim["metadata"]["resourceVersion"]) <= seen:
                    await self._changed.wait()
            seen = int(claim["metadata"]["resourceVersion"])
            kind = "MODIFIED" if name in self.claims else "DELETED"
            line = json.dumps({"type": kind, "object": claim}).encode() + b"\n"
            try:
                await response.write(line)
            except ConnectionError:  # the client has seen enough
                return response
            if kind == "DELETED":
                return response

    async def route(self, request: web.Request) -> web.Response:
        """Send a request to the pod that its headers name, as the router does."""
        assert request.headers["x-sandbox-namespace"] == NAMESPACE
        pod = self.pods.get(request.headers["x-sandbox-id"].removeprefix("pod-"))
        if pod is None:
            return web.json_response({"detail": "Could not connect"}, status=502)
        url = f"http://127.0.0.1:{pod.port}{request.raw_path}"
        try:
            async with self._session.request(
                request.method,
                aiohttp.client.URL(url, encoded=True),
                data=await request.read(),
                headers={"content-type": request.headers.get("content-type", "")},
            ) as answer:
                content = await answer.read()
                return web.Response(
                    status=answer.status, body=content, content_type=answer.content_type
                )
        except aiohttp.ClientError:
            return web.json_response({"detail": "Could not connect"}, status=502)

    async def close(self) -> None:
        """End all pods."""
        for pod in (*self.pods.values(), *self.warm):
            await pod.end()
        await self._session.close()


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message, "code": code}, status=code)


@asynccontextmanager
async def fake_cluster(folder: Path) -> AsyncIterator[FakeCluster]:
    """Run a cluster; skips the test where this machine has no bubblewrap."""
    try:
        BoxSetup.detect()
    except SetupError as error:
        pytest.skip(f"no pods on this machine: {error}")
    cluster = FakeCluster(folder)
    app = web.Application(client_max_size=1 << 28)
    app.router.add_route("*", _PREFIX + "/{kind}", cluster.answer)
    app.router.add_route("*", _PREFIX + "/{kind}/{name}", cluster.answer)
    app.router.add_route("*", "/{path:.*}", cluster.route)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    cluster.url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        yield cluster
    finally:
        await cluster.close()
        await runner.cleanup()
