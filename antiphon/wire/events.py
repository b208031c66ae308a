"""The events of the Responses API, one class each.

``sequence_number`` is assigned when an event is created. Source of the fields: the types of the
``openai`` SDK, version 3.52. The names of the two ``response.reasoning.*`` events come from Open
Responses. These events contain raw reasoning.
"""

from __future__ import annotations

from typing import Any, Literal, Union

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.wire.json_types import JsonObject

from .items import Annotation, Item, Logprob, Part, SummaryText
from .response import Response, encodable
from .tags import tag_of

__all__ = [
    "EVENTS",
    "AudioDelta",
    "AudioDone",
    "AudioTranscriptDelta",
    "AudioTranscriptDone",
    "CodeInterpreterCallCodeDelta",
    "CodeInterpreterCallCodeDone",
    "CodeInterpreterCallCompleted",
    "CodeInterpreterCallInProgress",
    "CodeInterpreterCallInterpreting",
    "CompactionCompacting",
    "Completed",
    "ContentPartAdded",
    "ContentPartDone",
    "Created",
    "CustomToolCallInputDelta",
    "CustomToolCallInputDone",
    "Error",
    "ErrorBody",
    "Event",
    "Failed",
    "FileSearchCallCompleted",
    "FileSearchCallInProgress",
    "FileSearchCallSearching",
    "FunctionCallArgumentsDelta",
    "FunctionCallArgumentsDone",
    "ImageGenerationCallCompleted",
    "ImageGenerationCallGenerating",
    "ImageGenerationCallInProgress",
    "ImageGenerationCallPartialImage",
    "InProgress",
    "Incomplete",
    "Keepalive",
    "McpCallArgumentsDelta",
    "McpCallArgumentsDone",
    "McpCallCompleted",
    "McpCallFailed",
    "McpCallInProgress",
    "McpListToolsCompleted",
    "McpListToolsFailed",
    "McpListToolsInProgress",
    "OutputItemAdded",
    "OutputItemDone",
    "OutputTextAnnotationAdded",
    "OutputTextDelta",
    "OutputTextDone",
    "Queued",
    "ReasoningDelta",
    "ReasoningDone",
    "ReasoningSummaryPartAdded",
    "ReasoningSummaryPartDone",
    "ReasoningSummaryTextDelta",
    "ReasoningSummaryTextDone",
    "ReasoningTextDelta",
    "ReasoningTextDone",
    "RefusalDelta",
    "RefusalDone",
    "ShellCallCommandAdded",
    "ShellCallCommandDelta",
    "ShellCallCommandDone",
    "ShellCallOutputContentDelta",
    "ShellCallOutputContentDone",
    "Steer",
    "SteerAccepted",
    "SteerError",
    "SteerFailed",
    "SteerPending",
    "StreamEvent",
    "WebSearchCallCompleted",
    "WebSearchCallInProgress",
    "WebSearchCallSearching",
    "encodable_event",
]


class Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    sequence_number: int


# --- response events -----------------------------------------------------------------------------


class _ResponseEvent(Event, frozen=True, kw_only=True):
    """An event about the response as a whole."""

    response: Response


def encodable_event(event: Event) -> Event:
    """Return the event in a form that only an encoder of JSON may use (see ``encodable``)."""
    if not isinstance(event, _ResponseEvent):
        return event
    response = encodable(event.response)
    return event if response is event.response else replace(event, response=response)


class Created(_ResponseEvent, frozen=True, kw_only=True, tag="response.created"):
    pass


class Queued(_ResponseEvent, frozen=True, kw_only=True, tag="response.queued"):
    pass


