"""How the backends of upstreams are made: which model, whose server, what it is told besides.

It asks the upstream once what it has. An upstream that is not there yet does not keep the server
from starting, as long as nothing has to be asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from antiphon.backends.remote.chat_completions.backend import ChatCompletionsBackend
from antiphon.backends.remote.responses.backend import ResponsesBackend
from antiphon.dialects.base import Parser
from antiphon.dialects.formats.registry import SHIPPED, Formats
from antiphon.dialects.parser.parser import FormatParser
from antiphon.errors import SetupError
from antiphon.upstream.client import Upstream
from antiphon.upstream.endpoint import listing, only_model, owner_of, reach

from .chat_completions import servers as chat_flavours
from .responses import servers as responses_flavours

__all__ = ["chat_completions", "responses"]

_Row = TypeVar("_Row", chat_flavours.ChatFlavour, responses_flavours.ResponsesFlavour)


async def chat_completions(
    name: str,
    url: str,
    *,
    key: str | None = None,
    model: str | None = None,
    context_size: int | None = None,
    reasoning_format: str | None = None,
    formats: Formats = SHIPPED,
    template: Mapping[str, Any] | None = None,
    adapters: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> ChatCompletionsBackend:
    """The model of the server at ``url`` that it calls ``model``, or its first one. ``name``: what
    it is called here. ``reasoning_format``: how thinking is marked in the text it answers, where it
    does not tell it apart, one of ``formats``. Raises ``SetupError``."""
    reader = _reader(name, reasoning_format, formats)
    upstream, told = reach(name, url, key, options or {})
    model, flavour = await _found(name, upstream, model, told.flavour, chat_flavours.FLAVOURS)
    return ChatCompletionsBackend(
        upstream,
        model,
        flavour,
        context_size=context_size,
        body=told.body,
        template=template,
        reader=reader,
        adapters=adapters,
    )


async def responses(
    name: str,
    url: str,
    *,
    key: str | None = None,
    model: str | None = None,
    context_size: int | None = None,
    template: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> ResponsesBackend:
    """The model of the server of the Responses API at ``url``. As ``chat_completions``."""
    upstream, told = reach(name, url, key, options or {})
    rows = responses_flavours.FLAVOURS
    model, flavour = await _found(name, upstream, model, told.flavour, rows)
    return ResponsesBackend(
        upstream,
        model,
        flavour,
        context_size=context_size,
        body=told.body,
        template=template,
        hosted_tools=frozenset(told.tools),
    )


async def _found(
    name: str, upstream: Upstream, model: str | None, told: str | None, rows: Mapping[str, _Row]
) -> tuple[str, _Row]:
    """Which model, and whose server it is: as the operator says, or by its host or its list of
    models; ``plain`` if nothing tells. The upstream is closed where that fails."""
    try:
        listed = None if model and told else await listing(upstream)
        row = _told(name, told, rows) if told else _listed(upstream, listed, rows)
        return model or only_model(name, upstream, listed), row
    except BaseException:
        await upstream.close()
        raise


def _told(name: str, told: str, rows: Mapping[str, _Row]) -> _Row:
    if told not in rows:
        raise SetupError(
            f"models.{name}.engine_options.flavour: there is no {told!r}"
            f" (there are: {', '.join(rows)})"
        )
    return rows[told]


def _listed(upstream: Upstream, listed: Any, rows: Mapping[str, _Row]) -> _Row:
    host, owner = urlsplit(upstream.url).hostname, owner_of(listed)
    for row in rows.values():
        if host in row.hosts or owner in row.owners:
            return row
    return rows["plain"]


def _reader(
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
        _Spelled(),
        reasoning=form,
        tools=None,
        shapes={},
        thinking=False,
        parallel=True,
    )


class _Spelled:
    """``Tokenizer`` of a model that only its text is known of."""

    special: Mapping[str, int] = {}
    end_ids: frozenset[int] = frozenset()
    size = 0

    def encode(self, text: str, *, special: bool) -> list[int]:
        return []

    def piece(self, token: int) -> bytes:
        return b""
