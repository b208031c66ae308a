"""The connection options of an upstream (``engine_options`` of a model), and the upstream's list of
models.

All remote engines and embedders have the same connection options.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.errors import BackendError, SetupError

from .client import Upstream
from .routers import find_router


class EndpointOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``engine_options`` of a remote model.

    - ``flavour``: the kind of server. It is needed only if the upstream's list of models does not
      show the kind.
    - ``headers``: headers that are sent with every request.
    - ``body``: fields that are added to every request body.
    - ``connect_s``: time limit for opening a connection, in seconds.
    - ``silence_s``: maximum time without data from the upstream, in seconds.
    - ``hears`` (not for the engine ``completions``): whether the upstream's model hears.
    - ``tools`` (only for the engine ``responses``): types of hosted tools that the upstream runs.
    - ``tokenizer`` (only for the engine ``completions``): the location of the model's tokenizer.
    - ``router``: the kind of router at the upstream's address. It comes from the model's setting
      ``router``.
    """

    flavour: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    connect_s: float = 10
    silence_s: float = 600
    hears: bool = True
    tools: list[str] = field(default_factory=list)
    tokenizer: str | None = None
    router: str | None = None


@asynccontextmanager
async def connecting(
    name: str, url: str, key: str | None, options: Mapping[str, object] | None
) -> AsyncIterator[tuple[Upstream, EndpointOptions]]:
    """Yield the client for the upstream of the model ``name``, and the parsed options. The block
    finds out what the upstream can do. If the block raises an exception, the client is closed, and
    a ``BackendError`` becomes a ``SetupError``. Raises ``SetupError`` for invalid options."""
    upstream, endpoint = _open_upstream(name, url, key, options or {})
    try:
        yield upstream, endpoint
    except BaseException as error:
        await upstream.close()
        if isinstance(error, BackendError):
            raise SetupError(f"model {name}: {error.message}") from None
        raise


@asynccontextmanager
async def connecting_model(
    name: str, url: str, key: str | None, model: str | None, options: Mapping[str, object] | None
) -> AsyncIterator[tuple[Upstream, Mapping[str, object]]]:
    """Yield the client for the upstream of the model ``name``, and the fields of every request
    body. ``model``: the model's name on the upstream; None selects the first one in the upstream's
    list. See ``connecting``."""
    async with connecting(name, url, key, options) as (upstream, endpoint):
        model = model or first_model_id(name, upstream, await list_models(upstream))
        yield upstream, {**endpoint.body, "model": model}


class UpstreamModel:
    """Base class of clients of a model for one task, such as embeddings, on an upstream.
    ``upstream``: the HTTP client; ``close`` closes it. ``body``: fields of every request, such as
    the name of the model."""

    def __init__(self, upstream: Upstream, body: Mapping[str, object]) -> None:
        self._upstream = upstream
        self._body = dict(body)

    async def _request(self, path: str, fields: Mapping[str, object], wait_s: float) -> Any:
        """Send a request to the endpoint at ``path`` below ``/v1``, and return the JSON of the
        answer. ``wait_s``: seconds to wait for it. Raises ``BackendError``."""
        url = f"{self._upstream.versioned_url}/{path}"
        return await self._upstream.request_json(url, {**self._body, **fields}, wait_s=wait_s)

    async def close(self) -> None:
        """Close the connections to the upstream."""
        await self._upstream.close()


def _open_upstream(
    name: str, url: str, key: str | None, options: Mapping[str, object]
) -> tuple[Upstream, EndpointOptions]:
    try:
        endpoint = msgspec.convert(dict(options), EndpointOptions)
    except msgspec.ValidationError as error:
        raise SetupError(f"models.{name}.engine_options: {error}") from None
    try:
        router = find_router(endpoint.router)
    except SetupError as error:
        raise SetupError(f"models.{name}.router: {error}") from None
    upstream = Upstream(
        url,
        key=key,
        headers=endpoint.headers,
        connect_s=endpoint.connect_s,
        silence_s=endpoint.silence_s,
        router=router,
    )
    return upstream, endpoint


def model_entries(listed: object) -> list[Mapping[str, Any]]:
    """Return the entries of an upstream's list of models. Entries that are not objects are left
    out."""
    models = listed.get("data") if isinstance(listed, Mapping) else None
    entries = models if isinstance(models, list) else []
    return [each for each in entries if isinstance(each, Mapping)]


def model_owner(listed: object) -> str | None:
    """Return the field ``owned_by`` of the first model in a list, or None. In this field, many
    servers write the name of their own software, such as "vllm"."""
    return next((each.get("owned_by") for each in model_entries(listed)), None)


def first_model_id(name: str, upstream: Upstream, listed: object) -> str:
    """Return the id of the first model in the upstream's list. Raises ``SetupError`` if the list
    has no model with an id."""
    for model in model_entries(listed):
        if isinstance(model.get("id"), str):
            return str(model["id"])
    raise SetupError(
        f"model {name}: {upstream.url} does not say what models it has: set upstream_model"
    )


async def list_models(upstream: Upstream) -> Any:
    """Fetch the upstream's list of models. Returns None if the request fails."""
    try:
        return await upstream.request_json(f"{upstream.versioned_url}/models", wait_s=10)
    except BackendError:
        return None
