"""A real MCP server in its own process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .process import Toys, run_server


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    """A server shared by the tests that do not change it."""
    with run_server(tmp_path_factory.mktemp("toys") / "log") as server:
        yield server
