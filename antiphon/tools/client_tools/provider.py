"""Tools that the API defines and that the client runs: shells, patches, and the use of a computer.

The model sees each of these tools as a function. In the response, a call of the function is an item
of the tool's own type. The client runs the call and sends the result in its next request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.tools.arguments import non_negative_int, parse_lenient
from antiphon.tools.base import (
    ArgumentObserver,
    ResponseContext,
    ToolFunction,
    ToolProvider,
    Toolset,
)
from antiphon.wire import items as it
from antiphon.wire import tools as tl

from .computer_actions import ACTION, computer_actions
from .shell_arguments import CommandObserver, shell_action

_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_STRINGS = {"type": "array", "items": _STRING}


class _ClientToolSpec(Struct, frozen=True, kw_only=True):
    """Describes a tool that the client runs.

    - ``function``: the function that the model is shown.
    - ``initial_item``: the output item with which a call begins.
    - ``parse_fields``: turns the arguments of a call into fields of the item.
    - ``argument_observer``: makes the observer that turns the arguments into progress events.
    """

    function: tl.Function
    initial_item: it.Item
    parse_fields: Callable[[str], Mapping[str, Any]]
    argument_observer: Callable[[], ArgumentObserver] | None = None
    #: Text added to the description, computed from the tool of the request.
    extra_description: Callable[[tl.Tool], str] = lambda tool: ""


class ClientToolProvider(ToolProvider[tl.Tool]):
    """``ToolProvider`` of a tool that the client runs. It offers the tool to the model as a
    function without a handler."""

    def __init__(self, spec: _ClientToolSpec) -> None:
        self._spec = spec

    async def declared_functions(
        self, tool: tl.Tool, response: ResponseContext
    ) -> tuple[ToolFunction, ...]:
        spec = self._spec
        description = f"{spec.function.description}{spec.extra_description(tool)}"
        function = ToolFunction(
            tool=replace(spec.function, description=description),
            initial_item=spec.initial_item,
            parse_fields=spec.parse_fields,
            argument_observer=spec.argument_observer,
        )
        return (function,)

    @asynccontextmanager
    async def open(self, tool: tl.Tool, response: ResponseContext) -> AsyncIterator[Toolset]:
        yield Toolset(functions=await self.declared_functions(tool, response))


def shell_function(description: str) -> tl.Function:
    """Return the declaration of the shell function for the model."""
    return _build_function(
        "shell",
        description,
        ("commands",),
        commands=_STRINGS,
        timeout_ms=_INTEGER,
        max_output_length=_INTEGER,
    )


def _local_shell_fields(arguments: str) -> Mapping[str, Any]:
    parsed = parse_lenient(arguments, "command")
    command = parsed.get("command", [])
    if isinstance(command, str):
        command = ["bash", "-lc", command]
    environment = parsed.get("env")
    action: dict[str, Any] = {
        "type": "exec",
        "command": [each for each in command if isinstance(each, str)]
        if isinstance(command, list)
        else [],
        "env": environment if isinstance(environment, dict) else {},
    }
    if (timeout_ms := non_negative_int(parsed.get("timeout_ms"))) is not None:
        action["timeout_ms"] = timeout_ms
    for name in ("working_directory", "user"):
        if isinstance(parsed.get(name), str):
            action[name] = parsed[name]
    return {"action": action}


def _apply_patch_fields(arguments: str) -> Mapping[str, Any]:
    parsed = parse_lenient(arguments, "diff")
    kind = parsed.get("type")
    operation = {
        "type": kind if kind in _OPERATIONS else "update_file",
        "path": str(parsed.get("path") or ""),
    }
    if operation["type"] != "delete_file":
        operation["diff"] = str(parsed.get("diff") or "")
    return {"operation": operation}


def _computer_fields(arguments: str) -> Mapping[str, Any]:
    return {"actions": tuple(computer_actions(parse_lenient(arguments, "action")))}


def _computer_preview_fields(arguments: str) -> Mapping[str, Any]:
    """Return the item fields for a ``computer_use_preview`` call. Such a call has only one action,
    so the item has ``action`` instead of a list of actions."""
    return {"action": computer_actions(parse_lenient(arguments, "action"))[0]}


def _display_description(tool: tl.Tool) -> str:
    if not isinstance(tool, tl.ComputerUsePreview):
        return ""
    size = f"{tool.display_width} x {tool.display_height}"
    return f" The screen ({tool.environment}) has {size} pixels; x and y count from its top left."


def _build_function(
    name: str, description: str, required: tuple[str, ...], **properties: object
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
    parse_fields=lambda arguments: {"action": shell_action(arguments)},
    argument_observer=CommandObserver,
)
_SCREENSHOT = {"type": "screenshot"}
_COMPUTER_DESCRIPTION = (
    "Does something on the user's screen, and shows what it looks like afterwards."
)
_COMPUTER = _ClientToolSpec(
    function=_build_function(
        "computer", _COMPUTER_DESCRIPTION, ("actions",), actions={"type": "array", "items": ACTION}
    ),
    initial_item=it.ComputerCall(call_id="", actions=(_SCREENSHOT,)),
    parse_fields=_computer_fields,
)
_COMPUTER_PREVIEW = _ClientToolSpec(
    function=_build_function("computer", _COMPUTER_DESCRIPTION, ("action",), action=ACTION),
    initial_item=it.ComputerCall(call_id="", action=_SCREENSHOT),
    parse_fields=_computer_preview_fields,
    extra_description=_display_description,
)

#: Tool type → provider.
CLIENT_TOOLS: Mapping[str, ClientToolProvider] = {
    "local_shell": ClientToolProvider(
        _ClientToolSpec(
            function=_build_function(
                "local_shell",
                "Runs a command on the user's machine, without a shell around it.",
                ("command",),
                command=_STRINGS,
                env={"type": "object", "additionalProperties": _STRING},
                timeout_ms=_INTEGER,
                working_directory=_STRING,
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
                path=_STRING,
                diff=_STRING,
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
