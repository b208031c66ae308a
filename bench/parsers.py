"""CPU cost of parsing a reply one token at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

from antiphon.dialects.base import Parser
from antiphon.dialects.formats.reasoning_formats import REASONING
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.formats.types import ReasoningFormat, ToolFormat
from antiphon.dialects.harmony import parser as harmony
from antiphon.dialects.parser.lexer import Lexer
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.inference.tokens import Chunk
from antiphon.testing.tokenizer import ByteTokenizer

from .table import Line

#: Tokens of a reply: half text (or thinking), half a call. A token is a byte.
TOKENS = 32_768
_WORDS = "All is calm on the sea today. "
_TEXT = (_WORDS * TOKENS)[: TOKENS // 2]
_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
SHAPES = {"store": ToolShape(wire_name="store", schema=_SCHEMA)}
#: Targets in microseconds per token: text formats, and harmony, whose control tokens are ids.
TARGET_US, HARMONY_US = 3, 5


def parsers() -> Iterator[Line]:
    """Measure harmony, every reasoning format and every tool format."""
    tokenizer = ByteTokenizer(list(harmony.CONTROL_TOKENS.values()))
    codes = harmony.TokenCodes.from_tokenizer(tokenizer)
    yield _line(
        "harmony",
        lambda: harmony.HarmonyParser(tokenizer, codes, shapes=SHAPES),
        tokenizer,
        _model_output(),
    )
    for form in (form for form in REASONING.values() if form.open):
        yield _scanned(
            f"{form.name} (thinking)", form.open + form.close, _thought(form), reasoning=form
        )
    for row in TOOLS.values():
        yield _scanned(row.name, tuple(row.opens), f"{_TEXT}\n{_called(row)}", tools=row)


def token_us(make: Callable[[], Parser], ids: list[int]) -> float:
    """Return microseconds of CPU per token: the best of three, because the machine is shared."""
    chunks = [Chunk(ids=(id,)) for id in ids]

    def once() -> float:
        parser = make()
        started = time.process_time()
        for chunk in chunks:
            list(parser.feed(chunk))
        list(parser.finish("stop"))
        return (time.process_time() - started) / len(ids) * 1e6

    return min(once() for _ in range(3))


def _line(
    name: str, make: Callable[[], Parser], tokenizer: ByteTokenizer, text: str, note: str = ""
) -> Line:
    value = token_us(make, tokenizer.encode(text, special=True))
    what = f"parser: a token of {name}, {TOKENS // 1024}k"
    return Line(
        what=what,
        value=value,
        unit="µs",
        at_most=HARMONY_US if name == "harmony" else TARGET_US,
        note=note,
    )


def _scanned(
    name: str,
    terminals: tuple[str, ...],
    text: str,
    *,
    reasoning: ReasoningFormat | None = None,
    tools: ToolFormat | None = None,
) -> Line:
    tokenizer = ByteTokenizer([terminal for terminal in terminals if len(terminal) > 1])
    lexer = Lexer(tokenizer, reasoning, tools)

    def make() -> Parser:
        return FormatParser(
            tokenizer,
            reasoning=reasoning,
            tools=tools,
            shapes=SHAPES if tools else {},
            thinking=False,
            lexer=lexer,
        )

    return _line(name, make, tokenizer, text)


# --- replies -------------------------------------------------------------------------------------


def _model_output() -> str:
    call = "<|start|>assistant<|channel|>commentary to=functions.store <|constrain|>json<|message|>"
    thought = f"<|channel|>analysis<|message|>{_TEXT}<|end|>"
    return f"{thought}{call}{json.dumps({'text': _TEXT})}<|call|>"


def _thought(form: ReasoningFormat) -> str:
    return f"{form.open[0]}\n{_TEXT}\n{form.close[0]}\n\n{_TEXT}"


def _called(form: ToolFormat) -> str:
    """Render a call with one long string."""
    how, parameter = form.written, form.written.parameter
    if parameter is None:
        call_text = json.dumps({"text": _TEXT})
    elif parameter.quoted:
        call_text = f"{parameter.before}text{parameter.json}{json.dumps(_TEXT)}{parameter.json_end}"
    else:
        call_text = f"{parameter.before}text{parameter.text}{_TEXT}{parameter.text_end}"
    return how.render_calls([("store", call_text)])
