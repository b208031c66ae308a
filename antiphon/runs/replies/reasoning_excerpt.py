"""Excerpts: reasoning summaries that are not written by a model. An excerpt consists of headings
and first sentences of the reasoning. It is sent while the model reasons."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterator, Mapping

from antiphon.backends.base import DeltaSink, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.inference.conversation import ResumePoint
from antiphon.stream.deltas import Delta, Open, SampledTokens, Summary, Text
from antiphon.wire.items import Reasoning

from .reasoning_summary import is_summary

#: Level → minimum number of characters between a part and the next first sentence that is used.
_INTERVALS: Mapping[str, int] = {"concise": 2000, "auto": 600, "detailed": 0}
#: Maximum number of characters of a heading or sentence. Longer texts are cut.
_MAX_LENGTH = 240

_HEADING = re.compile(r"#{1,6} *([^#]+)#*|\*\*([^*]+)\*\*:?")
#: Markdown before the first word of a paragraph: quotation marks, bullets, numbers.
_MARKER = re.compile(r"(?:> ?|[-*+•] +|\d{1,3}[.)] +){1,3}")
#: The end of a sentence. A full stop after a single character does not count, because it ends an
#: abbreviation or a number.
_END = re.compile(r"[。！？]|(?<!\b\w)[.!?…][\"'”’)\]]{0,2}(?=\s)")
#: Beginnings of lines that contain no sentence: tables, rules, markup.
_NO_SENTENCE = ("|", "---", "===", "<", "$$")
_FENCES = ("```", "~~~")


class Excerpt:
    """Extracts headings and first sentences from a text that arrives in pieces.

    A heading is a Markdown heading or a line in bold. A first sentence is the first sentence of a
    paragraph. Each heading and each first sentence becomes a part of the summary. The parts do not
    depend on how the text is split into pieces. ``level``: how detailed the summary is
    (``concise``, ``auto`` or ``detailed``).
    """

    def __init__(self, level: str) -> None:
        self._interval = _INTERVALS[level]
        self._reset()

    def _reset(self) -> None:
        #: Number of characters read, and number of characters before the current line.
        self._position = self._line_start = 0
        #: First sentences before this position are not used.
        self._next_sentence = 0
        #: The beginning of the current line.
        self._line = ""
        #: Length of the part of the line that was searched for the end of a sentence.
        self._searched = 0
        self._begins_paragraph = True
        #: The characters that end the current code block; empty outside of code blocks.
        self._fence = ""

    def feed(self, text: str) -> list[str]:
        """Read the next piece of the reasoning text. Return the parts of the summary that this
        piece completes."""
        parts: list[str] = []
        first, *lines = text.split("\n")
        self._extend_line(first, parts)
        for line in lines:
            self._end_line(parts)
            self._position += 1
            self._line_start = self._position
            self._extend_line(line, parts)
        return parts

    def finish(self) -> list[str]:
        """End the text. If the last line of the text completes a part of the summary, return this
        part. The next call of ``feed`` starts a new text."""
        parts: list[str] = []
        self._end_line(parts)
        self._reset()
        return parts

    def _extend_line(self, text: str, parts: list[str]) -> None:
        self._position += len(text)
        self._line += text[: _MAX_LENGTH + 1 - len(self._line)]
        if not self._begins_paragraph or self._fence:
            return
        # Start the search where the new text could complete the end of a sentence.
        end = _END.search(self._line, max(0, self._searched - 4))
        self._searched = len(self._line)
        if end is None and len(self._line) <= _MAX_LENGTH:
            return
        sentence = _without_marker(self._line[: end.end() if end else None])
        if sentence.startswith(("#", "**", *_FENCES)):
            return  # may be a heading: decided at the end of the line
        self._take_sentence(sentence, parts)
        self._begins_paragraph = False

    def _end_line(self, parts: list[str]) -> None:
        """Process the current line, which is now complete. If the line is a heading, append the
        heading to ``parts``. If the line begins a paragraph, and ``_extend_line`` has not found the
        paragraph's first sentence, pass the first sentence to ``_take_sentence``."""
        text, self._line, self._searched = self._line.strip(), "", 0
        if self._fence:
            if text.startswith(self._fence):
                self._fence, self._begins_paragraph = "", True
        elif text.startswith(_FENCES):
            self._fence = text[:3]
        elif not text:
            self._begins_paragraph = True
        elif heading := _HEADING.fullmatch(_without_marker(text)):
            title = (heading[1] or heading[2]).strip().rstrip(":")
            parts.append(f"**{_shortened(title)}**")
            self._next_sentence = self._line_start + self._interval
            self._begins_paragraph = True
        elif self._begins_paragraph:
            end = _END.search(text)
            self._take_sentence(_without_marker(text[: end.end() if end else None]), parts)
            self._begins_paragraph = False

    def _take_sentence(self, sentence: str, parts: list[str]) -> None:
        if self._line_start < self._next_sentence or sentence.startswith(_NO_SENTENCE):
            return
        if not any(map(str.isalnum, sentence)):
            return
        if sentence.count("**") % 2:
            sentence = sentence.replace("**", "")
        parts.append(_shortened(sentence))
        self._next_sentence = self._line_start + self._interval


