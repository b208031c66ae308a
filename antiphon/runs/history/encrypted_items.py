"""Encrypts state that clients store for the server: reasoning, and the history that a compaction
item replaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.security.encryption import DecryptionError, Encryptor
from antiphon.wire import items as it

#: Limit of an encoded history before encryption. Clients may send 20 MiB.
_MAX_BYTES = 12 * 2**20


class CompactedHistory(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"user_messages": "said", "recent_items": "rest", "user_token_budget": "room"},
):
    """The part of the history that a compaction item replaces.

    - ``user_messages``: the latest messages of the user among the summarized items.
    - ``recent_items``: the last items, which follow the summary unchanged.
    - ``user_token_budget``: maximum number of tokens of the user's messages that precede the
      summary. If it is None, only the limit of ``VisibleHistory`` applies.

    The encoded field names are part of a stored format.
    """

    user_messages: tuple[it.Item, ...] = ()
    summary: str = ""
    recent_items: tuple[it.Item, ...] = ()
    user_token_budget: int | None = None


class _EncryptedReasoning(Struct, frozen=True, rename={"upstream_content": "foreign"}):
    """The content of a reasoning item in the form that is encrypted. ``upstream_content``: content
    that the upstream API has already encrypted with its own key. The encoded field names are part
    of a stored format."""

    content: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()
    upstream_content: str = ""


_encode = msgspec.json.Encoder().encode
_decode_history = msgspec.json.Decoder(CompactedHistory).decode
_decode_reasoning = msgspec.json.Decoder(_EncryptedReasoning).decode


class TenantSealer:
    """Encrypts and decrypts the items of one tenant. Decryption raises ``DecryptionError`` for
    content that was not encrypted for this tenant."""

    def __init__(self, seal: Encryptor, tenant: str) -> None:
        self._encryptor = seal
        self._tenant = tenant

    def encrypted_reasoning(self, item: it.Reasoning) -> Mapping[str, Any]:
        """Return the encrypted content of a finished reasoning item, as a field to add to the
        item."""
        reasoning = _EncryptedReasoning(
            content=tuple(part.text for part in item.content or ()),
            summary=tuple(part.text for part in item.summary),
            upstream_content=item.encrypted_content or "",
        )
        return {"encrypted_content": self._encrypt(_encode(reasoning), "reasoning")}

    def decrypt_reasoning(self, item: it.Reasoning) -> it.Reasoning:
        """Return the reasoning item with its decrypted content. If the item already has content or
        a summary, these fields stay unchanged."""
        try:
            reasoning = _decode_reasoning(self._decrypt(item.encrypted_content or "", "reasoning"))
        except msgspec.MsgspecError:
            raise DecryptionError from None
        content = tuple(it.ReasoningText(text=text) for text in reasoning.content)
        summary = tuple(it.SummaryText(text=text) for text in reasoning.summary)
        return replace(
            item,
            content=item.content or content or UNSET,
            summary=item.summary or summary,
            encrypted_content=reasoning.upstream_content or UNSET,
        )

    def encrypt_compaction(self, history: CompactedHistory) -> str:
        """Return the encrypted content of a compaction item. Clients send this content back in
        later requests. If it would be larger than a request may be, images and files are left
        out."""
        encoded = _encode(history)
        if len(encoded) > _MAX_BYTES:
            reduced = replace(
                history,
                user_messages=_text_only(history.user_messages),
                recent_items=_text_only(history.recent_items),
            )
            encoded = _encode(reduced)
        return self._encrypt(encoded, "compaction")

    def decrypt_compaction(self, text: str) -> CompactedHistory:
        """Return the history that a compaction item replaces. ``text``: the encrypted content of
        the item."""
        try:
            return _decode_history(self._decrypt(text, "compaction"))
        except msgspec.MsgspecError:
            raise DecryptionError from None

    def _encrypt(self, content: bytes, purpose: str) -> str:
        return self._encryptor.encrypt(content, purpose=purpose, tenant=self._tenant)

    def _decrypt(self, text: str, purpose: str) -> bytes:
        return self._encryptor.decrypt(text, purpose=purpose, tenant=self._tenant)


def _text_only(items: tuple[it.Item, ...]) -> tuple[it.Item, ...]:
    """Return the items without images and files: messages and outputs keep only their text
    parts."""
    return tuple(_without_media(item) for item in items)


def _without_media(item: it.Item) -> it.Item:
    changed = {
        name: tuple(part for part in parts if hasattr(part, "text"))
        for name in ("content", "output")
        if isinstance(parts := getattr(item, name, None), tuple)
    }
    return replace(item, **changed) if changed else item
