"""Checks of the contract of a dialect, for authors of dialects.

Each check takes a ``DialectUnderTest`` and raises ``AssertionError``. The checks do not know the
dialect's format. They render earlier model output into a prompt, and then check that the dialect
parses this text to the same output.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.dialects.base import Dialect, Rendered
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Conversation, Options, PromptTokens, ToolChoice
from antiphon.inference.tokens import Chunk, Tokenizer, TokenLogprob
from antiphon.stream.deltas import Close, Delta, FinishReason, Open, SampledTokens
from antiphon.wire.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
)
from antiphon.wire.tools import Function

from .checks import checks_of
from .delta_reader import ReplyRecord, read_reply

__all__ = ["CHECKS", "Check", "DialectUnderTest", "check_dialect"]


class DialectUnderTest(Struct, frozen=True):
    """A dialect and its tokenizer. ``fingerprint``: a text that identifies the tokenizer, as in
    ``ModelCard``."""

    dialect: Dialect
    tokenizer: Tokenizer
    fingerprint: str = ""

    def render(
        self, *items: Item, stored_tokens: PromptTokens | None = None, **options: Any
    ) -> Rendered:
        conversation = Conversation(
            items=items,
            instructions="Be kind.",
            stored_tokens=stored_tokens,
            past_count=len(items) - 1,
        )
        return self.dialect.render(conversation, Options(**options))

    def spell(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.tokenizer.piece, ids)).decode("utf-8", "replace")

    def ends(self, rendered: Rendered) -> frozenset[int]:
        return self.tokenizer.end_ids | set(rendered.stop_ids)


Check = Callable[[DialectUnderTest], None]

TEXT = "Grüße, 漢字 🦄 and {braces}."
WEATHER = Function(
    name="weather",
    description="Tells the weather.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
ARGUMENTS = {"city": "Oslo", "days": 2}
#: Texts that models write in and around tool calls, without control tokens.
_FRAGMENTS = (
    *('{"name": "weather", "arguments": {"city": "Oslo"}}', '{"name": ', '"weather"', "{", "}"),
    *('[weather(city="Oslo")]', "<function=weather>", "<parameter=city>", "</function>", "[", "]"),
    *("Hello", " ", "\n", "\n\n", "Grüße 🦄", "</think>", "<tool_call>", "<", "weather", "```json"),
)


def _user(text: str) -> Message:
    return Message(role="user", content=(InputText(text=text),))


def _assistant(text: str) -> Message:
    return Message(role="assistant", content=(OutputText(text=text),))


CALL_ITEMS = (
    FunctionCall(call_id="call_a1b2c3d4", name="weather", arguments=json.dumps(ARGUMENTS)),
    FunctionCallOutput(call_id="call_a1b2c3d4", output="sunny"),
)


# --- prompts -------------------------------------------------------------------------------------


def rendering_is_deterministic(model: DialectUnderTest) -> None:
    talk = (_user(TEXT), _assistant("Yes."), _user("Why?"))
    first, second = (model.render(*talk, tools=(WEATHER,)) for _ in range(2))
    assert first.prompt == second.prompt
    assert (first.constraint, first.stop, first.stop_ids) == (
        second.constraint,
        second.stop,
        second.stop_ids,
    )


def prompts_contain_the_conversation(model: DialectUnderTest) -> None:
    prompt = model.render(_user(TEXT), _assistant("An answer."), _user("Why?")).prompt
    assert all(0 <= id < model.tokenizer.size for id in prompt.ids), "ids must exist"
    spelled = model.spell(prompt.ids)
    assert "Be kind." in spelled, "the instructions are missing"
    places = [spelled.find(text) for text in (TEXT, "An answer.", "Why?")]
    assert -1 not in places and places == sorted(places), (
        f"the order of the texts is wrong: they are at {places}"
    )


def prompts_contain_tools_and_results(model: DialectUnderTest) -> None:
    shown = model.spell(model.render(_user("Hi"), tools=(WEATHER,)).prompt.ids)
    assert all(text in shown for text in ("weather", "Tells the weather.", "city"))
    told = model.spell(model.render(_user("Hi"), *CALL_ITEMS, tools=(WEATHER,)).prompt.ids)
    assert "Oslo" in told and told.rfind("sunny") > told.find("Oslo")


def users_cannot_spell_control_tokens(model: DialectUnderTest) -> None:
    special = model.tokenizer.special
    control = frozenset(special.values())
    text = "a" + "-".join(special) + "z"

    def found(text: str) -> tuple[Counter[int], str]:
        talk = (
            _user(text),
            *CALL_ITEMS[:1],
            FunctionCallOutput(call_id="call_a1b2c3d4", output=text),
        )
        ids = model.render(*talk, tools=(WEATHER,)).prompt.ids
        return Counter(id for id in ids if id in control), model.spell(ids)

    (spelled, prompt), (plain, _) = found(text), found("az")
    assert spelled == plain, "a text became control tokens"
    assert text in prompt, "a text was changed"


def forced_calls_are_constrained_or_rejected(model: DialectUnderTest) -> None:
    try:
        rendered = model.render(_user("Hi"), tools=(WEATHER,), tool_choice=ToolChoice("required"))
    except InvalidRequest:
        return
    assert rendered.constraint is not None and rendered.constraint.needed


# --- kept tokens ---------------------------------------------------------------------------------


def stored_tokens_are_extended(model: DialectUnderTest) -> None:
    """Check how the dialect uses the stored token ids of an earlier answer. If the text of the
    stored tokens is the beginning of the new prompt's text, the new prompt must begin with these
    tokens. Stored tokens must never change the text of the prompt."""
    first = model.render(_user(TEXT)).prompt.ids
    talk = (_user(TEXT), _assistant("Very fine."), _user("Why?"))
    fresh = model.render(*talk).prompt.ids
    for text in ("Very fine.", "Very", "", "Something else."):
        stored_tokens = PromptTokens((*first, *_letter_by_letter(model, text)), model.fingerprint)
        again = model.render(*talk, stored_tokens=stored_tokens).prompt.ids
        assert model.spell(again) == model.spell(fresh), (
            "stored tokens changed the text of the prompt"
        )
        if model.spell(fresh).startswith(model.spell(stored_tokens.ids)):
            assert again[: len(stored_tokens.ids)] == stored_tokens.ids, (
                f"the stored tokens of {text!r} are not the beginning of the prompt"
            )
        foreign = PromptTokens(stored_tokens.ids, f"not {model.fingerprint}")
        assert model.render(*talk, stored_tokens=foreign).prompt.ids == fresh, (
            "stored tokens of another tokenizer changed the prompt"
        )


def stored_tokens_of_another_conversation_are_ignored(model: DialectUnderTest) -> None:
    other = model.render(_user("Something else altogether.")).prompt.ids
    fresh = model.render(_user(TEXT)).prompt.ids
    again = model.render(
        _user(TEXT), stored_tokens=PromptTokens(other, model.fingerprint)
    ).prompt.ids
    assert model.spell(again) == model.spell(fresh)


# --- replies -------------------------------------------------------------------------------------


def rendered_replies_are_parsed(model: DialectUnderTest) -> None:
    """Check that the parser can read replies in the form in which the dialect renders them in
    prompts."""
    reply = _parse_rendered(model, _assistant("Very fine."), _user("Why?"))
    if reply is not None:
        (said,) = reply.items
        assert said.item.is_message and said.text == {"text": "Very fine."}
    reply = _parse_rendered(model, *CALL_ITEMS)
    if reply is not None:
        (said,) = reply.items
        assert isinstance(said.item, FunctionCall) and said.item.name == "weather"
        assert json.loads(reply.text) == ARGUMENTS


def plain_text_is_never_lost(model: DialectUnderTest) -> None:
    text = "A calm sea. Grüße 🦄, 3 < 4 { and } [so] on"
    for tools in ((), (WEATHER,)):
        for reason in ("stop", "length"):
            record = read_reply(_parse(model, _encode(model, text), reason, tools=tools))
            assert record.text.strip() == text, f"the parsed text is {record.text!r}"


def chunking_does_not_change_the_reply(model: DialectUnderTest) -> None:
    for ids, rng in _garbage(model):
        for reason in ("stop", "length"):
            whole = read_reply(_parse(model, ids, reason, tools=(WEATHER,)))
            for most in (1, 3, 20):
                sizes = [rng.randint(1, most) for _ in ids]
                again = read_reply(_parse(model, ids, reason, sizes=sizes, tools=(WEATHER,)))
                assert again == whole, (
                    f"another reply for {model.spell(ids)!r} in chunks of up to {most} tokens"
                )


def sampled_tokens_come_first(model: DialectUnderTest) -> None:
    for ids, _ in _garbage(model):
        parser = model.render(_user("Hi"), tools=(WEATHER,)).parser
        thought = 0
        for sampled, id in enumerate(ids, 1):
            deltas = list(parser.feed(Chunk(ids=(id,))))
            told = [at for at, delta in enumerate(deltas) if isinstance(delta, SampledTokens)]
            assert told == [0] and deltas[0] == SampledTokens((id,)), (
                f"the first delta for token {id} must be SampledTokens: {deltas}"
            )
            assert thought <= parser.reasoning_tokens <= sampled
            thought = parser.reasoning_tokens
            if parser.done:
                break


def truncated_replies_stay_open(model: DialectUnderTest) -> None:
    ids = _encode(model, "Once upon a time, there was")
    cut, whole = (list(_parse(model, ids, reason)) for reason in ("length", "stop"))
    assert any(isinstance(delta, Open) for delta in cut)
    assert not read_reply(cut).items[-1].closed, "the item of a truncated reply must stay open"
    assert isinstance(whole[-1], Close), "the item of a complete reply must be closed"


CHECKS: Mapping[str, Check] = checks_of(globals(), "model")


def check_dialect(dialect: Dialect, tokenizer: Tokenizer, *, fingerprint: str = "") -> None:
    """Run all checks on a dialect, one after the other. ``fingerprint``: the fingerprint of the
    tokenizer, as in ``ModelCard``."""
    model = DialectUnderTest(dialect, tokenizer, fingerprint)
    for check in CHECKS.values():
        check(model)


def _encode(model: DialectUnderTest, text: str) -> list[int]:
    return model.tokenizer.encode(text, special=False)


def _letter_by_letter(model: DialectUnderTest, text: str) -> list[int]:
    """Encode each character of a text separately and return the token ids. A tokenizer would choose
    other ids for the whole text, but a model can sample the ids of the characters. If the ids of
    the characters do not decode to the text, return the tokenizer's ids for the whole text."""
    ids = [id for letter in text for id in _encode(model, letter)]
    return ids if model.spell(ids) == text else _encode(model, text)