class InProgress(_ResponseEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    pass


class Completed(_ResponseEvent, frozen=True, kw_only=True, tag="response.completed"):
    pass


class Incomplete(_ResponseEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    pass


class Failed(_ResponseEvent, frozen=True, kw_only=True, tag="response.failed"):
    pass


class ErrorBody(Struct, frozen=True, kw_only=True):
    type: str
    code: str
    message: str
    param: str | None = None


class Error(Event, frozen=True, kw_only=True, tag="error"):
    """An error event. It has the error's fields both at the top level and nested, because OpenAI
    documents the flat fields and sends the nested fields."""

    code: str
    message: str
    param: str | None = None
    error: ErrorBody


class Keepalive(Event, frozen=True, kw_only=True, tag="keepalive"):
    """An event that keeps a stream alive. Unlike SSE comments, it resets the idle timer of every
    client."""


# --- item events ---------------------------------------------------------------------------------


class OutputItemAdded(Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: Item


class OutputItemDone(Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: Item


class _ItemEvent(Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int


class _PartEvent(_ItemEvent, frozen=True, kw_only=True):
    content_index: int


class _SummaryEvent(_ItemEvent, frozen=True, kw_only=True):
    summary_index: int


class ContentPartAdded(_PartEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    part: Part


class ContentPartDone(_PartEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    part: Part


class OutputTextDelta(_PartEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: tuple[Logprob, ...] = ()


class OutputTextDone(_PartEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: tuple[Logprob, ...] = ()


class OutputTextAnnotationAdded(
    _PartEvent, frozen=True, kw_only=True, tag="response.output_text.annotation.added"
):
    annotation_index: int
    annotation: Annotation


class RefusalDelta(_PartEvent, frozen=True, kw_only=True, tag="response.refusal.delta"):
    delta: str


class RefusalDone(_PartEvent, frozen=True, kw_only=True, tag="response.refusal.done"):
    refusal: str


class ReasoningTextDelta(
    _PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"
):
    delta: str


class ReasoningTextDone(_PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class ReasoningDelta(_PartEvent, frozen=True, kw_only=True, tag="response.reasoning.delta"):
    delta: str


class ReasoningDone(_PartEvent, frozen=True, kw_only=True, tag="response.reasoning.done"):
    text: str


class ReasoningSummaryPartAdded(
    _SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.added"
):
    part: SummaryText


class ReasoningSummaryPartDone(
    _SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.done"
):
    part: SummaryText
    status: Literal["incomplete"] | UnsetType = UNSET


class ReasoningSummaryTextDelta(
    _SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.delta"
):
    delta: str


class ReasoningSummaryTextDone(
    _SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.done"
):
    text: str


class FunctionCallArgumentsDelta(
    _ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    delta: str


class FunctionCallArgumentsDone(
    _ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """Sent when the arguments of a call are complete."""

    name: str
    arguments: str


class CustomToolCallInputDelta(
    _ItemEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"
):
    delta: str


class CustomToolCallInputDone(
    _ItemEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"
):
    input: str


class McpCallArgumentsDelta(
    _ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call_arguments.delta"
):
    delta: str


class McpCallArgumentsDone(
    _ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call_arguments.done"
):
    arguments: str


class McpCallInProgress(_ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.in_progress"):
    pass


class McpCallCompleted(_ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.completed"):
    pass


class McpCallFailed(_ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.failed"):
    pass


class McpListToolsInProgress(
    _ItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.in_progress"
):
    pass


class McpListToolsCompleted(
    _ItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.completed"
):
    pass


class McpListToolsFailed(
    _ItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.failed"
):
    pass


class FileSearchCallInProgress(
    _ItemEvent, frozen=True, kw_only=True, tag="response.file_search_call.in_progress"
):
    pass


class FileSearchCallSearching(
    _ItemEvent, frozen=True, kw_only=True, tag="response.file_search_call.searching"
):
    pass


class FileSearchCallCompleted(
    _ItemEvent, frozen=True, kw_only=True, tag="response.file_search_call.completed"
):
    pass


class WebSearchCallInProgress(
    _ItemEvent, frozen=True, kw_only=True, tag="response.web_search_call.in_progress"
):
    pass


class WebSearchCallSearching(
    _ItemEvent, frozen=True, kw_only=True, tag="response.web_search_call.searching"
):
    pass


class WebSearchCallCompleted(
    _ItemEvent, frozen=True, kw_only=True, tag="response.web_search_call.completed"
):
    pass


class CodeInterpreterCallInProgress(
    _ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call.in_progress"
):
    pass


class CodeInterpreterCallInterpreting(
    _ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call.interpreting"
):
    pass


class CodeInterpreterCallCompleted(
    _ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call.completed"
):
    pass


class CodeInterpreterCallCodeDelta(
    _ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call_code.delta"
):
    delta: str


class CodeInterpreterCallCodeDone(
    _ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call_code.done"
):
    code: str


class ImageGenerationCallInProgress(
    _ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.in_progress"
):
    pass


class ImageGenerationCallGenerating(
    _ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.generating"
):
    pass


class ImageGenerationCallCompleted(
    _ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.completed"
):
    pass


class ImageGenerationCallPartialImage(
    _ItemEvent, frozen=True, kw_only=True, tag="response.image_generation_call.partial_image"
):
    partial_image_b64: str
    partial_image_index: int
    size: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    output_format: str | UnsetType = UNSET


class CompactionCompacting(
    _ItemEvent, frozen=True, kw_only=True, tag="response.compaction.compacting"
):
    pass


class _CommandEvent(Event, frozen=True, kw_only=True):
    """The base class of the events about shell commands. These events have no ``item_id``."""

    output_index: int
    command_index: int


class ShellCallCommandAdded(
    _CommandEvent, frozen=True, kw_only=True, tag="response.shell_call_command.added"
):
    command: str


class ShellCallCommandDelta(
    _CommandEvent, frozen=True, kw_only=True, tag="response.shell_call_command.delta"
):
    delta: str


class ShellCallCommandDone(
    _CommandEvent, frozen=True, kw_only=True, tag="response.shell_call_command.done"
):
    command: str


class ShellCallOutputContentDelta(
    _ItemEvent, frozen=True, kw_only=True, tag="response.shell_call_output_content.delta"
):
    command_index: int
    delta: JsonObject


class ShellCallOutputContentDone(
    _ItemEvent, frozen=True, kw_only=True, tag="response.shell_call_output_content.done"
):
    command_index: int
    output: tuple[JsonObject, ...]


class AudioDelta(Event, frozen=True, kw_only=True, tag="response.audio.delta"):
    delta: str


class AudioDone(Event, frozen=True, kw_only=True, tag="response.audio.done"):
    pass


class AudioTranscriptDelta(Event, frozen=True, kw_only=True, tag="response.audio.transcript.delta"):
    delta: str


class AudioTranscriptDone(Event, frozen=True, kw_only=True, tag="response.audio.transcript.done"):
    pass


# --- WebSocket only ------------------------------------------------------------------------------


class SteerError(Struct, frozen=True, kw_only=True):
    """Why the input of a steering submission was not used."""

    code: str
    message: str
    type: Literal["invalid_request_error"] = "invalid_request_error"


class Steer(Struct, frozen=True, kw_only=True):
    """A steering submission: an attempt to change a response that is in progress. ``input``: the
    input as the client sent it, if it was not used. ``id``: only if the submission was accepted."""

    previous_response_id: str
    input: Any = UNSET
    id: str | UnsetType = UNSET


class SteerAccepted(Event, frozen=True, kw_only=True, tag="response.steer.accepted"):
    steer: Steer


class SteerPending(Event, frozen=True, kw_only=True, tag="response.steer.pending"):
    steer: Steer
    reason: str
    required_input: tuple[JsonObject, ...] = ()


class SteerFailed(Event, frozen=True, kw_only=True, tag="response.steer.failed"):
    error: SteerError
    steer: Steer


def _concrete_events(base: type[Event]) -> list[type[Event]]:
    classes: list[type[Event]] = []
    for child in base.__subclasses__():
        classes += _concrete_events(child) if child.__name__.startswith("_") else [child]
    return classes


#: Event type on the wire → class.
EVENTS: dict[str, type[Event]] = {tag_of(event): event for event in _concrete_events(Event)}

#: The events of a stream over HTTP, as one type.
StreamEvent: Any = Union[  # noqa: UP007
    tuple(
        event
        for event in EVENTS.values()
        if event not in (SteerAccepted, SteerPending, SteerFailed)
    )
]
