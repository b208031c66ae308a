"""Helpers to parse whole replies in any chunks and compare their items."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct

from antiphon.dialects.base import Parser
from antiphon.dialects.formats.reasoning_formats import REASONING
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.formats.types import ReasoningFormat, ToolFormat
from antiphon.dialects.parser.lexer import Lexer
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.inference.tokens import Chunk
from antiphon.stream.deltas import Close, Delta, FinishReason, Open, SampledTokens, Text
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.wire.items import CustomToolCall, FunctionCall, Message, Reasoning

STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


SHAPES = {
    "get_weather": ToolShape(
        wire_name="get_weather", schema=schema(city=STRING, days=INTEGER, metric=BOOLEAN)
    ),
    "search": ToolShape(
        wire_name="search",
        schema=schema(
            query=STRING, limit=INTEGER, filters={"type": "object"}, tags={"type": "array"}
        ),
    ),
    "now": ToolShape(wire_name="now", schema=schema()),
    "apply_patch": ToolShape(wire_name="apply_patch", custom=True, schema=schema(input=STRING)),
    "mcp__calc__add": ToolShape(
        wire_name="add", namespace="mcp__calc", schema=schema(a=INTEGER, b=INTEGER)
    ),
}


class Story(Struct, frozen=True, kw_only=True):
    """A golden: an output and its expected items."""

    name: str
    calls: str | None
    thinking: str | None
    special: tuple[str, ...]
    start: str
    parallel: bool
    output: str
    items: list[dict[str, Any]]

    @property
    def tokenizer(self) -> ByteTokenizer:
        return tokenizer_for(self.special)

    def parser(self) -> FormatParser:
        reasoning = REASONING[self.thinking] if self.thinking else None
        tools = TOOLS[self.calls] if self.calls else None
        return FormatParser(
            self.tokenizer,
            reasoning=reasoning,
            tools=tools,
            shapes=SHAPES,
            thinking=self.start == "reasoning",
            parallel=self.parallel,
            lexer=lexer_for(self.special, self.thinking, self.calls),
        )

    def ids(self) -> list[int]:
        return self.tokenizer.encode(self.output, special=True)


@cache
def tokenizer_for(special: tuple[str, ...]) -> ByteTokenizer:
    return ByteTokenizer(special)


@cache
def lexer_for(special: tuple[str, ...], thinking: str | None, calls: str | None) -> Lexer:
    """Return the lexer of these formats, built once as in dialects: its patterns take milliseconds
    to compile.
    """
    reasoning = REASONING[thinking] if thinking else None
    return Lexer(tokenizer_for(special), reasoning, TOOLS[calls] if calls else None)


@cache
def stories() -> tuple[Story, ...]:
    return tuple(_story(path) for path in sorted((Path(__file__).parent / "formats").glob("*.txt")))


def _story(path: Path) -> Story:
    head, output, items = path.read_text(encoding="utf-8").split("\n----\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    return Story(
        name=path.stem,
        calls=None if fields["calls"] == "none" else fields["calls"],
        thinking=None if fields["thinking"] == "none" else fields["thinking"],
        special=tuple(fields.get("special", "").split()),
        start=fields.get("start", "text"),
        parallel=fields.get("parallel") != "false",
        output=output,
        items=[json.loads(line) for line in items.splitlines()],
    )


def read(
    parser: Parser, chunks: Iterable[Sequence[int]], reason: FinishReason = "stop"
) -> list[Delta]:
    """Return the deltas of a reply without ``SampledTokens`` and with consecutive texts merged."""
    deltas: list[Delta] = []
    for ids in chunks:
        fed = list(parser.feed(Chunk(ids=tuple(ids))))
        if ids:
            assert fed[0] == SampledTokens(tuple(ids))
            fed = fed[1:]
        deltas += fed
    deltas += parser.finish(reason)
    return merged(deltas)


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    out: list[Delta] = []
    for delta in deltas:
        if isinstance(delta, Text) and out and isinstance(out[-1], Text):
            out[-1] = Text(out[-1].text + delta.text, out[-1].logprobs + delta.logprobs)
        else:
            out.append(delta)
    return out


def items(deltas: Iterable[Delta]) -> tuple[list[dict[str, Any]], bool]:
    """Return the items in the goldens' form, and whether the last one is open."""
    found: list[dict[str, Any]] = []
    text = ""
    is_open = False
    for delta in deltas:
        match delta:
            case Open(item):
                assert not is_open
                is_open, text = True, ""
                found.append(_shell(item))
            case Text(more):
                assert is_open and more
                text += more
                _fill(found[-1], text)
            case Close():
                assert is_open
                is_open = False
            case _:
                raise AssertionError(delta)
    return found, is_open


def _shell(item: Any) -> dict[str, Any]:
    match item:
        case Reasoning():
            return {"reasoning": ""}
        case Message(role="assistant", content=(), phase=phase):
            return {"message": ""} if phase is UNSET else {"message": "", "phase": phase}
        case CustomToolCall(call_id=call_id, name=name, namespace=namespace, input=""):
            call = {"custom": name, "input": ""}
        case FunctionCall(call_id=call_id, name=name, namespace=namespace, arguments=""):
            call = {"call": name, "arguments": ""}
        case _:
            raise AssertionError(item)
    if call_id:
        call["call_id"] = call_id
    if namespace is not UNSET:
        call["namespace"] = namespace
    return call


def _fill(item: dict[str, Any], text: str) -> None:
    for key in ("reasoning", "message", "input", "arguments"):
        if key in item:
            item[key] = text


def write_calls(form: ToolFormat, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return calls in the syntax of a format."""
    how = form.written
    return how.render_calls((name, how.render_arguments(values)) for name, values in calls)


def thinking_of(name: str) -> ReasoningFormat:
    """Return the reasoning format of the models that use this tool format."""
    return REASONING.get({"seed_oss": "seed", "mistral_v13": "mistral"}.get(name, name), _USUAL)


_USUAL = REASONING["think"]


def is_bare(form: ToolFormat) -> bool:
    """Return whether a call as the model writes it may begin without a tag that marks it."""
    return form.bare != "" or form.opens.keys() <= form.inner


#: Rows whose calls have no opening terminal. After other text they are only text.
BARE = frozenset(name for name, row in TOOLS.items() if is_bare(row) and not row.doubtful)


def reply(form: ToolFormat, reasoning_done: str, text: str, calls: str) -> str:
    """Return a reply of reasoning, an answer and calls, each of which may be empty."""
    thinks, parts = thinking_of(form.name), form.written.separator
    (before, after), header = thinks.answer, thinks.header
    if form.name == "hyperclovax":  # starts a new turn for its calls
        before, after = "", "<|im_end|>\n<|im_start|>assistant"
    if header and header in parts and header != parts:
        after = parts  # the separator also ends a message
    elif form.doubtful:
        after = parts
    elif calls:
        after += header or "\n"
    start = thinks.opening_text + reasoning_done + thinks.closing_text("") if reasoning_done else ""
    return start + (before + text + (after if calls else "") if text else "") + calls


def specials(form: ToolFormat) -> set[str]:
    """Return the tags of a format for which models have tokens."""
    literals = {*form.opens, *form.quote.split()}
    for state in form.states.values():
        literals |= state.on.keys()
    return {
        tag
        for literal in literals
        for tag in re.findall(r"<[^<>\s=]+>|\[[A-Z_]+\]|\]<\]minimax\[>\[|｜DSML｜", literal)
    }
