"""The table of item kinds. An item kind describes one item type: how its items stream, who writes
them, who runs them, how they fail, and how the model is shown them.

All code that depends on the type of an item reads these facts from ``KINDS``, with one exception:
``event_grammar`` states the legal order of events independently. A test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.wire import events as ev
from antiphon.wire import items as it

from .deltas import Channel
from .prompt_forms import CallForm, ResultForm, dump_text, present_fields

_T = TypeVar("_T", bound=it.ItemBase)


class TextChannel(Struct, frozen=True, kw_only=True):
    """One kind of text in an item, such as the answer or a refusal: the field that contains the
    text, and the events that report it.

    - ``delta``, ``done``: the class of the events that contain one piece of the text, and the class
      of the event that contains the whole text.
    - ``field``: the field with the whole text. It is a field of the ``done`` event, and of the part
      or the item.
    - ``part``: the class of the parts that contain the text. If it is None, the text is a field of
      the item.
    - ``part_added``, ``part_done``: event classes for the start and the end of a part.
    - ``list_field``: the item's list of parts. ``index_field``: the event field with the index of a
      part in this list.
    - ``carries_logprobs``: whether the events contain log probabilities.
    """

    delta: type[ev.Event]
    done: type[ev.Event]
    field: str
    part: type[Struct] | None = None
    part_added: type[ev.Event] | None = None
    part_done: type[ev.Event] | None = None
    index_field: str = "content_index"
    list_field: str = "content"
    carries_logprobs: bool = False
    #: Fields of the item that the ``done`` event repeats.
    repeated_fields: tuple[str, ...] = ()

    @property
    def start_event_count(self) -> int:
        """The number of events that start a text, before its first ``delta`` event. If the text is
        in a part, there is one, such as ``content_part.added``. Otherwise, there is none."""
        return 0 if self.part_added is None else 1

    @property
    def end_event_count(self) -> int:
        """The number of events that end a text, after its last ``delta`` event: 2 if the text is in
        a part, otherwise 1."""
        return 1 if self.part_done is None else 2


class ErrorField(Struct, frozen=True):
    """The field in which an item reports its error. ``name``: the name of the field. ``value``:
    computes the new value of the field from the item and the error message."""

    name: str
    value: Callable[[Any, str], Any]


class ItemKind(Struct, frozen=True, kw_only=True):
    """Describes one type of item: the prefix of the item's id, its streaming events, and how the
    server treats the item. The defaults of the fields are right for most types."""

    #: Prefix of the item's id.
    prefix: str
    #: The texts that stream into the item.
    channels: Mapping[Channel, TextChannel] = {}
    #: Progress events, by the name that deltas use. The run itself sends ``in_progress``,
    #: ``completed`` and ``failed``. The tool sends the others.
    progress: Mapping[str, type[ev.Event]] = {}
    #: Fields of an item that did not complete, for kinds without the status ``incomplete``.
    incomplete_fields: Mapping[str, Any] = {}
    #: The item has the status ``in_progress`` while it is open.
    starts_in_progress: bool = True
    #: Class of an event → the list field of the item to which the event appends values.
    appended_fields: Mapping[type[ev.Event], str] = {}
    #: The model writes the whole item. No tool is involved.
    written_by_model: bool = False
    #: A tool that runs in this server makes the item (a ``shell_call`` may also run at the client).
    runs_here: bool = False
    #: A call that counts against ``max_tool_calls``.
    counts_as_call: bool = False
    #: ``failed`` is a legal status.
    can_fail: bool = False
    #: The field in which the item reports an error. None: it has no such field.
    error: ErrorField | None = None
    #: Programs may make the call too. If the model made it, ``caller`` is left out, because
    #: OpenAI's items of this type have no such field.
    omits_direct_caller: bool = False
    #: For an output: the type of the call that it answers. Both have the same ``call_id``.
    answers: type[it.ItemBase] | None = None
    #: The name of the call in OpenAI's error messages. "": the call needs no output.
    call_name: str = ""
    #: The field that may contain parts. Its value is a list of parts, one part, or a text.
    #: "": there is no such field.
    parts_field: str = ""
    #: The item applies to the whole conversation, at any position, and is never summarized.
    persistent: bool = False
    #: How a prompt shows the call. None: the item is no call.
    call: CallForm | None = None
    #: How a prompt shows the result. None: the item contains no result. The item of a hosted call
    #: has both, because it contains the result too.
    result: ResultForm | None = None
    #: The model is not shown the item. An item that is not hidden, and that has neither ``call``
    #: nor ``result``, cannot be in a prompt: a request with such an item is rejected, unless the
    #: builder of prompts knows its class (messages, reasoning, responses to approval requests).
    hidden: bool = False
    #: The field ``tools`` of the item adds tools to the prompt.
    declares_tools: bool = False
    #: Upstreams with the Responses API take the item back as they sent it, with its id.
    returned_with_id: bool = False

    @property
    def events(self) -> tuple[type[ev.Event], ...]:
        """The classes of the events between the first and the last event of such an item."""
        texts = (
            (each.part_added, each.delta, each.done, each.part_done)
            for each in self.channels.values()
        )
        found = (event for events in texts for event in events if event is not None)
        return (*found, *self.progress.values())

    @property
    def whole_text(self) -> TextChannel | None:
        """The channel of the text that streams into a field of the item instead of a part: the
        arguments, the input or the code of a call. None: there is no such text."""
        text = self.channels.get("text")
        return text if text is not None and text.part is None else None

    @property
    def contains_result(self) -> bool:
        """Whether the item of a call also contains the result, as ``web_search_call`` does."""
        return self.call is not None and self.result is not None


_ANSWER = TextChannel(
    delta=ev.OutputTextDelta,
    done=ev.OutputTextDone,
    field="text",
    part=it.OutputText,
    part_added=ev.ContentPartAdded,
    part_done=ev.ContentPartDone,
    carries_logprobs=True,
)
_REFUSAL = TextChannel(
    delta=ev.RefusalDelta,
    done=ev.RefusalDone,
    field="refusal",
    part=it.Refusal,
    part_added=ev.ContentPartAdded,
    part_done=ev.ContentPartDone,
)
_SUMMARY = TextChannel(
    delta=ev.ReasoningSummaryTextDelta,
    done=ev.ReasoningSummaryTextDone,
    field="text",
    part=it.SummaryText,
    part_added=ev.ReasoningSummaryPartAdded,
    part_done=ev.ReasoningSummaryPartDone,
    index_field="summary_index",
    list_field="summary",
)


def _reasoning(delta: type[ev.Event], done: type[ev.Event]) -> ItemKind:
    text = TextChannel(
        delta=delta,
        done=done,
        field="text",
        part=it.ReasoningText,
        part_added=ev.ContentPartAdded,
        part_done=ev.ContentPartDone,
    )
    return ItemKind(
        prefix="rs",
        channels={"text": text, "summary": _SUMMARY},
        written_by_model=True,
        returned_with_id=True,
    )


def _whole_text(
    delta: type[ev.Event], done: type[ev.Event], field: str
) -> Mapping[Channel, TextChannel]:
    """Return the channels of an item type that has one text and no parts. This text is the
    arguments, the input or the code of a call. It has one channel, with the key ``text``.
    ``field``: the name of the item's field that contains the text."""
    return {"text": TextChannel(delta=delta, done=done, field=field)}


