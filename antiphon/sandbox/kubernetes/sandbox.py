"""A sandbox whose boxes (sandbox environments) are pods. For each box, it creates a claim, which is
a request for a pod. The controller agent-sandbox takes the pod from a warm pool, which is a supply
of started pods.

The cluster deletes a claim at the claim's ``shutdownTime``. A running server postpones this time
for the claims of its boxes, so a server that crashes leaves no pods behind.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from antiphon.errors import SetupError, ToolError
from antiphon.sandbox.base import Limits
from antiphon.support.tasks import BackgroundTasks, repeat

from .api import ClaimLost, ClusterError, KubernetesApi, SandboxClaim
from .box import PodBox
from .runtime import PodRuntime

if TYPE_CHECKING:
    import aiohttp

_log = structlog.get_logger(__name__)

#: ``_LEASE_S``: seconds after which the cluster deletes a claim that is not extended.
#: ``_RENEWAL_S``: seconds between two extensions.
_LEASE_S, _RENEWAL_S = 600.0, 150.0
#: Seconds that a claim may take to become ready. If the pool is empty, a new pod must start.
_READY_S = 180.0
#: Seconds to wait before the next attempt if a watch ends early.
_PAUSE_S = 0.2
#: Characters that are not allowed in the value of a label, and the maximum length of this value.
_NO_LABEL, _LABEL_CHARS = re.compile(r"[^A-Za-z0-9_.-]"), 63


class PodSettings(Struct, frozen=True, kw_only=True):
    """Settings for boxes (sandbox environments) that are pods.

    - ``pool``: name of the SandboxWarmPool from which pods are taken.
    - ``owner``: value of the label that marks the sandbox claims of this Antiphon installation.
    - ``router``: URL of the sandbox router. If it is None, Antiphon connects to the IP addresses of
      the pods.
    - ``port``: port of the runtime, the HTTP server in each pod.
    """

    pool: str
    owner: str
    router: str | None = None
    port: int = 8888


class KubernetesSandbox:
    """The ``Sandbox`` whose boxes are pods. ``clock`` returns Unix seconds. ``ids`` generates
    unique names from a prefix."""

    def __init__(
        self,
        api: KubernetesApi,
        session: aiohttp.ClientSession,
        settings: PodSettings,
        *,
        clock: Callable[[], float],
        ids: Callable[[str], str],
    ) -> None:
        self._api = api
        self._session = session
        self._settings = settings
        self._owner = _NO_LABEL.sub("-", settings.owner)[-_LABEL_CHARS:].strip("-_.")
        self._clock = clock
        self._ids = ids
        self._boxes: dict[str, PodBox] = {}
        self._renewals = BackgroundTasks("sandbox claims")

    async def check(self) -> None:
        """Raise ``SetupError`` if the warm pool (the supply of started pods) does not exist or the
        Kubernetes API cannot be used."""
        pool, namespace = self._settings.pool, self._api.namespace
        try:
            await self._api.check_pool(pool)
        except ClaimLost:
            raise SetupError(
                f"sandbox: there is no SandboxWarmPool {pool!r} in the namespace {namespace!r}"
            ) from None
        except ClusterError as error:
            raise SetupError(f"sandbox: the Kubernetes API cannot be used: {error}") from None

    async def open(self, limits: Limits) -> PodBox:
        name = self._ids("antiphon").replace("_", "-").lower()
        try:
            claim = await self._claim(name)
            box = PodBox(self._runtime(claim), limits, partial(self._release, name))
            self._boxes[name] = box
            await box.start()
        except ClusterError as error:
            await self._release(name)
            _log.warning("there is no pod for a container", claim=name, error=str(error))
            raise ToolError("No pod is available for the container.") from None
        except BaseException:
            await self._release(name)
            raise
        self._renewals.start_once("renew", self._renew_always)
        return box

    async def close(self) -> None:
        await self._renewals.close()
        for box in tuple(self._boxes.values()):
            await box.close()
        await self._session.close()
        await self._api.close()

    async def renew(self) -> None:
        """Postpone the time at which the cluster deletes the claims (requests for pods) of this
        server. If the claim of a box was deleted, close the box."""
        for name, box in tuple(self._boxes.items()):
            try:
                # ``is_ready`` raises if the pod will never be ready. A pod that is briefly not
                # ready is fine.
                _ = (await self._api.extend(name, self._shutdown_time())).is_ready
            except ClaimLost as error:
                _log.info("the pod of a container has ended", claim=name, reason=str(error))
                await box.close()
            except ClusterError as error:
                _log.warning("a claim was not extended", claim=name, error=str(error))

    async def _renew_always(self) -> None:
        failure = "the claims of containers could not be extended"
        await repeat(self.renew, _RENEWAL_S, failure=failure, is_first_delayed=True)

    async def _claim(self, name: str) -> SandboxClaim:
        """Create a sandbox claim (a request for a pod), and wait until the pod is ready. Raises
        ``ClusterError``."""
        body: dict[str, object] = {
            "metadata": {
                "name": name,
                "labels": {
                    "app.kubernetes.io/managed-by": "antiphon",
                    "app.kubernetes.io/instance": self._owner,
                },
            },
            "spec": {
                "warmPoolRef": {"name": self._settings.pool},
                "lifecycle": {"shutdownTime": self._shutdown_time(), "shutdownPolicy": "Delete"},
            },
        }
        claim = await self._api.create(body)
        try:
            async with asyncio.timeout(_READY_S):
                while not claim.is_ready:
                    claim = await self._next(claim)
        except TimeoutError:
            raise ClusterError(f"no pod was ready within {_READY_S:.0f} s") from None
        return claim

    async def _next(self, claim: SandboxClaim) -> SandboxClaim:
        """Wait until a sandbox claim (a request for a pod) changes or a timeout ends. Return the
        current state of the claim."""
        async with aclosing(self._api.watch(claim, _READY_S)) as changes:
            async for changed in changes:
                return changed
        await asyncio.sleep(_PAUSE_S)
        return await self._api.get(claim.metadata.name)

    def _runtime(self, claim: SandboxClaim) -> PodRuntime:
        port = self._settings.port
        if self._settings.router is not None:
            headers = {
                "x-sandbox-id": claim.sandbox,
                "x-sandbox-namespace": self._api.namespace,
                "x-sandbox-port": str(port),
            }
            return PodRuntime(self._session, self._settings.router, headers)
        if not claim.addresses:
            raise ClusterError("the pod has no address")
        address = claim.addresses[0]
        host = f"[{address}]" if ":" in address else address
        return PodRuntime(self._session, f"http://{host}:{port}")

    async def _release(self, name: str) -> None:
        """Delete a sandbox claim (a request for a pod). If this fails, the cluster deletes the
        claim at its ``shutdownTime``."""
        self._boxes.pop(name, None)
        try:
            await self._api.delete(name)
        except ClusterError as error:
            _log.warning("a claim was not deleted", claim=name, error=str(error))

    def _shutdown_time(self) -> str:
        end = datetime.fromtimestamp(self._clock() + _LEASE_S, UTC)
        return end.strftime("%Y-%m-%dT%H:%M:%SZ")
