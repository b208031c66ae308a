"""The tool ``container.exec``, with which gpt-oss was trained to run commands.

gpt-oss sees Antiphon's shell function under this name. In the prompt, past calls of the shell
function are translated to calls of ``container.exec``. New calls of the model are translated back.

The model writes one command as a list of words, with a folder, environment variables and a time
limit in seconds. These are the fields that vLLM passes to its container tool. Each call has a shell
of its own, because shell sessions are not supported.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from antiphon.dialects.parser.tool_call import CallSink, ToolShape
from antiphon.dialects.tools import PromptTool
from antiphon.support.text import replace_lone_surrogates_in_json

#: The namespace of the tool.
CONTAINER = "container"
#: The recipient of its calls.
EXEC = f"{CONTAINER}.exec"
_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "cmd": {"type": "array", "items": {"type": "string"}},
        "workdir": {"type": "string"},
        "env": {"type": "object"},
        "timeout": {"type": "integer", "description": "seconds"},
    },
    "required": ["cmd"],
}
#: The parameters of the server's shell function. They distinguish it from a client's function that
#: is also called ``shell``.
_SHELL_PARAMETERS = {"commands", "timeout_ms", "max_output_length"}
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")
_SCRIPT_FLAGS = ("-c", "-lc")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def is_shell(tool: PromptTool) -> bool:
    """Return whether ``tool`` is Antiphon's shell function, and not a function of the client with
    the same name."""
    shape = tool.shape
    return (
        (shape.wire_name, shape.namespace, shape.custom) == ("shell", None, False)
        and set(tool.schema.get("properties") or ()) == _SHELL_PARAMETERS
    )  # fmt: skip


def exec_tool(tool: PromptTool) -> PromptTool:
    """Return a copy of the shell function ``tool`` with the parameters of ``container.exec``. The
    model sees these parameters instead of the function's own parameters."""
    return replace(tool, schema=_SCHEMA)


def exec_arguments(arguments: Any) -> Any:
    """Translate the arguments of a past call of the shell function to arguments of
    ``container.exec``, for the prompt. Arguments without a list of commands are returned unchanged.
    """
    parsed = _parse(arguments) if isinstance(arguments, str) else arguments
    commands = parsed.get("commands") if isinstance(parsed, Mapping) else None
    if not isinstance(commands, list | tuple) or not all(isinstance(c, str) for c in commands):
        return arguments
    found: dict[str, Any] = {"cmd": ["bash", "-lc", "\n".join(commands)]}
    timeout_ms = parsed.get("timeout_ms")
    if isinstance(timeout_ms, int):
        found["timeout"] = -(-timeout_ms // 1000)
    return found


def _shell_arguments(text: str) -> str:
    """Translate the arguments of a call of ``container.exec`` to arguments of the shell function.
    ``text``: the arguments as JSON.

    Arguments without a valid command are returned unchanged, because the shell function also
    accepts text that is not JSON.
    """
    parsed = _parse(text)
    words = parsed.get("cmd") if isinstance(parsed, Mapping) else None
    if isinstance(words, str):
        command = words
    elif isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        command = _script(words)
    else:
        return text
    found: dict[str, Any] = {"commands": [_prelude(parsed) + command]}
    seconds = parsed.get("timeout")
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < 1e9:
        found["timeout_ms"] = int(seconds * 1000)
    return json.dumps(found, ensure_ascii=False)


def _parse(text: str) -> Any:
    try:
        return replace_lone_surrogates_in_json(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _script(words: list[str]) -> str:
    """Return the command line for a list of words. If the words only start a shell that runs a
    script, as in ``bash -lc SCRIPT``, return the script."""
    if len(words) == 3 and words[0] in _SHELLS and words[1] in _SCRIPT_FLAGS:
        return words[2]
    return shlex.join(words)


def _prelude(arguments: Mapping[str, object]) -> str:
    """Return the lines of shell code that must precede the command. The lines change to the folder
    ``workdir`` and set the environment variables ``env``. ``arguments``: the arguments of the call,
    which may contain ``workdir`` and ``env``."""
    lines: list[str] = []
    if isinstance(folder := arguments.get("workdir"), str) and folder:
        lines.append(f"cd {shlex.quote(folder)} || exit\n")
    variables = arguments.get("env")
    for name, value in variables.items() if isinstance(variables, Mapping) else ():
        if _VARIABLE.match(name) and isinstance(value, str | int | float):
            lines.append(f"export {name}={shlex.quote(str(value))}\n")
    return "".join(lines)


class ExecCall:
    """Reads a call of ``container.exec`` and emits it as a call of Antiphon's shell function.
    ``shape``: the name and schema of the shell function. The arguments are translated once they are
    complete."""

    def __init__(self, sink: CallSink, shape: ToolShape) -> None:
        self._sink = sink
        self._text: list[str] = []
        sink.open_call(shape, "")

    def add_json_arguments(self, text: str) -> None:
        """Add the next piece of the arguments, which are JSON."""
        self._text.append(text)

    def finish_incomplete(self) -> None:
        """Emit the arguments as the model wrote them. They cannot be translated to arguments of the
        shell function, because the output was cut off before they were complete."""
        self._sink.add_arguments("".join(self._text))

    def finish(self) -> None:
        """Emit the translated arguments and close the call."""
        self._sink.add_arguments(_shell_arguments("".join(self._text)))
        self._sink.close_call()