#: The names of the progress with which a tool reports its end.
LAST_PROGRESS = ("completed", "failed")
#: The code of an internal error in JSON-RPC.
_JSON_RPC_INTERNAL_ERROR = -32603


def _mcp_error(item: it.McpCall, message: str) -> dict[str, Any]:
    return {"type": "mcp_protocol_error", "code": _JSON_RPC_INTERNAL_ERROR, "message": message}


def _image_error(item: it.ImageGenerationCall, message: str) -> dict[str, Any]:
    code = "image_generation_failed"
    return {"type": "server_error", "code": code, "message": message, "param": None}


def _shell_error(item: it.ShellCallOutput, message: str) -> tuple[Any, ...]:
    """Return the outputs of the item so far, followed by an output that reports a failed command.
    The ``stderr`` of this output is ``message``."""
    outcome = {"type": "exit", "exit_code": 1}
    return (*item.output, {"stdout": "", "stderr": message, "outcome": outcome})


def _list_tools_error(item: it.McpListTools, message: str) -> str:
    return message


def _mcp_result(item: it.McpCall) -> str:
    return item.output or "" if item.error is None else f"Error: {dump_text(item.error)}"


def _code_result(item: it.CodeInterpreterCall) -> str:
    """Return the output that the code printed. If the item includes no outputs, return the call's
    status. A placeholder stands for each image, because images are files in the container."""
    lines = [str(each.get("logs", "[picture]")) for each in item.outputs or ()]
    return "\n".join(lines) or dump_text(present_fields(item, "status"))


