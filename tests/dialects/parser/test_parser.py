"""The laws of ``FormatParser``: the same items for any chunking, no exception, no lost text."""

from __future__ import annotations

import re
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.base import Parser
from antiphon.dialects.formats.reasoning_formats import REASONING
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.parser.lexer import StateTerminals
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.inference.tokens import Alternative, Chunk, TokenLogprob
from antiphon.stream.deltas import Close, Open, SampledTokens, Text
from antiphon.testing.tokenizer import END, ByteTokenizer
from antiphon.wire.items import FunctionCall, Logprob, Message, Reasoning, TopLogprob
from tests.dialects.replies import SHAPES, items, read, write_calls
from tests.hypothesis_settings import examples

THINK = ("<think>", "</think>")
CALL = ("<tool_call>", "</tool_call>")


def parser(
    tokenizer: ByteTokenizer,
    tools: str | None = "hermes",
    reasoning: str | None = "think",
    *,
    thinking: bool = False,
    parallel: bool = True,
    held: bool = False,
    is_json: bool = False,
    passes_unknown: bool = False,
) -> FormatParser:
    return FormatParser(
        tokenizer,
        reasoning=REASONING[reasoning] if reasoning else None,
        tools=TOOLS[tools] if tools else None,
        shapes=SHAPES,
        thinking=thinking,
        parallel=parallel,
        passes_unknown=passes_unknown,
        constrained=held,
        json_answer=is_json,
    )


def terminals(tools: str, reasoning: str) -> list[str]:
    form = TOOLS[tools]
    result = [*form.opens, *REASONING[reasoning].open, *REASONING[reasoning].close]
    for state in form.states.values():
        result += [*state.on, *state.peek]
    return sorted(set(result))


NOISE = ['"', "{", "}", "[", "]", "(", ")", "=", ":", ",", "\\", "\n", " ", "now", "search"]
NOISE += [
    "get_weather",
    "name",
    "arguments",
    '"name": "now"',
    '"arguments": {',
    "é",
    "😀",
    "x",
    "<",
]
NOISE += [
    '{"name": "now", "arguments": {"a": "b"}}',
    "now()",
    "search(query='",
    "query",
    "3",
    "true",
]


@st.composite
def replies(draw: st.DrawFn) -> tuple[str, str, tuple[str, ...], list[str], bool]:
    tools = draw(st.sampled_from(sorted(TOOLS)))
    reasoning = draw(st.sampled_from(sorted(REASONING)))
    words = terminals(tools, reasoning)
    special = tuple(word for word in words if len(word) > 3 and draw(st.booleans()))
    pieces = draw(st.lists(st.sampled_from(words + NOISE), max_size=24))
    return tools, reasoning, special, pieces, draw(st.booleans())


@pytest.mark.requirement("D-12")
@examples(300)
@given(replies(), st.randoms(use_true_random=False), st.sampled_from(["stop", "length"]))
def test_any_chunking_gives_the_same_items(reply, dice, reason) -> None:  # type: ignore[no-untyped-def]
    tools, reasoning, special, pieces, thinking = reply
    tokenizer = ByteTokenizer(special)
    ids = tokenizer.encode("".join(pieces), special=True)
    whole = read(parser(tokenizer, tools, reasoning, thinking=thinking), [ids], reason)
    single = read(
        parser(tokenizer, tools, reasoning, thinking=thinking), ([token] for token in ids), reason
    )
    assert single == whole
    chunks, at = [], 0
    while at < len(ids):
        size = dice.randint(1, 12)
        chunks.append(ids[at : at + size])
        at += size
    assert read(parser(tokenizer, tools, reasoning, thinking=thinking), chunks, reason) == whole
    found, is_open = items(whole)
    assert not is_open or reason == "length"
    for item in found:
        for text in item.values():
            text.encode()  # never half a character


