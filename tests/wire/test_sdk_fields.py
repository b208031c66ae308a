"""Field by field: what the official client's types know, our values know, or it is said why not."""

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
    ("response", "moderation"): "only when moderation was asked for, which is refused",
    ("response", "prompt_cache_diagnostics"): "only when they were asked for, which is refused",
    ("response.shell_call_command.delta", "obfuscation"): "padding is optional",
}
#: Fields of ours the SDK does not have.
OURS = {
    ("custom_tool_call_output", "name"): "sent by clients that mirror function_call_output",
    ("web_search_call", "results"): "filled by include web_search_call.results",
    ("local_shell_call_output", "call_id"): "sent by clients that mirror the other outputs",
    **{
        (tag, "caller"): "where a program made the call: it goes on by it"
        for tag in ("mcp_call", "mcp_approval_request", "code_interpreter_call")
    },
    ("error", "error"): "the nested form, which OpenAI's servers send",
    ("response", "store"): "Open Responses demands it",
    ("response", "presence_penalty"): "Open Responses demands it",
    ("response", "frequency_penalty"): "Open Responses demands it",
    ("response", "context_management"): "echoed once it is supported",
    **{
        ("response", name): "an extension, given where a request asks for it"
        for name in ("input_messages", "output_messages", "metrics")
    },
    **{
        (f"web_search{version}", "search_content_types"): "one base for all web searches"
        for version in ("", "_2025_08_26")
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


def arms(hint: Any) -> Iterator[Any]:
    """The members of a union, without their annotations."""
    if get_origin(hint) is Annotated:
        yield from arms(get_args(hint)[0])
    elif get_origin(hint) in (Union, UnionType):
        for arm in get_args(hint):
            yield from arms(arm)
    else:
        yield hint


def by_type(*unions: Any) -> dict[str, list[type[BaseModel]]]:
    found: dict[str, list[type[BaseModel]]] = {}
    for union in unions:
        for model in arms(union):
            for literal in arms(model.model_fields["type"].annotation):
                for tag in get_args(literal) if get_origin(literal) is Literal else ():
                    found.setdefault(tag, []).append(model)
    return found


def names_of(models: list[type[BaseModel]]) -> set[str]:
    return {field.alias or name for m in models for name, field in m.model_fields.items()}


def ours_of(cls: Any) -> set[str]:
    return {field.encode_name for field in fields(cls)}


SPOKEN = {
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
WRITTEN = by_type(sdk.ResponseOutputItem, sdk.Tool, sdk.ResponseStreamEvent)


@pytest.mark.parametrize("tag", sorted(SDK))
def test_every_field_of_the_sdk_is_known(tag: str) -> None:
    missing = names_of(SDK[tag]) - ours_of(SPOKEN[tag]) - {"type"}
    assert missing == {name for at, name in LEFT_OUT if at == tag}


@pytest.mark.parametrize("tag", sorted(SDK))
def test_every_field_of_ours_is_the_sdks(tag: str) -> None:
    extra = ours_of(SPOKEN[tag]) - names_of(SDK[tag])
    assert extra == {name for at, name in OURS if at == tag}


@pytest.mark.parametrize("tag", sorted(WRITTEN))
def test_what_the_sdk_demands_is_always_written(tag: str) -> None:
    demanded = {
        field.alias or name
        for model in WRITTEN[tag]
        for name, field in model.model_fields.items()
        if all(m.model_fields[name].is_required() for m in WRITTEN[tag])
    }
    may_lack = {field.encode_name for field in fields(SPOKEN[tag]) if field.default is UNSET}
    assert demanded & may_lack == {name for at, name in MAY_LACK if at == tag}


def test_the_response_has_the_sdks_fields() -> None:
    known = names_of([sdk.Response])
    assert known - ours_of(Response) == {name for at, name in LEFT_OUT if at == "response"}
    assert ours_of(Response) - known == {name for at, name in OURS if at == "response"}


#: What stands inside of items, tools and responses: ours, the SDK's, and what only one has.
INNER: list[tuple[Any, Any, set[str]]] = [
    (rs.Usage, sdk.ResponseUsage, set()),
    (rs.InputTokensDetails, response_usage.InputTokensDetails, {"cache_write_tokens_details"}),
    (rs.OutputTokensDetails, response_usage.OutputTokensDetails, set()),
    (rs.ResponseError, sdk.ResponseError, {"misalignment"}),
    (rs.IncompleteDetails, sdk.response.IncompleteDetails, set()),
    (rs.ConversationRef, sdk.response.Conversation, set()),
    (rs.TextConfig, sdk.ResponseTextConfig, set()),
    (rs.ReasoningConfig, Reasoning, set()),
    (rs.JsonSchemaFormat, sdk.ResponseFormatTextJSONSchemaConfig, set()),
    (rs.JsonObjectFormat, ResponseFormatJSONObject, set()),
    (rs.PlainFormat, ResponseFormatText, set()),
    (tl.TextFormat, custom_tool_input_format.Text, set()),
    (tl.Grammar, custom_tool_input_format.Grammar, set()),
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
def test_what_stands_inside_has_the_sdks_fields(
    ours: Any, theirs: type[BaseModel], differing: set[str]
) -> None:
    tag = {"type"} if ours.__struct_config__.tag is not None else set()
    assert names_of([theirs]) ^ (ours_of(ours) | tag) == differing


def test_a_request_takes_every_field_of_the_sdk() -> None:
    known = set(get_type_hints(response_create_params.ResponseCreateParamsBase)) | {"stream"}
    assert len(known) >= 33
    assert known <= ours_of(CreateResponse)


def test_a_token_count_takes_every_field_of_the_sdk() -> None:
    known = set(get_type_hints(input_token_count_params.InputTokenCountParams))
    assert known == ours_of(InputTokensRequest)


def test_every_field_of_a_request_means_not_given_by_default() -> None:
    for cls in (CreateResponse, InputTokensRequest):
        for field in fields(cls):
            assert field.default in (None, ()) and field.default is not NODEFAULT
