"""Citations of documents: the model sees numbered passages, and cites them by their numbers.

A passage is a sentence of a text or of a page, or a block of a document or a search result. A mark
such as ``【3】`` or ``【3-5】`` in the model's text ends a block of the answer, and becomes the
citations of this block.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.wire.items import InputFile, InputText
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import invalid_type, json_type_name
from antiphon.wire.parsing.fields import read_object
from antiphon.wire.request import CreateResponse

from .types import (
    BlockLocation,
    CharLocation,
    Citation,
    PageLocation,
    SearchResultLocation,
)

#: What the system prompt says if a request has documents to cite.
HOW_TO_CITE = (
    "The documents are divided into passages. Each passage begins with its number, such as 【3】."
    " After each statement of your answer that comes from a document, write the number of the"
    " passage in the same brackets, or the first and the last of several passages, such as 【3-5】."
)
_END = re.compile(r"(?<=[.!?。！？\n])\s+")
_MARK = re.compile(r"【(\d{1,6}(?:[-–,] ?\d{1,6}){0,9})】")
#: The beginning of a mark at the end of a text, which may become one.
_PARTIAL_MARK = re.compile(r"【[\d,– -]{0,90}\Z")
_RANGE = re.compile(r"(\d+)(?:[-–] ?(\d+))?")
_REPLACED_BRACKETS = str.maketrans("【】", "〖〗")

#: Type of a citation → the kind of its source, and the names in its fields.
_FIELDS = {
    "char_location": ("char", "char_index", "document"),
    "content_block_location": ("block", "block_index", "document"),
    "search_result_location": ("search_result", "block_index", "search_result"),
}
Kind = Literal["char", "page", "block", "search_result"]


class Source(Struct, frozen=True, kw_only=True):
    """A document or a search result. ``index``: its position among those of the request. ``url``:
    the source of a search result. ``text``: the whole text, for the kind ``char``."""

    kind: Kind
    index: int
    title: str | None
    file_id: str | None = None
    url: str = ""
    text: str = ""


class _Passage(Struct, frozen=True):
    """A passage. ``start`` and ``end``: where it is in its source; ``end`` is not included."""

    source: Source
    start: int
    end: int
    text: str


class PartPlace(Struct, frozen=True):
    """Where a part is in the Responses request: the position of its item, the item's field with
    parts, and the position in this field."""

    item: int
    field: Literal["content", "output"]
    part: int

    def __str__(self) -> str:
        return f"input[{self.item}].{self.field}[{self.part}]"


class Passages:
    """The passages of the documents of one request, whose numbers begin with 1."""

    def __init__(self) -> None:
        self._passages: list[_Passage] = []
        #: Kind and position of a source, and where a passage begins or ends → its number.
        self._starts: dict[tuple[str, int, int], int] = {}
        self._ends: dict[tuple[str, int, int], int] = {}
        self._counts = {"document": itertools.count(), "search_result": itertools.count()}
        #: Path of a block → the document in it whose text is not known yet.
        self._unplaced: dict[str, Source] = {}
        #: Place of a part in the Responses request → the document whose text is not known yet.
        self.files: dict[PartPlace, Source] = {}

    def __bool__(self) -> bool:
        return bool(self._passages or self.files)

    def next_index(self, block_type: Literal["document", "search_result"]) -> int:
        """Count a document or a search result of the request, and return its position."""
        return next(self._counts[block_type])

    def forget(self) -> None:
        """Forget all passages, because a summary replaces their documents. The positions of later
        documents stay as they are."""
        for known in (self._passages, self._starts, self._ends, self.files):
            known.clear()

    def add_file(self, source: Source, path: str) -> None:
        """Add a document whose text is loaded later. ``path``: the path of its block."""
        self._unplaced[path] = source

    def place(self, part: PartPlace, path: str) -> None:
        """Note where the part of a block is in the Responses request. ``path``: the path of the
        block."""
        if (source := self._unplaced.pop(path, None)) is not None:
            self.files[part] = source

    def add_text(self, source: Source) -> str:
        """Add the sentences of a text. Return the text for the model."""
        return self._add(
            _Passage(source, start, end, source.text[start:end])
            for start, end in _sentences(source.text)
        )

    def add_pages(self, source: Source, pages: Sequence[str]) -> str:
        """Add the sentences of pages. Return the text for the model."""
        return self._add(
            _Passage(source, number, number + 1, page[start:end])
            for number, page in enumerate(pages, 1)
            for start, end in _sentences(page)
        )

    def add_blocks(self, source: Source, texts: Sequence[str]) -> str:
        """Add blocks, each of which is a passage. Return the text for the model."""
        return self._add(
            _Passage(source, index, index + 1, text) for index, text in enumerate(texts)
        )

    def _add(self, passages: Iterable[_Passage]) -> str:
        shown: list[str] = []
        for passage in passages:
            self._passages.append(passage)
            source, number = passage.source, len(self._passages)
            self._starts.setdefault((source.kind, source.index, passage.start), number)
            self._ends[source.kind, source.index, passage.end] = number
            shown.append(f"【{len(self._passages)}】{passage.text.translate(_REPLACED_BRACKETS)}")
        title = " ".join(filter(None, (source.title, source.url))) if shown else ""
        return "\n".join(filter(None, (title, *shown)))

    def mark(self, citation: JsonObject) -> str:
        """Return the mark for a citation of an earlier answer. Returns "" if its passage is not
        known, such as one of a file, whose text is not loaded yet."""
        kind, unit, source = _FIELDS.get(str(citation.get("type")), ("", "", ""))
        names = (f"{source}_index", f"start_{unit}", f"end_{unit}")
        index, start, end = (citation.get(name) for name in names)
        if not (isinstance(index, int) and isinstance(start, int) and isinstance(end, int)):
            return ""
        first, last = self._starts.get((kind, index, start)), self._ends.get((kind, index, end))
        if first is None or last is None:
            return ""
        return f"【{first}】" if first == last else f"【{first}-{last}】"

    def cited(self, mark: str) -> list[Citation]:
        """Return the citations for the text in a mark. Numbers of no passage are left out."""
        found: list[Citation] = []
        for first, last in _RANGE.findall(mark):
            numbers = range(int(first), min(int(last or first), len(self._passages)) + 1)
            passages = [self._passages[n - 1] for n in numbers if 0 < n <= len(self._passages)]
            if passages:
                same = [each for each in passages if each.source is passages[0].source]
                found.append(_location(same))
        return found


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the sentences and lines of a text begin and end."""
    start = 0
    for end in _END.finditer(text):
        yield start, end.start()
        start = end.end()
    if text[start:].strip():
        yield start, len(text.rstrip())