def _patch_result(item: it.ApplyPatchCallOutput) -> str:
    return item.status if item.output is UNSET else item.output


#: The model writes the arguments of the call into the item.
_FUNCTION_CALL = CallForm(arguments="arguments")


KINDS: Mapping[type[it.ItemBase], ItemKind] = {
    it.Message: ItemKind(
        prefix="msg",
        channels={"text": _ANSWER, "refusal": _REFUSAL},
        written_by_model=True,
        parts_field="content",
        returned_with_id=True,
    ),
    it.Reasoning: _reasoning(ev.ReasoningTextDelta, ev.ReasoningTextDone),
    it.FunctionCall: ItemKind(
        prefix="fc",
        channels={
            "text": TextChannel(
                delta=ev.FunctionCallArgumentsDelta,
                done=ev.FunctionCallArgumentsDone,
                field="arguments",
                repeated_fields=("name",),
            )
        },
        written_by_model=True,
        call_name="function call",
        call=_FUNCTION_CALL,
    ),
    it.FunctionCallOutput: ItemKind(
        prefix="fco",
        answers=it.FunctionCall,
        parts_field="output",
        result=ResultForm(field="output"),
    ),
    it.CustomToolCall: ItemKind(
        prefix="ctc",
        channels=_whole_text(ev.CustomToolCallInputDelta, ev.CustomToolCallInputDone, "input"),
        written_by_model=True,
        call_name="custom tool call",
        call=CallForm(input="input"),
    ),
    it.CustomToolCallOutput: ItemKind(
        prefix="ctco",
        answers=it.CustomToolCall,
        parts_field="output",
        result=ResultForm(field="output"),
    ),
    it.McpListTools: ItemKind(
        prefix="mcpl",
        progress={
            "in_progress": ev.McpListToolsInProgress,
            "completed": ev.McpListToolsCompleted,
            "failed": ev.McpListToolsFailed,
        },
        runs_here=True,
        error=ErrorField("error", _list_tools_error),
        persistent=True,
        hidden=True,  # the prompt lists its tools elsewhere
    ),
    it.McpCall: ItemKind(
        prefix="mcp",
        channels=_whole_text(ev.McpCallArgumentsDelta, ev.McpCallArgumentsDone, "arguments"),
        progress={
            "in_progress": ev.McpCallInProgress,
            "completed": ev.McpCallCompleted,
            "failed": ev.McpCallFailed,
        },
        runs_here=True,
        counts_as_call=True,
        can_fail=True,
        error=ErrorField("error", _mcp_error),
        omits_direct_caller=True,
        call=_FUNCTION_CALL,
        result=ResultForm(text=_mcp_result),
        returned_with_id=True,
    ),
    it.McpApprovalRequest: ItemKind(
        prefix="mcpr",
        omits_direct_caller=True,
        call=_FUNCTION_CALL,
        hidden=True,  # a call that was approved follows as an item of its own
        returned_with_id=True,
    ),
    it.McpApprovalResponse: ItemKind(prefix="mcpa"),
    it.CodeInterpreterCall: ItemKind(
        prefix="ci",
        channels=_whole_text(
            ev.CodeInterpreterCallCodeDelta, ev.CodeInterpreterCallCodeDone, "code"
        ),
        progress={
            "in_progress": ev.CodeInterpreterCallInProgress,
            "interpreting": ev.CodeInterpreterCallInterpreting,
            "completed": ev.CodeInterpreterCallCompleted,
        },
        runs_here=True,
        counts_as_call=True,
        can_fail=True,
        omits_direct_caller=True,
        call=CallForm(name="python", input="code"),
        result=ResultForm(text=_code_result),
    ),
    it.WebSearchCall: ItemKind(
        prefix="ws",
        progress={
            "in_progress": ev.WebSearchCallInProgress,
            "searching": ev.WebSearchCallSearching,
            "completed": ev.WebSearchCallCompleted,
        },
        runs_here=True,
        counts_as_call=True,
        can_fail=True,
        call=CallForm(name="web_search", arguments="action"),
        result=ResultForm(fields=("status", "results")),
        returned_with_id=True,
    ),
    it.FileSearchCall: ItemKind(
        prefix="fs",
        progress={
            "in_progress": ev.FileSearchCallInProgress,
            "searching": ev.FileSearchCallSearching,
            "completed": ev.FileSearchCallCompleted,
        },
        runs_here=True,
        counts_as_call=True,
        can_fail=True,
        call=CallForm(name="file_search", fields={"queries": "queries"}),
        result=ResultForm(fields=("status", "results")),
    ),
    it.ImageGenerationCall: ItemKind(
        prefix="ig",
        progress={
            "in_progress": ev.ImageGenerationCallInProgress,
            "generating": ev.ImageGenerationCallGenerating,
            "partial_image": ev.ImageGenerationCallPartialImage,
            "completed": ev.ImageGenerationCallCompleted,
        },
        # null in ``result`` ends the AI SDK's stream
        incomplete_fields={"status": "failed", "result": ""},
        runs_here=True,
        counts_as_call=True,
        can_fail=True,
        error=ErrorField("error", _image_error),
        call=CallForm(name="image_generation", fields={"prompt": "revised_prompt"}),
        result=ResultForm(fields=("status", "action", "size", "error")),
    ),
    it.ShellCall: ItemKind(
        prefix="sh",
        progress={
            "command.added": ev.ShellCallCommandAdded,
            "command.delta": ev.ShellCallCommandDelta,
            "command.done": ev.ShellCallCommandDone,
        },
        runs_here=True,
        counts_as_call=True,
        call_name="shell call",
        call=CallForm(name="shell", arguments="action"),
    ),
    it.ShellCallOutput: ItemKind(
        prefix="sho",
        progress={
            "output.delta": ev.ShellCallOutputContentDelta,
            "output.done": ev.ShellCallOutputContentDone,
        },
        appended_fields={ev.ShellCallOutputContentDone: "output"},
        runs_here=True,
        error=ErrorField("output", _shell_error),
        answers=it.ShellCall,
        result=ResultForm(field="output"),
    ),
    it.ComputerCall: ItemKind(
        prefix="cu",
        call_name="computer call",
        call=CallForm(name="computer", fields={"action": "action", "actions": "actions"}),
    ),
    it.ComputerCallOutput: ItemKind(
        prefix="cuo",
        can_fail=True,
        answers=it.ComputerCall,
        parts_field="output",
        result=ResultForm(field="output"),
    ),
    it.LocalShellCall: ItemKind(
        prefix="lsh",
        call_name="local shell call",
        call=CallForm(name="local_shell", arguments="action"),
    ),
    it.LocalShellCallOutput: ItemKind(
        prefix="lsho", answers=it.LocalShellCall, result=ResultForm(field="output")
    ),
    it.ApplyPatchCall: ItemKind(
        prefix="apc",
        call_name="apply patch call",
        call=CallForm(name="apply_patch", arguments="operation"),
    ),
    it.ApplyPatchCallOutput: ItemKind(
        prefix="apco",
        can_fail=True,
        answers=it.ApplyPatchCall,
        result=ResultForm(text=_patch_result),
    ),
    it.ToolSearchCall: ItemKind(
        prefix="tsc",
        runs_here=True,
        counts_as_call=True,
        call=CallForm(name="tool_search", arguments="arguments"),
    ),
    it.ToolSearchOutput: ItemKind(
        prefix="tso",
        runs_here=True,
        answers=it.ToolSearchCall,
        persistent=True,
        result=ResultForm(field="tools"),
        declares_tools=True,
    ),
    it.AdditionalTools: ItemKind(
        prefix="adt",
        persistent=True,
        hidden=True,  # the prompt lists its tools elsewhere
        declares_tools=True,
    ),
    it.Program: ItemKind(prefix="prg", call=CallForm(name="program", input="code")),
    it.ProgramOutput: ItemKind(
        prefix="prgo",
        starts_in_progress=False,
        runs_here=True,
        answers=it.Program,
        result=ResultForm(field="result"),
    ),
    it.Compaction: ItemKind(
        prefix="cmp", progress={"compacting": ev.CompactionCompacting}, written_by_model=True
    ),
    # Only clients send these five types. The prefix is for the ids of stored items. The history
    # shows the model two of them as messages: agent_message and configuration_update.
    it.AgentMessage: ItemKind(prefix="amsg", parts_field="content"),
    it.ContextCompaction: ItemKind(prefix="ccmp", hidden=True),
    it.CompactionTrigger: ItemKind(prefix="cmpt"),
    it.ConfigurationUpdate: ItemKind(prefix="cfgu", persistent=True),
    it.ItemReference: ItemKind(prefix="ref"),
}