@pytest.mark.requirement("D-70")
@examples(150)
@given(st.sampled_from(sorted(TOOLS)), st.text(max_size=60), st.sampled_from(["stop", "length"]))
def test_text_without_markup_is_unchanged(tools, text, reason) -> None:  # type: ignore[no-untyped-def]
    """What holds no markup comes out as it went in."""
    form = TOOLS[tools]
    text = re.sub(f"[{re.escape(''.join(terminals(tools, 'think')) + form.bare)}]", "", text)
    text = text.encode("utf-8", "replace").decode()
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text, special=False)
    found, is_open = items(read(parser(tokenizer, tools), ([token] for token in ids), reason))
    assert found == ([{"message": text}] if text else [])
    assert is_open == (bool(text) and reason == "length")


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("tools", sorted(TOOLS))
def test_blank_reply_is_text(tools, reason) -> None:  # type: ignore[no-untyped-def]
    """Also in a format whose replies begin with the header of a message."""
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(" \n", special=False)
    found, _ = items(read(parser(tokenizer, tools), ([token] for token in ids), reason))
    assert found == [{"message": " \n"}]


@examples(150)
@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "a ", "b<", "{", "}"])))
def test_special_tokens_are_never_spelled_by_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    tokenizer = ByteTokenizer((*THINK, *CALL))
    found, _ = items(read(parser(tokenizer), [tokenizer.encode(text, special=False)]))
    assert found == ([{"message": text}] if text else [])


def test_invalid_bytes_are_replaced() -> None:
    tokenizer = ByteTokenizer((*THINK, *CALL))
    deltas = read(parser(tokenizer), [[0xC3], [0xA9, 0xF0, 0x9F], [256], [0x41, 0xFF]])
    assert items(deltas)[0] == [{"message": "é\ufffd"}, {"reasoning": "A\ufffd"}]


def test_character_waits_for_its_last_byte() -> None:
    reader = parser(ByteTokenizer())
    assert list(reader.feed(Chunk(ids=(0xE2, 0x82)))) == [SampledTokens((0xE2, 0x82))]
    result = list(reader.feed(Chunk(ids=(0xAC,))))
    assert result[-1] == Text("€")


def test_text_streams_at_once() -> None:
    reader = parser(ByteTokenizer(CALL))
    assert [d for d in reader.feed(Chunk(ids=(72,))) if isinstance(d, Text)] == [Text("H")]
    assert [d for d in reader.feed(Chunk(ids=(105,))) if isinstance(d, Text)] == [Text("i")]


@pytest.mark.parametrize("tools", sorted(TOOLS))
def test_long_argument_streams_before_it_is_complete(tools: str) -> None:
    """A long string argument is given out as it comes, not at its end."""
    form = TOOLS[tools]
    opened, _, _ = write_calls(form, [("search", {"query": "~"})]).partition("~")
    tokenizer = ByteTokenizer(sorted({*form.opens}))
    reader = parser(tokenizer, tools, None)
    result = list(reader.feed(Chunk(ids=tuple(tokenizer.encode(opened, special=True)))))
    assert any(isinstance(d, Open) and isinstance(d.item, FunctionCall) for d in result)
    for _ in range(3):
        result = list(reader.feed(Chunk(ids=tuple(b"word "))))
        assert isinstance(result[-1], Text) and "word" in result[-1].text


def test_items_close_when_they_end() -> None:
    tokenizer = ByteTokenizer((*THINK, *CALL))
    text = '<think>A</think>B<tool_call>{"name": "now", "arguments": {}}'
    deltas = list(parser(tokenizer).feed(Chunk(ids=tuple(tokenizer.encode(text, special=True)))))
    assert deltas[1:] == [
        Open(Reasoning()),
        Text("A"),
        Close(),
        Open(Message(role="assistant", content=())),
        Text("B"),
        Close(),
        Open(FunctionCall(call_id="", name="now", arguments="")),
        Text("{}"),
        Close(),
    ]


def test_cut_call_is_never_closed() -> None:
    tokenizer = ByteTokenizer(CALL)
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Par'
    ids = tokenizer.encode(text, special=True)
    assert read(parser(tokenizer), [ids], "length")[-1] == Text('{"city": "Par')
    assert read(parser(tokenizer), [ids], "content_filter")[-1] == Text('{"city": "Par')
    assert read(parser(tokenizer), [ids], "stop")[-1] == Close(status="incomplete")


