"""Options and fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from antiphon.store.base import Store
from tests.real.postgres import Postgres, postgres
from tests.stores import KINDS, open_empty_store
from tests.tools.mcp.process import Toys, run_server

#: Hypothesis's own profile for continuous integration: each run tests the same examples, and there
#: are no time limits, because on a busy machine they fail what is right.
settings.load_profile("ci")
#: `make fuzz`: other examples in each run. Properties with a number of their own:
#: ``hypothesis_settings.examples``.
settings.register_profile(
    "fuzz",
    settings.get_profile("default"),
    derandomize=False,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=2_000,
)

#: A file system in memory, on Linux.
MEMORY = Path("/dev/shm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the goldens again")
    parser.addoption("--pictures", action="store_true", help="make the docs' pictures again")
    parser.addoption("--every-mode", action="store_true", help="send requests in every mode")
    parser.addoption("--kills", type=int, default=1, help="how often a server is killed (durable)")


#: The files that take longest, the longest first. They start first: a long file that starts last
#: leaves the other cores idle.
SLOW_FILES = (
    "e2e/test_durable.py",
    "e2e/test_replicas.py",
    "store/test_contract.py",
    "e2e/test_tutorial.py",
    "e2e/test_process.py",
    "e2e/test_images.py",
    "test_linear_scanners.py",
    "golden/test_goldens.py",
    "dialects/test_published.py",
    "dialects/parser/test_values.py",
    "backends/remote/responses/test_stream_parser.py",
    "conformance/test_openapi.py",
    "simulation/test_simulation.py",
    "sandbox/test_escapes.py",
    "cli/test_main.py",
    "conformance/test_state.py",
    "conformance/test_mcp.py",
    "e2e/test_client.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude the collected tests from garbage collection, because they are many objects that exist
    until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure() -> None:
    """Log exceptions as plain tracebacks: structlog's default takes up to a second for each."""
    console = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], console])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests with server processes, also of PostgreSQL, which ``make e2e`` runs by this
    mark. Start with the files that take long, then the others that wait for servers of their own.
    """
    places = {Path(__file__).parent / name: place for place, name in enumerate(SLOW_FILES)}

    def place(item: pytest.Item) -> tuple[int, bool]:
        return places.get(item.path, len(places)), "e2e" not in item.path.parts

    for item in items:
        if "e2e" in item.path.parts or "database" in getattr(item, "fixturenames", ()):
            item.add_marker("e2e")
    items.sort(key=place)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of test processes: one more than CPU cores, or two more for ``make e2e``,
    whose tests wait for other processes. Each process imports and collects all tests, which takes
    as long as thousands of quick tests."""
    cores = os.cpu_count() or 1
    return cores + (1 if "not e2e" in config.option.markexpr else 2)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Send the main process only the reports that it counts. For most tests, the reports of a
    setup and a teardown that passed would take longer than the test.

    The main process needs all reports if it lists durations.
    """
    if not hasattr(item.config, "workerinput") or item.config.option.durations is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session", autouse=True)
def _frozen() -> Iterator[None]:
    """Keep the collected tests excluded from garbage collection. A server in this process would
    include them when it ends, and each later garbage collection would visit them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("freeze", "unfreeze"):
            patch.setattr(gc, name, lambda: None)
        yield


@pytest.fixture(scope="session")
def kills(request: pytest.FixtureRequest) -> int:
    """The number of times that a test kills servers."""
    return int(request.config.getoption("--kills"))


@pytest.fixture(scope="session")
def _postgres() -> Iterator[Postgres]:
    # On a disk, creating and dropping databases takes five times as long as in memory.
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2**30
    with postgres(MEMORY if has_room else None) as server:
        yield server


@pytest.fixture
def database(_postgres: Postgres) -> Iterator[Postgres]:
    """A real PostgreSQL server. A test creates new databases in it."""
    yield _postgres
    _postgres.give_back()


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    """A running MCP server with the tools of ``tests/tools/mcp/example_server.py``."""
    with run_server(tmp_path_factory.mktemp("toys") / "log") as running:
        yield running


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store. A test with this fixture runs once for each kind of store."""
    opened = await open_empty_store(request.param, request, tmp_path)
    yield opened
    await opened.close()
