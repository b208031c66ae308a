"""Both dialects pass the shipped contract checks, chat with many templates; violations are
detected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache

import pytest
from msgspec.structs import replace

from antiphon.dialects import base
from antiphon.dialects.base import Parser, Rendered
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import Chunk, ModelCard, Prompt
from antiphon.stream.deltas import Close, Delta, FinishReason, SampledTokens, Text
from antiphon.testing.dialect_check import CHECKS, Check, DialectUnderTest, check_dialect
from antiphon.testing.tokenizer import END, ByteTokenizer
from tests.dialects import gpt_oss
from tests.dialects.families import TOKENS, source


class WordTokenizer(ByteTokenizer):
    """Known words are tokens; their bytes spell the same text."""

    def __init__(self, special: Sequence[str]) -> None:
        super().__init__(special)
        first = super().size
        self._words = {word: first + n for n, word in enumerate(("Very", " fine", "weather", "Hi"))}
        self._of_word = {id: word for word, id in self._words.items()}
        self._known = re.compile(f"({'|'.join(self._words)})")

    @property
    def size(self) -> int:
        return super().size + len(self._words)

    def encode(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = []
        for piece in self._known.split(text):
            word = self._words.get(piece)
            ids += super().encode(piece, special=special) if word is None else (word,)
        return ids

    def piece(self, token: int) -> bytes:
        word = self._of_word.get(token)
        return super().piece(token) if word is None else word.encode()


@cache
def model(family: str, kind: type[WordTokenizer] = WordTokenizer) -> DialectUnderTest:
    tokenizer = kind(TOKENS[family])
    card = ModelCard(
        name="m",
        context_size=1000,
        chat_template=source(family),
        bos_token=TOKENS[family][0],
        eos_token=END,
        fingerprint="f",
    )
    return DialectUnderTest(
        ChatDialect(card, tokenizer, today=lambda: datetime(2026, 7, 9)), tokenizer, "f"
    )


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("family", TOKENS)
def test_keeps_the_contract(family: str, check: Check) -> None:
    check(model(family))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_harmony_keeps_the_contract(check: Check) -> None:
    check(DialectUnderTest(gpt_oss.dialect(), gpt_oss.tokenizer(), gpt_oss.CARD.fingerprint))


def test_all_checks_pass() -> None:
    qwen = model("qwen")
    check_dialect(qwen.dialect, qwen.tokenizer, fingerprint="f")


# --- violations are detected ----------------------------------------------------------------------


class Broken:
    """A dialect with one fault, in its input or its rendering."""

    def __init__(
        self,
        inner: base.Dialect,
        ask: Callable[[Conversation], Conversation],
        change: Callable[[Conversation, Rendered], Rendered],
    ) -> None:
        self._inner, self._ask, self._change = inner, ask, change

    def render(self, conversation: Conversation, options: Options) -> Rendered:
        rendered = self._inner.render(self._ask(conversation), options)
        return self._change(conversation, rendered)


class Reader:
    """A parser with one fault: ``change`` alters the deltas of each chunk."""

    def __init__(self, inner: Parser, change: Callable[[list[Delta]], list[Delta]]) -> None:
        self._inner, self._change = inner, change
        self.done = False

    @property
    def reasoning_tokens(self) -> int:
        return self._inner.reasoning_tokens

    @property
    def is_thinking(self) -> bool:
        return self._inner.is_thinking

    def feed(self, chunk: Chunk) -> Iterable[Delta]:
        return self._change(list(self._inner.feed(chunk)))

    def finish(self, reason: FinishReason) -> Iterable[Delta]:
        return self._change(list(self._inner.finish(reason)))


def as_asked(conversation: Conversation) -> Conversation:
    return conversation


def as_rendered(conversation: Conversation, rendered: Rendered) -> Rendered:
    return rendered


def extended_blindly(conversation: Conversation, rendered: Rendered) -> Rendered:
    stored_tokens = conversation.stored_tokens.ids if conversation.stored_tokens else ()
    return replace(
        rendered, prompt=Prompt((*stored_tokens, *rendered.prompt.ids[len(stored_tokens) :]))
    )


def reading(change: Callable[[list[Delta]], list[Delta]]) -> Callable[..., Rendered]:
    return lambda _, rendered: replace(rendered, parser=Reader(rendered.parser, change))


def without(kind: type[Delta]) -> Callable[[list[Delta]], list[Delta]]:
    return lambda deltas: [delta for delta in deltas if not isinstance(delta, kind)]


def one_text_a_chunk(deltas: list[Delta]) -> list[Delta]:
    texts = [delta for delta in deltas if isinstance(delta, Text)]
    return [delta for delta in deltas if delta not in texts[1:]]


def always_closed(deltas: list[Delta]) -> list[Delta]:
    return [*deltas, Close()] if deltas and isinstance(deltas[-1], Text) else deltas


@pytest.mark.parametrize(
    ("check", "ask", "change"),
    [
        ("stored_tokens_are_extended", lambda c: replace(c, stored_tokens=None), as_rendered),
        ("stored_tokens_are_extended", as_asked, extended_blindly),
        ("stored_tokens_of_another_conversation_are_ignored", as_asked, extended_blindly),
        ("prompts_contain_the_conversation", lambda c: replace(c, instructions=None), as_rendered),
        ("prompts_contain_the_conversation", lambda c: replace(c, items=c.items[-1:]), as_rendered),
        (
            "prompts_contain_tools_and_results",
            lambda c: replace(c, items=c.items[:1]),
            as_rendered,
        ),
        (
            "forced_calls_are_constrained_or_rejected",
            as_asked,
            lambda _, rendered: replace(rendered, constraint=None),
        ),
        ("plain_text_is_never_lost", as_asked, reading(without(Text))),
        ("chunking_does_not_change_the_reply", as_asked, reading(one_text_a_chunk)),
        ("truncated_replies_stay_open", as_asked, reading(always_closed)),
        ("truncated_replies_stay_open", as_asked, reading(without(Close))),
        ("sampled_tokens_come_first", as_asked, reading(without(SampledTokens))),
        ("sampled_tokens_come_first", as_asked, reading(lambda d: [*d[1:], *d[:1]])),
        ("rendered_replies_are_parsed", as_asked, reading(without(Text))),
    ],
)
def test_violations_are_detected(
    check: str,
    ask: Callable[[Conversation], Conversation],
    change: Callable[[Conversation, Rendered], Rendered],
) -> None:
    sound = model("qwen")
    with pytest.raises(AssertionError):
        CHECKS[check](DialectUnderTest(Broken(sound.dialect, ask, change), sound.tokenizer, "f"))


class Credulous(WordTokenizer):
    """Encodes control tokens found in any text."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        return super().encode(text, special=True)


def test_control_tokens_in_texts_are_detected() -> None:
    qwen = model("qwen", Credulous)
    with pytest.raises(AssertionError, match="became control tokens"):
        CHECKS["users_cannot_spell_control_tokens"](qwen)
