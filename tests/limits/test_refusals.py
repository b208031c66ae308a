"""Refusals tell clients when to try again, and all of them are made in one place."""

from __future__ import annotations

import ast

import pytest

from antiphon.errors import Overloaded, RequestError
from antiphon.limits.refusals import (
    LimitState,
    limit_headers,
    limit_reached,
    quota_exceeded,
    refusal_headers,
    server_is_busy,
)
from tests.sources import PACKAGE, modules_with, nodes


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (limit_reached("3 requests per minute", retry_after_s=7), {"retry-after": "7"}),
        (server_is_busy("too many requests are waiting", retry_after_s=2), {"retry-after": "2"}),
        (quota_exceeded("files", max_files=1), {"x-should-retry": "false"}),
    ],
)
def test_refusal_says_whether_and_when_to_retry(
    error: RequestError, headers: dict[str, str]
) -> None:
    assert error.status == 429
    assert refusal_headers(error) == headers
    if isinstance(error, Overloaded):
        assert error.message.endswith(f"Please try again in {error.retry_after_s}s.")


def test_quota_names_the_limits_that_are_set() -> None:
    message = quota_exceeded("files", max_files=3, max_files_bytes=None).message
    assert "(max_files = 3)" in message


def test_headers_describe_the_nearest_limit() -> None:
    states = [LimitState(100, 20, 90.0), LimitState(10, -1, 3600.5)]
    assert limit_headers("tokens", states) == [
        (b"x-ratelimit-limit-tokens", b"10"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"x-ratelimit-reset-tokens", b"1h0m1s"),
    ]


def test_client_without_limits_gets_no_headers() -> None:
    assert limit_headers("requests", []) == []


def test_only_the_package_limits_refuses_with_429() -> None:
    """Other modules may raise ``Overloaded`` only with another status, such as 503."""
    makers = {
        str(path.relative_to(PACKAGE))
        for path in modules_with("Overloaded", "QuotaExceeded")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("Overloaded", "QuotaExceeded")
        and not any(each.arg == "status" for each in node.keywords)
    }
    assert makers == {"limits/refusals.py"}
