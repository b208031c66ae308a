"""Read the JSON of upstreams that cut characters in half.

JSON writes a character beyond the first 65,536 as two escapes, a surrogate pair. Some servers send
the halves of a pair in two chunks, send one half alone, or cut a character of UTF-8. Strict
decoders refuse such a chunk, but one bad character must not cost the whole answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from antiphon.support.text import replace_lone_surrogates, replace_lone_surrogates_in_json

_T = TypeVar("_T")


def decode_leniently(payload: bytes, kind: type[_T], keep: Callable[[str], bool]) -> _T:
    """Decode a JSON text that the strict decoder refuses. Raises ``msgspec.MsgspecError`` if it is
    not JSON, or not of the type ``kind``.

    ``keep``: returns whether a field of this name contains streamed text. A half of a character at
    the start or the end of such a text stays, because the other half may be in another chunk. All
    other halves, and all bytes that are not UTF-8, become U+FFFD.
    """
    try:
        value = json.loads(payload.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        raise msgspec.DecodeError("not JSON") from None
    return msgspec.convert(_clean(value, keep, is_kept=False), kind)


def _clean(value: object, keep: Callable[[str], bool], *, is_kept: bool) -> Any:
    if isinstance(value, dict):
        return {
            replace_lone_surrogates(key): _clean(each, keep, is_kept=keep(key))
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_clean(each, keep, is_kept=False) for each in value]
    if isinstance(value, str) and is_kept:
        start = value[:1] if _is_low(value[:1]) else ""
        end = value[-1:] if _is_high(value[-1:]) else ""
        middle = value[len(start) : len(value) - len(end)]
        return start + replace_lone_surrogates(middle) + end
    return replace_lone_surrogates_in_json(value)


def _is_high(char: str) -> bool:
    return "\ud800" <= char <= "\udbff"


def _is_low(char: str) -> bool:
    return "\udc00" <= char <= "\udfff"


class SurrogateJoiner:
    """Joins the halves of characters in texts that arrive in pieces. Each text has a key."""

    def __init__(self) -> None:
        self._halves: dict[object, str] = {}

    def join(self, key: object, text: str) -> str:
        """Return the next piece of a text. A half at its end is held back until the next piece. A
        half without its counterpart becomes U+FFFD."""
        text = self._halves.pop(key, "") + text
        if _is_high(text[-1:]):
            self._halves[key] = text[-1]
            text = text[:-1]
        return replace_lone_surrogates(text)

    def finish(self, key: object) -> str:
        """End a text. Returns U+FFFD if its last piece ended with a half."""
        return "\ufffd" if self._halves.pop(key, "") else ""
