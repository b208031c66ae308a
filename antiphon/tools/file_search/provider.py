"""The ``file_search`` tool. The model gets one function, the client gets ``file_search_call``
items, and the answer gets citations."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.errors import RequestError, RunError, ToolError
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
from antiphon.wire.items import FileSearchCall, Item, of_type
from antiphon.wire.parsing.errors import empty_value
from antiphon.wire.parsing.vector_stores import RankingOptions, SearchRequest, read_ranking
from antiphon.wire.parts import FileCitation
from antiphon.wire.resources.filters import read_filter
from antiphon.wire.resources.vector_stores import VectorStoreSearchResult

_INCLUDE_RESULTS = "file_search_call.results"
_MAX_QUERIES = 8
_MAX_QUERY_LENGTH = 4096
_DEFAULT_RESULTS = 10
#: The maximum number of passages that one call returns.
_MAX_RESULTS = 50

_FUNCTION = tl.Function(
    name="file_search",
    description=(
        "Searches the user's files and returns the passages that match best, each with a number."
        " `queries`: one or more questions or sets of keywords, in the language of the files. Cite"
        " the passages you use with their numbers in brackets, such as 【f1】."
    ),
    parameters={
        "type": "object",
        # Without the minimum lengths, a forced call of a small model may be empty.
        "properties": {
            "queries": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
        },
        "required": ["queries"],
    },
)
_REPLACED_BRACKETS = str.maketrans("【】", "〖〗")


class StoreSearch(Protocol):
    """Search in the vector stores of a tenant."""

    async def check_searchable(
        self, tenant: str, store_ids: Sequence[str], ranking: RankingOptions, path: str
    ) -> None:
        """Raise ``RequestError`` if one of the vector stores cannot be searched. ``path``: path of
        the tool in the request."""

    async def search(
        self, tenant: str, store_ids: Sequence[str], request: SearchRequest
    ) -> tuple[VectorStoreSearchResult, ...]:
        """Search the vector stores. Return the results, with the best result first. Raises
        ``RequestError`` and ``RunError``."""


class FileSearchProvider(ToolProvider[tl.FileSearch]):
    """The ``ToolProvider`` for search in vector stores."""

    def __init__(self, vector_search: StoreSearch) -> None:
        self._vector_search = vector_search

    def check(self, tool: tl.FileSearch, path: str) -> None:
        if not tool.vector_store_ids:
            raise empty_value(f"{path}.vector_store_ids", ())
        _search_request(tool, (), path)

    async def check_access(self, tool: tl.FileSearch, response: ResponseContext, path: str) -> None:
        """Raise ``RequestError`` if the request names a vector store that does not exist or belongs
        to another tenant."""
        ranking = _search_request(tool, (), path).ranking
        await self._vector_search.check_searchable(
            response.tenant, tool.vector_store_ids, ranking, path
        )

    async def declared_functions(
        self, tool: tl.FileSearch, response: ResponseContext
    ) -> tuple[ToolFunction, ...]:
        function = ToolFunction(
            tool=_FUNCTION,
            initial_item=FileSearchCall(queries=()),
            parse_fields=_call_fields,
            effects="none",
        )
        return (function,)

    @asynccontextmanager
    async def open(self, tool: tl.FileSearch, response: ResponseContext) -> AsyncIterator[Toolset]:
        passages = _NumberedPassages(response.all_items)
        call = partial(self._run, tool, passages, _INCLUDE_RESULTS in response.include)
        (function,) = await self.declared_functions(tool, response)
        yield Toolset(
            functions=(replace(function, handler=call),),
            citation_notation=file_citation_notation(passages.file_of),
        )

    async def _run(
        self,
        tool: tl.FileSearch,
        passages: _NumberedPassages,
        with_results: bool,
        arguments: str,
        context: CallContext,
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        call = passages.begin_call()
        yield ToolProgress("searching")
        queries = _parse_queries(arguments)
        try:
            request = _search_request(tool, queries, "tools")
            results = await self._vector_search.search(
                context.tenant, tool.vector_store_ids, request
            )
        except (RequestError, RunError) as error:
            raise ToolError(error.message) from None
        text = passages.render(call, results, context.max_result_bytes // 2)
        fields: dict[str, Any] = {"queries": queries}
        if with_results:
            fields["results"] = tuple(map(_result, results))
        else:
            fields["passage_files"] = passages.files_of(call)
        yield ToolResult(text=text, fields=fields)


class _NumberedPassages:
    """The passages of files that the model was shown in a conversation, by number.

    Each file search call has its own range of numbers. Calls of earlier responses keep their
    ranges, so a number always means the same passage.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        #: For each call, the file id and filename of each of its passages.
        self._calls = [list(_files_of(call)) for call in of_type(items, FileSearchCall)]

    def begin_call(self) -> int:
        """Add a new file search call, which has no passages yet. Return the index of the call."""
        self._calls.append([])
        return len(self._calls) - 1

    def file_of(self, number: int) -> tuple[str, str] | None:
        """Return the file id and filename of the passage with this number. Return None if the model
        was not shown a passage with this number."""
        call, index = divmod(number - 1, _MAX_RESULTS)
        files = self._calls[call] if 0 <= call < len(self._calls) else []
        return files[index] if index < len(files) else None

    def files_of(self, call: int) -> tuple[dict[str, str], ...]:
        """Return the file id and filename of each passage that a file search call showed to the
        model. The item of the call contains these ids and names, because later responses may cite
        the passages."""
        files = (file for file in self._calls[call] if file is not None)
        return tuple({"file_id": file_id, "filename": filename} for file_id, filename in files)

    def render(self, call: int, results: Sequence[VectorStoreSearchResult], max_bytes: int) -> str:
        """Return passages as text for the model: as many as fit into ``max_bytes``, but at least
        the best passage. ``call``: the index of the call that has found them."""
        entries: list[str] = []
        size = 0
        for index, result in enumerate(results):
            text = "\n".join(part.text.strip() for part in result.content).translate(
                _REPLACED_BRACKETS
            )
            name = " ".join(result.filename.translate(_REPLACED_BRACKETS).split())
            entry = f"【f{call * _MAX_RESULTS + index + 1}†{name}】\n{text}"
            size += len(entry.encode()) + 2
            if entries and size > max_bytes:
                break
            entries.append(entry)
            self._calls[call].append((result.file_id, result.filename))
        return "\n\n".join(entries) or "Nothing was found. Try other words."


