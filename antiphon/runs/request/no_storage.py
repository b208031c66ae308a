"""Requests to a server that stores nothing: they are processed as if they had ``store: false``."""

from __future__ import annotations

from antiphon.errors import Forbidden
from antiphon.wire.request import CreateResponse


def without_storage(request: CreateResponse) -> CreateResponse:
    """Return the request with ``store: false``. Raises ``Forbidden`` if it asks for something that
    has to be stored."""
    if request.store:
        raise storage_disabled("store")
    if request.background:
        raise storage_disabled("background")
    if request.conversation is not None:
        raise storage_disabled("conversation")
    # Not ``replace``: what is computed once for the shape of the request assumes that it is stored.
    fields = {name: getattr(request, name) for name in CreateResponse.__struct_fields__}
    return CreateResponse(**{**fields, "store": False})


def storage_disabled(param: str | None = None) -> Forbidden:
    """Return the error for a request that asks the server to store something."""
    return Forbidden(
        "This server stores nothing: its operator has set store_nothing.",
        param=param,
        code="storage_disabled",
    )
