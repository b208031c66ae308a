"""Tools that clients run and the API knows by name: a patch, a shell, a screen. The model sees a
function; a call of it is an item of its own kind, and the client brings the output.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.tools.base import ArgumentObserver, ResponseContext, ToolFunction, Toolset
from antiphon.tools.written import parse_lenient, whole
from antiphon.wire import items as it
from antiphon.wire import tools as tl

from .computer_actions import ACTION, actions_of
from .shell_arguments import Commands, commands_of

__all__ = ["CLIENT_TOOLS", "ClientTool", "shell_function"]

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_TEXTS = {"type": "array", "items": _TEXT}


class _Row(Struct, frozen=True, kw_only=True):
    """One tool: the function, how its call begins, and what its item is of what was written."""

    function: tl.Function
    shell: it.Item
    read: Callable[[str], Mapping[str, Any]]
    writing: Callable[[], ArgumentObserver] | None = None
    #: What is said to the model of the request's tool besides.
    about: Callable[[Any], str] = lambda tool: ""


class ClientTool:
    """``Provider`` of one of them."""

    def __init__(self, row: _Row) -> None:
        self._row = row

    def check(self, tool: Any, path: str) -> None:
        """There is nothing that a client could not do."""

    def lead(self, tool: Any, opening: ResponseContext) -> it.Item | None:
        return None

    @asynccontextmanager
    async def open(self, tool: Any, opening: ResponseContext) -> AsyncIterator[Toolset]:
        row = self._row
        about = f"{row.function.description}{row.about(tool)}"
        function = replace(row.function, description=about)
        yield Toolset(
            offers=(
                ToolFunction(tool=function, shell=row.shell, read=row.read, writing=row.writing),
            )
        )


def shell_function(about: str) -> tl.Function:
    """The shell as the model sees it."""
    return _function(
        "shell",
        about,
        ("commands",),
        commands=_TEXTS,
        timeout_ms=_WHOLE,
        max_output_length=_WHOLE,
    )


def _local_shell(written: str) -> Mapping[str, Any]:
    asked = parse_lenient(written, "command")
    command = asked.get("command", [])
    if isinstance(command, str):
        command = ["bash", "-lc", command]
    environment = asked.get("env")
    action: dict[str, Any] = {
        "type": "exec",
        "command": [each for each in command if isinstance(each, str)]
        if isinstance(command, list)
        else [],
        "env": environment if isinstance(environment, dict) else {},
    }
    if (wait := whole(asked.get("timeout_ms"))) is not None:
        action["timeout_ms"] = wait
    for name in ("working_directory", "user"):
        if isinstance(asked.get(name), str):
            action[name] = asked[name]
    return {"action": action}


def _apply_patch(written: str) -> Mapping[str, Any]:
    asked = parse_lenient(written, "diff")
    kind = asked.get("type")
    operation = {
        "type": kind if kind in _OPERATIONS else "update_file",
        "path": str(asked.get("path") or ""),
    }
    if operation["type"] != "delete_file":
        operation["diff"] = str(asked.get("diff") or "")
    return {"operation": operation}


def _computer(written: str) -> Mapping[str, Any]:
    return {"actions": tuple(actions_of(parse_lenient(written, "action")))}


def _computer_preview(written: str) -> Mapping[str, Any]:
    """The older tool knows one action a call."""
    return {"action": actions_of(parse_lenient(written, "action"))[0]}


def _display(tool: Any) -> str:
    size = f"{tool.display_width} x {tool.display_height}"
    return f" The screen ({tool.environment}) has {size} pixels; x and y count from its top left."


def _function(name: str, about: str, required: tuple[str, ...], **properties: Any) -> tl.Function:
    return tl.Function(
        name=name,
        description=about,
        parameters={
            "type": "object",
            "properties": properties,
            "required": list(required),
        },
    )


_OPERATIONS = ("create_file", "update_file", "delete_file")
_SHELL = _Row(
    function=shell_function("Runs shell commands on the user's machine."),
    shell=it.ShellCall(
        call_id="",
        action={"commands": [], "timeout_ms": None, "max_output_length": None},
        environment={"type": "local"},
    ),
    read=lambda written: {"action": commands_of(written)},
    writing=Commands,
)
_LOOK = {"type": "screenshot"}
_SCREEN = "Does something on the user's screen, and shows what it looks like afterwards."
_COMPUTER = _Row(
    function=_function(
        "computer", _SCREEN, ("actions",), actions={"type": "array", "items": ACTION}
    ),
    shell=it.ComputerCall(call_id="", actions=(_LOOK,)),
    read=_computer,
)
_COMPUTER_PREVIEW = _Row(
    function=_function("computer", _SCREEN, ("action",), action=ACTION),
    shell=it.ComputerCall(call_id="", action=_LOOK),
    read=_computer_preview,
    about=_display,
)

#: Type of a tool → who brings it.
CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "local_shell": ClientTool(
        _Row(
            function=_function(
                "local_shell",
                "Runs a command on the user's machine, without a shell around it.",
                ("command",),
                command=_TEXTS,
                env={"type": "object", "additionalProperties": _TEXT},
                timeout_ms=_WHOLE,
                working_directory=_TEXT,
            ),
            shell=it.LocalShellCall(call_id="", action={"type": "exec", "command": [], "env": {}}),
            read=_local_shell,
        )
    ),
    "shell": ClientTool(_SHELL),
    "apply_patch": ClientTool(
        _Row(
            function=_function(
                "apply_patch",
                "Makes, changes or deletes one file of the user's. `diff` has the lines of the"
                " change after @@, each with a leading space, - or +; of a new file all with +.",
                ("type", "path"),
                type={"type": "string", "enum": list(_OPERATIONS)},
                path=_TEXT,
                diff=_TEXT,
            ),
            shell=it.ApplyPatchCall(
                call_id="", operation={"type": "update_file", "path": "", "diff": ""}
            ),
            read=_apply_patch,
        )
    ),
    "computer": ClientTool(_COMPUTER),
    "computer_use_preview": ClientTool(_COMPUTER_PREVIEW),
}
