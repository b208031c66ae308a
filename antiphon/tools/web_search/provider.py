"""web_search, as responses have it: three functions for the model, ``web_search_call`` items for
the client, citations in the answer. It does not know where pages come from.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from antiphon.errors import ToolError
from antiphon.tools.arguments import parse_arguments
from antiphon.tools.base import CallContext, ResponseContext, Result, Step, ToolFunction, Toolset
from antiphon.wire import tools as tl
from antiphon.wire.items import Item, WebSearchCall

from .browser import Browser, Shown, Source
from .citations import of_pages
from .page import Page, domain
from .request import asked_by, check, place

__all__ = ["TYPES", "WebSearch"]

#: The types of tools that are this one.
TYPES = (
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)
_NAMESPACE = "browser"
_SOURCES, _RESULTS = "web_search_call.action.sources", "web_search_call.results"

_NUMBER = re.compile(r"-?\d{1,9}")
_CURSOR = {"type": "integer", "description": "The number of a page that was shown; the last one."}
_FUNCTIONS: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "search": (
        "Searches for information and shows results as numbered links 【id†title†domain】.",
        {"query": {"type": "string"}},
        ("query",),
    ),
    "open": (
        "Opens link `id` of the page `cursor`, or a URL given as `id`, from line `loc` on. Without"
        " `id`: scrolls in that page. Cite what you use as 【cursor†L3-L5】, with the number in"
        " brackets that stands before the page and the lines.",
        {
            "id": {"type": ["integer", "string"]},
            "cursor": _CURSOR,
            "loc": {"type": "integer"},
            "num_lines": {"type": "integer"},
        },
        (),
    ),
    "find": (
        "Finds exact text in the page `cursor`.",
        {"pattern": {"type": "string"}, "cursor": _CURSOR},
        ("pattern",),
    ),
}

#: What a call is before its arguments are known: clients want to see a whole action.
_BEGUN: Mapping[str, Mapping[str, Any]] = {
    "search": {"type": "search", "query": "", "queries": []},
    "open": {"type": "open_page", "url": None},
    "find": {"type": "find_in_page", "url": "", "pattern": ""},
}

_Step = Callable[[Browser, Mapping[str, Any], int], Awaitable[Shown]]


class WebSearch:
    """``Provider`` over a source, which it does not own. ``is_external``: it goes to the web, which
    a request may forbid (``external_web_access``)."""

    def __init__(self, source: Source, *, is_external: bool) -> None:
        self._source = source
        self._is_external = is_external

    def check(self, tool: Any, path: str) -> None:
        check(tool, path)

    def lead(self, tool: Any, opening: ResponseContext) -> Item | None:
        return None

    @asynccontextmanager
    async def open(self, tool: Any, opening: ResponseContext) -> AsyncIterator[Toolset]:
        if self._is_external and tool.external_web_access is False:
            yield Toolset()
            return
        browser = Browser(self._source, asked_by(tool), _before((*opening.items, *opening.begun)))
        offers = tuple(
            ToolFunction(
                tool=_function(name, place(tool)),
                shell=WebSearchCall(action=dict(_BEGUN[name])),
                call=partial(_run, browser, step, opening.include),
                read=partial(_wanted, name),
                namespace=_NAMESPACE,
            )
            for name, step in _STEPS.items()
        )
        yield Toolset(offers=offers, notation=of_pages(browser.shown))


async def _run(
    browser: Browser,
    step: _Step,
    include: frozenset[str],
    arguments: str,
    context: CallContext,
) -> AsyncGenerator[Step | Result, None]:
    at = browser.begin()
    yield Step("searching")
    shown = await step(browser, parse_arguments(arguments), at)
    action = dict(shown.action)
    if _SOURCES in include and shown.found:
        action["sources"] = [{"type": "url", "url": one.url} for one in shown.found]
    fields: dict[str, Any] = {"action": action}
    if _RESULTS in include and shown.found:
        fields["results"] = tuple(
            {"url": one.url, "title": one.title, "text": one.text} for one in shown.found
        )
    used = {"web_search": {"num_requests": 1}} if action["type"] == "search" else {}
    yield Result(text=shown.text, fields=fields, used=used)


def _wanted(name: str, arguments: str) -> Mapping[str, Any]:
    """What a call was to do, of which nothing came."""
    action = dict(_BEGUN[name])
    try:
        asked = parse_arguments(arguments)
    except ToolError:
        asked = {}
    if name == "search" and isinstance(query := asked.get("query"), str):
        action |= {"query": query, "queries": [query]}
    elif name == "find" and isinstance(pattern := asked.get("pattern"), str):
        action["pattern"] = pattern
    elif name == "open" and isinstance(url := asked.get("id"), str):
        action["url"] = url
    return {"action": action}


async def _search(browser: Browser, asked: Mapping[str, Any], at: int) -> Shown:
    return await browser.search(_text(asked, "query"), at=at)


async def _open(browser: Browser, asked: Mapping[str, Any], at: int) -> Shown:
    id = asked.get("id")
    if isinstance(id, str) and _NUMBER.fullmatch(id.strip()):
        id = int(id)
    if isinstance(id, bool) or not isinstance(id, int | str) or id == "":
        id = None
    loc, lines = _number(asked, "loc"), _number(asked, "num_lines")
    return await browser.open(
        id,
        _number(asked, "cursor"),
        None if loc is None or loc < 0 else loc,
        None if lines is None or lines < 0 else lines,
        at=at,
    )


async def _find(browser: Browser, asked: Mapping[str, Any], at: int) -> Shown:
    return await browser.find(_text(asked, "pattern"), _number(asked, "cursor"), at=at)


_STEPS: Mapping[str, _Step] = {"search": _search, "open": _open, "find": _find}


def _before(items: Sequence[Item]) -> tuple[Page | None, ...]:
    """The pages of steps that were taken before, as far as their items tell: cursors go on from
    there, and what is cited of them keeps its URL."""
    return tuple(_step_of(item) for item in items if isinstance(item, WebSearchCall))


def _step_of(call: WebSearchCall) -> Page | None:
    action = call.action if isinstance(call.action, dict) else {}
    if call.status != "completed":
        return None
    if action.get("type") == "search":
        sources = action.get("sources")
        urls = [one.get("url") for one in sources or () if isinstance(one, dict)]
        links = tuple((url, 0) for url in urls if isinstance(url, str))
        return Page(url="", title="", links=links, found=())
    url = action.get("url")
    return Page(url=url, title=domain(url)) if isinstance(url, str) and url else None


def _function(name: str, place: str) -> tl.Function:
    about, properties, required = _FUNCTIONS[name]
    if place and name == "search":
        about = f"{about} The user is about here: {place}."
    return tl.Function(
        name=name,
        description=about,
        parameters={
            "type": "object",
            "properties": dict(properties),
            "required": list(required),
        },
    )


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ToolError(f"'{name}' is missing.")
    return value.strip()


def _number(asked: Mapping[str, Any], name: str) -> int | None:
    value = asked.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value
