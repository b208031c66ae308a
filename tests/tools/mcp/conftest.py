"""A real MCP server, as a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .process import Toys, running


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    """One for all tests that leave it as it was."""
    with running(tmp_path_factory.mktemp("toys") / "log") as found:
        yield found
