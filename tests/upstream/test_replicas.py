"""The choice among replicas, and what happens when some of them fail."""

from __future__ import annotations

import pytest

from antiphon.errors import BackendError, SetupError
from antiphon.upstream.errors import UpstreamDown
from antiphon.upstream.replicas import ReplicaPool, split_addresses

ROOTS = [f"http://engine-{number}" for number in range(4)]
DOWN = UpstreamDown("The upstream cannot be reached.")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def pool(clock: Clock | None = None) -> ReplicaPool:
    return ReplicaPool(ROOTS, clock or Clock())


def test_session_stays_on_its_replica() -> None:
    first = {key: pool().choose(key).root for key in map(str, range(200))}
    again = {key: pool().choose(key).root for key in first}
    assert again == first
    counts = [list(first.values()).count(root) for root in ROOTS]
    assert min(counts) > 30


def test_only_the_sessions_of_a_lost_replica_move() -> None:
    replicas = pool()
    before = {key: replicas.choose(key) for key in map(str, range(200))}
    lost = before["0"]
    replicas.report_failure(lost, DOWN)
    for key, replica in before.items():
        chosen = replicas.choose(key)
        assert chosen is not lost
        assert chosen is replica or replica is lost


def test_sessions_leave_a_replica_with_too_many_requests() -> None:
    replicas = pool()
    favourite = replicas.choose("one")
    favourite.running = 50
    assert replicas.choose("one") is not favourite
    favourite.running = 15  # a small difference is cheaper than another prefix cache
    assert replicas.choose("one") is favourite


def test_without_a_session_the_least_loaded_replica_is_chosen() -> None:
    replicas = pool()
    for _ in range(8):
        replicas.choose(None).running += 1
    assert sorted(replicas.choose(None).running for _ in range(4)) == [2, 2, 2, 2]


def test_replica_is_down_until_a_probe_answers() -> None:
    clock = Clock()
    replicas = pool(clock)
    lost = replicas.choose("one")
    replicas.report_failure(lost, DOWN)
    assert lost.is_down and replicas.find_unprobed() == [lost]
    assert replicas.probe_delay_s(lost) == 1
    clock.now += 1
    assert replicas.probe_delay_s(lost) == 0
    replicas.report_failed_probe(lost)
    assert replicas.probe_delay_s(lost) == 2
    replicas.report_up(lost)
    assert replicas.choose("one") is lost and replicas.probe_delay_s(lost) is None


def test_requests_that_fail_together_are_one_outage() -> None:
    replicas = pool()
    lost = replicas.choose("one")
    for _ in range(32):
        replicas.report_failure(lost, DOWN)
    assert replicas.probe_delay_s(lost) == 1


def test_replica_that_was_removed_is_not_probed() -> None:
    replicas = pool()
    lost = replicas.choose("one")
    replicas.report_failure(lost, DOWN)
    replicas.replace([root for root in ROOTS if root != lost.root], "engine")
    assert replicas.probe_delay_s(lost) is None


def test_single_errors_do_not_move_sessions() -> None:
    replicas = pool()
    chosen = replicas.choose("one")
    for _ in range(2):
        replicas.report_failure(chosen, BackendError("The upstream failed."))
    replicas.report_failure(chosen, BackendError("no such field", permanent=True))
    assert not chosen.is_down
    replicas.report_success(chosen)
    for _ in range(3):
        replicas.report_failure(chosen, BackendError("The upstream failed."))
    assert chosen.is_down


def test_replica_that_says_when_to_come_back_is_left_alone_until_then() -> None:
    clock = Clock()
    replicas = pool(clock)
    chosen = replicas.choose("one")
    replicas.report_failure(chosen, BackendError("busy", retry_after_s=7))
    clock.now += 6
    assert replicas.choose("one") is not chosen and replicas.probe_delay_s(chosen) == 1


def test_if_all_are_down_one_is_still_tried() -> None:
    replicas = pool()
    tried = []
    for _ in ROOTS:
        tried.append(replicas.choose("one", tried))
        replicas.report_failure(tried[-1], DOWN)
    assert len({each.root for each in tried}) == 4
    assert not replicas.has_others(tried)
    assert replicas.choose("one", tried) in tried


def test_replaced_replicas_keep_their_state() -> None:
    replicas = ReplicaPool(["http://10.0.0.1:80", "http://10.0.0.2:80"], Clock())
    old = replicas.choose(None)
    replicas.report_failure(old, DOWN)
    replicas.replace([old.root, "http://10.0.0.3:80"], "engines:80")
    chosen = replicas.choose(None)
    assert (chosen.root, chosen.host) == ("http://10.0.0.3:80", "engines:80")
    assert old.is_down and len(replicas) == 2


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("http://a:1/v1/", ["http://a:1/v1"]),
        ("http://a:1, http://b:2/", ["http://a:1", "http://b:2"]),
        ("dns+https://a/v1", ["dns+https://a/v1"]),
    ],
)
def test_addresses_are_split(text: str, addresses: list[str]) -> None:
    assert split_addresses(text) == addresses


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must begin with"),
        ("http://a,b", "must begin with"),
        ("dns+a:80", "must begin with"),
        ("http://a/v1,http://b", "same path"),
        ("http://a,dns+http://b", "must be the only one"),
    ],
)
def test_invalid_addresses_are_rejected(text: str, says: str) -> None:
    with pytest.raises(SetupError, match=says):
        split_addresses(text)