def test_call_cut_before_its_name_is_left_out() -> None:
    tokenizer = ByteTokenizer(CALL)
    ids = tokenizer.encode('Hm.<tool_call>{"name": "get_w', special=True)
    found, is_open = items(read(parser(tokenizer), [ids], "length"))
    assert found == [{"message": "Hm."}] and is_open


def test_cut_reasoning_whose_end_is_held_back_contains_no_call() -> None:
    """The tags after the last value are held back, because the value may quote them."""
    head = "<tool_call>search<param_key>query</param_key><param_value>"
    output = f"{head}{head}a</param_value></tool_call><tool_call>now</tool_call>"
    reader = FormatParser(
        ByteTokenizer(()),
        reasoning=REASONING["think"],
        tools=TOOLS["xing4"],
        shapes=SHAPES,
        thinking=True,
    )
    found, is_open = items(read(reader, [list(output.encode())], "length"))
    assert found == [{"reasoning": output}] and is_open


def test_cut_reasoning_ends_at_no_tag_that_is_held_back_in_a_value() -> None:
    """Text after a value is held back, because the value may contain it."""
    output = (
        "<tool_calls>\n<tool_call>search<tool_sep>\n<arg_key>query</arg_key>\n"
        "<arg_value>a</arg_value>\n</tool_call>\nb</tool_calls></think>"
        "<tool_calls>\n<tool_call>now<tool_sep>\n</tool_call>\n<tool_call>"
    )
    for special in ((), ("<tool_calls>", "</tool_calls>", *THINK)):
        tokenizer = ByteTokenizer(special)
        reader = parser(tokenizer, tools="hy_v3_plain", thinking=True)
        ids = tokenizer.encode(output, special=True)
        found, is_open = items(read(reader, [ids], "length"))
        assert found == [{"reasoning": output}] and is_open


def test_parser_is_done_after_the_only_call() -> None:
    tokenizer = ByteTokenizer(CALL)
    call = '<tool_call>{"name": "now", "arguments": {}}'
    reader = parser(tokenizer, parallel=False)
    ids = tokenizer.encode(call[:-1], special=True)
    assert list(reader.feed(Chunk(ids=tuple(ids)))) and not reader.done
    assert list(reader.feed(Chunk(ids=(ord("}"),))))[-1] == Close()
    assert reader.done
    more = tuple(tokenizer.encode(call, special=True))
    assert list(reader.feed(Chunk(ids=more))) == [SampledTokens(more)]
    assert list(reader.finish("stop")) == []


def test_no_calls_are_parsed_without_tools() -> None:
    tokenizer = ByteTokenizer()
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    reader = FormatParser(
        tokenizer, reasoning=None, tools=TOOLS["hermes"], shapes={}, thinking=False
    )
    assert items(read(reader, [list(text.encode())]))[0] == [{"message": text}]


def test_end_tokens_and_unknown_special_tokens_are_not_text() -> None:
    tokenizer = ByteTokenizer((*CALL, "<|im_start|>", "<b>"))
    ids = tokenizer.encode(f"A<|im_start|> <b>b{END}", special=True)
    assert items(read(parser(tokenizer), [ids]))[0] == [{"message": "A <b>b"}]


def test_reasoning_tokens_are_counted() -> None:
    tokenizer = ByteTokenizer((*THINK, *CALL))
    reader = parser(tokenizer)
    ids = tokenizer.encode("<think>\nabc\n</think>\n\nAnswer", special=True)
    read(reader, ([token] for token in ids))
    assert reader.reasoning_tokens == 6  # with the end tag
    reader = parser(tokenizer, thinking=True)
    read(reader, [tokenizer.encode("€</think>x", special=True)])
    assert reader.reasoning_tokens == 4


def test_tail_of_a_stop_string_is_text() -> None:
    reader = parser(ByteTokenizer())
    deltas = [*reader.feed(Chunk(ids=(65,), tail="B", finish="stop")), *reader.finish("stop")]
    assert items(deltas[1:])[0] == [{"message": "AB"}]


