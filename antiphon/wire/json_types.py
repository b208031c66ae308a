"""Types of JSON values without a type of their own, such as schemas and options of clients."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

__all__ = ["EncodedText", "JsonObject"]

_encode = msgspec.json.Encoder().encode

#: A JSON object whose fields the code looks up by name.
JsonObject = dict[str, Any]


class EncodedText(Struct, frozen=True):
    """A text and its JSON."""

    text: str
    json: Raw

    @classmethod
    def of(cls, text: str) -> EncodedText:
        """Encode a text."""
        return cls(text, Raw(_encode(text)))
