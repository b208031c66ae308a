"""How an upstream is reached: what a model's ``engine_options`` may say of it, and what it serves.

One declaration for all the engines that are somewhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.errors import BackendError, SetupError

from .client import Upstream

__all__ = ["EndpointOptions", "entries", "listing", "only_model", "owner_of", "reach"]


class EndpointOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``flavour``: whose server it is, where asking it does not tell. ``headers`` go with every
    request, ``body`` into it. ``connect_s``, ``silence_s``: the longest waits, in seconds.
    For the engine ``responses``: ``tools``, types of hosted tools that the upstream runs itself.
    For the engine ``completions``: ``tokenizer``, where that of its model is."""

    flavour: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    connect_s: float = 10
    silence_s: float = 600
    tools: list[str] = field(default_factory=list)
    tokenizer: str | None = None


def reach(
    name: str, url: str, key: str | None, options: Mapping[str, Any]
) -> tuple[Upstream, EndpointOptions]:
    """The upstream of the model ``name``, and what was set of it. Raises ``SetupError``."""
    try:
        told = msgspec.convert(dict(options), EndpointOptions)
    except msgspec.ValidationError as error:
        raise SetupError(f"models.{name}.engine_options: {error}") from None
    upstream = Upstream(
        url, key=key, headers=told.headers, connect_s=told.connect_s, silence_s=told.silence_s
    )
    return upstream, told


def entries(listed: Any) -> list[Mapping[str, Any]]:
    """What a list of models holds."""
    models = listed.get("data") if isinstance(listed, Mapping) else None
    found = models if isinstance(models, list) else []
    return [each for each in found if isinstance(each, Mapping)]


def owner_of(listed: Any) -> str | None:
    """Who owns the first model; local servers name themselves."""
    return next((each.get("owned_by") for each in entries(listed)), None)


def only_model(name: str, upstream: Upstream, listed: Any) -> str:
    """The first model that the upstream lists. Raises ``SetupError`` where it lists none."""
    for model in entries(listed):
        if isinstance(model.get("id"), str):
            return str(model["id"])
    raise SetupError(
        f"model {name}: {upstream.url} does not say what models it has: set upstream_model"
    )


async def listing(upstream: Upstream) -> Any:
    """The upstream's list of models; None where it gives none."""
    try:
        return await upstream.ask(f"{upstream.versioned}/models", wait_s=10)
    except BackendError:
        return None
