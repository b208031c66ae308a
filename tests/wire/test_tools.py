"""Tools and tool_choice, compared with the official client's types."""

from __future__ import annotations

import json
import zlib
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response, Tool
from pydantic import TypeAdapter

from antiphon.wire import tools as tl
from antiphon.wire.json_types import EncodedText
from antiphon.wire.parsing.tools import read_tool_choice, read_tools
from tests.wire.samples import CHOICES, FOREIGN, TOOLS, Json, bare, noisy, nulled

SDK = TypeAdapter[Any](Tool)
SDK_CHOICE = TypeAdapter[Any](Response.model_fields["tool_choice"].annotation)

every_tool = pytest.mark.parametrize("raw", TOOLS.values(), ids=TOOLS)
known_tool = pytest.mark.parametrize("raw", [TOOLS[name] for name in TOOLS if name not in FOREIGN])
every_choice = pytest.mark.parametrize("raw", CHOICES, ids=json.dumps)


def decoded(raw: Json) -> tl.Tool:
    (tool,) = read_tools([raw], "tools", 10)
    return tool


def encode(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def test_every_tool_has_a_sample() -> None:
    assert set(TOOLS) == {str(cls.__struct_config__.tag) for cls in tl.Tool.__args__}


@pytest.mark.requirement("D-56")
@every_tool
def test_tool_keeps_every_field(raw: Json) -> None:
    assert encode(decoded(raw)) == raw


@known_tool
def test_tool_is_parsed_by_the_sdk(raw: Json) -> None:
    assert SDK.validate_json(msgspec.json.encode(decoded(raw)), strict=True).type == raw["type"]


@every_tool
def test_null_means_absent(raw: Json) -> None:
    assert decoded(nulled(raw)) == decoded(bare(raw))


@every_tool
def test_unknown_keys_are_ignored(raw: Json) -> None:
    assert decoded(noisy(raw)) == decoded(raw)


def test_function_encodes_three_fields_even_when_null() -> None:
    assert encode(decoded({"type": "function", "name": "f"})) == {
        "type": "function",
        "name": "f",
        "description": None,
        "parameters": None,
        "strict": None,
    }


def test_schemas_are_kept_unchanged() -> None:
    schema = {"type": "object", "default": None, "properties": {"a": {"enum": [None, 1]}}}
    tool = decoded({"type": "function", "name": "f", "parameters": schema})
    assert isinstance(tool, tl.Function)
    assert tool.parameters == schema


@every_choice
def test_tool_choice_is_parsed_by_the_sdk_and_round_trips(raw: Any) -> None:
    choice = read_tool_choice(raw)
    assert encode(choice) == raw
    SDK_CHOICE.validate_json(msgspec.json.encode(choice), strict=True)


def test_nulls_and_unknown_keys_in_tool_choice_are_ignored() -> None:
    noise = {"type": "mcp", "server_label": "docs", "name": None, "x": 1}
    assert encode(read_tool_choice(noise)) == {"type": "mcp", "server_label": "docs"}


def test_shared_tools_are_packed_after_some_uses() -> None:
    tools = tl.SharedTools(decoded(raw) for raw in TOOLS.values())
    tools.instructions = EncodedText.of('Be "brief".\n' * 500)
    packed = [tools.pack() for _ in range(20)]
    assert packed[0] is None and packed[-1] is not None and packed[-1] is packed[-2]
    found, rest = tl.SharedTools.unpack(packed[-1] + b"{}")
    assert found == tools and rest == b"{}" and bytes(found.json) == bytes(tools.json)
    assert found.instructions == tools.instructions
    assert found.pack() == packed[-1], "unpacked tools have been used before"


def test_short_tools_are_not_packed() -> None:
    tools = tl.SharedTools((tl.Function(name="f"),))
    assert [tools.pack() for _ in range(20)] == [None] * 20


@pytest.mark.parametrize("content", [b"", b"x", zlib.compress(b"[]"), zlib.compress(b"1\nnull")])
def test_damaged_tools_are_an_error(content: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        tl.SharedTools.unpack(content)
