"""The ``web_search`` tool. The model gets three functions, the client gets ``web_search_call``
items, and the answer gets citations."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.errors import ToolError
from antiphon.tools.arguments import parse_arguments
from antiphon.tools.base import (
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)
from antiphon.tools.citations import Citation, CitationNotation
from antiphon.wire import tools as tl
from antiphon.wire.items import Item, WebSearchCall, of_type
from antiphon.wire.parts import UrlCitation

from .browser import Browser, PageSource, StepResult
from .page import SearchResult, WebPage, domain, plain_line
from .request import check_tool, describe_location, search_options

#: The tool types that this provider implements.
TYPES = (
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)
#: The type of the tool that only opens pages.
FETCH_TYPE = "web_fetch"
_NAMESPACE = "browser"
#: Fields of items with what the user or a tool has written. The other fields of a call are written
#: by the model.
_GIVEN_FIELDS = ("content", "output", "outputs", "result", "results", "tools")
_encode = msgspec.json.Encoder().encode
_INCLUDE_SOURCES, _INCLUDE_RESULTS = "web_search_call.action.sources", "web_search_call.results"

_NUMBER = re.compile(r"-?\d{1,9}")
_CURSOR = {"type": "integer", "description": "The number of a page that was shown; the last one."}
_FUNCTIONS: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "search": (
        "Searches for information and shows results as numbered links 【id†title†domain】.",
        {"query": {"type": "string", "minLength": 1}},
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

#: The action of a call as long as its arguments are unknown. Clients expect a complete action.
_INITIAL_ACTIONS: Mapping[str, Mapping[str, Any]] = {
    "search": {"type": "search", "query": "", "queries": []},
    "open": {"type": "open_page", "url": None},
    "find": {"type": "find_in_page", "url": "", "pattern": ""},
}

_StepFunction = Callable[[Browser, Mapping[str, Any], int], Awaitable[StepResult]]


class WebSearchProvider(ToolProvider[tl.AnyWebSearch]):
    """The ``ToolProvider`` for web search in a page source (the web or a local index). The provider
    does not close the source.

    - ``is_external``: whether the source accesses the web. A request may forbid this
      (``external_web_access``).
    - ``unavailable_reason``: a function that returns the reason why the source cannot be used now.
      It returns None if the source can be used.
    """

    def __init__(
        self,
        source: PageSource,
        *,
        is_external: bool,
        unavailable_reason: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._source = source
        self._is_external = is_external
        self._unavailable_reason = unavailable_reason

    def unavailable_reason(self) -> str | None:
        return self._unavailable_reason()

    def check(self, tool: tl.AnyWebSearch, path: str) -> None:
        check_tool(tool, path)

    async def declared_functions(
        self, tool: tl.AnyWebSearch, response: ResponseContext
    ) -> tuple[ToolFunction, ...]:
        if self._is_forbidden(tool):
            return ()
        return tuple(_tool_function(name, tool) for name in _steps(tool))

    def _is_forbidden(self, tool: tl.AnyWebSearch) -> bool:
        """Whether the request forbids web access (``external_web_access: false``) although the page
        source needs it."""
        return self._is_external and tool.external_web_access is False

    @asynccontextmanager
    async def open(
        self, tool: tl.AnyWebSearch, response: ResponseContext
    ) -> AsyncIterator[Toolset]:
        if self._is_forbidden(tool):
            yield Toolset()
            return
        options = replace(search_options(tool), tenant=response.tenant)
        if isinstance(tool, tl.WebFetch):
            options = replace(options, known_urls=partial(_is_known, response.all_items))
        browser = Browser(self._source, options, _earlier_pages(response.all_items))
        functions = tuple(
            replace(
                _tool_function(name, tool),
                handler=partial(_run, browser, step, response.include, options.max_view_chars),
            )
            for name, step in _steps(tool).items()
        )
        cites = not isinstance(tool, tl.WebFetch) or tool.citations is True
        notation = page_citation_notation(browser.page_at) if cites else None
        yield Toolset(functions=functions, citation_notation=notation)


def _tool_function(name: str, tool: tl.AnyWebSearch) -> ToolFunction:
    """Return the description of the function ``name`` for the model. Its handler, which runs the
    calls, is not set."""
    return ToolFunction(
        tool=_function(name, describe_location(tool)),
        initial_item=WebSearchCall(action=dict(_INITIAL_ACTIONS[name])),
        parse_fields=partial(_call_fields, name),
        effects="none",
        namespace=_NAMESPACE,
    )


async def _run(
    browser: Browser,
    step: _StepFunction,
    include: frozenset[str],
    page_chars: int,
    arguments: str,
    context: CallContext,
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    """Run a step. ``page_chars``: how many characters of an opened page the results contain."""
    cursor = browser.begin_step()
    yield ToolProgress("searching")
    result = await step(browser, parse_arguments(arguments), cursor)
    action = dict(result.action)
    if _INCLUDE_SOURCES in include and result.results:
        action["sources"] = [{"type": "url", "url": one.url} for one in result.results]
    fields: dict[str, Any] = {"action": action}
    results = result.results
    if (page := result.page) is not None:
        results = (SearchResult(url=page.url, title=page.title, text=page.text(page_chars)),)
    if _INCLUDE_RESULTS in include and results:
        fields["results"] = tuple(
            {"url": one.url, "title": one.title, "text": one.text} for one in results
        )
    usage = {"web_search": {"num_requests": 1}} if action["type"] == "search" else {}
    yield ToolResult(text=result.text, fields=fields, usage=usage)


def _call_fields(name: str, arguments: str) -> Mapping[str, Any]:
    """Return the field ``action`` for the output item of a failed call. It contains the action that
    the model asked for. ``name``: the name of the called function. ``arguments``: the JSON
    arguments that the model wrote."""
    action = dict(_INITIAL_ACTIONS[name])
    try:
        parsed = parse_arguments(arguments)
    except ToolError:
        parsed = {}
    if name == "search" and isinstance(query := parsed.get("query"), str):
        action |= {"query": query, "queries": [query]}
    elif name == "find" and isinstance(pattern := parsed.get("pattern"), str):
        action["pattern"] = pattern
    elif name == "open" and isinstance(url := parsed.get("id"), str):
        action["url"] = url
    return {"action": action}


async def _search(browser: Browser, arguments: Mapping[str, object], cursor: int) -> StepResult:
    return await browser.search(_required_text(arguments, "query"), step_cursor=cursor)


async def _open(browser: Browser, arguments: Mapping[str, object], cursor: int) -> StepResult:
    id = arguments.get("id")
    if isinstance(id, str) and _NUMBER.fullmatch(id.strip()):
        id = int(id)
    if isinstance(id, bool) or not isinstance(id, int | str) or id == "":
        id = None
    loc, lines = _optional_int(arguments, "loc"), _optional_int(arguments, "num_lines")
    return await browser.open(
        id,
        _optional_int(arguments, "cursor"),
        None if loc is None or loc < 0 else loc,
        None if lines is None or lines < 0 else lines,
        step_cursor=cursor,
    )


async def _find(browser: Browser, arguments: Mapping[str, object], cursor: int) -> StepResult:
    return await browser.find(
        _required_text(arguments, "pattern"), _optional_int(arguments, "cursor"), step_cursor=cursor
    )


_STEPS: Mapping[str, _StepFunction] = {"search": _search, "open": _open, "find": _find}


def _steps(tool: tl.AnyWebSearch) -> Mapping[str, _StepFunction]:
    if not isinstance(tool, tl.WebFetch):
        return _STEPS
    return {name: step for name, step in _STEPS.items() if name != "search"}


def _is_known(items: Sequence[Item], url: str) -> bool:
    """Return whether the user or a tool has given a URL, or an earlier call has opened it. What the
    model has written itself does not count, such as the arguments of a failed call. Otherwise a
    page could make the model send data to its server, as a part of a URL."""
    if any(page is not None and page.url == url for page in _earlier_pages(items)):
        return True
    given = (
        getattr(item, name, None)
        for item in items
        if item.role != "assistant" and not item.is_reasoning
        for name in _GIVEN_FIELDS
    )
    return any(url.encode() in _encode(each) for each in given if each)


def _earlier_pages(items: Sequence[Item]) -> tuple[WebPage | None, ...]:
    """Return the pages of the browser steps (tool calls) of earlier responses, one entry per step.

    The pages have URLs but no text, because the items contain only the URLs. An entry is None if
    the item has no URL or the step failed.

    The cursor of a step is the position of its page in this list. New steps get the cursors that
    follow the last position, so the cursors of earlier steps stay valid, and the model can still
    cite their pages.
    """
    return tuple(map(_page_of_call, of_type(items, WebSearchCall)))


def _page_of_call(call: WebSearchCall) -> WebPage | None:
    action = call.action if isinstance(call.action, dict) else {}
    if call.status != "completed":
        return None
    if action.get("type") == "search":
        sources = action.get("sources")
        urls = [one.get("url") for one in sources or () if isinstance(one, dict)]
        links = tuple((url, 0) for url in urls if isinstance(url, str))
        return WebPage(url="", title="", links=links, results=())
    url = action.get("url")
    return WebPage(url=url, title=domain(url)) if isinstance(url, str) and url else None


def _function(name: str, location: str) -> tl.Function:
    description, properties, required = _FUNCTIONS[name]
    if location and name == "search":
        description = f"{description} The user is about here: {location}."
    return tl.Function(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": dict(properties),
            "required": list(required),
        },
    )


def _required_text(arguments: Mapping[str, object], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ToolError(f"'{name}' is missing.")
    return value.strip()


def _optional_int(arguments: Mapping[str, object], name: str) -> int | None:
    value = arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value


_MARK = re.compile(r"【(\d{1,6})†([^【】]{0,64})】")
_LINE = re.compile(r"L(\d{1,9})")
_PARTIAL_MARK = re.compile(r"【[^【】]*\Z")
_MAX_MARK_LENGTH = 80
#: Characters that could end the link or start other markup: URLs are untrusted.
_ESCAPES = {ord(sign): f"%{ord(sign):02X}" for sign in ' \t\r\n()<>[]`"\\'}


def page_citation_notation(page_at: Callable[[int], WebPage | None]) -> CitationNotation:
    """Return the notation in which the model cites web pages. ``page_at``: a function that returns
    the page with a given number (its cursor). It returns None if there is no such page."""

    def cite(mark: re.Match[str], at: int, last: str) -> Citation | None:
        page, line = page_at(int(mark.group(1))), _LINE.search(mark.group(2))
        target = (
            page.citation_target(int(line.group(1)) if line else None) if page is not None else None
        )
        if target is None or not target.url:
            return None
        link = f"([{domain(target.url)}]({target.url.translate(_ESCAPES)}))"
        space = "" if last.isspace() else " "
        start = at + len(space)
        citation = UrlCitation(
            url=target.url,
            title=plain_line(target.title),
            start_index=start,
            end_index=start + len(link),
        )
        return Citation(space + link, citation)

    return CitationNotation(
        pattern=_MARK, partial_pattern=_PARTIAL_MARK, max_length=_MAX_MARK_LENGTH, cite=cite
    )