def _without_marker(line: str) -> str:
    line = line.strip()
    marker = _MARKER.match(line)
    return line[marker.end() :] if marker else line


def _shortened(text: str) -> str:
    """Return the text. If it is too long, it is cut between two words."""
    if len(text) < _MAX_LENGTH:
        return text
    head, space, _ = text[: _MAX_LENGTH - 1].rpartition(" ")
    return f"{head if space else text[: _MAX_LENGTH - 1]}…"


class ExcerptedReply(ReplyWrapper):
    """``Reply`` with excerpts of its reasoning as summaries.

    ``level``: how detailed the summaries are (``concise``, ``auto`` or ``detailed``). ``waits``:
    True if the backend can send its own summaries of the reasoning. Excerpts are then held back
    until the reasoning ends. If the backend has sent a summary by then, the excerpts are dropped.
    """

    def __init__(self, reply: Reply, level: str, *, waits: bool = False) -> None:
        super().__init__(reply)
        self._excerpt = Excerpt(level)
        self._level = level
        self._waits = waits
        self._waiting: list[str] = []
        #: Whether the open item is reasoning that the backend has not summarized.
        self._is_reasoning = False

    def resume(self, point: ResumePoint) -> Reply:
        """Continue an interrupted reply. If the reply was interrupted inside a reasoning item, the
        parts of the summary that the item already has are not sent again."""
        resumed = ExcerptedReply(self._reply.resume(point), self._level, waits=self._waits)
        last = point.open_items[-1] if point.open_items else None
        if isinstance(last, Reasoning):
            resumed._is_reasoning = not (self._waits and last.summary)
            parts = resumed._excerpt.feed("".join(part.text for part in (last.content or ())))
            resumed._waiting = parts if self._waits else []
        return resumed

    async def pump(self, sink: DeltaSink) -> None:
        def add_parts(batch: tuple[Delta, ...]) -> Awaitable[None] | None:
            if self._is_reasoning or any(isinstance(delta, Open) for delta in batch):
                batch = tuple(self._with_parts(batch))
            return sink(batch)

        await self._reply.pump(add_parts)

    def _with_parts(self, batch: tuple[Delta, ...]) -> Iterator[Delta]:
        """Yield the deltas of ``batch``, and between them the new parts of the reasoning summary. A
        part comes after the text that completes it and before the delta that ends the reasoning.

        If ``_waits`` is true, all parts are held back until the reasoning ends, because the backend
        may still send its own summary. If the backend sends a summary, the parts are dropped."""
        for delta in batch:
            if self._is_reasoning and is_summary(delta):
                self._is_reasoning = False
                self._begin_item()
            elif self._is_reasoning and not isinstance(delta, Text | SampledTokens):
                self._is_reasoning = False
                parts = self._waiting + self._excerpt.finish()
                self._waiting = []
                yield from map(Summary, parts)
            if isinstance(delta, Open):
                self._is_reasoning = delta.item.is_reasoning
            yield delta
            if self._is_reasoning and isinstance(delta, Text):
                parts = self._excerpt.feed(delta.text)
                if self._waits:
                    self._waiting += parts
                else:
                    yield from map(Summary, parts)

    def _begin_item(self) -> None:
        self._excerpt.finish()
        self._waiting = []