def _location(passages: Sequence[_Passage]) -> Citation:
    source, start, end = passages[0].source, passages[0].start, passages[-1].end
    texts = [passage.text for passage in passages]
    document: dict[str, Any] = {"document_index": source.index, "document_title": source.title}
    document["file_id"] = source.file_id
    match source.kind:
        case "char":
            return CharLocation(
                cited_text=source.text[start:end],
                start_char_index=start,
                end_char_index=end,
                **document,
            )
        case "page":
            return PageLocation(
                cited_text=" ".join(texts), start_page_number=start, end_page_number=end, **document
            )
        case "block":
            return BlockLocation(
                cited_text="".join(texts), start_block_index=start, end_block_index=end, **document
            )
    return SearchResultLocation(
        cited_text="".join(texts),
        source=source.url,
        title=source.title,
        search_result_index=source.index,
        start_block_index=start,
        end_block_index=end,
    )


class CitedText:
    """Reads the text of one message, in pieces of any size, and separates it into texts and
    citations."""

    def __init__(self, passages: Passages) -> None:
        self._passages = passages
        self._pending = ""

    def feed(self, text: str, *, final: bool = False) -> list[str | Citation]:
        """Return texts and the citations of the text before them. ``final``: whether no more text
        follows. Otherwise, what may be the beginning of a mark is held back."""
        text, self._pending = self._pending + text, ""
        found: list[str | Citation] = []
        done = 0
        for mark in _MARK.finditer(text):
            if citations := self._passages.cited(mark.group(1)):
                found += [text[done : mark.start()], *citations]
                done = mark.end()
        rest = text[done:]
        if not final and (partial := _PARTIAL_MARK.search(rest)) is not None:
            rest, self._pending = rest[: partial.start()], rest[partial.start() :]
        return [each for each in (*found, rest) if each != ""]


def cites(fields: JsonObject, path: str) -> bool:
    """Return whether a block may be cited. Raises ``InvalidRequest``."""
    enabled = read_object(fields.get("citations") or {}, f"{path}.citations").get("enabled", False)
    if not isinstance(enabled, bool):
        raise invalid_type(f"{path}.citations.enabled", "a boolean", json_type_name(enabled))
    return enabled


#: Returns the text of a document, or the texts of the pages of a PDF. Its arguments are the part
#: and its path in the Responses request.
DocumentReader = Callable[[InputFile, str], Awaitable[str | tuple[str, ...]]]


async def number_files(
    request: CreateResponse, passages: Passages, read: DocumentReader
) -> CreateResponse:
    """Return the request with numbered passages in the place of the files that the model can cite.
    Raises ``RequestError``."""
    items = list(request.input or ())
    for place, source in passages.files.items():
        item = items[place.item]
        parts = getattr(item, place.field)
        if isinstance(parts, str):
            continue  # an edit of the context has cleared this result
        text = await read(parts[place.part], str(place))
        if isinstance(text, str):
            shown = passages.add_text(replace(source, text=text))
        else:
            shown = passages.add_pages(replace(source, kind="page"), text)
        numbered = (*parts[: place.part], InputText(text=shown), *parts[place.part + 1 :])
        items[place.item] = replace(item, **{place.field: numbered})
    return replace(request, input=tuple(items))
