"""Routes from the operations that endpoints declare."""

from __future__ import annotations

from pathlib import Path

import pytest

import antiphon.http.routes
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


def test_no_handler_asks_in_which_form_its_client_reads_answers() -> None:
    """The operation declares the form of each answer, and the router chooses it."""
    for path in Path(antiphon.http.routes.__path__[0]).rglob("*.py"):
        text = path.read_text()
        assert "is_messages_client" not in text and "anthropic-version" not in text, path
