"""A short run of Schemathesis; ``make schemathesis`` runs it long."""

from __future__ import annotations

import pytest

from tests.schemathesis.__main__ import run


@pytest.mark.e2e
@pytest.mark.requirement("OPENAPI-TRUE")
def test_generated_requests_are_answered_as_documented() -> None:
    status, report = run(examples=1, phases="fuzzing")
    assert status == 0, report