@pytest.mark.parametrize("cut", [1, 5, 1000])
def test_special_token_in_constrained_json_string_is_text(cut: int) -> None:
    """To llama.cpp it is one, so that its grammars let it through: the rest is read as it goes on,
    whole. Where nothing holds the reply, it is markup in an answer, and text in a call's string."""
    tokenizer = ByteTokenizer((*THINK, *CALL, "<other>", "<end>"))
    result = '{"a": "<tool_call><think>x</think></tool_call><other>é"}'
    called = f'<tool_call>\n{{"name": "search", "arguments": {result}}}\n</tool_call>'
    for begun in ("", "<think>\nHm.\n</think>\n\n"):
        for reply, expected in (
            (result, {"message": result}),
            (called, {"call": "search", "arguments": result}),
        ):
            ids = tokenizer.encode(f"{begun}{reply}", special=True)
            cuts = [ids[at : at + cut] for at in range(0, len(ids), cut)]
            found, _ = items(read(parser(tokenizer, held=True, is_json=True), cuts, "stop"))
            assert found == [*[{"reasoning": "Hm."}] * bool(begun), expected]
            freed = parser(tokenizer, held=True, is_json=True)
            freed.set_unconstrained()
            free, _ = items(read(freed, cuts, "stop"))
            assert free == items(read(parser(tokenizer), cuts, "stop"))[0]
            assert (free == found) is (reply == called)


def chunk(tokenizer: ByteTokenizer, text: str) -> Chunk:
    ids = tuple(tokenizer.encode(text, special=True))
    return Chunk(
        ids=ids,
        logprobs=tuple(
            TokenLogprob(token, -float(n), (Alternative(65, -9.0),)) for n, token in enumerate(ids)
        ),
    )


@pytest.mark.requirement("D-26")
def test_logprobs_go_with_their_text() -> None:
    tokenizer = ByteTokenizer((*THINK, *CALL))
    text = '<think>no</think>\nA é<tool_call>{"name": "now", "arguments": {}}</tool_call>B'
    reader = parser(tokenizer)
    deltas = [*reader.feed(chunk(tokenizer, text)), *reader.finish("stop")]
    result = [d for d in deltas if isinstance(d, Text)]
    assert [text.text for text in result] == ["no", "A é", "{}", "B"]
    assert [len(text.logprobs) for text in result] == [0, 4, 0, 1]
    assert result[1].logprobs[0] == Logprob(
        token="A",
        logprob=-5.0,
        bytes=(65,),
        top_logprobs=(TopLogprob(token="A", logprob=-9.0, bytes=(65,)),),
    )
    assert [lp.bytes for lp in result[1].logprobs[2:]] == [(0xC3,), (0xA9,)]
    assert [lp.token for lp in result[3].logprobs] == ["B"]


def test_rejected_markup_keeps_its_logprobs() -> None:
    tokenizer = ByteTokenizer()
    text = "A <tool_call> b"
    reader = parser(tokenizer)
    deltas = [*reader.feed(chunk(tokenizer, text)), *reader.finish("stop")]
    logprobs = [lp for d in deltas if isinstance(d, Text) for lp in d.logprobs]
    assert "".join(lp.token for lp in logprobs) == text


@pytest.mark.parametrize(
    ("form", "text", "result"),
    [
        ("xlam", '[{"name": "now", "arguments": {}}] So.', "So."),
        ("llama3_json", '{"name": "now", "parameters": {}}; So.', "So."),
        ("pythonic", "[now(), f(x=1)] So.", "f(x=1)] So."),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}} So.', "So."),
    ],
)
def test_text_after_a_call_has_only_its_own_logprobs(form: str, text: str, result: str) -> None:
    tokenizer = ByteTokenizer()
    reader = FormatParser(
        tokenizer, reasoning=None, tools=TOOLS[form], shapes=SHAPES, thinking=False
    )
    deltas = [*reader.feed(chunk(tokenizer, text)), *reader.finish("stop")]
    logprobs = [lp for d in deltas if isinstance(d, Text) for lp in d.logprobs]
    assert "".join(lp.token for lp in logprobs) == result


