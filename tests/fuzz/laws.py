"""The laws that every parser obeys for any output.

- Chunking: the output read whole, token by token and in chunks gives the same deltas.
- Form: items are closed, and their texts are valid Unicode.
- Truncation: an output that was cut off closes only calls that the whole output has too.
- Conservation: a tracer appears once in the text, the reasoning, or a call's name, id or arguments.
  Tracers are characters that belong to no format's markup.
- Arguments: the arguments of a completed call are JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from antiphon.stream.deltas import Close, Delta, Open, Text
from antiphon.wire.items import FunctionCall
from tests.dialects.replies import items, read
from tests.fuzz.parsers import Target

#: Georgian and Armenian letters, and symbols, which no name contains. No corpus contains any.
TRACERS = "".join(map(chr, [*range(0x10D0, 0x10F1), *range(0x561, 0x587), *range(0x2600, 0x2640)]))
_IS_TRACER = frozenset(TRACERS)


def check_laws(
    target: Target, text: str, cuts: Sequence[int], *, thinking: bool, pieces: bool = False
) -> None:
    """Raise ``AssertionError`` if the parser breaks a law for the output ``text``.

    - ``cuts``: positions at which to cut the output into chunks, modulo its length in tokens. The
      output ends at the first of them where it is cut off.
    - ``thinking``: whether the prompt has opened the reasoning.
    - ``pieces``: the tokens are pieces of several bytes, otherwise each byte is a token.
    """
    tokenizer = target.tokenizer
    ids = tokenizer.encode_pieces(text) if pieces else tokenizer.encode(text, special=True)
    at = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    chunks = [ids[a:b] for a, b in pairwise(at)]
    whole = read(target.make(thinking), [ids])
    assert read(target.make(thinking), ([token] for token in ids)) == whole, "token by token"
    assert read(target.make(thinking), chunks) == whole, "in chunks"
    _check_arguments(whole)
    found, is_open = items(whole)
    assert not is_open
    for item in found:
        for value in item.values():
            value.encode()  # raises for half a character
    _check_conservation(text, target.headers(text), found)
    end = cuts[0] % (len(ids) + 1) if cuts else len(ids)
    deltas = read(target.make(thinking), [ids[:end]], "length")
    _check_arguments(deltas)
    early, is_open = items(deltas)
    closed = _calls(early[:-1] if is_open else early)
    assert closed == _calls(found)[: len(closed)], "a call was closed before its end"


def _check_arguments(deltas: Sequence[Delta]) -> None:
    arguments: list[str] | None = None
    for delta in deltas:
        if isinstance(delta, Open):
            arguments = [] if isinstance(delta.item, FunctionCall) else None
        elif isinstance(delta, Text) and arguments is not None:
            arguments.append(delta.text)
        elif isinstance(delta, Close) and arguments is not None and delta.status == "completed":
            json.loads("".join(arguments), parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _check_conservation(text: str, headers: str, found: Sequence[dict[str, Any]]) -> None:
    written = _count_tracers([text])
    if written:
        shown = _count_tracers(value for item in found for value in _texts(item))
        lost = written - shown - _count_tracers([headers])
        assert not lost, f"lost {lost}"
        assert shown <= written, f"doubled {shown - written}"


def _texts(item: dict[str, Any]) -> list[str]:
    """Return an item's texts, without an id that repeats the name."""
    name = item.get("call") or item.get("custom") or ""
    return [
        value for key, value in item.items() if key != "call_id" or not name or name not in value
    ]


def _count_tracers(texts: Any) -> Counter[str]:
    return Counter(char for text in texts for char in text if char in _IS_TRACER)


def _calls(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in found if "arguments" in item]
