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
from antiphon.tools.base import CallContext, ResponseContext, Result, Step, ToolFunction, Toolset
from antiphon.wire import tools as tl
from antiphon.wire.filters import read_filter
from antiphon.wire.items import FileSearchCall, Item
from antiphon.wire.parsing.errors import empty
from antiphon.wire.parsing.vector_stores import Ranking, Search, read_ranking
from antiphon.wire.vector_stores import Found

from .citations import of_files

__all__ = ["FileSearch", "Shelves"]

_RESULTS = "file_search_call.results"
_MOST_QUERIES = 8
_LONGEST_QUERY = 4096
_COUNT = 10
#: The most passages of a call.
_MOST = 50

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
_NOT_OURS = str.maketrans("【】", "〖〗")


class Shelves(Protocol):
    """What is searched."""

    async def check(
        self, tenant: str, store_ids: Sequence[str], ranking: Ranking, path: str
    ) -> None:
        """Raises ``RequestError`` for what cannot be searched so. ``path``: of what asks for it."""

    async def search(
        self, tenant: str, store_ids: Sequence[str], asked: Search
    ) -> tuple[Found, ...]:
        """The best first. Raises ``RequestError`` and ``RunError``."""


class FileSearch:
    """``Provider`` over vector stores."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves

    def check(self, tool: Any, path: str) -> None:
        if not tool.vector_store_ids:
            raise empty(f"{path}.vector_store_ids", ())
        _search(tool, (), path)

    async def admit(self, tool: Any, opening: ResponseContext, path: str) -> None:
        """Raises ``RequestError`` for a vector store that is none of the tenant's."""
        ranking = _search(tool, (), path).ranking
        await self._shelves.check(opening.tenant, tool.vector_store_ids, ranking, path)

    def lead(self, tool: Any, opening: ResponseContext) -> Item | None:
        return None

    @asynccontextmanager
    async def open(self, tool: Any, opening: ResponseContext) -> AsyncIterator[Toolset]:
        shown = _Shown((*opening.items, *opening.begun))
        call = partial(self._run, tool, shown, _RESULTS in opening.include)
        offer = ToolFunction(
            tool=_FUNCTION, shell=FileSearchCall(queries=()), call=call, read=_wanted
        )
        yield Toolset(offers=(offer,), notation=of_files(shown.cited))

    async def _run(
        self, tool: Any, shown: _Shown, is_told: bool, arguments: str, context: CallContext
    ) -> AsyncGenerator[Step | Result, None]:
        call = shown.begin()
        yield Step("searching")
        queries = _queries(arguments)
        try:
            asked = _search(tool, queries, "tools")
            found = await self._shelves.search(context.tenant, tool.vector_store_ids, asked)
        except (RequestError, RunError) as error:
            raise ToolError(error.message) from None
        fields: dict[str, Any] = {"queries": queries}
        if is_told:
            fields["results"] = tuple(map(_result, found))
        yield Result(text=shown.told(call, found, context.room // 2), fields=fields)


class _Shown:
    """What the model was shown, by number: those of a call begin where those of the call before
    could end, so that no number of an earlier response means something else in this one."""

    def __init__(self, items: Sequence[Item]) -> None:
        before = (item for item in items if isinstance(item, FileSearchCall))
        #: (file id, filename) of the passages of each call.
        self._calls = [list(_told_of(call)) for call in before]

    def begin(self) -> int:
        """The place of the call that begins now."""
        self._calls.append([])
        return len(self._calls) - 1

    def cited(self, number: int) -> tuple[str, str] | None:
        """(file id, filename)."""
        call, at = divmod(number - 1, _MOST)
        files = self._calls[call] if 0 <= call < len(self._calls) else []
        return files[at] if at < len(files) else None

    def told(self, call: int, found: Sequence[Found], room: int) -> str:
        """As many of them as there is room for, the best in any case."""
        said: list[str] = []
        size = 0
        for at, one in enumerate(found):
            text = "\n".join(part.text.strip() for part in one.content).translate(_NOT_OURS)
            name = " ".join(one.filename.translate(_NOT_OURS).split())
            entry = f"【f{call * _MOST + at + 1}†{name}】\n{text}"
            size += len(entry) + 2
            if said and size > room:
                break
            said.append(entry)
            self._calls[call].append((one.file_id, one.filename))
        return "\n\n".join(said) or "Nothing was found. Try other words."


def _told_of(call: FileSearchCall) -> Iterator[tuple[str, str] | None]:
    """The files of an earlier call, as far as its item tells."""
    for one in call.results or ():
        file_id, filename = one.get("file_id"), one.get("filename")
        known = isinstance(file_id, str) and isinstance(filename, str)
        yield (str(file_id), str(filename)) if known else None


def _search(tool: Any, queries: tuple[str, ...], path: str) -> Search:
    """Raises ``InvalidRequest``."""
    filters = None if tool.filters is UNSET else tool.filters
    options = {} if tool.ranking_options is UNSET else tool.ranking_options
    return Search(
        queries=queries,
        limit=_COUNT if tool.max_num_results is UNSET else tool.max_num_results,
        filter=read_filter(filters, f"{path}.filters") if filters else None,
        ranking=read_ranking(options or {}, f"{path}.ranking_options"),
    )


def _wanted(arguments: str) -> Mapping[str, Any]:
    """What was to be searched for, of which nothing came."""
    try:
        return {"queries": _queries(arguments)}
    except ToolError:
        return {}


def _queries(arguments: str) -> tuple[str, ...]:
    asked = parse_arguments(arguments)
    given = asked.get("queries", asked.get("query"))
    texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    queries = [one.strip()[:_LONGEST_QUERY] for one in texts if isinstance(one, str)]
    if not any(queries):
        raise ToolError("'queries' is missing.")
    return tuple(dict.fromkeys(filter(None, queries)))[:_MOST_QUERIES]


def _result(found: Found) -> dict[str, Any]:
    return {
        "file_id": found.file_id,
        "filename": found.filename,
        "score": found.score,
        "attributes": found.attributes,
        "text": "\n".join(part.text for part in found.content),
    }
