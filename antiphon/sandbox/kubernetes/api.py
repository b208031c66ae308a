"""Requests to the Kubernetes API that manage sandbox claims of agent-sandbox, a controller for
Kubernetes.

A claim is a request for a sandbox, which is a pod. The controller takes the pod from a warm pool.
https://agent-sandbox.sigs.k8s.io/docs/ describes these resources. The API version is v1beta1.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from antiphon.errors import SetupError

if TYPE_CHECKING:
    import aiohttp

_GROUP = "/apis/extensions.agents.x-k8s.io/v1beta1"
_TIMEOUT_S = 30.0
#: Maximum size of one event of a watch, in bytes.
_MAX_EVENT_BYTES = 1 << 20
#: Values of a condition's ``reason`` that mean that a claim will never become ready.
_FINAL_REASONS = frozenset(
    {
        *("InvalidMetadata", "EnvVarsInjectionRejected", "VolumeClaimTemplatesError"),
        *("ClaimExpired", "SandboxExpired", "InvalidConfiguration", "PodFailed", "PodSucceeded"),
        *("TemplateNotFound", "WarmPoolNotFound"),
    }
)


class ClusterError(Exception):
    """Error for a Kubernetes API that does not answer or refuses a request. The message is for
    operators."""


class ClaimLost(ClusterError):
    """The sandbox claim (the request for a pod) does not exist any more, or its pod has ended."""


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _SandboxStatus(msgspec.Struct, frozen=True):
    name: str = ""
    podIPs: tuple[str, ...] = ()


class _ClaimStatus(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] = ()
    sandbox: _SandboxStatus = _SandboxStatus()


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    resourceVersion: str = ""
    deletionTimestamp: str | None = None


class SandboxClaim(msgspec.Struct, frozen=True):
    """A sandbox claim, which is a request for a pod. Only the fields that Antiphon needs are
    decoded."""

    metadata: _Metadata
    status: _ClaimStatus = _ClaimStatus()

    @property
    def sandbox(self) -> str:
        """The name of the sandbox that the claim got. The pod has the same name."""
        return self.status.sandbox.name

    @property
    def addresses(self) -> tuple[str, ...]:
        """The IP addresses of the claim's pod."""
        return self.status.sandbox.podIPs

    @property
    def is_ready(self) -> bool:
        """Whether the claim's pod is ready. Raises ``ClaimLost`` if the pod will never be ready."""
        if self.metadata.deletionTimestamp is not None:
            raise ClaimLost("the claim is deleted")
        ready = next((each for each in self.status.conditions if each.type == "Ready"), None)
        if ready is None or ready.status == "True":
            return ready is not None and bool(self.sandbox)
        if ready.reason in _FINAL_REASONS:
            raise ClaimLost(f"{ready.reason}: {ready.message}".rstrip(": "))
        return False


