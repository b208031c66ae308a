"""Tokens become text: characters cut between tokens, special tokens, where text came from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.detokenizer import Detokenizer, TokenOrigins
from antiphon.inference.tokens import TokenLogprob
from antiphon.testing.tokenizer import ByteTokenizer


@given(st.binary(max_size=30))
def test_single_tokens_give_the_same_text_as_all_at_once(written: bytes) -> None:
    detokenizer = Detokenizer(ByteTokenizer(), {})
    text = "".join(map(detokenizer.feed, written)) + detokenizer.finish()
    assert text == written.decode("utf-8", "replace")


@given(st.lists(st.binary(max_size=30), min_size=2, max_size=4))
def test_token_cache_is_shared_by_replies(replies: list[bytes]) -> None:
    tokenizer, known = ByteTokenizer(), dict[int, str]()
    for written in replies:
        detokenizer = Detokenizer(tokenizer, {}, known)
        text = "".join(map(detokenizer.feed, written)) + detokenizer.finish()
        assert text == written.decode("utf-8", "replace")
    assert all(text == bytes((token,)).decode("utf-8", "replace") for token, text in known.items())


def test_special_token_ends_an_incomplete_character() -> None:
    tokenizer = ByteTokenizer(("<a>", "<b>"))
    detokenizer = Detokenizer(tokenizer, {256: "\ud801", 257: ""})
    assert [detokenizer.feed(token) for token in (0xE2, 0x82, 256, 257, 65)] == [
        "",
        "",
        "\ufffd\ud801",
        "",
        "A",
    ]


def test_text_ranges_map_to_tokens() -> None:
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


def test_tokens_before_the_range_are_discarded() -> None:
    origins = TokenOrigins()
    for n in range(3):
        origins.add(2 * n, 2, TokenLogprob(n, 0.0))
    assert origins.take(4, 6) == [TokenLogprob(2, 0.0)]
