"""Choose the replica of an upstream for each request, and track which replicas are down.

Replicas are servers that serve the same model. Rendezvous hashing assigns each session (the
requests of one conversation) to a replica. A session moves to another replica only if its replica
is down or has clearly more requests than the other replicas. This module does no I/O: the caller
sends requests, probes replicas and reports the results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import blake2b
from math import ceil
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.errors import BackendError, SetupError

from .errors import UpstreamDown

#: Prefix of an address whose host name resolves to several replicas: ``dns+http://engines:8000``.
DNS_PREFIX = "dns+"
#: Sessions move away from a replica with more requests than the average times the first number
#: ("consistent hashing with bounded loads"). They stay if it has fewer requests than the second
#: number.
_LOAD_FACTOR, _MIN_LOAD = 1.25, 16
#: Number of failures in a row after which a replica counts as down although it answers.
_MAX_FAILURES = 3
#: Seconds before the first probe of a replica that is down, and longest time between two probes.
_FIRST_PROBE_S, _MAX_PROBE_S = 1.0, 10.0
#: Maximum number of seconds in a replica's ``Retry-After`` header. Longer times are shortened.
_MAX_RETRY_AFTER_S = 30.0


class Replica(Struct, eq=False, kw_only=True):
    """One server of an upstream.

    - ``root``: the address of the server without a final ``/v1``.
    - ``host``: the host name of the server, if ``root`` contains its IP address.
    - ``running``: number of requests that the server is working on.
    - ``failures``: number of failed requests since the last successful request.
    - ``outages``: number of times that the server was marked as down since the last successful
      request.
    - ``is_probing``: whether a task probes the server.
    - ``probe_at``: time of the next probe, if the server is down.
    """

    root: str
    host: str | None = None
    running: int = 0
    failures: int = 0
    outages: int = 0
    is_down: bool = False
    is_probing: bool = False
    probe_at: float = 0.0


class ReplicaPool:
    """Chooses the replica of one upstream for each request, and tracks which replicas are down.
    ``roots``: the addresses of the replicas. ``clock`` returns monotonic seconds."""

    def __init__(self, roots: Iterable[str], clock: Callable[[], float]) -> None:
        self._replicas = tuple(Replica(root=root) for root in roots)
        self._clock = clock

    def __len__(self) -> int:
        return len(self._replicas)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def replace(self, roots: Collection[str], host: str) -> None:
        """Replace the set of replicas with the servers at ``roots``. ``host``: the host name of all
        these servers.

        For a replica that stays in the set, nothing changes; for example, it stays marked as down.
        Running requests to a removed replica continue.
        """
        known = {each.root: each for each in self._replicas}
        self._replicas = tuple(
            known.get(root) or Replica(root=root, host=host) for root in dict.fromkeys(roots)
        )

    def choose(self, session_key: str | None, tried: Collection[Replica] = ()) -> Replica:
        """Choose the replica for a request. Replicas that are up are preferred.

        ``session_key``: identifies the conversation of the request. Requests with the same key go
        to the same replica if possible. If the key is None, the replica with the fewest running
        requests is chosen. ``tried``: the replicas that have already failed this request. Such a
        replica is chosen only if all replicas have failed the request.
        """
        candidates = (
            [each for each in self._replicas if each not in tried and not each.is_down]
            or [each for each in self._replicas if each not in tried]
            or [each for each in self._replicas if not each.is_down]
            or list(self._replicas)
        )
        if len(candidates) == 1:
            return candidates[0]
        if session_key is None:
            return min(candidates, key=lambda each: each.running)
        candidates.sort(key=lambda each: _weight(session_key, each.root), reverse=True)
        running = sum(each.running for each in candidates) + 1
        limit = max(_MIN_LOAD, ceil(running / len(candidates) * _LOAD_FACTOR))
        return next((each for each in candidates if each.running < limit), candidates[0])

    def has_others(self, tried: Collection[Replica]) -> bool:
        """Return whether a replica is up and not in ``tried``."""
        return any(not each.is_down and each not in tried for each in self._replicas)

    def find_unprobed(self) -> list[Replica]:
        """Return the replicas that are down and that no task probes."""
        return [each for each in self._replicas if each.is_down and not each.is_probing]

    def probe_delay_s(self, replica: Replica) -> float | None:
        """Return the seconds until the next probe of a replica. Returns None if the replica is up
        or no longer in the pool."""
        if not replica.is_down or replica not in self._replicas:
            return None
        return max(0.0, replica.probe_at - self._clock())

    def report_success(self, replica: Replica) -> None:
        """Report that a replica has answered a request. The replica then counts as up, and its
        number of failures becomes 0."""
        replica.failures, replica.outages, replica.is_down = 0, 0, False

    def report_up(self, replica: Replica) -> None:
        """Report that a replica has answered a probe. The replica then counts as up. Its earlier
        failures still count until it answers a request, so a new failure may mark it as down at
        once."""
        replica.is_down = False

    def report_failed_probe(self, replica: Replica) -> None:
        """Report that a replica has not answered a probe. It stays down until a later probe."""
        self._mark_down(replica, None)

    def report_failure(self, replica: Replica, error: BackendError) -> None:
        """Report that a replica has failed a request.

        - A replica that does not answer or sends ``Retry-After`` is marked as down immediately.
        - A replica that answers with errors is marked as down after several failures in a row.

        When a replica dies, all its requests fail at the same time. These failures count as one
        outage, so they do not make the pause before the next probe longer.
        """
        if error.permanent:
            return  # the request caused the error, not the replica
        replica.failures += 1
        waits = error.retry_after_s is not None
        is_failed = isinstance(error, UpstreamDown) or replica.failures >= _MAX_FAILURES
        if (is_failed or waits) and not replica.is_down:
            self._mark_down(replica, error.retry_after_s)

    def _mark_down(self, replica: Replica, retry_after_s: float | None) -> None:
        pause_s = min(_FIRST_PROBE_S * 2**replica.outages, _MAX_PROBE_S)
        if retry_after_s is not None:
            pause_s = min(retry_after_s, _MAX_RETRY_AFTER_S)
        replica.is_down = True
        replica.outages = min(replica.outages + 1, 10)
        replica.probe_at = self._clock() + pause_s


def split_addresses(text: str) -> list[str]:
    """Split a list of addresses separated by commas.

    Raises ``SetupError`` for an invalid address and for addresses with different paths. An address
    that begins with ``dns+`` must be the only address.
    """
    addresses = [part.strip().rstrip("/") for part in text.split(",") if part.strip()]
    for address in addresses or [text]:
        if not address.removeprefix(DNS_PREFIX).startswith(("http://", "https://")):
            raise SetupError(f"invalid upstream address {address!r}: it must begin with http(s)://")
    paths = {urlsplit(each.removeprefix(DNS_PREFIX)).path for each in addresses}
    if len(paths) > 1:
        raise SetupError(f"the addresses of one upstream must have the same path: {text}")
    if len(addresses) > 1 and any(each.startswith(DNS_PREFIX) for each in addresses):
        raise SetupError(f"an address with {DNS_PREFIX} must be the only one: {text}")
    return addresses


def _weight(session_key: str, root: str) -> bytes:
    """Return the weight of a replica for a session. Rendezvous hashing prefers the replica with the
    largest weight."""
    return blake2b(f"{session_key} {root}".encode(), digest_size=8).digest()