def test_namespaced_custom_tool_call_is_parsed() -> None:
    shapes = {"a__b": ToolShape(wire_name="b", namespace="a", custom=True)}
    reader = FormatParser(
        ByteTokenizer(), reasoning=None, tools=TOOLS["llama3_json"], shapes=shapes, thinking=False
    )
    text = '{"name": "a__b", "parameters": {"input": "x\\ny"}}'
    found, _ = items(read(reader, [list(text.encode())]))
    assert found == [{"custom": "b", "input": "x\ny", "namespace": "a"}]


_ARGUMENT_KEY = re.compile(r'"(?:arguments|parameters|args)": ')
#: The keys under which models write the arguments of a call.
_ARGUMENT_KEYS = (
    *("arguments", "argument", "args", "parameters", "parameter", "params", "kwargs"),
    *("input", "inputs", "tool_input", "action_input"),
    *("tool_arguments", "tool_args", "tool_parameters", "tool_params"),
)
_CALL = [("search", {"query": "a"})]
JSON_ROWS = [
    name for name in sorted(TOOLS) if _ARGUMENT_KEY.search(write_calls(TOOLS[name], _CALL))
]


@pytest.mark.requirement("FM-ARGUMENTS")
@pytest.mark.parametrize("tools", JSON_ROWS)
def test_json_call_may_name_its_arguments_otherwise(tools: str) -> None:
    tokenizer = ByteTokenizer()
    usual = write_calls(TOOLS[tools], _CALL)
    for replacement in [f'"{key}": ' for key in _ARGUMENT_KEYS]:
        text = _ARGUMENT_KEY.sub(replacement, usual)
        found, _ = items(
            read(parser(tokenizer, tools, None), [tokenizer.encode(text, special=True)])
        )
        assert [item.get("arguments") for item in found] == ['{"query": "a"}'], text


@pytest.mark.requirement("FM-ARGUMENTS")
@pytest.mark.parametrize("tools", JSON_ROWS)
def test_json_call_may_have_its_arguments_beside_the_name(tools: str) -> None:
    tokenizer = ByteTokenizer()
    text = re.sub(_ARGUMENT_KEY.pattern + r"\{(.*?)\}", r"\1", write_calls(TOOLS[tools], _CALL))
    found, _ = items(read(parser(tokenizer, tools, None), [tokenizer.encode(text, special=True)]))
    assert [item.get("arguments") for item in found] == ['{"query": "a"}'], text


class StuckReader:
    """A broken reader that never reads a character."""

    complete = failed = in_string = False

    def __init__(self) -> None:
        self.reads = 0

    def read(self, text: str) -> int:
        self.reads += 1
        assert self.reads < 1_000, "the parser does not stop"
        return 0

    def finish(self) -> None: ...


@pytest.mark.parametrize("label", ["call_5Fk2a9", "chatcmpl-tool-0a1b2c", "toolu_01Ab"])
def test_id_without_a_name_calls_the_only_tool(label: str) -> None:
    output = (
        f'<|tool_call_begin|>{label}<|tool_call_argument_begin|>{{"city": "Oslo"}}<|tool_call_end|>'
    )
    tokenizer = ByteTokenizer(("<|tool_call_begin|>", "<|tool_call_argument_begin|>"))
    created = FormatParser(
        tokenizer,
        reasoning=None,
        tools=TOOLS["kimi_k2"],
        shapes={"get_weather": SHAPES["get_weather"]},
        thinking=False,
    )
    found, _ = items(read(created, [tokenizer.encode(output, special=True)]))
    assert found == [{"call": "get_weather", "arguments": '{"city": "Oslo"}', "call_id": label}]


@pytest.mark.requirement("D-82")
def test_name_of_an_unknown_tool_keeps_its_dots() -> None:
    tokenizer = ByteTokenizer(CALL)
    text = '<tool_call>{"name": "files.search", "arguments": {}}</tool_call>'
    deltas = read(parser(tokenizer, passes_unknown=True), [tokenizer.encode(text, special=True)])
    (call,) = (delta.item for delta in deltas if isinstance(delta, Open))
    assert "search" in SHAPES
    assert isinstance(call, FunctionCall) and call.name == "files.search"


