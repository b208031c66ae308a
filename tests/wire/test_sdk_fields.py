"""Compare our types field by field with the official client's; every difference has a reason."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import openai.types.responses as sdk
import pytest
from msgspec import NODEFAULT, UNSET
from msgspec.structs import fields
from openai.types.responses import (
    input_token_count_params,
    response_create_params,
    response_output_text,
    response_reasoning_item,
    response_usage,
)
from openai.types.shared import (
    Reasoning,
    ResponseFormatJSONObject,
    ResponseFormatText,
    custom_tool_input_format,
)
from pydantic import BaseModel

from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire import response as rs
from antiphon.wire import tools as tl
from antiphon.wire.request import CreateResponse, InputTokensRequest
from antiphon.wire.response import Response

#: Fields of the SDK that we leave out.
LEFT_OUT = {
    ("response.shell_call_command.delta", "obfuscation"): "padding is optional",
}
#: Fields of ours the SDK does not have.
OURS = {
    ("tool_search", "name"): "the name that Messages declares",
    ("mcp", "deferred_tools"): "single tools that are deferred, as Messages' toolsets have it",
    ("custom_tool_call_output", "name"): "sent by clients that mirror function_call_output",
    ("web_search_call", "results"): "filled by include web_search_call.results",
    ("file_search_call", "passage_files"): "for later responses, which cite these files",
    ("local_shell_call_output", "call_id"): "sent by clients that mirror the other outputs",
    **{
        (tag, "caller"): "where a program made the call: it goes on by it"
        for tag in ("mcp_call", "mcp_approval_request", "code_interpreter_call")
    },
    ("response.function_call_arguments.done", "name"): "OpenAI sends it, its client lacks it",
    ("error", "error"): "the nested form, which OpenAI's servers send",
    ("response", "store"): "Open Responses demands it",
    ("response", "presence_penalty"): "Open Responses demands it",
    ("response", "frequency_penalty"): "Open Responses demands it",
    ("response", "context_management"): "echoed once it is supported",
    ("response", "ignored_tools"): "hosted tools that this server does not run, and why",
    ("response", "ignored_fields"): "unknown fields of the request",
    ("response", "omitted_parts"): "parts that the model cannot read",
    ("response", "matched_stop"): "the stop string that ended the output",
    ("response", "pending_steering"): "input that waits for the client's tool results",
    **{
        ("response", name): "an extension, given where a request asks for it"
        for name in ("input_messages", "output_messages", "metrics")
    },
    ("compaction", "summary"): "an extension, given where a request asks for it",
    **{
        (f"web_search{version}", "search_content_types"): "one base for all web searches"
        for version in ("", "_2025_08_26")
    },
    **{
        (f"web_search{version}", "max_content_tokens"): "from Anthropic's web_fetch"
        for version in ("", "_2025_08_26", "_preview", "_preview_2025_03_11")
    },
    **{
        (f"web_search_preview{version}", name): "one base for all web searches"
        for version in ("", "_2025_03_11")
        for name in ("filters", "external_web_access")
    },
}
#: Fields the SDK demands and ours may lack.
MAY_LACK = {
    ("web_search_call", "action"): "not known yet while the search is being written",
    ("namespace", "description"): "clients leave it out",
}


def union_members(hint: Any) -> Iterator[Any]:
    """Yield the members of a union, without their annotations."""
    if get_origin(hint) is Annotated:
        yield from union_members(get_args(hint)[0])
    elif get_origin(hint) in (Union, UnionType):
        for arm in get_args(hint):
            yield from union_members(arm)
    else:
        yield hint


def by_type(*unions: Any) -> dict[str, list[type[BaseModel]]]:
    found: dict[str, list[type[BaseModel]]] = {}
    for union in unions:
        for model in union_members(union):
            for literal in union_members(model.model_fields["type"].annotation):
                for tag in get_args(literal) if get_origin(literal) is Literal else ():
                    found.setdefault(tag, []).append(model)
    return found


def field_names(models: list[type[BaseModel]]) -> set[str]:
    return {field.alias or name for m in models for name, field in m.model_fields.items()}


def own_field_names(cls: Any) -> set[str]:
    return {field.encode_name for field in fields(cls)}


OUR_TYPES = {
    **{str(cls.__struct_config__.tag): cls for cls in (*it.INPUT_ITEMS, *tl.Tool.__args__)},
    **ev.EVENTS,
}
SDK = by_type(
    sdk.ResponseOutputItem,
    sdk.ResponseItem,
    sdk.ResponseInputItem,
    sdk.Tool,
    sdk.ResponseStreamEvent,
)
OUTPUT_TYPES = by_type(sdk.ResponseOutputItem, sdk.Tool, sdk.ResponseStreamEvent)


@pytest.mark.parametrize("tag", sorted(SDK))
def test_every_sdk_field_exists_here(tag: str) -> None:
    missing = field_names(SDK[tag]) - own_field_names(OUR_TYPES[tag]) - {"type"}
    assert missing == {name for at, name in LEFT_OUT if at == tag}


@pytest.mark.parametrize("tag", sorted(SDK))
def test_every_own_field_exists_in_the_sdk(tag: str) -> None:
    extra = own_field_names(OUR_TYPES[tag]) - field_names(SDK[tag])
    assert extra == {name for at, name in OURS if at == tag}


@pytest.mark.parametrize("tag", sorted(OUTPUT_TYPES))
def test_fields_required_by_the_sdk_are_always_encoded(tag: str) -> None:
    demanded = {
        field.alias or name
        for model in OUTPUT_TYPES[tag]
        for name, field in model.model_fields.items()
        if all(m.model_fields[name].is_required() for m in OUTPUT_TYPES[tag])
    }
    may_lack = {field.encode_name for field in fields(OUR_TYPES[tag]) if field.default is UNSET}
    assert demanded & may_lack == {name for at, name in MAY_LACK if at == tag}


def test_response_has_the_fields_of_the_sdk() -> None:
    known = field_names([sdk.Response])
    assert known - own_field_names(Response) == {name for at, name in LEFT_OUT if at == "response"}
    assert own_field_names(Response) - known == {name for at, name in OURS if at == "response"}


#: What stands inside of items, tools and responses: ours, the SDK's, and what only one has.
INNER: list[tuple[Any, Any, set[str]]] = [
    (rs.Usage, sdk.ResponseUsage, set()),
    (
        rs.InputTokensDetails,
        response_usage.InputTokensDetails,
        {"cache_write_tokens_details", "cached_tokens_per_turn", "input_tokens_per_turn"},
    ),
    (
        rs.OutputTokensDetails,
        response_usage.OutputTokensDetails,
        {"tool_output_tokens", "tool_output_tokens_per_turn", "output_tokens_per_turn"},
    ),
    (rs.ResponseError, sdk.ResponseError, {"misalignment", "original_code"}),
    (rs.IncompleteDetails, sdk.response.IncompleteDetails, set()),
    (rs.ConversationRef, sdk.response.Conversation, set()),
    (rs.TextConfig, sdk.ResponseTextConfig, set()),
    (rs.ReasoningConfig, Reasoning, set()),
    (rs.JsonSchemaFormat, sdk.ResponseFormatTextJSONSchemaConfig, set()),
    (rs.JsonObjectFormat, ResponseFormatJSONObject, set()),
    (rs.PlainFormat, ResponseFormatText, set()),
    (tl.TextFormat, custom_tool_input_format.Text, set()),
    (tl.GrammarFormat, custom_tool_input_format.Grammar, set()),
    (it.InputText, sdk.ResponseInputText, set()),
    (it.InputImage, sdk.ResponseInputImage, set()),
    (it.InputFile, sdk.ResponseInputFile, set()),
    (it.InputAudio, sdk.ResponseInputAudio, set()),
    (it.OutputText, sdk.ResponseOutputText, set()),
    (it.Refusal, sdk.ResponseOutputRefusal, set()),
    (it.Logprob, response_output_text.Logprob, set()),
    (it.TopLogprob, response_output_text.LogprobTopLogprob, set()),
    (it.FileCitation, response_output_text.AnnotationFileCitation, set()),
    (it.UrlCitation, response_output_text.AnnotationURLCitation, set()),
    (it.ContainerFileCitation, response_output_text.AnnotationContainerFileCitation, set()),
    (it.FilePath, response_output_text.AnnotationFilePath, set()),
    (it.SummaryText, response_reasoning_item.Summary, set()),
    (it.ReasoningText, response_reasoning_item.Content, set()),
    # Conversations show screenshots in messages too, and there `detail` is known.
    (it.ComputerScreenshot, sdk.ResponseComputerToolCallOutputScreenshot, {"detail"}),
]


@pytest.mark.parametrize(
    ("ours", "theirs", "differing"), INNER, ids=lambda v: getattr(v, "__name__", "")
)
def test_nested_objects_have_the_fields_of_the_sdk(
    ours: Any, theirs: type[BaseModel], differing: set[str]
) -> None:
    tag = {"type"} if ours.__struct_config__.tag is not None else set()
    assert field_names([theirs]) ^ (own_field_names(ours) | tag) == differing


def test_request_accepts_every_sdk_field() -> None:
    known = set(get_type_hints(response_create_params.ResponseCreateParamsBase)) | {"stream"}
    assert len(known) >= 33
    assert known <= own_field_names(CreateResponse)


def test_token_count_accepts_every_sdk_field() -> None:
    known = set(get_type_hints(input_token_count_params.InputTokenCountParams))
    assert known == own_field_names(InputTokensRequest)


def test_every_request_field_defaults_to_not_given() -> None:
    for cls in (CreateResponse, InputTokensRequest):
        for field in fields(cls):
            assert field.default in (None, ()) and field.default is not NODEFAULT
