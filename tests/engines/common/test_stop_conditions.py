"""Where a continuation ends, against reading it as a whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.base import Sampling
from antiphon.engines.common.stop_conditions import StopConditions
from antiphon.inference.tokens import Chunk, TokenLogprob
from antiphon.testing.tokenizer import END, ByteTokenizer

TOKENIZER = ByteTokenizer(("<mark>",))
EOS = TOKENIZER.special[END]
MARK = TOKENIZER.special["<mark>"]


def read(ids: list[int], sampling: Sampling, *, room: int = 100, step: int = 1) -> list[Chunk]:
    """Fed ``step`` tokens at a time, until it is over."""
    endings = StopConditions(TOKENIZER, sampling, room)
    chunks = []
    for at in range(0, len(ids), step):
        if endings.finished:
            break
        chunk = endings.feed(TokenLogprob(id, -0.5) for id in ids[at : at + step])
        if chunk is not None:
            chunks.append(chunk)
    return chunks


def ids(chunks: list[Chunk]) -> list[int]:
    return [id for chunk in chunks for id in chunk.ids]


def test_max_tokens_is_exact() -> None:
    chunks = read(list(b"abcdef"), Sampling(max_tokens=3))
    assert (ids(chunks), chunks[-1].finish) == (list(b"abc"), "length")


def test_context_limits_the_output() -> None:
    chunks = read(list(b"abcdef"), Sampling(max_tokens=9), room=2)
    assert (ids(chunks), chunks[-1].finish) == (list(b"ab"), "length")


def test_end_token_is_yielded_and_ends_generation() -> None:
    chunks = read([*b"ab", EOS, *b"c"], Sampling(max_tokens=9))
    assert (ids(chunks), chunks[-1].finish) == ([*b"ab", EOS], "stop")
    on = read([*b"ab", EOS, *b"c"], Sampling(max_tokens=4, ignore_eos=True))
    assert (ids(on), on[-1].finish) == ([*b"ab", EOS, *b"c"], "length")


def test_stop_id_ends_generation_with_ignore_eos() -> None:
    chunks = read([*b"a", MARK, *b"b"], Sampling(max_tokens=9, stop_ids=(MARK,), ignore_eos=True))
    assert (ids(chunks), chunks[-1].finish) == ([*b"a", MARK], "stop")


def test_special_tokens_spell_nothing() -> None:
    chunks = read([*b"a", MARK, *b"b"], Sampling(max_tokens=3, stop=("<mark>",)))
    assert (ids(chunks), chunks[-1].finish) == ([*b"a", MARK, *b"b"], "length")


def test_possible_stop_string_is_held_back() -> None:
    chunks = read(list(b"a\n\nb"), Sampling(max_tokens=4, stop=("\n\nX",)))
    assert [bytes(chunk.ids) for chunk in chunks] == [b"a", b"\n\nb"]
    ended = read(list(b"a\n\nXb"), Sampling(max_tokens=9, stop=("\n\nX",)))
    assert (ids(ended), ended[-1].stop_text) == (list(b"a"), "\n\nX")


def test_logprobs_go_with_their_ids_or_not_at_all() -> None:
    logprob = read(list(b"ab"), Sampling(max_tokens=2, logprobs=0))
    assert [token.id for chunk in logprob for token in chunk.logprobs] == list(b"ab")
    unreported_tokens = read(list(b"ab"), Sampling(max_tokens=2))
    assert all(chunk.logprobs == () for chunk in unreported_tokens)


@given(
    text=st.text("abX", max_size=24),
    stops=st.lists(st.text("abX", min_size=1, max_size=3), max_size=3),
    step=st.integers(1, 5),
)
def test_chunking_does_not_change_the_end(text: str, stops: list[str], step: int) -> None:
    sampling = Sampling(max_tokens=len(text) + 1, stop=tuple(stops))
    chunks = read([*text.encode(), EOS], sampling, step=step)
    found = [text.index(stop) + len(stop) for stop in stops if stop in text]
    shown = bytes(id for id in ids(chunks) if id != EOS).decode()
    assert chunks[-1].finish == "stop" and all(chunk.finish is None for chunk in chunks[:-1])
    if not found:
        assert shown == text and chunks[-1].stop_text is None
    else:
        stop = chunks[-1].stop_text
        assert stop is not None and text.index(stop) + len(stop) == min(found)
        assert shown == text[: text.index(stop)]
