"""Drop the tags with which a model marks the cited parts of its answer, as Cohere's models do:
``<co>text</co: 0:[1]>``. The text between the tags is the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from antiphon.dialects.base import Parser
from antiphon.inference.tokens import Chunk
from antiphon.stream.deltas import Delta, FinishReason, Open, SampledTokens, Text
from antiphon.wire.parts import Logprob

#: Limit of the sources in a tag: ``: 0:[1,2]``. A longer text after the tag's name is no tag.
_MAX_SOURCES = 64


class CitationTagParser:
    """``dialects.base.Parser`` that drops citation tags from the messages that another parser
    returns. ``name``: the name of the tags, such as ``co``.

    The start of a tag is held back until the tag is complete. The log probabilities of its tokens
    belong to the text that follows.
    """

    def __init__(self, inner: Parser, name: str) -> None:
        self._inner = inner
        tag = re.escape(name)
        self._tag = re.compile(rf"</?{tag}(?::[^<>\n]{{0,{_MAX_SOURCES}}})?>")
        self._tag_start = re.compile(
            rf"<(?:/?(?:{_prefixes(name)})?|/?{tag}:[^<>\n]{{0,{_MAX_SOURCES}}})\Z"
        )
        self._in_message = False
        self._held = ""
        self._held_logprobs: tuple[Logprob, ...] = ()

    @property
    def reasoning_tokens(self) -> int:
        return self._inner.reasoning_tokens

    @property
    def is_thinking(self) -> bool:
        return self._inner.is_thinking

    @property
    def done(self) -> bool:
        return self._inner.done

    def set_unconstrained(self) -> None:
        self._inner.set_unconstrained()

    def feed(self, chunk: Chunk) -> Iterable[Delta]:
        return tuple(self._without_tags(self._inner.feed(chunk)))

    def finish(self, reason: FinishReason) -> Iterable[Delta]:
        deltas = tuple(self._without_tags(self._inner.finish(reason)))
        return (*deltas, *self._flush())

    def _without_tags(self, deltas: Iterable[Delta]) -> Iterator[Delta]:
        for delta in deltas:
            if isinstance(delta, Text) and self._in_message and delta.channel == "text":
                yield from self._read(delta)
                continue
            if not isinstance(delta, SampledTokens):
                yield from self._flush()
            if isinstance(delta, Open):
                self._in_message = delta.item.is_message
            yield delta

    def _read(self, delta: Text) -> Iterator[Delta]:
        text = self._tag.sub("", self._held + delta.text)
        logprobs = (*self._held_logprobs, *delta.logprobs)
        start = self._tag_start.search(text)
        end = len(text) if start is None else start.start()
        self._held = text[end:]
        if end:
            self._held_logprobs = ()
            yield Text(text[:end], logprobs)
        else:
            self._held_logprobs = logprobs

    def _flush(self) -> Iterator[Delta]:
        """Yield the text that was held back: it is no tag."""
        if self._held:
            yield Text(self._held, self._held_logprobs)
        self._held, self._held_logprobs = "", ()


def _prefixes(name: str) -> str:
    return "|".join(re.escape(name[:size]) for size in range(len(name), 0, -1))
