"""``--golden`` lets the goldens say what happens now; the diff is then the change."""

from __future__ import annotations

import pytest


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--golden"))
