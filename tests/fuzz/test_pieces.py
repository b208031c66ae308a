from __future__ import annotations

from tests.fuzz.pieces import PieceTokenizer


def test_pieces_of_a_text_are_longer_than_bytes_and_spell_it() -> None:
    text = "<call>{'city': 'Москва'}<|end|>"
    tokenizer = PieceTokenizer(["<call>"], ["<call>{'city': 'Москва'}"])
    ids = tokenizer.encode_pieces(text)
    assert b"".join(map(tokenizer.piece, ids)) == text.encode()
    assert ids[0] == tokenizer.special["<call>"] and len(ids) < len(text) / 2


def test_tokenizer_of_the_same_texts_has_the_same_pieces() -> None:
    texts = ["one and two", "three"]
    first, second = PieceTokenizer([], texts), PieceTokenizer([], texts)
    assert first.encode_pieces("one and three") == second.encode_pieces("one and three")
