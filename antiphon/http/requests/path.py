"""What a request says of its object: the tenant, and the ids in the path."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request

from antiphon.http.middleware.request_context import request_context


def tenant_of(request: Request) -> str:
    """Return the tenant of a request."""
    return request_context(request.scope).tenant


def path_param(name: str) -> Callable[[Request], str]:
    """Return a function that returns the parameter ``name`` in the path of a request."""
    return lambda request: str(request.path_params[name])


def object_key(name: str) -> Callable[[Request], tuple[str, str]]:
    """Return a function that returns the tenant of a request, and the id in its path. ``name``: the
    parameter with the id."""
    return lambda request: (tenant_of(request), str(request.path_params[name]))
