"""What clients carry for us: thinking, and the past that a compaction item stands for.

It knows what is sealed and for whom, not when, nor how a model is shown it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.security.encryption import DecryptionError, Encryptor
from antiphon.wire import items as it

__all__ = ["CompactedHistory", "TenantSealer"]

#: Of a sealed past, before it is written as text; clients may send 20 MiB.
_MOST_BYTES = 12 * 2**20


class CompactedHistory(Struct, frozen=True, kw_only=True):
    """What a compaction item stands for: what the user ``said`` lately, the ``summary``, and the
    ``rest``, which is shown behind it as it was."""

    said: tuple[it.Item, ...] = ()
    summary: str = ""
    rest: tuple[it.Item, ...] = ()


class _Thinking(Struct, frozen=True):
    """``foreign``: what an upstream sealed itself, for itself."""

    content: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()
    foreign: str = ""


_encode = msgspec.json.Encoder().encode
_decode_past = msgspec.json.Decoder(CompactedHistory).decode
_decode_thinking = msgspec.json.Decoder(_Thinking).decode


class TenantSealer:
    """Seals and opens for one tenant. What cannot be opened raises ``SealBroken``."""

    def __init__(self, seal: Encryptor, tenant: str) -> None:
        self._seal = seal
        self._tenant = tenant

    def encrypted_reasoning(self, item: it.Item) -> Mapping[str, Any]:
        """What an item is given besides, once it is closed: thinking, itself under seal."""
        if not isinstance(item, it.Reasoning):
            return {}
        thinking = _Thinking(
            content=tuple(part.text for part in item.content or ()),
            summary=tuple(part.text for part in item.summary),
            foreign=item.encrypted_content or "",
        )
        return {"encrypted_content": self._sealed(_encode(thinking), "reasoning")}

    def decrypt_reasoning(self, item: it.Reasoning) -> it.Reasoning:
        """The item with what was sealed; what it has besides stays as it is."""
        try:
            thinking = _decode_thinking(self._opened(item.encrypted_content or "", "reasoning"))
        except msgspec.MsgspecError:
            raise DecryptionError from None
        content = tuple(it.ReasoningText(text=text) for text in thinking.content)
        summary = tuple(it.SummaryText(text=text) for text in thinking.summary)
        return replace(
            item,
            content=item.content or content or UNSET,
            summary=item.summary or summary,
            encrypted_content=thinking.foreign or UNSET,
        )

    def encrypt_compaction(self, past: CompactedHistory) -> str:
        """The content of a compaction item. Pictures and files are left out where they would make
        it longer than clients may send back."""
        encoded = _encode(past)
        if len(encoded) > _MOST_BYTES:
            lighter = replace(past, said=_texts(past.said), rest=_texts(past.rest))
            encoded = _encode(lighter)
        return self._sealed(encoded, "compaction")

    def decrypt_compaction(self, text: str) -> CompactedHistory:
        """What it stands for."""
        try:
            return _decode_past(self._opened(text, "compaction"))
        except msgspec.MsgspecError:
            raise DecryptionError from None

    def _sealed(self, content: bytes, purpose: str) -> str:
        return self._seal.encrypt(content, purpose=purpose, tenant=self._tenant)

    def _opened(self, text: str, purpose: str) -> bytes:
        return self._seal.decrypt(text, purpose=purpose, tenant=self._tenant)


def _texts(items: tuple[it.Item, ...]) -> tuple[it.Item, ...]:
    """The items, their messages and outputs without parts that are no text."""
    return tuple(_text(item) for item in items)


def _text(item: it.Item) -> it.Item:
    changed = {
        name: tuple(part for part in parts if hasattr(part, "text"))
        for name in ("content", "output")
        if isinstance(parts := getattr(item, name, None), tuple)
    }
    return replace(item, **changed) if changed else item
