"""``--golden`` rewrites the goldens. The diff is then the change of behaviour."""

from __future__ import annotations

import pytest


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--golden"))
