"""Options and fixtures that all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

#: `make fuzz`; properties that set a number of examples themselves keep it.
settings.register_profile("fuzz", max_examples=2_000, deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the goldens again")
    parser.addoption("--kills", type=int, default=4, help="how often a server is killed (durable)")


@pytest.fixture(scope="session")
def kills(request: pytest.FixtureRequest) -> int:
    """How often a test that kills servers does so."""
    return int(request.config.getoption("--kills"))
