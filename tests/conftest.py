"""Options and fixtures that all tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from antiphon.store.base import Store
from antiphon.testing.postgres import Postgres, postgres
from tests.stores import KINDS, open_empty_store

#: How long an example takes, or is made, is no matter of these tests: on a busy machine the time
#: limits of Hypothesis fail what is right.
_UNTIMED = settings(
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("default", _UNTIMED)
settings.load_profile("default")
#: `make fuzz`. Properties with a number of their own: ``searching.examples``.
settings.register_profile("fuzz", _UNTIMED, max_examples=2_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the goldens again")
    parser.addoption("--pictures", action="store_true", help="make the docs' pictures again")
    parser.addoption("--kills", type=int, default=1, help="how often a server is killed (durable)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for servers of its own comes first: last, it would leave the other cores idle."""
    items.sort(key=lambda item: "e2e" not in item.path.parts)


@pytest.fixture(scope="session")
def kills(request: pytest.FixtureRequest) -> int:
    """How often a test that kills servers does so."""
    return int(request.config.getoption("--kills"))


@pytest.fixture(scope="session")
def _postgres() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture
def database(_postgres: Postgres) -> Iterator[Postgres]:
    """A real PostgreSQL; a test takes fresh databases of it."""
    yield _postgres
    _postgres.give_back()


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store. A test with it runs over each kind of store."""
    opened = await open_empty_store(request.param, request, tmp_path)
    yield opened
    await opened.close()
