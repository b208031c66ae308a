"""From masked text to ids: exact, whatever users write and whatever was kept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.chat import prompt as prompt_module
from antiphon.dialects.chat.prompt import ChatPromptEncoder
from antiphon.inference.conversation import PromptTokens
from antiphon.testing.tokenizer import END, ByteTokenizer

SPECIAL = ("<|a|>", "<|ab|>", "<think>", "\U0010fff0")
TOKENIZER = ByteTokenizer(SPECIAL)
ENCODER = ChatPromptEncoder(TOKENIZER, "f")
#: Text full of what must be kept apart: tokens, halves of tokens, the private characters.
PIECES = (*SPECIAL, END, "<|", "a|>", "b|>", "é", "🦄", " ", "x", "\U0010fffd", "\U00100001")
texts = st.lists(st.sampled_from(PIECES)).map("".join)
#: A prompt: what the template writes, and what users do, by turns.
prompts = st.lists(st.tuples(st.sampled_from(("<|a|>", "<|ab|>x", "\n", "<think>")), texts))


def decode(ids: tuple[int, ...]) -> str:
    return b"".join(map(TOKENIZER.piece, ids)).decode()


def masked(prompt: list[tuple[str, str]]) -> str:
    return "".join(ours + ENCODER.mask(theirs) for ours, theirs in prompt)


def prompt_text(prompt: list[tuple[str, str]]) -> str:
    return "".join(ours + theirs for ours, theirs in prompt)


@given(prompts)
def test_ids_spell_the_text_and_users_spell_no_token(prompt: list[tuple[str, str]]) -> None:
    ids = ENCODER.encode(masked(prompt), None)
    assert decode(ids) == ENCODER.unmask(masked(prompt)) == prompt_text(prompt)
    ours = "".join(ours for ours, _ in prompt)
    control = [id for id in ids if id > 255]
    assert control == [id for id in TOKENIZER.encode(ours, special=True) if id > 255]


@given(prompts, st.lists(st.integers(0, TOKENIZER.size - 1), max_size=30))
def test_stored_tokens_never_change_the_text(
    prompt: list[tuple[str, str]], stored: list[int]
) -> None:
    ids = ENCODER.encode(masked(prompt), PromptTokens(ids=tuple(stored), fingerprint="f"))
    assert decode(ids) == prompt_text(prompt)


@given(prompts, prompts)
def test_stored_tokens_are_extended_or_cut_at_a_token(
    first: list[tuple[str, str]], more: list[tuple[str, str]]
) -> None:
    stored = ENCODER.encode(masked(first), None)
    ids = ENCODER.encode(
        masked([*first, ("\n", ""), *more]), PromptTokens(ids=stored, fingerprint="f")
    )
    assert ids[: len(stored)] == stored
    other = ENCODER.encode(masked(more), PromptTokens(ids=stored, fingerprint="f"))
    assert decode(other) == prompt_text(more)


@given(st.lists(prompts, min_size=2, max_size=5), st.integers(0, 3))
def test_remembered_beginnings_change_nothing(
    turns: list[list[tuple[str, str]]], branch: int
) -> None:
    remembering = ChatPromptEncoder(TOKENIZER, "f")
    stored: PromptTokens | None = None
    text = ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_module, "_MIN_BEGINNING", 1)
        for number, turn in enumerate(turns):
            text = (text[: len(text) // 2] if number == branch else text) + masked(turn)
            ids = remembering.encode(text, stored)
            assert ids == ChatPromptEncoder(TOKENIZER, "f").encode(text, stored)
            stored = PromptTokens(ids=ids, fingerprint="f")


class CountingTokenizer(ByteTokenizer):
    """Counts the tokens whose bytes were read."""

    count = 0

    def piece(self, token: int) -> bytes:
        self.count += 1
        return super().piece(token)


def test_turn_of_a_long_conversation_reads_only_what_is_new() -> None:
    tokenizer = CountingTokenizer(SPECIAL)
    encoder = ChatPromptEncoder(tokenizer, "f")
    text, stored, counts = "", None, []
    for _ in range(50):
        text += f"<|a|>{'question ' * 100}{END}<|ab|>{'answer ' * 100}{END}"
        tokenizer.count = 0
        stored = PromptTokens(ids=encoder.encode(text, stored), fingerprint="f")
        counts.append(tokenizer.count)
    assert len(stored.ids) > 50_000 and counts[49] <= 1.2 * counts[4]


def test_remembered_beginnings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_module, "_MAX_REMEMBERED", 10_000)
    tokenizer = CountingTokenizer(SPECIAL)
    encoder = ChatPromptEncoder(tokenizer, "f")
    texts = [f"<|a|>{number} {'word ' * 400}{END}" for number in range(20)]
    stored = [PromptTokens(ids=encoder.encode(text, None), fingerprint="f") for text in texts]
    for text, tokens in zip(texts, stored, strict=True):
        encoder.encode(text, tokens)
    read = []
    for text, tokens in zip(reversed(texts), reversed(stored), strict=True):
        tokenizer.count = 0
        encoder.encode(text, tokens)
        read.append(tokenizer.count)
    remembered = sum(count < 100 for count in read)
    assert 1 < remembered < 6 and min(read[remembered:]) > 2_000


def test_unusual_tokenization_is_preserved() -> None:
    """A model need not write the tokens that an encoder would: other ids, the same text."""
    special = TOKENIZER.special
    stored = (special["<|a|>"], *b"hi", special[END])
    merged = ByteTokenizerOfPairs()
    encoder = ChatPromptEncoder(merged, "f")
    assert encoder.encode(f"<|a|>hi{END}", None) != stored
    ids = encoder.encode(f"<|a|>hi{END}more", PromptTokens(ids=stored, fingerprint="f"))
    assert ids[: len(stored)] == stored


def test_difference_cuts_back_to_the_last_control_token() -> None:
    stored = TOKENIZER.encode(f"<|a|>one{END}two three{END}", special=True)
    ids = ENCODER.encode(f"<|a|>one{END}two four", PromptTokens(ids=tuple(stored), fingerprint="f"))
    assert ids[:5] == tuple(stored[:5])
    assert decode(ids) == f"<|a|>one{END}two four"


def test_another_vocabulary_is_not_extended() -> None:
    stored = PromptTokens(ids=(*b"<|a|>",), fingerprint="other")
    assert ENCODER.encode("<|a|>", stored) == (TOKENIZER.special["<|a|>"],)


def test_text_in_stored_tokens_is_not_a_control_token() -> None:
    """The same letters, once as text and once as a control token, are not the same."""
    stored = PromptTokens(ids=tuple(b"<|a|>"), fingerprint="f")
    assert ENCODER.encode("<|a|>x", stored)[0] == TOKENIZER.special["<|a|>"]


def test_names_and_values_of_objects_are_hidden() -> None:
    value = {"<|a|>": ["<|a|>", 1, None, {"k": ("<|a|>",)}]}
    text = json.dumps(ENCODER.mask(value), ensure_ascii=False)
    assert "<|a|>" not in text
    assert ENCODER.unmask(text) == json.dumps(value)


class ByteTokenizerOfPairs(ByteTokenizer):
    """Knows one pair of letters as one token, as real vocabularies know many."""

    PAIR = 1000

    def __init__(self) -> None:
        super().__init__(SPECIAL)

    def encode(self, text: str, *, special: bool) -> list[int]:
        ids = super().encode(text, special=special)
        out: list[int] = []
        for id in ids:
            if out[-1:] == [ord("h")] and id == ord("i"):
                out[-1] = self.PAIR
            else:
                out.append(id)
        return out

    def piece(self, token: int) -> bytes:
        return b"hi" if token == self.PAIR else super().piece(token)


class BlankTokenizer(ByteTokenizer):
    """Puts a blank in front of every text, as SentencePiece vocabularies do."""

    def __init__(self) -> None:
        super().__init__(SPECIAL)

    def encode(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = []
        for piece in self.split(text) if special else [text]:
            token = self.special.get(piece) if special else None
            ids += [token] if token is not None else (" " + piece).encode() if piece else []
        return ids


def test_vocabularies_that_add_blanks_are_extended_at_control_tokens_only() -> None:
    tokenizer = BlankTokenizer()
    encoder = ChatPromptEncoder(tokenizer, "f")
    text = f"<|a|>one{END}<|a|>two{END}"
    stored = encoder.encode(text, None)
    assert (
        encoder.encode(f"{text}<|a|>", PromptTokens(ids=stored, fingerprint="f"))[: len(stored)]
        == stored
    )
    cut = PromptTokens(ids=stored[:-1], fingerprint="f")
    assert encoder.encode(f"<|a|>one{END}<|a|>two more", cut) == encoder.encode(
        f"<|a|>one{END}<|a|>two more", None
    )


def test_half_a_character_is_replaced() -> None:
    """Models write such, escaped, into the JSON of their calls; no tokenizer takes it."""
    tokenizer = ByteTokenizer()
    encoder = ChatPromptEncoder(tokenizer, "f")
    ids = encoder.encode("a\ud83d b", None)
    assert b"".join(map(tokenizer.piece, ids)).decode() == "a\ufffd b"
    assert encoder.encode_with_images("\ud83d|x", "|", "")[0] == encoder.encode("\ufffdx", None)
