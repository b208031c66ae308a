"""The replicas of an upstream: chooses the replica for a request, and tracks which replicas are
down.

Rendezvous hashing assigns each session to a replica. The session stays there unless the replica is
down or has clearly more requests than the other replicas. Sans-IO: the caller sends requests,
probes replicas and reports the results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from math import ceil
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.errors import BackendError, SetupError

from .errors import UpstreamDown

__all__ = ["DNS_PREFIX", "Replica", "ReplicaPool", "split_addresses"]

#: Prefix of an address whose name stands for several replicas: ``dns+http://engines:8000``.
DNS_PREFIX = "dns+"
#: A replica may have this many times as many requests as the average before its sessions move
#: ("consistent hashing with bounded loads"), and always this many.
_LOAD_FACTOR, _MIN_LOAD = 1.25, 16
#: Failures in a row after which a replica that still answers is down.
_MAX_FAILURES = 3
#: Seconds before a replica that is down is probed: the first time, and at most.
_FIRST_PROBE_S, _MAX_PROBE_S = 1.0, 10.0
#: The longest time in seconds that a replica's ``Retry-After`` is obeyed.
_MAX_RETRY_AFTER_S = 30.0


class Replica(Struct, eq=False, kw_only=True):
    """One server of an upstream.

    ``root``: the address of the server without a final ``/v1``. ``host``: the host name of the
    server, if ``root`` contains its IP address. ``running``: the number of requests that the server
    is working on. ``failures``: the number of requests in a row that have failed. ``outages``: how
    often the server was marked as down since it last answered a request. ``probe_at``: time of the
    next probe, if ``is_down``.
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
    """The replicas of one upstream. ``clock`` returns monotonic seconds."""

    def __init__(self, roots: Iterable[str], clock: Callable[[], float]) -> None:
        self._replicas = tuple(Replica(root=root) for root in roots)
        self._clock = clock

    def __len__(self) -> int:
        return len(self._replicas)

    def replace(self, roots: Collection[str], host: str) -> None:
        """Replace the set of replicas with the servers at ``roots``. All of them have the host name
        ``host``.

        A replica that stays in the set keeps its state. Running requests of a removed replica
        continue there.
        """
        known = {each.root: each for each in self._replicas}
        self._replicas = tuple(
            known.get(root) or Replica(root=root, host=host) for root in dict.fromkeys(roots)
        )

    def choose(self, session_key: str | None, tried: Collection[Replica] = ()) -> Replica:
        """Choose the replica for a request.

        ``tried``: the replicas that have already failed this request. They are chosen only if there
        is no other. Without a session, the replica with the fewest running requests is chosen.
        """
        candidates = (
            [each for each in self._replicas if each not in tried and not each.is_down]
            or [each for each in self._replicas if each not in tried]
            or [each for each in self._replicas if not each.is_down]
            or list(self._replicas)
        )
        if session_key is None:
            return min(candidates, key=lambda each: each.running)
        candidates.sort(key=lambda each: _weight(session_key, each.root), reverse=True)
        running = sum(each.running for each in candidates) + 1
        limit = max(_MIN_LOAD, ceil(running / len(candidates) * _LOAD_FACTOR))
        return next((each for each in candidates if each.running < limit), candidates[0])

    def has_others(self, tried: Collection[Replica]) -> bool:
        """Whether there is a replica that is up and has not been tried."""
        return any(not each.is_down and each not in tried for each in self._replicas)

    def unprobed(self) -> list[Replica]:
        """The replicas that are down and are not probed yet."""
        return [each for each in self._replicas if each.is_down and not each.is_probing]

    def probe_delay_s(self, replica: Replica) -> float | None:
        """Return the seconds until the next probe of a replica. Return None if the replica is up or
        no longer in the pool."""
        if not replica.is_down or replica not in self._replicas:
            return None
        return max(0.0, replica.probe_at - self._clock())

    def report_success(self, replica: Replica) -> None:
        """A request was answered."""
        replica.failures, replica.outages, replica.is_down = 0, 0, False

    def report_up(self, replica: Replica) -> None:
        """Report that a replica has answered a probe. It is up again. Its failures in a row are
        still counted, until it answers a request."""
        replica.is_down = False

    def report_failed_probe(self, replica: Replica) -> None:
        """Report that a replica has not answered a probe. It stays down until a later probe."""
        self._mark_down(replica, None)

    def report_failure(self, replica: Replica, error: BackendError) -> None:
        """Report that a replica has failed a request.

        The replica is down at once if it does not answer or sends ``Retry-After``. If it answers
        with errors, it is down after several failures in a row. When a replica dies, all its
        requests fail at the same time; these failures count as one outage.
        """
        if error.permanent:
            return  # the request's own fault
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

    Raises ``SetupError`` for an invalid address, for addresses with different paths, and for
    several addresses of which one begins with ``dns+``.
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
    """The weight of a replica for a session (rendezvous hashing)."""
    return blake2b(f"{session_key} {root}".encode(), digest_size=8).digest()