class _WatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class KubernetesApi:
    """Client of the Kubernetes API for the sandbox claims of a namespace.

    ``credentials``: the folder of a service account, with the files ``token``, ``namespace`` and
    ``ca.crt``. The token is read again for each request, because it changes.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, credentials: Path, namespace: str
    ) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._credentials = credentials
        self.namespace = namespace

    @classmethod
    def open(cls, url: str, credentials: Path, namespace: str | None) -> KubernetesApi:
        """Create the client.

        ``credentials``: the folder of a service account, with the files ``token``, ``namespace``
        and ``ca.crt``. If ``namespace`` is None, the namespace of the service account is used.
        Raises ``SetupError`` if the folder cannot be read.
        """
        import aiohttp

        try:
            if namespace is None:
                namespace = (credentials / "namespace").read_text("utf-8").strip()
            (credentials / "token").read_text("utf-8")
            context: ssl.SSLContext | bool = True
            if (authority := credentials / "ca.crt").exists():
                context = ssl.create_default_context(cafile=str(authority))
        except (OSError, ValueError) as error:
            raise SetupError(
                f"sandbox: the service account in {credentials} cannot be read: {error}"
            ) from None
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        )
        return cls(session, url, credentials, namespace)

    async def check_pool(self, name: str) -> None:
        """Raise ``ClusterError`` if the warm pool (the supply of started pods) does not exist or
        cannot be read."""
        await self._send("GET", f"sandboxwarmpools/{name}")

    async def create(self, claim: Mapping[str, object]) -> SandboxClaim:
        """Create a sandbox claim. ``claim``: its metadata and its spec. Raises ``ClusterError``."""
        body = {"apiVersion": _GROUP.removeprefix("/apis/"), "kind": "SandboxClaim", **claim}
        return _decode(await self._send("POST", "sandboxclaims", body))

    async def get(self, name: str) -> SandboxClaim:
        """Return the sandbox claim (a request for a pod) with this name. Raises ``ClaimLost`` if
        the claim does not exist. Raises ``ClusterError`` for other failures."""
        return _decode(await self._send("GET", f"sandboxclaims/{name}"))

    async def extend(self, name: str, shutdown_time: str) -> SandboxClaim:
        """Set a new time at which the cluster deletes a sandbox claim (a request for a pod) and its
        pod. ``shutdown_time``: this time in RFC 3339 format. Raises ``ClaimLost`` if the claim does
        not exist, and ``ClusterError`` for other failures."""
        body = {"spec": {"lifecycle": {"shutdownTime": shutdown_time}}}
        return _decode(await self._send("PATCH", f"sandboxclaims/{name}", body))

    async def delete(self, name: str) -> None:
        """Delete a sandbox claim (a request for a pod) and its pod. If the claim does not exist, do
        nothing. Raises ``ClusterError``."""
        try:
            await self._send("DELETE", f"sandboxclaims/{name}")
        except ClaimLost:
            pass

    async def watch(
        self, claim: SandboxClaim, seconds: float
    ) -> AsyncGenerator[SandboxClaim, None]:
        """Yield the new state of a sandbox claim (a request for a pod) whenever the claim changes.
        ``seconds``: maximum duration of the watch. Raises ``ClaimLost`` if the claim is deleted.
        Raises ``ClusterError`` for other failures."""
        import aiohttp

        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={claim.metadata.name}",
            "resourceVersion": claim.metadata.resourceVersion,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        try:
            async with self._session.get(
                f"{self._url}{_GROUP}/namespaces/{self.namespace}/sandboxclaims",
                params=query,
                headers=self._headers(),
                timeout=aiohttp.ClientTimeout(total=seconds + _TIMEOUT_S),
                read_bufsize=_MAX_EVENT_BYTES,
            ) as response:
                await _check_status(response)
                async for line in response.content:
                    event = msgspec.json.decode(line, type=_WatchEvent)
                    if event.type == "DELETED":
                        raise ClaimLost("the claim was deleted")
                    if event.type not in ("ADDED", "MODIFIED"):  # for example 410: version too old
                        return
                    yield _decode(event.object)
        except (aiohttp.ClientError, TimeoutError, ValueError, msgspec.MsgspecError) as error:
            raise ClusterError(_reason(error)) from None

    async def close(self) -> None:
        """Close the connections to the Kubernetes API."""
        await self._session.close()

    async def _send(self, method: str, path: str, body: object = None) -> bytes:
        import aiohttp

        url = f"{self._url}{_GROUP}/namespaces/{self.namespace}/{path}"
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            async with self._session.request(
                method,
                url,
                data=None if body is None else msgspec.json.encode(body),
                headers={**self._headers(), "content-type": kind},
            ) as response:
                await _check_status(response)
                return await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ClusterError(_reason(error)) from None

    def _headers(self) -> dict[str, str]:
        try:
            token = (self._credentials / "token").read_text("utf-8").strip()
        except OSError as error:
            raise ClusterError(f"the token cannot be read: {error.strerror}") from None
        return {"authorization": f"Bearer {token}", "accept": "application/json"}


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    try:
        message = str((await response.json(content_type=None))["message"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP status {response.status}"
    raise (ClaimLost if response.status == 404 else ClusterError)(message)


def _decode(raw: bytes | msgspec.Raw) -> SandboxClaim:
    try:
        return msgspec.json.decode(raw, type=SandboxClaim)
    except msgspec.MsgspecError as error:
        raise ClusterError(f"the Kubernetes API's answer is invalid: {error}") from None


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