def _files_of(call: FileSearchCall) -> Iterator[tuple[str, str] | None]:
    """Yield the file id and filename of each passage of an earlier call, in order. If the item of
    the call lacks the file id or filename of a passage, yield None for this passage."""
    passage_files = () if call.passage_files is UNSET else call.passage_files
    for result in call.results or passage_files:
        file_id, filename = result.get("file_id"), result.get("filename")
        known = isinstance(file_id, str) and isinstance(filename, str)
        yield (str(file_id), str(filename)) if known else None


def _search_request(tool: tl.FileSearch, queries: tuple[str, ...], path: str) -> SearchRequest:
    """Build the search request from the tool's options and the queries. Raises
    ``InvalidRequest``."""
    filters = None if tool.filters is UNSET else tool.filters
    options = {} if tool.ranking_options is UNSET else tool.ranking_options
    return SearchRequest(
        queries=queries,
        limit=_DEFAULT_RESULTS if tool.max_num_results is UNSET else tool.max_num_results,
        filter=read_filter(filters, f"{path}.filters") if filters else None,
        ranking=read_ranking(options or {}, f"{path}.ranking_options"),
    )


def _call_fields(arguments: str) -> Mapping[str, Any]:
    """Return the fields that the arguments of a failed call add to its output item. If the
    arguments can be parsed, the only field is ``queries``. Otherwise, there are no fields."""
    try:
        return {"queries": _parse_queries(arguments)}
    except ToolError:
        return {}


def _parse_queries(arguments: str) -> tuple[str, ...]:
    request = parse_arguments(arguments)
    value = request.get("queries", request.get("query"))
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    queries = [result.strip()[:_MAX_QUERY_LENGTH] for result in texts if isinstance(result, str)]
    if not any(queries):
        raise ToolError("'queries' is missing.")
    return tuple(dict.fromkeys(filter(None, queries)))[:_MAX_QUERIES]


def _result(results: VectorStoreSearchResult) -> dict[str, Any]:
    return {
        "file_id": results.file_id,
        "filename": results.filename,
        "score": results.score,
        "attributes": results.attributes,
        "text": "\n".join(part.text for part in results.content),
    }


#: Some models add line numbers, or the filename in the form that they are shown.
_MARK = re.compile(r" ?【f(\d{1,6})(?:†[^【】]{0,200})?】")
_PARTIAL_MARK = re.compile(r" ?【[^【】]*\Z| \Z")
_MAX_MARK_LENGTH = 216


def file_citation_notation(file_of: Callable[[int], tuple[str, str] | None]) -> CitationNotation:
    """Return the notation of file citations. ``file_of``: a function that returns the file id and
    filename of the passage with a given number. It returns None if the model was not shown a
    passage with this number."""

    def cite(mark: re.Match[str], position: int, preceding: str) -> Citation | None:
        file = file_of(int(mark.group(1)))
        if file is None:
            return None
        file_id, filename = file
        return Citation("", FileCitation(file_id=file_id, filename=filename, index=position))

    return CitationNotation(
        pattern=_MARK, partial_pattern=_PARTIAL_MARK, max_length=_MAX_MARK_LENGTH, cite=cite
    )