#: The same table, with the event names of Open Responses for raw reasoning.
OPEN_RESPONSES_KINDS: Mapping[type[it.ItemBase], ItemKind] = {
    **KINDS,
    it.Reasoning: _reasoning(ev.ReasoningDelta, ev.ReasoningDone),
}


def kinds_for(reasoning_events: str) -> Mapping[type[it.ItemBase], ItemKind]:
    """Return the table of item kinds for a value of the setting ``reasoning_events``: ``openai`` or
    ``open_responses``."""
    return OPEN_RESPONSES_KINDS if reasoning_events == "open_responses" else KINDS


def parts_of(item: it.Item) -> tuple[it.Part, ...]:
    """Return the parts of an item, such as texts and images: the parts of a message, or of the
    output of a call. Return an empty tuple if the item contains no parts, or a text instead."""
    if not (field := KINDS[type(item)].parts_field):
        return ()
    value = getattr(item, field)
    if isinstance(value, tuple):
        return value
    return () if isinstance(value, str) else (value,)


#: The type of a call → the type of the item that answers it.
_OUTPUT_TYPES: Mapping[type[it.ItemBase], Any] = {
    kind.answers: cls for cls, kind in KINDS.items() if kind.answers is not None
}


def output_type(call: it.ItemBase) -> Callable[..., it.Item]:
    """Return the type of the items that answer calls like this one. Raises ``KeyError`` if the item
    is not a call whose output is a separate item."""
    make: Callable[..., it.Item] = _OUTPUT_TYPES[type(call)]
    return make


def with_whole_text(call: _T, text: str) -> _T:
    """Return a call with this text in the field for its arguments, input or code."""
    channel = KINDS[type(call)].whole_text
    assert channel is not None
    return replace(call, **{channel.field: text})


def error_fields(item: it.Item, message: str) -> Mapping[str, Any]:
    """Return the field that reports an error in the item, as name → value. Returns an empty mapping
    if items of this type cannot report an error."""
    error = KINDS[type(item)].error
    return {} if error is None else {error.name: error.value(item, message)}
