from __future__ import annotations

from collections.abc import Mapping

from antiphon.engines.llama.partial_tokens import PartialTokens

UNICORN = "🦄".encode()


class Bytes:
    """A tokenizer of single bytes (id = byte) and some longer pieces, which ``encode`` prefers."""

    special: Mapping[str, int] = {}
    end_ids: frozenset[int] = frozenset()

    def __init__(self, *longer: bytes) -> None:
        self.pieces = [bytes([byte]) for byte in range(256)] + list(longer)
        self.size = len(self.pieces)

    def encode(self, text: str, *, special: bool) -> list[int]:
        rest, ids = text.encode(), []
        while rest:
            id = max(
                (id for id, piece in enumerate(self.pieces) if rest.startswith(piece)),
                key=lambda id: len(self.pieces[id]),
            )
            ids.append(id)
            rest = rest[len(self.pieces[id]) :]
        return ids

    def piece(self, token: int) -> bytes:
        return self.pieces[token]


def test_own_encoding_is_preferred() -> None:
    tokenizer = Bytes(UNICORN[:2])
    assert PartialTokens(tokenizer).recover("🦄", UNICORN[3], 2) == [256, UNICORN[2], UNICORN[3]]


def test_other_split_with_the_same_token_count_is_found() -> None:
    tokenizer = Bytes(UNICORN[:2])
    assert PartialTokens(tokenizer).recover("🦄", UNICORN[3], 3) == list(UNICORN)


def test_text_before_the_character_in_the_same_token() -> None:
    tokenizer = Bytes(b" " + UNICORN[:3], UNICORN[:3])
    assert PartialTokens(tokenizer).recover(" 🦄", UNICORN[3], 1) == [256, UNICORN[3]]


def test_several_characters_at_once() -> None:
    text = "é漢"
    spelled = text.encode()
    tokenizer = Bytes(spelled[1:3])
    ids = PartialTokens(tokenizer).recover(text, spelled[4], 3)
    assert b"".join(map(tokenizer.piece, ids)) == spelled
    assert len(ids) == 4


def test_invalid_utf8_becomes_the_nearest_text() -> None:
    tokenizer = Bytes()
    ids = PartialTokens(tokenizer).recover("�x", ord("x"), 1)
    assert b"".join(map(tokenizer.piece, ids)).decode() == "�x"