def _parse(
    model: DialectUnderTest,
    ids: Sequence[int],
    reason: FinishReason,
    *,
    sizes: Sequence[int] = (),
    **options: Any,
) -> Iterable[Delta]:
    """Yield the deltas of a reply that arrives in chunks. ``sizes``: number of tokens of each
    chunk. Without ``sizes``, the reply is one chunk."""
    parser = model.render(_user("Hi"), **options).parser
    start = 0
    for size in sizes or (len(ids),):
        chunk = tuple(ids[start : start + size])
        start += size
        logprobs = tuple(TokenLogprob(id, -0.5) for id in chunk)
        yield from parser.feed(Chunk(ids=chunk, logprobs=logprobs))
    yield from parser.finish(reason)


def _garbage(model: DialectUnderTest) -> Iterable[tuple[list[int], random.Random]]:
    """Yield random replies as token ids. Most of these replies are malformed. Each reply comes with
    a random generator for further random choices of the check."""
    special = [literal for literal in model.tokenizer.special if len(literal) > 1][:200]
    ends = model.ends(model.render(_user("Hi")))
    for seed in range(40):
        rng = random.Random(seed)
        pieces = (rng.choice(rng.choice((special or _FRAGMENTS, _FRAGMENTS))) for _ in range(12))
        ids = model.tokenizer.encode("".join(pieces), special=True)
        yield [id for id in ids if id not in ends], rng


def _parse_rendered(model: DialectUnderTest, *items: Item) -> ReplyRecord | None:
    """Render ``items`` (earlier output of the model) into a prompt, and parse the model's first
    answer in the text of this prompt.

    Returns None if the dialect does not render an earlier answer exactly as the model wrote it, for
    example because it leaves out the reasoning. Such an answer cannot be parsed.
    """
    before = model.render(_user("Hi"), tools=(WEATHER,))
    after = model.render(_user("Hi"), *items, tools=(WEATHER,)).prompt.ids
    prompt = before.prompt.ids
    if model.spell(after[: len(prompt)]) != model.spell(prompt):
        return None
    ends = model.ends(before)
    length = next((n for n, id in enumerate(after[len(prompt) :]) if id in ends), None)
    if length is None:
        return None
    reply = after[len(prompt) : len(prompt) + length + 1]
    return read_reply([*before.parser.feed(Chunk(ids=reply)), *before.parser.finish("stop")])
