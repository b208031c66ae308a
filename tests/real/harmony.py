"""The vocabulary of gpt-oss as a ``Tokenizer``, for tests without a model. It comes from the
library ``openai_harmony``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.config.load import environment_variable
from antiphon.dialects.harmony.parser import CONTROL_TOKENS
from antiphon.dialects.harmony.vocabulary import load

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding


def harmony_encoding() -> HarmonyEncoding:
    """Load gpt-oss's vocabulary (``HarmonyEncoding``) with the library ``openai_harmony``. The
    vocabulary file is stored in the server's default cache folder."""
    return load(
        None, Path.home() / ".cache" / "antiphon" / "models" / "vocabulary", environment_variable
    )


class HarmonyTokenizer:
    """``Tokenizer`` that uses an encoding (a vocabulary) of the library ``openai_harmony``. The
    tokens ``<|return|>`` and ``<|call|>`` end a message."""

    def __init__(self, encoding: HarmonyEncoding) -> None:
        self._encoding = encoding
        self.special: dict[str, int] = {
            text: encoding.encode(text, allowed_special="all")[0]
            for text in encoding.special_tokens_set
        }
        self._literals: dict[int, bytes] = {id: t.encode() for t, id in self.special.items()}

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset(self.special[CONTROL_TOKENS[name]] for name in ("return", "call"))

    @property
    def size(self) -> int:
        return max(self._literals) + 1

    def encode(self, text: str, *, special: bool) -> list[int]:
        if special:
            return list(self._encoding.encode(text, allowed_special="all"))
        return list(self._encoding.encode(text, disallowed_special=()))

    def piece(self, token: int) -> bytes:
        if token in self._literals:
            return self._literals[token]
        if not 0 <= token < 199_998:
            return b""
        return bytes(self._encoding._inner.decode_bytes([token]))
