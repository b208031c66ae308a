"""Tools that clients run and the API knows by name: a patch, a shell, a screen. The model sees a
function; a call of it is an item of its own kind, and the client brings the output.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.tools.arguments import non_negative_int, parse_lenient
from antiphon.tools.base import ArgumentObserver, ResponseContext, ToolFunction, Toolset
from antiphon.wire import items as it
from antiphon.wire import tools as tl

from .computer_actions import ACTION, computer_actions
from .shell_arguments import CommandObserver, shell_action

__all__ = ["CLIENT_TOOLS", "ClientToolProvider", "shell_function"]

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_TEXTS = {"type": "array", "items": _TEXT}


class _ClientToolSpec(Struct, frozen=True, kw_only=True):
    """One tool: the function, how its call begins, and what its item is of what was written."""

    function: tl.Function
    initial_item: it.Item
    parse_fields: Callable[[str], Mapping[str, Any]]
    argument_observer: Callable[[], ArgumentObserver] | None = None
    #: What is said to the model of the request's tool besides.
    extra_description: Callable[[Any], str] = lambda tool: ""


class ClientToolProvider:
    """``Provider`` of one of them."""

    def __init__(self, spec: _ClientToolSpec) -> None:
        self._row = spec

    def check(self, tool: Any, path: str) -> None:
        """There is nothing that a client could not do."""

    def leading_item(self, tool: Any, response: ResponseContext) -> it.Item | None:
        return None

    @asynccontextmanager
    async def open(self, tool: Any, response: ResponseContext) -> AsyncIterator[Toolset]:
        row = self._row
        about = f"{row.function.description}{row.extra_description(tool)}"
        function = replace(row.function, description=about)
        yield Toolset(
            functions=(
                ToolFunction(
                    tool=function,
                    initial_item=row.initial_item,
                    parse_fields=row.parse_fields,
                    argument_observer=row.argument_observer,
                ),
            )
        )


def shell_function(description: str) -> tl.Function:
    """The shell as the model sees it."""
    return _build_function(
        "shell",
        description,
        ("commands",),
        commands=_TEXTS,
        timeout_ms=_WHOLE,
        max_output_length=_WHOLE,
    )


def _local_shell_fields(arguments: str) -> Mapping[str, Any]:
    asked = parse_lenient(arguments, "command")
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
    if (wait := non_negative_int(asked.get("timeout_ms"))) is not None:
        action["timeout_ms"] = wait
    for name in ("working_directory", "user"):
        if isinstance(asked.get(name), str):
            action[name] = asked[name]
    return {"action": action}


def _apply_patch_fields(arguments: str) -> Mapping[str, Any]:
    asked = parse_lenient(arguments, "diff")
    kind = asked.get("type")
    operation = {
        "type": kind if kind in _OPERATIONS else "update_file",
        "path": str(asked.get("path") or ""),
    }
    if operation["type"] != "delete_file":
        operation["diff"] = str(asked.get("diff") or "")
    return {"operation": operation}


def _computer_fields(arguments: str) -> Mapping[str, Any]:
    return {"actions": tuple(computer_actions(parse_lenient(arguments, "action")))}


def _computer_preview_fields(arguments: str) -> Mapping[str, Any]:
    """The older tool knows one action a call."""
    return {"action": computer_actions(parse_lenient(arguments, "action"))[0]}


def _display_description(tool: Any) -> str:
    size = f"{tool.display_width} x {tool.display_height}"
    return f" The screen ({tool.environment}) has {size} pixels; x and y count from its top left."


def _build_function(
    name: str, description: str, required: tuple[str, ...], **properties: Any
) -> tl.Function:
    return tl.Function(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": properties,
            "required": list(required),
        },
    )


_OPERATIONS = ("create_file", "update_file", "delete_file")
_SHELL = _ClientToolSpec(
    function=shell_function("Runs shell commands on the user's machine."),
    initial_item=it.ShellCall(
        call_id="",
        action={"commands": [], "timeout_ms": None, "max_output_length": None},
        environment={"type": "local"},
    ),
    parse_fields=lambda written: {"action": shell_action(written)},
    argument_observer=CommandObserver,
)
_LOOK = {"type": "screenshot"}
_SCREEN = "Does something on the user's screen, and shows what it looks like afterwards."
_COMPUTER = _ClientToolSpec(
    function=_build_function(
        "computer", _SCREEN, ("actions",), actions={"type": "array", "items": ACTION}
    ),
    initial_item=it.ComputerCall(call_id="", actions=(_LOOK,)),
    parse_fields=_computer_fields,
)
_COMPUTER_PREVIEW = _ClientToolSpec(
    function=_build_function("computer", _SCREEN, ("action",), action=ACTION),
    initial_item=it.ComputerCall(call_id="", action=_LOOK),
    parse_fields=_computer_preview_fields,
    extra_description=_display_description,
)

#: Type of a tool → who brings it.
CLIENT_TOOLS: Mapping[str, ClientToolProvider] = {
    "local_shell": ClientToolProvider(
        _ClientToolSpec(
            function=_build_function(
                "local_shell",
                "Runs a command on the user's machine, without a shell around it.",
                ("command",),
                command=_TEXTS,
                env={"type": "object", "additionalProperties": _TEXT},
                timeout_ms=_WHOLE,
                working_directory=_TEXT,
            ),
            initial_item=it.LocalShellCall(
                call_id="", action={"type": "exec", "command": [], "env": {}}
            ),
            parse_fields=_local_shell_fields,
        )
    ),
    "shell": ClientToolProvider(_SHELL),
    "apply_patch": ClientToolProvider(
        _ClientToolSpec(
            function=_build_function(
                "apply_patch",
                "Makes, changes or deletes one file of the user's. `diff` has the lines of the"
                " change after @@, each with a leading space, - or +; of a new file all with +.",
                ("type", "path"),
                type={"type": "string", "enum": list(_OPERATIONS)},
                path=_TEXT,
                diff=_TEXT,
            ),
            initial_item=it.ApplyPatchCall(
                call_id="", operation={"type": "update_file", "path": "", "diff": ""}
            ),
            parse_fields=_apply_patch_fields,
        )
    ),
    "computer": ClientToolProvider(_COMPUTER),
    "computer_use_preview": ClientToolProvider(_COMPUTER_PREVIEW),
}
