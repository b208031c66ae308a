"""How each kind of item streams: the one table the writer and the fold are driven by.

A row says which id prefix a kind has, where its text goes, and which progress it can report. The
grammar states the legal order on its own; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.wire import events as ev
from antiphon.wire import items as it

from .deltas import Channel

__all__ = ["KINDS", "OPEN_RESPONSES_KINDS", "Kind", "TextChannel", "kinds_for"]


class TextChannel(Struct, frozen=True, kw_only=True):
    """A text that streams. ``field`` is where the whole stands, in the ``done`` event and in the
    part or item. With ``part``, the text lies in a part of its own, listed under ``listed``."""

    delta: type[ev.Event]
    done: type[ev.Event]
    field: str
    part: type[Struct] | None = None
    part_added: type[ev.Event] | None = None
    part_done: type[ev.Event] | None = None
    index: str = "content_index"
    listed: str = "content"
    carries_logprobs: bool = False


class Kind(Struct, frozen=True, kw_only=True):
    """A row: id prefix, texts by channel, progress events by name. ``unfinished``: fields of an
    item that did not complete, for kinds that have no status ``incomplete``. ``begins``: it may
    have a status while it is open. ``gathered``: events that bring more of a field of the item,
    with its name."""

    prefix: str
    stems: Mapping[Channel, TextChannel] = {}
    progress: Mapping[str, type[ev.Event]] = {}
    unfinished: Mapping[str, Any] = {}
    begins: bool = True
    gathered: Mapping[type[ev.Event], str] = {}


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
    index="summary_index",
    listed="summary",
)


def _thinking(delta: type[ev.Event], done: type[ev.Event]) -> Kind:
    text = TextChannel(
        delta=delta,
        done=done,
        field="text",
        part=it.ReasoningText,
        part_added=ev.ContentPartAdded,
        part_done=ev.ContentPartDone,
    )
    return Kind(prefix="rs", stems={"text": text, "summary": _SUMMARY})


def _said(
    prefix: str,
    delta: type[ev.Event],
    done: type[ev.Event],
    field: str,
    progress: Mapping[str, type[ev.Event]] | None = None,
) -> Kind:
    stems: Mapping[Channel, TextChannel] = {
        "text": TextChannel(delta=delta, done=done, field=field)
    }
    return Kind(prefix=prefix, stems=stems, progress=progress or {})


KINDS: Mapping[type[it.ItemBase], Kind] = {
    it.Message: Kind(prefix="msg", stems={"text": _ANSWER, "refusal": _REFUSAL}),
    it.Reasoning: _thinking(ev.ReasoningTextDelta, ev.ReasoningTextDone),
    it.FunctionCall: _said(
        "fc", ev.FunctionCallArgumentsDelta, ev.FunctionCallArgumentsDone, "arguments"
    ),
    it.CustomToolCall: _said(
        "ctc", ev.CustomToolCallInputDelta, ev.CustomToolCallInputDone, "input"
    ),
    it.McpCall: _said(
        "mcp",
        ev.McpCallArgumentsDelta,
        ev.McpCallArgumentsDone,
        "arguments",
        {
            "in_progress": ev.McpCallInProgress,
            "completed": ev.McpCallCompleted,
            "failed": ev.McpCallFailed,
        },
    ),
    it.CodeInterpreterCall: _said(
        "ci",
        ev.CodeInterpreterCallCodeDelta,
        ev.CodeInterpreterCallCodeDone,
        "code",
        {
            "in_progress": ev.CodeInterpreterCallInProgress,
            "interpreting": ev.CodeInterpreterCallInterpreting,
            "completed": ev.CodeInterpreterCallCompleted,
        },
    ),
    it.WebSearchCall: Kind(
        prefix="ws",
        progress={
            "in_progress": ev.WebSearchCallInProgress,
            "searching": ev.WebSearchCallSearching,
            "completed": ev.WebSearchCallCompleted,
        },
    ),
    it.FileSearchCall: Kind(
        prefix="fs",
        progress={
            "in_progress": ev.FileSearchCallInProgress,
            "searching": ev.FileSearchCallSearching,
            "completed": ev.FileSearchCallCompleted,
        },
    ),
    it.ImageGenerationCall: Kind(
        prefix="ig",
        progress={
            "in_progress": ev.ImageGenerationCallInProgress,
            "generating": ev.ImageGenerationCallGenerating,
            "partial_image": ev.ImageGenerationCallPartialImage,
            "completed": ev.ImageGenerationCallCompleted,
        },
        # null in ``result`` ends the AI SDK's stream
        unfinished={"status": "failed", "result": ""},
    ),
    it.McpListTools: Kind(
        prefix="mcpl",
        progress={
            "in_progress": ev.McpListToolsInProgress,
            "completed": ev.McpListToolsCompleted,
            "failed": ev.McpListToolsFailed,
        },
    ),
    it.Compaction: Kind(prefix="cmp", progress={"compacting": ev.CompactionCompacting}),
    it.ShellCall: Kind(
        prefix="sh",
        progress={
            "command.added": ev.ShellCallCommandAdded,
            "command.delta": ev.ShellCallCommandDelta,
            "command.done": ev.ShellCallCommandDone,
        },
    ),
    it.ShellCallOutput: Kind(
        prefix="sho",
        progress={
            "output.delta": ev.ShellCallOutputContentDelta,
            "output.done": ev.ShellCallOutputContentDone,
        },
        gathered={ev.ShellCallOutputContentDone: "output"},
    ),
    it.FunctionCallOutput: Kind(prefix="fco"),
    it.CustomToolCallOutput: Kind(prefix="ctco"),
    it.ComputerCall: Kind(prefix="cu"),
    it.ComputerCallOutput: Kind(prefix="cuo"),
    it.LocalShellCall: Kind(prefix="lsh"),
    it.LocalShellCallOutput: Kind(prefix="lsho"),
    it.ApplyPatchCall: Kind(prefix="apc"),
    it.ApplyPatchCallOutput: Kind(prefix="apco"),
    it.McpApprovalRequest: Kind(prefix="mcpr"),
    it.McpApprovalResponse: Kind(prefix="mcpa"),
    it.ToolSearchCall: Kind(prefix="tsc"),
    it.ToolSearchOutput: Kind(prefix="tso"),
    it.AdditionalTools: Kind(prefix="adt"),
    it.Program: Kind(prefix="prg"),
    it.ProgramOutput: Kind(prefix="prgo", begins=False),
    # Only ever sent by clients; the prefix serves the ids they are stored under.
    it.CompactionTrigger: Kind(prefix="cmpt"),
    it.ConfigurationUpdate: Kind(prefix="cfgu"),
    it.ItemReference: Kind(prefix="ref"),
}

#: The same with raw reasoning under the event names that Open Responses gives it.
OPEN_RESPONSES_KINDS: Mapping[type[it.ItemBase], Kind] = {
    **KINDS,
    it.Reasoning: _thinking(ev.ReasoningDelta, ev.ReasoningDone),
}


def kinds_for(reasoning_events: str) -> Mapping[type[it.ItemBase], Kind]:
    """The table for a setting: ``openai`` or ``open_responses`` names for raw reasoning."""
    return OPEN_RESPONSES_KINDS if reasoning_events == "open_responses" else KINDS
