"""Routes from the operations that endpoints declare."""

from __future__ import annotations

import pytest

from antiphon.http.middleware.auth import AuthConfig
from antiphon.http.openapi.operation import Operation, Permission
from antiphon.http.router import routes_of


class App:
    operation = Operation(
        route="GET /secret", id="getSecret", permission=Permission(("operator",), "read secrets")
    )


def test_permission_that_nobody_would_check_is_refused() -> None:
    with pytest.raises(ValueError, match="getSecret"):
        routes_of(AuthConfig(), App())