@pytest.mark.parametrize("tools", sorted(TOOLS))
def test_broken_reader_does_not_stop_the_parser(
    monkeypatch: pytest.MonkeyPatch, tools: str
) -> None:
    stuck = StuckReader()
    monkeypatch.setattr("antiphon.dialects.parser.parser.reader_for", lambda *_: stuck)
    tokenizer = ByteTokenizer()
    text = f"{write_calls(TOOLS[tools], _CALL)} So."
    found, _ = items(read(parser(tokenizer, tools, None), [tokenizer.encode(text, special=True)]))
    assert "So." in found[-1]["message"]
    assert stuck.reads


class WorkCounter:
    """Measures the work of parsing a reply, in three numbers: function calls, characters that the
    lexer scans, and bytes.

    The bytes are the sum of the memory that each call of ``feed`` needs at most. They show copies
    of a growing text, because one function call can copy a text of any length.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = self.characters = 0
        find = StateTerminals.find

        def counted(states: StateTerminals, text: str, final: bool) -> tuple[int, str | None]:
            self.characters += len(text)
            return find(states, text, final)

        monkeypatch.setattr(StateTerminals, "find", counted)

    def parse(self, new_parser: Callable[[], Parser], ids: Sequence[int]) -> tuple[int, int, int]:
        """Parse ``ids`` token by token. Return the calls, the characters and the bytes."""
        reader = new_parser()
        self.calls = self.characters = 0
        sys.setprofile(self._count)
        try:
            for id in ids:
                list(reader.feed(Chunk(ids=(id,))))
            list(reader.finish("stop"))
        finally:
            sys.setprofile(None)
        return self.calls, self.characters, self._measure_bytes(new_parser(), ids)

    def _count(self, frame: FrameType, event: str, arg: object) -> None:
        self.calls += 1

    def _measure_bytes(self, reader: Parser, ids: Sequence[int]) -> int:
        size = 0
        tracemalloc.start()
        try:
            for id in ids:
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                list(reader.feed(Chunk(ids=(id,))))
                _, peak = tracemalloc.get_traced_memory()
                size += peak - before
        finally:
            tracemalloc.stop()
        return size

    def assert_linear(
        self, new_parser: Callable[[], Parser], ids_of: Callable[[str], Sequence[int]], text: str
    ) -> None:
        """Fail if the work grows faster than a reply. ``text``: the reply. The character ``$`` in
        it stands for the part that grows."""
        # The first reply fills the caches of texts of tokens.
        _, small, large = (
            self.parse(new_parser, ids_of(text.replace("$", "word " * size)))
            for size in (1, 50, 400)
        )
        # The replies differ by a factor of 8. Memory varies: linear code needs 6 to 8 times as many
        # bytes, and code that copies the growing text 19 times as many.
        for before, after, limit in zip(small, large, (8.5, 8.5, 12), strict=True):
            assert after <= limit * before + 1000


@pytest.mark.requirement("D-96")
@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ("hermes", "$"),
        ("hermes", "<think>$</think>Done."),
        ("hermes", "a < b <tool $"),
        ("hermes", '<tool_call>{"name": "search", "arguments": {"query": "$"}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {"query": "$"}, "name": "search"}</tool_call>'),
        ("hermes", "<tool_call>$"),
        ("llama3_json", '{"name": "search", "parameters": {"query": "$"}}'),
        ("pythonic", '[search(query="$")]'),
        (
            "qwen3_coder",
            "<tool_call><function=search><parameter=query>$</parameter></function></tool_call>",
        ),
    ],
)
def test_work_grows_linearly_with_a_reply(
    monkeypatch: pytest.MonkeyPatch, tools: str, text: str
) -> None:
    tokenizer = ByteTokenizer(CALL + THINK)
    WorkCounter(monkeypatch).assert_linear(
        lambda: parser(tokenizer, tools), lambda text: tokenizer.encode(text, special=True), text
    )
