"""Create remote backends, and find out the model and the kind of server of each upstream.

The upstream's list of models is requested once, at start. If the configuration names the model and
the kind of server, the list is not requested, so an upstream that is down does not delay the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from msgspec.structs import replace

from antiphon.backends.remote.chat_completions.backend import ChatCompletionsBackend
from antiphon.backends.remote.responses.backend import ResponsesBackend
from antiphon.dialects.base import Parser
from antiphon.dialects.formats.registry import SHIPPED, Formats
from antiphon.dialects.parser.parser import FormatParser
from antiphon.errors import SetupError
from antiphon.upstream.client import Upstream
from antiphon.upstream.endpoint import (
    EndpointOptions,
    connecting,
    first_model_id,
    list_models,
    model_owner,
)

from .chat_completions import servers as chat_servers
from .flavours import ServerFlavour
from .responses import servers as responses_servers

_Flavour = TypeVar("_Flavour", bound=ServerFlavour)


async def create_chat_backend(
    name: str,
    url: str,
    *,
    key: str | None = None,
    model: str | None = None,
    context_size: int | None = None,
    reasoning_format: str | None = None,
    formats: Formats = SHIPPED,
    template: Mapping[str, object] | None = None,
    adapters: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
) -> ChatCompletionsBackend:
    """Create the backend for an upstream server that offers the Chat Completions API.

    ``name``: the model's name in Antiphon's configuration. ``url``: the address of the upstream.
    ``key``: the API key of the upstream. ``model``: the model's name on the upstream; None selects
    the upstream's first model. ``context_size``: the context size of the model in tokens; None if
    it is not configured. ``reasoning_format``: the name of one of ``formats``, for an upstream that
    does not separate reasoning from the answer. The format says how the answer's text marks the
    reasoning. ``template``: arguments of the upstream's chat template. ``adapters``: name of a LoRA
    adapter in Antiphon → its name on the upstream. ``options``: see ``EndpointOptions``.

    Raises ``SetupError`` if an option is invalid, or if the upstream's list of models is needed but
    has no usable model.
    """
    reasoning_parser = _reasoning_parser(name, reasoning_format, formats)
    async with connecting(name, url, key, options) as (upstream, endpoint):
        model, flavour = await _resolve_model(
            name, upstream, model, endpoint, chat_servers.FLAVOURS
        )
    return ChatCompletionsBackend(
        upstream,
        model,
        flavour,
        context_size=context_size,
        body=endpoint.body,
        template=template,
        reasoning_parser=reasoning_parser,
        adapters=adapters,
    )


async def create_responses_backend(
    name: str,
    url: str,
    *,
    key: str | None = None,
    model: str | None = None,
    context_size: int | None = None,
    template: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
) -> ResponsesBackend:
    """Create the backend for an upstream server that offers the Responses API. The arguments have
    the same meaning as in ``create_chat_backend``."""
    rows = responses_servers.FLAVOURS
    async with connecting(name, url, key, options) as (upstream, endpoint):
        model, flavour = await _resolve_model(name, upstream, model, endpoint, rows)
    return ResponsesBackend(
        upstream,
        model,
        flavour,
        context_size=context_size,
        body=endpoint.body,
        template=template,
        hosted_tools=frozenset(endpoint.tools),
    )


async def _resolve_model(
    name: str,
    upstream: Upstream,
    model: str | None,
    endpoint: EndpointOptions,
    rows: Mapping[str, _Flavour],
) -> tuple[str, _Flavour]:
    """Return the name of the model on the upstream, and the kind of server.

    ``model``: the configured value, or None. ``rows``: all kinds of servers by name. If ``model``
    is None, the first model in the upstream's list of models is used. If ``endpoint`` names no
    kind, it is found by the upstream's host name or by its list of models. If neither identifies
    the kind, it is ``plain``.
    """
    flavour = endpoint.flavour
    listed = None if model and flavour else await list_models(upstream)
    row = (
        _flavour_by_name(name, flavour, rows)
        if flavour
        else _flavour_by_listing(upstream, listed, rows)
    )
    if not endpoint.hears:
        row = replace(row, hears=False)
    return model or first_model_id(name, upstream, listed), row


def _flavour_by_name(name: str, flavour: str, rows: Mapping[str, _Flavour]) -> _Flavour:
    if flavour not in rows:
        raise SetupError(
            f"models.{name}.engine_options.flavour: there is no {flavour!r}"
            f" (there are: {', '.join(rows)})"
        )
    return rows[flavour]


def _flavour_by_listing(
    upstream: Upstream, listed: object, rows: Mapping[str, _Flavour]
) -> _Flavour:
    host, owner = urlsplit(upstream.url).hostname, model_owner(listed)
    for row in rows.values():
        if host in row.hosts or owner in row.owners:
            return row
    return rows["plain"]


def _reasoning_parser(
    name: str, reasoning_format: str | None, formats: Formats
) -> Callable[[], Parser] | None:
    if reasoning_format is None:
        return None
    try:
        form = formats.reasoning_format(reasoning_format)
    except SetupError as error:
        raise SetupError(f"models.{name}.{error}") from None
    if form is None:
        return None
    return partial(
        FormatParser,
        _NoTokenizer(),
        reasoning=form,
        tools=None,
        shapes={},
        thinking=False,
        parallel=True,
    )


class _NoTokenizer:
    """``Tokenizer`` of a model whose output arrives only as text, without token ids."""

    special: Mapping[str, int] = {}
    end_ids: frozenset[int] = frozenset()
    size = 0

    def encode(self, text: str, *, special: bool) -> list[int]:
        return []

    def piece(self, token: int) -> bytes:
        return b""
