"""file_search, as responses have it: one function for the model, ``file_search_call`` items for the
client, citations in the answer. It does not know how vector stores are searched.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

from msgspec import UNSET

from antiphon.errors import RequestError, RunError, ToolError
from antiphon.tools.arguments import parse_arguments
from antiphon.tools.base import (
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolResult,
    Toolset,
)
from antiphon.wire import tools as tl
from antiphon.wire.filters import read_filter
from antiphon.wire.items import FileSearchCall, Item
from antiphon.wire.parsing.errors import empty
from antiphon.wire.parsing.vector_stores import Ranking, Search, read_ranking
from antiphon.wire.vector_stores import Found

from .citations import file_citation_notation

__all__ = ["FileSearchProvider", "VectorSearch"]

_INCLUDE_RESULTS = "file_search_call.results"
_MAX_QUERIES = 8
_MAX_QUERY_LENGTH = 4096
_DEFAULT_RESULTS = 10
#: The most passages of a call.
_MAX_RESULTS = 50

_FUNCTION = tl.Function(
    name="file_search",
    description=(
        "Searches the user's files and shows the passages that fit best, each with a number."
        " `queries`: one or more questions or sets of words, in the language of the files. Cite"
        " the passages you use with their numbers in brackets, such as 【f1】."
    ),
    parameters={
        "type": "object",
        "properties": {"queries": {"type": "array", "items": {"type": "string"}}},
        "required": ["queries"],
    },
)
_REPLACED_BRACKETS = str.maketrans("【】", "〖〗")


class VectorSearch(Protocol):
    """What is searched."""

    async def check(
        self, tenant: str, store_ids: Sequence[str], ranking: Ranking, path: str
    ) -> None:
        """Raises ``RequestError`` for what cannot be searched so. ``path``: of what asks for it."""

    async def search(
        self, tenant: str, store_ids: Sequence[str], request: Search
    ) -> tuple[Found, ...]:
        """The best first. Raises ``RequestError`` and ``RunError``."""


class FileSearchProvider:
    """``Provider`` over vector stores."""

    def __init__(self, vector_search: VectorSearch) -> None:
        self._vector_search = vector_search

    def check(self, tool: Any, path: str) -> None:
        if not tool.vector_store_ids:
            raise empty(f"{path}.vector_store_ids", ())
        _search_request(tool, (), path)

    async def check_access(self, tool: Any, response: ResponseContext, path: str) -> None:
        """Raises ``RequestError`` for a vector store that is none of the tenant's."""
        ranking = _search_request(tool, (), path).ranking
        await self._vector_search.check(response.tenant, tool.vector_store_ids, ranking, path)

    def leading_item(self, tool: Any, response: ResponseContext) -> Item | None:
        return None

    @asynccontextmanager
    async def open(self, tool: Any, response: ResponseContext) -> AsyncIterator[Toolset]:
        shown = _NumberedPassages((*response.items, *response.interrupted_items))
        call = partial(self._run, tool, shown, _INCLUDE_RESULTS in response.include)
        function = ToolFunction(
            tool=_FUNCTION,
            initial_item=FileSearchCall(queries=()),
            handler=call,
            parse_fields=_call_fields,
        )
        yield Toolset(
            functions=(function,), citation_notation=file_citation_notation(shown.file_of)
        )

    async def _run(
        self,
        tool: Any,
        passages: _NumberedPassages,
        with_results: bool,
        arguments: str,
        context: CallContext,
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        call = passages.begin_call()
        yield ToolProgress("searching")
        queries = _parse_queries(arguments)
        try:
            asked = _search_request(tool, queries, "tools")
            found = await self._vector_search.search(context.tenant, tool.vector_store_ids, asked)
        except (RequestError, RunError) as error:
            raise ToolError(error.message) from None
        fields: dict[str, Any] = {"queries": queries}
        if with_results:
            fields["results"] = tuple(map(_result, found))
        yield ToolResult(
            text=passages.render(call, found, context.max_result_bytes // 2), fields=fields
        )


class _NumberedPassages:
    """What the model was shown, by number: those of a call begin where those of the call before
    could end, so that no number of an earlier response means something else in this one."""

    def __init__(self, items: Sequence[Item]) -> None:
        before = (item for item in items if isinstance(item, FileSearchCall))
        #: (file id, filename) of the passages of each call.
        self._calls = [list(_files_of(call)) for call in before]

    def begin_call(self) -> int:
        """The place of the call that begins now."""
        self._calls.append([])
        return len(self._calls) - 1

    def file_of(self, number: int) -> tuple[str, str] | None:
        """(file id, filename)."""
        call, at = divmod(number - 1, _MAX_RESULTS)
        files = self._calls[call] if 0 <= call < len(self._calls) else []
        return files[at] if at < len(files) else None

    def render(self, call: int, results: Sequence[Found], max_bytes: int) -> str:
        """As many of them as there is room for, the best in any case."""
        said: list[str] = []
        size = 0
        for at, one in enumerate(results):
            text = "\n".join(part.text.strip() for part in one.content).translate(
                _REPLACED_BRACKETS
            )
            name = " ".join(one.filename.translate(_REPLACED_BRACKETS).split())
            entry = f"【f{call * _MAX_RESULTS + at + 1}†{name}】\n{text}"
            size += len(entry) + 2
            if said and size > max_bytes:
                break
            said.append(entry)
            self._calls[call].append((one.file_id, one.filename))
        return "\n\n".join(said) or "Nothing was found. Try other words."


def _files_of(call: FileSearchCall) -> Iterator[tuple[str, str] | None]:
    """The files of an earlier call, as far as its item tells."""
    for one in call.results or ():
        file_id, filename = one.get("file_id"), one.get("filename")
        known = isinstance(file_id, str) and isinstance(filename, str)
        yield (str(file_id), str(filename)) if known else None


def _search_request(tool: Any, queries: tuple[str, ...], path: str) -> Search:
    """Raises ``InvalidRequest``."""
    filters = None if tool.filters is UNSET else tool.filters
    options = {} if tool.ranking_options is UNSET else tool.ranking_options
    return Search(
        queries=queries,
        limit=_DEFAULT_RESULTS if tool.max_num_results is UNSET else tool.max_num_results,
        filter=read_filter(filters, f"{path}.filters") if filters else None,
        ranking=read_ranking(options or {}, f"{path}.ranking_options"),
    )


def _call_fields(arguments: str) -> Mapping[str, Any]:
    """What was to be searched for, of which nothing came."""
    try:
        return {"queries": _parse_queries(arguments)}
    except ToolError:
        return {}


def _parse_queries(arguments: str) -> tuple[str, ...]:
    asked = parse_arguments(arguments)
    given = asked.get("queries", asked.get("query"))
    texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    queries = [one.strip()[:_MAX_QUERY_LENGTH] for one in texts if isinstance(one, str)]
    if not any(queries):
        raise ToolError("'queries' is missing.")
    return tuple(dict.fromkeys(filter(None, queries)))[:_MAX_QUERIES]


def _result(found: Found) -> dict[str, Any]:
    return {
        "file_id": found.file_id,
        "filename": found.filename,
        "score": found.score,
        "attributes": found.attributes,
        "text": "\n".join(part.text for part in found.content),
    }
