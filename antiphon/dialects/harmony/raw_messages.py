"""Divide the token ids of a prompt or of a reply into harmony messages, with the fields that
OpenAI's library gives a message."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antiphon.inference.tokens import Tokenizer

from .parser import CONTROL_TOKENS, TokenCodes

_ROLES = ("system", "developer", "user", "assistant")
_HEADER = re.compile(
    r"(?P<author>[^\s<]*)(?:\s*to=(?P<recipient>[^\s<]+))?"
    r"(?:\s*<\|channel\|>\s*(?P<channel>[^\s<]*)(?:\s*to=(?P<channel_recipient>[^\s<]+))?)?"
    r"(?:\s*<\|constrain\|>\s*(?P<type>[^\s<]*))?"
)


def split_messages(
    ids: Sequence[int], tokenizer: Tokenizer, codes: TokenCodes
) -> list[tuple[Sequence[int], Mapping[str, Any]]]:
    """Return the token ids of each message, and the message's fields: its role, its author's name,
    its text, its channel, its recipient and the type of its text.

    The first ids of a reply continue a message of the assistant that the prompt has begun. If the
    ids end with the header of a message that follows, these ids belong to the last message.
    """
    parts: list[Sequence[int]] = list(_parts(ids, codes))
    if len(parts) > 1 and _find(parts[-1], codes, "message") is None:
        parts[-2:] = [[*parts[-2], *parts[-1]]]
    return [(part, _fields(part, tokenizer, codes)) for part in parts]


def _parts(ids: Sequence[int], codes: TokenCodes) -> Iterator[Sequence[int]]:
    start = 0
    for at, id in enumerate(ids):
        if at > start and codes.controls.get(id) == "start":
            yield ids[start:at]
            start = at
    if start < len(ids):
        yield ids[start:]


def _find(ids: Sequence[int], codes: TokenCodes, *names: str) -> int | None:
    """Return the position of the first control token with one of these names."""
    return next((at for at, id in enumerate(ids) if codes.controls.get(id) in names), None)


def _fields(ids: Sequence[int], tokenizer: Tokenizer, codes: TokenCodes) -> Mapping[str, Any]:
    def text(part: Sequence[int]) -> str:
        return b"".join(map(tokenizer.piece, part)).decode("utf-8", "replace")

    begins = codes.controls.get(ids[0]) == "start"
    message = _find(ids, codes, "message")
    if message is None:  # the prompt contains the whole header, or the message has no text
        message = len(ids) if begins else -1
    body = ids[message + 1 :]
    body = body[: _find(body, codes, "end", "return", "call")]
    header = text(ids[begins : max(message, 0)])
    found = _HEADER.match(header if begins else f"assistant{header}")
    assert found is not None  # each part of the pattern is optional, so it always matches
    author, constrain = found["author"] or "assistant", CONTROL_TOKENS["constrain"]
    fields: dict[str, Any] = {
        "role": author if author in _ROLES else "tool",
        "name": None if author in _ROLES else author,
        "content": [{"type": "text", "text": text(body)}],
        "channel": found["channel"],
        "recipient": found["recipient"] or found["channel_recipient"],
        "content_type": found["type"] and f"{constrain}{found['type']}",
    }
    return {key: value for key, value in fields.items() if value is not None or key == "name"}
