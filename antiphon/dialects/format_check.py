"""Check that the parser can read the calls that a tool format renders. Antiphon checks the formats
in the operator's files at startup, so that it reports a wrong format immediately."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from antiphon.dialects.formats.types import ToolFormat
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.inference.tokens import Chunk
from antiphon.stream.deltas import Delta, Open, Text
from antiphon.wire.items import FunctionCall

__all__ = ["round_trip_failure"]

_NAME = "look_up"
_SCHEMA = {"properties": {"word": {"type": "string"}, "count": {"type": "integer"}}}
_CALLS: tuple[Mapping[str, object], ...] = (
    {"word": "one", "count": 3},
    {"word": "two", "count": 4},
)


class _Bytes:
    """A minimal tokenizer for checking formats. Each byte is one token, and there are no control
    tokens."""

    special: Mapping[str, int] = {}
    end_ids: frozenset[int] = frozenset()
    size = 256

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(text.encode())

    def piece(self, token: int) -> bytes:
        return bytes((token,))


def round_trip_failure(form: ToolFormat) -> str | None:
    """Render two sample calls in a tool format and parse them again. Returns None if the parser
    finds the same calls, and otherwise the rendered text.

    Formats that set the field ``begins`` cannot be checked: only control tokens mark their calls,
    and the tokenizer of this check has no control tokens. For these formats, returns None.
    """
    how = form.written
    text = how.render_calls((_NAME, how.render_arguments(call)) for call in _CALLS)
    tokenizer, shape = _Bytes(), ToolShape(wire_name=_NAME, schema=_SCHEMA)
    parser = FormatParser(
        tokenizer, reasoning=None, tools=form, shapes={_NAME: shape}, thinking=False
    )
    ids = tokenizer.encode(text, special=False)
    deltas = [*parser.feed(Chunk(ids=tuple(ids))), *parser.finish("stop")]
    return None if form.begins or list(_called(deltas)) == list(_CALLS) else text


def _called(deltas: Iterable[Delta]) -> Iterable[object]:
    """Yield the parsed arguments of each call in ``deltas``. Yields None for an item that is not a
    call of the function ``_NAME``, and for a call whose arguments are not JSON."""
    texts: list[str] = []
    for delta in deltas:
        if isinstance(delta, Open):
            item = delta.item
            is_call = isinstance(item, FunctionCall) and item.name == _NAME
            texts.append("" if is_call else "null ")
        elif isinstance(delta, Text):
            texts[-1] += delta.text
    for each in texts:
        try:
            yield json.loads(each)
        except ValueError:
            yield None
