"""Tokens become text: characters cut between tokens, special tokens, where text came from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.detokenizer import Detokenizer, TokenOrigins
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.tokens import TokenLogprob


@given(st.binary(max_size=30))
def test_bytes_become_the_same_text_as_at_once(written: bytes) -> None:
    detokenizer = Detokenizer(ByteTokenizer(), {})
    text = "".join(map(detokenizer.feed, written)) + detokenizer.finish()
    assert text == written.decode("utf-8", "replace")


@given(st.lists(st.binary(max_size=30), min_size=2, max_size=4))
def test_what_is_known_of_tokens_holds_in_every_reply(replies: list[bytes]) -> None:
    tokenizer, known = ByteTokenizer(), dict[int, str]()
    for written in replies:
        detokenizer = Detokenizer(tokenizer, {}, known)
        text = "".join(map(detokenizer.feed, written)) + detokenizer.finish()
        assert text == written.decode("utf-8", "replace")
    assert all(text == bytes((token,)).decode("utf-8", "replace") for token, text in known.items())


def test_a_special_token_cuts_a_character() -> None:
    tokenizer = ByteTokenizer(("<a>", "<b>"))
    detokenizer = Detokenizer(tokenizer, {256: "\ud801", 257: ""})
    assert [detokenizer.feed(token) for token in (0xE2, 0x82, 256, 257, 65)] == [
        "",
        "",
        "\ufffd\ud801",
        "",
        "A",
    ]


def test_where_text_came_from() -> None:
    first, second, third, fourth = (TokenLogprob(n, 0.0) for n in range(4))
    origins = TokenOrigins()
    origins.add(0, 3, first)
    origins.add(3, 0, second)  # the beginning of a character
    origins.add(3, 1, third)  # its end
    origins.add(4, 2, fourth)
    assert origins.take(0, 1) == [first]
    assert origins.take(1, 3) == []  # given once
    assert origins.take(3, 4) == [second, third]
    assert origins.take(5, 6) == [fourth]


def test_tokens_that_nobody_asked_for_are_forgotten() -> None:
    origins = TokenOrigins()
    for n in range(3):
        origins.add(2 * n, 2, TokenLogprob(n, 0.0))
    assert origins.take(4, 6) == [TokenLogprob(2, 0.0)]
