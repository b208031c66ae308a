"""What gpt-oss writes becomes items: as it should be written, and as it is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.harmony.parser import (
    CONTROL_TOKENS,
    HarmonyMessageKind,
    HarmonyParser,
    TokenCodes,
)
from antiphon.inference.tokens import Alternative, Chunk, TokenLogprob
from antiphon.stream.deltas import Close, Delta, FinishReason, SampledTokens, Text
from antiphon.testing.tokenizer import ByteTokenizer
from tests.dialects.parser.test_parser import WorkCounter
from tests.dialects.replies import SHAPES, items, read

TOKENIZER = ByteTokenizer([*CONTROL_TOKENS.values(), "<|endoftext|>", "<|reserved_200013|>"])
CODES = TokenCodes.from_tokenizer(TOKENIZER)
#: An id that stands for nothing.
UNKNOWN = 999_999


def parser(*, tools: bool = True, **how: Any) -> HarmonyParser:
    return HarmonyParser(TOKENIZER, CODES, shapes=SHAPES if tools else {}, **how)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, special=True)


def parse_reply(
    text: str, reason: FinishReason = "stop", **how: Any
) -> tuple[list[dict[str, Any]], bool]:
    """Return the items of a reply, which are the same for any chunking."""
    ids = ids_of(text)
    whole = read(parser(**how), [ids], reason)
    for at in range(len(ids) + 1):
        assert read(parser(**how), [ids[:at], ids[at:]], reason) == whole, f"cut at {at}"
    assert read(parser(**how), [[id] for id in ids], reason) == whole
    return items(whole)


def answer(text: str) -> dict[str, Any]:
    return {"message": text}


def preamble(text: str) -> dict[str, Any]:
    return {"message": text, "phase": "commentary"}


def reasoning_done(text: str) -> dict[str, Any]:
    return {"reasoning": text}


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"call": name, "arguments": arguments}


PARIS = '{"city":"Paris"}'
THINK = "<|channel|>analysis<|message|>Hm.<|end|>"

#: As the format says: what the model writes behind its role, and what it means.
WELL_FORMED: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "thinking and an answer": (
        f"{THINK}<|start|>assistant<|channel|>final<|message|>Hello 🦄!<|return|>",
        [reasoning_done("Hm."), answer("Hello 🦄!")],
    ),
    "white space is kept": (
        "<|channel|>final<|message|>\n  Hello \n<|return|>",
        [answer("\n  Hello \n")],
    ),
    "a preamble": (
        "<|channel|>commentary<|message|>Let me see.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Done.<|return|>",
        [preamble("Let me see."), answer("Done.")],
    ),
    "recipient behind the channel": (
        f"{THINK}<|start|>assistant<|channel|>commentary to=functions.get_weather "
        f"<|constrain|>json<|message|>{PARIS}<|call|>",
        [reasoning_done("Hm."), call("get_weather", PARIS)],
    ),
    "recipient before the channel": (
        f" to=functions.get_weather<|channel|>commentary json<|message|>{PARIS}<|call|>",
        [call("get_weather", PARIS)],
    ),
    "a call in the thinking channel": (
        f"<|channel|>analysis to=functions.get_weather<|message|>{PARIS}<|call|>",
        [call("get_weather", PARIS)],
    ),
    "a tool in a namespace": (
        '<|channel|>commentary to=functions.mcp__calc__add<|message|>{"a":1}<|call|>',
        [{**call("add", '{"a":1}'), "namespace": "mcp__calc"}],
    ),
    "a tool in a namespace, with a dot": (
        '<|channel|>commentary to=mcp__calc.add<|message|>{"a":1}<|call|>',
        [{**call("add", '{"a":1}'), "namespace": "mcp__calc"}],
    ),
    "a custom tool": (
        "<|channel|>commentary to=functions.apply_patch <|constrain|>json<|message|>"
        '{"input":"*** Begin\\n+é\\ud83e\\udd84"}<|call|>',
        [{"custom": "apply_patch", "input": "*** Begin\n+é🦄"}],
    ),
    "a custom tool, in plain text": (
        "<|channel|>commentary to=functions.apply_patch code<|message|>*** Begin\n<|call|>",
        [{"custom": "apply_patch", "input": "*** Begin\n"}],
    ),
    "a call without arguments": (
        "<|channel|>commentary to=functions.now <|constrain|>json<|message|><|call|>",
        [call("now", "{}")],
    ),
    "calls one after another": (
        f"<|channel|>commentary to=functions.get_weather<|message|>{PARIS}<|call|>"
        "<|start|>assistant<|channel|>commentary to=functions.now<|message|>{}<|call|>",
        [call("get_weather", PARIS), call("now", "{}")],
    ),
    "nothing said in a message": (
        "<|channel|>analysis<|message|><|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        [answer("Yes.")],
    ),
    "nothing at all": ("<|return|>", []),
}


@pytest.mark.requirement("VN-60", "D-13")
@pytest.mark.parametrize(("text", "meant"), WELL_FORMED.values(), ids=WELL_FORMED)
def test_well_formed_replies_are_parsed(text: str, meant: list[dict[str, Any]]) -> None:
    assert parse_reply(text) == (meant, False)


FINAL = "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
TO = f"to=functions.get_weather<|message|>{PARIS}<|call|>"
#: The slips of real models: what is written, what it means.
SLIPS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "stray words after the channel": (
        "<|channel|>final one two three<|message|>Yes.<|return|>",
        [answer("Yes.")],
    ),
    "stray words after a recipient": (
        f"<|channel|>commentary to=functions.get_weather if you please<|message|>{PARIS}<|call|>",
        [call("get_weather", PARIS)],
    ),
    "one stray word": (
        "<|channel|>analysis one<|message|>Hm.<|end|>" + FINAL,
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "a content type for an answer": (
        '<|channel|>final json<|message|>{"a": 1}<|return|>',
        [answer('{"a": 1}')],
    ),
    "a constrained answer": (
        '<|channel|>final <|constrain|>json<|message|>{"a": 1}<|return|>',
        [answer('{"a": 1}')],
    ),
    "a content type for nobody": (
        "<|channel|>commentary json<|message|>So.<|end|>" + FINAL,
        [preamble("So."), answer("Yes.")],
    ),
    "bare text": ("I'm sorry, I can't.<|return|>", [answer("I'm sorry, I can't.")]),
    "bare text without an end": ("A final word", [answer("A final word")]),
    "one bare word of the format's": ("final<|return|>", [answer("final")]),
    "bare text behind the thinking": (
        f"{THINK}Yes, it is.<|return|>",
        [reasoning_done("Hm."), answer("Yes, it is.")],
    ),
    "a bare call": (f"to=functions.get_weather json{PARIS}<|call|>", [call("get_weather", PARIS)]),
    "bare text to somebody": ("to=you, with love<|return|>", [answer("to=you, with love")]),
    "bare text that addresses a tool": (
        "to=functions.now<|return|>",
        [answer("to=functions.now")],
    ),
    "bare text that addresses a tool, behind a call": (
        f"<|channel|>commentary {TO} to=functi☃n",
        [call("get_weather", PARIS), answer(" to=functi☃n")],
    ),
    "white space between messages": (
        f"{THINK}\n\n{FINAL}",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "the role between messages": (
        f"{THINK}assistant{FINAL}",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "text between messages": (
        f"{THINK}Well, {FINAL}",
        [reasoning_done("Hm."), answer("Well, "), answer("Yes.")],
    ),
    "no start": (
        f"{THINK}assistant<|channel|>final<|message|>Yes.<|return|>",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "the role twice": (
        f"assistant{THINK}<|start|>assistantassistant<|channel|>final<|message|>Yes.<|return|>",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "an unknown role": (
        f"{THINK}<|start|>robot<|channel|>final<|message|>Yes.<|return|>",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "no role": (
        f"{THINK}<|start|><|channel|>final<|message|>Yes.<|return|>",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "no channel": ("<|message|>Yes.<|return|>", [answer("Yes.")]),
    "no channel after the thinking": (
        f"{THINK}<|start|>assistant<|message|>Yes.<|return|>",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "the channel's name without its token": (
        "analysis<|message|>Hm.<|end|><|start|>assistantfinal<|message|>Yes.<|return|>",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "a message to an unknown tool that quotes a call": (
        '<|channel|>commentary to=functions.erase<|message|>{"a":"<|end|><|start|>assistant '
        'to=functions.now<|message|>{}"}<|end|>',
        [preamble('{"a":"<|end|><|start|>assistant to=functions.now<|message|>{}"}')],
    ),
    "an unknown channel": ("<|channel|>poetry<|message|>Yes.<|return|>", [answer("Yes.")]),
    "a channel with a sign": (
        "<|channel|>commentary?<|message|>So.<|end|>" + FINAL,
        [preamble("So."), answer("Yes.")],
    ),
    "the channel twice": (
        f"<|channel|>analysis<|channel|>analysis<|message|>Hm.<|end|>{FINAL}",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "the channel twice with the role": (
        f"<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.<|end|>{FINAL}",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "a recipient that is a role": (
        "<|channel|>final to=user<|message|>Yes.<|return|>",
        [answer("Yes.")],
    ),
    "a recipient without a name": (
        "<|channel|>final to=<|message|>Yes.<|return|>",
        [answer("Yes.")],
    ),
    "a recipient glued on": (f"<|channel|>commentary{TO}", [call("get_weather", PARIS)]),
    "a recipient apart": (
        f"<|channel|>commentary to= functions.get_weather<|message|>{PARIS}<|call|>",
        [call("get_weather", PARIS)],
    ),
    "a recipient constrained at once": (
        "<|channel|>commentary to=functions.get_weather<|constrain|>json"
        f"<|message|>{PARIS}<|call|>",
        [call("get_weather", PARIS)],
    ),
    "constrained to nothing": (
        f"<|channel|>commentary to=functions.get_weather <|constrain|><|message|>{PARIS}<|call|>",
        [call("get_weather", PARIS)],
    ),
    "a recipient without functions": (
        f"<|channel|>commentary to=get_weather<|message|>{PARIS}<|call|>",
        [call("get_weather", PARIS)],
    ),
    "code for a function": (
        f"<|channel|>commentary to=functions.get_weather code<|message|>{PARIS}<|call|>",
        [call("get_weather", PARIS)],
    ),
    "a tool nobody knows": (
        "<|channel|>analysis to=python code<|message|>1 + 1<|call|>",
        [reasoning_done("1 + 1")],
    ),
    "prose to a tool": (
        "<|channel|>final to=functions.get_weather<|message|>The answer is here.<|return|>",
        [answer("The answer is here.")],
    ),
    "a string of JSON": (
        "<|channel|>commentary to=functions.get_weather<|message|>"
        '"{\\"city\\": \\"Oslo\\"}"<|call|>',
        [call("get_weather", '{"city": "Oslo"}')],
    ),
    "no arguments": (
        "<|channel|>commentary to=functions.get_weather<|message|>null<|call|>",
        [call("get_weather", "{}")],
    ),
    **{
        f"arguments that are {nothing or 'empty'}": (
            f"<|channel|>commentary to=functions.get_weather<|message|>{nothing}<|call|>",
            [call("get_weather", "{}")],
        )
        for nothing in ("", "None", "[]", '""')
    },
    **{
        f"arguments in {around[:3]}": (
            f"<|channel|>commentary to=functions.get_weather<|message|>{around}<|call|>",
            [call("get_weather", '{"city": "Oslo"}')],
        )
        for around in ('[{"city": "Oslo"}]', '```json\n{"city": "Oslo"}\n```')
    },
    "a string to a tool": (
        '<|channel|>commentary to=functions.get_weather<|message|>"Oslo"<|call|>',
        [{"message": '"Oslo"'}],
    ),
    "a word to a tool that begins like null": (
        "<|channel|>final to=functions.get_weather<|message|>nu<|return|>",
        [answer("nu")],
    ),
    "a control token in a string": (
        '<|channel|>commentary to=functions.get_weather<|message|>{"city":"<|end|>"}<|call|>',
        [call("get_weather", '{"city":"<|end|>"}')],
    ),
    "no end before the next": (
        f"<|channel|>analysis<|message|>Hm.{FINAL}",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "neither end nor start": (
        "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.<|return|>",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "the content's token twice": (
        "<|channel|>final<|message|><|message|>Yes.<|return|>",
        [answer("Yes.")],
    ),
    "a constraint within": (
        "<|channel|>final<|message|>Yes<|constrain|>.<|return|>",
        [answer("Yes.")],
    ),
    "no content's token": ("<|channel|>final Yes, it is.<|return|>", [answer("Yes, it is.")]),
    "no content's token for a call": (
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json {PARIS}<|call|>",
        [call("get_weather", PARIS)],
    ),
    "the answer in the place of the channel": (
        "<|channel|>Sorry, no.<|return|>",
        [answer("Sorry, no.")],
    ),
    "the end in a header": (f"<|channel|>analysis<|end|>{FINAL}", [answer("Yes.")]),
    "a start in a header": (f"<|channel|>analysis{FINAL}", [answer("Yes.")]),
    "a reply that ends in a header": (
        f"{THINK}<|start|>assistant<|channel|>comm",
        [reasoning_done("Hm.")],
    ),
    "tokens that are no text": (
        "<|channel|>final<|message|>Y<|reserved_200013|>es.<|endoftext|><|return|>",
        [answer("Yes.")],
    ),
    "tokens that are no text in a header": (
        "<|channel|>fi<|reserved_200013|>nal<|message|>Yes.<|return|>",
        [answer("Yes.")],
    ),
    "another call's end": ("<|channel|>final<|message|>Yes.<|call|>", [answer("Yes.")]),
    "it goes on to speak for others": (
        "<|channel|>final<|message|>Yes.<|end|><|start|>user<|message|>Thanks!<|end|>" + FINAL,
        [answer("Yes.")],
    ),
    "it begins to speak for others and stops": (
        "<|channel|>final<|message|>Yes.<|end|><|start|>user<|channel|>final Thanks!<|end|>",
        [answer("Yes.")],
    ),
    "a recipient that is no tool": (
        "<|channel|>commentary to=functions.<|message|>So.<|end|>" + FINAL,
        [preamble("So."), answer("Yes.")],
    ),
    "it answers its own call": (
        f"<|channel|>commentary {TO}<|start|>functions.get_weather to=assistant"
        "<|channel|>commentary<|message|>sunny<|end|>",
        [call("get_weather", PARIS)],
    ),
    "it speaks for others before it answered": (
        f"{THINK}<|start|>user<|message|>Yes.<|end|>",
        [reasoning_done("Hm."), answer("Yes.")],
    ),
    "words of headers in an answer": (
        "<|channel|>final Set to=3 in json code<|return|>",
        [answer("Set to=3 in json code")],
    ),
    "a header without an end": (
        f"<|channel|>final {'very ' * 60}good<|return|>",
        [answer(f"{'very ' * 60}good")],
    ),
}


@pytest.mark.requirement("D-70", "D-71", "VN-60")
@pytest.mark.parametrize(("text", "meant"), SLIPS.values(), ids=SLIPS)
def test_malformed_replies_lose_no_text(text: str, meant: list[dict[str, Any]]) -> None:
    assert parse_reply(text) == (meant, False)


def test_without_tools_nothing_is_called() -> None:
    assert parse_reply(f"<|channel|>commentary {TO}", tools=False) == ([preamble(PARIS)], False)
    assert parse_reply(
        "<|channel|>analysis to=python code<|message|>1 + 1<|call|>", tools=False
    ) == (
        [reasoning_done("1 + 1")],
        False,
    )


def test_one_call_if_one_is_allowed() -> None:
    reader = parser(parallel=False)
    text = f"{THINK}<|start|>assistant<|channel|>commentary {TO}{FINAL}"
    assert items(read(reader, [ids_of(text)])) == (
        [reasoning_done("Hm."), call("get_weather", PARIS)],
        False,
    )
    assert reader.done
    assert parse_reply(text, parallel=False) == (
        [reasoning_done("Hm."), call("get_weather", PARIS)],
        False,
    )


@pytest.mark.parametrize(
    ("text", "meant", "is_open"),
    [
        ("<|channel|>analysis<|message|>Hm", [reasoning_done("Hm")], True),
        ("<|channel|>final<|message|>Ye", [answer("Ye")], True),
        ('<|channel|>commentary to=now<|message|>{"a": ', [call("now", '{"a": ')], True),
        ("<|channel|>commentary to=now<|message|>", [call("now", "")], True),
        (f"{THINK}<|start|>assistant<|channel|>fin", [reasoning_done("Hm.")], False),
        (f"{THINK}<|start|>assi", [reasoning_done("Hm.")], False),
        ("<|channel|>commentary to=functions.ge", [], False),
        ("Once upon", [answer("Once upon")], True),
        ("", [], False),
    ],
)
@pytest.mark.requirement("D-72", "D-73")
def test_truncated_item_stays_open(text: str, meant: list[dict[str, Any]], is_open: bool) -> None:
    assert parse_reply(text, "length") == (meant, is_open)


def test_incomplete_character_is_dropped() -> None:
    ids = [*ids_of("<|channel|>final<|message|>A"), *"🦄".encode()[:2]]
    assert items(read(parser(), [ids], "length")) == ([answer("A")], True)
    assert items(read(parser(), [ids], "stop")) == ([answer("A\ufffd")], False)


def test_ids_that_do_not_exist_are_harmless() -> None:
    ids = [id for each in ids_of(f"{THINK}{FINAL}") for id in (each, UNKNOWN)]
    assert items(read(parser(), [ids])) == ([reasoning_done("Hm."), answer("Yes.")], False)


def test_constrained_reply_ends_after_the_answer() -> None:
    """Its first answer or call is its last; in strings of JSON control tokens stand as text."""
    literal = '{"a": "<|end|><|start|>assistant<|channel|>x<|message|>"}'
    for end in ("<|return|>", "<|end|>"):
        final = f"<|channel|>final<|message|>{literal}{end}"
        assert parse_reply(
            f"{THINK}<|start|>assistant{final}{FINAL}", constrained=True, json_answer=True
        ) == (
            [reasoning_done("Hm."), answer(literal)],
            False,
        )
    calling = f"<|channel|>commentary to=functions.now<|message|>{literal}<|call|>"
    reader = parser(constrained=True)
    assert items(read(reader, [ids_of(f"{calling}{FINAL}")])) == ([call("now", literal)], False)
    assert reader.done
    assert parse_reply(f"<|channel|>final<|message|>Yes.<|end|>{FINAL}", constrained=True) == (
        [answer("Yes.")],
        False,
    )
    bare = '{"a": "<|end|>"}'
    assert parse_reply(f"{bare}<|return|>{FINAL}", constrained=True, json_answer=True) == (
        [answer(bare)],
        False,
    )
    begun = '{"a": "<|end|>"}<|return|>'
    assert parse_reply(begun, open_kind="final", constrained=True, json_answer=True) == (
        [answer(begun[:-10])],
        False,
    )


@pytest.mark.parametrize("kind", ["final", "commentary", "analysis"])
def test_message_opened_by_the_prompt_is_parsed(kind: HarmonyMessageKind) -> None:
    began = {"final": answer, "commentary": preamble, "analysis": reasoning_done}[kind]
    assert parse_reply(f" more.<|end|>{FINAL}", open_kind=kind) == (
        [began(" more."), answer("Yes.")],
        False,
    )
    assert parser(open_kind="analysis").is_thinking


def test_reasoning_tokens_are_counted() -> None:
    reader = parser()
    observed = []
    for id in ids_of(f"{THINK}{FINAL}"):
        reader.feed(Chunk(ids=(id,)))
        observed.append((reader.is_thinking, reader.reasoning_tokens))
    # <|channel|> a n a l y s i s <|message|> H m . <|end|>
    assert observed[9:14] == [(True, 10), (True, 11), (True, 12), (True, 13), (False, 14)]
    assert observed[-1] == (False, 14)


def test_logprobs_stand_with_their_text() -> None:
    ids = ids_of(f"{THINK}<|start|>assistant<|channel|>final<|message|>Hé<|endoftext|>!<|return|>")
    top = (Alternative(65, -2.0),)
    for size in (1, 2, 3, len(ids)):
        reader = parser()
        deltas: list[Delta] = []
        for at in range(0, len(ids), size):
            chunk = tuple(ids[at : at + size])
            logprobs = tuple(TokenLogprob(id, -0.5, top) for id in chunk)
            deltas += reader.feed(Chunk(ids=chunk, logprobs=logprobs))
        deltas += reader.finish("stop")
        texts = [delta for delta in deltas if isinstance(delta, Text)]
        assert "".join(text.text for text in texts) == "Hm.Hé!"
        found = [logprob for text in texts for logprob in text.logprobs]
        assert [bytes(logprob.bytes or ()) for logprob in found] == [b"H", b"\xc3", b"\xa9", b"!"]
        assert found[0].token == "H" and found[0].top_logprobs[0].token == "A"


def test_logprobs_of_control_tokens_that_are_text() -> None:
    text = '{"a":"é<|end|>"}'
    ids = tuple(ids_of(f"<|channel|>final<|message|>{text}<|return|>"))
    logprobs = tuple(TokenLogprob(id, -0.5) for id in ids)
    deltas = list(
        parser(constrained=True, json_answer=True).feed(Chunk(ids=ids, logprobs=logprobs))
    )
    found = [lp for delta in deltas if isinstance(delta, Text) for lp in delta.logprobs]
    assert b"".join(bytes(lp.bytes or ()) for lp in found).decode() == text


def test_logprobs_of_bare_text() -> None:
    ids = ids_of("assist me")
    logprobs = tuple(TokenLogprob(id, -0.5) for id in ids)
    deltas = list(parser().feed(Chunk(ids=tuple(ids), logprobs=logprobs)))
    assert isinstance(deltas[-1], Text) and len(deltas[-1].logprobs) == len(ids)


def test_text_before_a_stop_string_is_emitted() -> None:
    reader = parser()
    deltas = [
        *reader.feed(Chunk(ids=tuple(ids_of("<|channel|>final<|message|>One")), tail=" two")),
        *reader.finish("stop"),
    ]
    assert items(d for d in deltas if not isinstance(d, SampledTokens)) == (
        [answer("One two")],
        False,
    )


@pytest.mark.requirement("D-96")
@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>final<|message|>$<|return|>",
        "<|channel|>analysis<|message|>$<|end|>",
        '<|channel|>commentary to=functions.get_weather<|message|>{"city": "$"}<|call|>',
        "$",
    ],
)
def test_work_grows_linearly_with_a_reply(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    WorkCounter(monkeypatch).assert_linear(parser, ids_of, text)


SHREDS = (
    *CONTROL_TOKENS.values(),
    *("analysis", "commentary", "final", "assistant", "user", " to=functions.get_weather"),
    *(" to=python", "json", "code", PARIS, '{"', "Hello", " ", "\n", "🦄", "<|endoftext|>", "to="),
    *("<|start|>assistant<|channel|>final<|message|>", "<|call|>", "functions.now", "x" * 300),
)


def random_chunks(ids: Sequence[int], dice: random.Random, most: int) -> list[list[int]]:
    chunks, at = [], 0
    while at < len(ids):
        size = dice.randint(1, most)
        chunks.append(list(ids[at : at + size]))
        at += size
    return chunks


@given(
    st.lists(st.sampled_from(SHREDS), max_size=14),
    st.randoms(use_true_random=False),
    st.sampled_from(("stop", "length")),
    st.booleans(),
)
def test_any_chunking_gives_the_same_items(
    shreds: list[str], dice: random.Random, reason: FinishReason, parallel: bool
) -> None:
    ids = ids_of("".join(shreds))
    whole = read(parser(parallel=parallel), [ids], reason)
    items(whole)  # in the order that deltas may come in
    for most in (1, 2, 9):
        assert read(parser(parallel=parallel), random_chunks(ids, dice, most), reason) == whole
    if reason == "stop" and whole:
        assert isinstance(whole[-1], Close)


@given(
    st.lists(st.sampled_from(["A", "calm", "sea", " ", "🦄", "3 < 4", "{", "]", "\n"]), max_size=9)
)
def test_no_text_is_lost(words: list[str]) -> None:
    text = "".join(words)
    found, _ = items(read(parser(), [ids_of(text)]))
    assert "".join(item["message"] for item in found) == (text if text.strip() else "")
