"""Preambles of gpt-oss (commentary addressed to nobody), and tool names with dots."""

from __future__ import annotations

import pytest

from antiphon.dialects.harmony.parser import HarmonyParser
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.inference.tokens import Chunk
from antiphon.stream.deltas import Close, Delta, Open, Text
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.wire.items import FunctionCall, Message
from tests.dialects.harmony.test_parser import CODES, TOKENIZER


def stream(text: str, shapes: dict[str, ToolShape], *, passes_unknown: bool = False) -> list[Delta]:
    """Feed ``text`` token by token and return the deltas in order."""
    tokenizer: ByteTokenizer = TOKENIZER
    parser = HarmonyParser(tokenizer, CODES, shapes=shapes, passes_unknown=passes_unknown)
    deltas: list[Delta] = []
    for token in tokenizer.encode(text, special=True):
        deltas += parser.feed(Chunk(ids=(token,)))
    return [*deltas, *parser.finish("stop")]


@pytest.mark.requirement("VN-88", "D-13")
def test_preamble_streams_as_a_message_before_the_call() -> None:
    text = (
        "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.look<|message|>{}<|call|>"
    )
    deltas = stream(text, {"look": ToolShape(wire_name="look")})
    opened = [delta.item for delta in deltas if isinstance(delta, Open)]
    assert [type(item) for item in opened] == [Message, FunctionCall]
    assert isinstance(opened[0], Message) and opened[0].phase == "commentary"
    end = next(n for n, delta in enumerate(deltas) if isinstance(delta, Close))
    pieces = [delta.text for delta in deltas[:end] if isinstance(delta, Text)]
    assert "".join(pieces) == "Let me look."
    assert len(pieces) > 1, "the preamble was held back until its end"


@pytest.mark.requirement("D-82")
@pytest.mark.parametrize("name", ["files.read", "a.b.c", "v1.2", "functions.look"])
def test_tool_name_keeps_its_dots(name: str) -> None:
    text = f"<|channel|>commentary to=functions.{name}<|message|>{{}}<|call|>"
    shapes = {name: ToolShape(wire_name=name), "read": ToolShape(wire_name="read")}
    for known in (shapes, {"read": shapes["read"]}):  # also if no tool has this name
        deltas = stream(text, known, passes_unknown=True)
        (call,) = (d.item for d in deltas if isinstance(d, Open))
        assert isinstance(call, FunctionCall) and call.name == name
