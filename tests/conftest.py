"""Options and fixtures that all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

#: `make fuzz`; properties that set a number of examples themselves keep it.
settings.register_profile("fuzz", max_examples=2_000, deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the goldens again")
