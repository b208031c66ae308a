"""Items: the official client parses what we encode, and we parse it back."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import openresponses_types
import pytest
from openai.types.responses import ResponseInputItem, ResponseOutputItem
from pydantic import TypeAdapter, ValidationError

from antiphon.wire import items as it
from antiphon.wire.parsing.requests import read_items
from tests.wire.samples import (
    FOREIGN,
    INPUTS,
    ITEMS,
    MORE_PARTS,
    OUTPUTS,
    Json,
    bare,
    noisy,
    nulled,
)

KNOWN_OUTPUTS, KNOWN_INPUTS = (
    {name: raw for name, raw in samples.items() if raw["type"] not in FOREIGN}
    for samples in (OUTPUTS, INPUTS)
)
OUTPUT = TypeAdapter[Any](ResponseOutputItem)
INPUT = TypeAdapter[Any](ResponseInputItem)


def decoded(raw: Any) -> it.Item:
    (item,) = read_items([raw], "input")
    return item


def encode(item: it.Item) -> Any:
    return json.loads(msgspec.json.encode(item))


def each(values: dict[str, Json]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("raw", values.values(), ids=values)


def test_every_item_has_a_sample() -> None:
    tags = {str(cls.__struct_config__.tag) for cls in it.INPUT_ITEMS}
    assert tags == {item["type"] for item in ITEMS.values()}
    assert {item["type"] for item in OUTPUTS.values()} == {
        str(cls.__struct_config__.tag) for cls in it.OUTPUT_ITEMS
    }


@each(KNOWN_OUTPUTS)
def test_output_item_is_parsed_by_the_sdk(raw: Json) -> None:
    parsed = OUTPUT.validate_json(msgspec.json.encode(decoded(raw)), strict=True)
    assert parsed.type == raw["type"]


@pytest.mark.requirement("API-PHASE")
@each(OUTPUTS)
def test_output_item_keeps_every_field(raw: Json) -> None:
    assert encode(decoded(raw)) == raw


@each(KNOWN_INPUTS)
def test_input_item_is_parsed_by_the_sdk(raw: Json) -> None:
    parsed = INPUT.validate_json(msgspec.json.encode(decoded(raw)), strict=True)
    assert parsed.type == raw["type"]


@each(ITEMS)
def test_encoded_item_parses_to_the_same_value(raw: Json) -> None:
    item = decoded(raw)
    assert decoded(encode(item)) == item


@each(ITEMS)
def test_optional_fields_may_be_absent(raw: Json) -> None:
    item = decoded(bare(raw))
    assert str(item.__struct_config__.tag) == raw["type"]
    assert item.id == bare(raw).get("id", "")


@each(ITEMS)
def test_null_means_absent(raw: Json) -> None:
    assert decoded(nulled(raw)) == decoded(bare(raw))


@each(ITEMS)
def test_unknown_keys_are_ignored(raw: Json) -> None:
    assert decoded(noisy(raw)) == decoded(raw)


@each(KNOWN_OUTPUTS)
def test_item_with_required_fields_only_is_parsed_by_the_sdk(raw: Json) -> None:
    required_by_the_sdk = {"web_search_call": {"action": raw.get("action")}}
    item = decoded({**bare(raw), "id": raw["id"], **required_by_the_sdk.get(raw["type"], {})})
    OUTPUT.validate_json(msgspec.json.encode(item), strict=True)


@pytest.mark.parametrize("part", MORE_PARTS, ids=lambda part: part["type"])
def test_user_message_may_hold_audio_and_video(part: Json) -> None:
    message = decoded({"role": "user", "content": [part]})
    assert encode(message)["content"] == [part]


def test_tool_output_may_hold_video() -> None:
    video = MORE_PARTS[1]
    output = {"type": "function_call_output", "call_id": "call_1", "output": [video]}
    assert encode(decoded(output))["output"] == [video]


def test_nulls_inside_free_json_are_kept() -> None:
    call = decoded(
        {"type": "tool_search_call", "arguments": {"query": None, "deep": {"x": [None]}}}
    )
    assert isinstance(call, it.ToolSearchCall)
    assert call.arguments == {"query": None, "deep": {"x": [None]}}


def test_absent_fields_are_not_encoded() -> None:
    text = encode(decoded({"role": "assistant", "content": "hi"}))
    assert "phase" not in text
    reasoning = encode(decoded({"type": "reasoning", "content": None, "encrypted_content": None}))
    assert reasoning == {"type": "reasoning", "id": "", "summary": [], "status": "completed"}


def test_arguments_are_kept_byte_for_byte() -> None:
    spelled = '{ "a" : 1.0,\n"b":"\\u00e9" ,}'
    call = decoded({"type": "function_call", "call_id": "c", "name": "f", "arguments": spelled})
    assert isinstance(call, it.FunctionCall)
    assert call.arguments == spelled


def test_foreign_items_are_unknown_to_the_sdk() -> None:
    for tag in FOREIGN & OUTPUTS.keys():
        with pytest.raises(ValidationError):
            OUTPUT.validate_python(OUTPUTS[tag])


def test_every_item_class_is_in_the_union() -> None:
    assert set(get_args(it.Item)) == set(it.INPUT_ITEMS)


#: The five items of Open Responses, as a model without extras makes them, and their types there.
CORE: dict[str, tuple[str, Json]] = {
    "message": (
        "Message",
        {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
    ),
    "function_call": ("FunctionCall", {"call_id": "call_1", "name": "f", "arguments": "{}"}),
    "function_call_output": ("FunctionCallOutput", {"call_id": "call_1", "output": "1"}),
    "reasoning": ("ReasoningBody", {"summary": [{"type": "summary_text", "text": "s"}]}),
    "compaction": ("CompactionBody", {"encrypted_content": "sealed"}),
}


@pytest.mark.parametrize("kind", CORE)
def test_core_items_conform_to_open_responses(kind: str) -> None:
    body, fields = CORE[kind]
    item = decoded({"type": kind, "id": "x_1", **fields})
    getattr(openresponses_types, body).model_validate_json(msgspec.json.encode(item))
