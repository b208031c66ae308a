"""Read the commands of a shell call from the call's arguments, while the model writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from antiphon.dialects.json_stream import StringDecoder
from antiphon.tools.arguments import non_negative_int, parse_lenient
from antiphon.tools.base import ToolProgress

#: ``_FIRST_COMMAND`` matches the arguments up to the first command, in the form that nearly all
#: models write. ``_FIRST_COMMAND_PREFIX`` matches a beginning of this text. ``_NEXT_COMMAND``
#: matches the text between two commands. ``_SEPARATOR_PREFIX`` matches a beginning of that text.
_FIRST_COMMAND = re.compile(r'\s*\{\s*"commands?"\s*:\s*(\[?)\s*"')
_FIRST_COMMAND_PREFIX = re.compile(r'\s*(?:\{\s*(?:"(?:[a-z]*(?:"\s*(?::\s*(?:\[\s*)?)?)?)?)?)?\Z')
_NEXT_COMMAND = re.compile(r'\s*,\s*"')
_SEPARATOR_PREFIX = re.compile(r"\s*(?:(,)\s*)?\Z")
_MAX_PREFIX_LENGTH = 128


def shell_action(arguments: str) -> Mapping[str, Any]:
    """Return the ``action`` field of a shell call. If the arguments are not JSON, the whole text is
    one command."""
    parsed = parse_lenient(arguments, "commands")
    commands = parsed.get("commands", parsed.get("command"))
    if isinstance(commands, str):
        commands = [commands]
    if not isinstance(commands, list):
        commands = []
    return {
        "commands": [each for each in commands if isinstance(each, str)],
        "timeout_ms": non_negative_int(parsed.get("timeout_ms")),
        "max_output_length": non_negative_int(parsed.get("max_output_length")),
    }


class CommandObserver:
    """The ``ArgumentObserver`` of a shell call. It streams the commands while the model writes
    them.

    The commands can be streamed only if they are the first argument: the arguments must begin with
    ``{"commands": ["`` or ``{"command": "``. Otherwise, ``finish`` sends all commands at the end.
    """

    def __init__(self) -> None:
        self._buffer = ""
        #: The decoder of the command that the model is writing, and the text of this command so
        #: far.
        self._string: StringDecoder | None = None
        self._command_parts: list[str] = []
        self._count = 0
        self._is_list = self._is_finished = False

    def feed(self, text: str) -> Iterator[ToolProgress]:
        if self._is_finished:
            return
        self._buffer += text
        while True:
            string = self._string
            if string is None:
                if not self._next_command_begins():
                    return
                string = self._string = StringDecoder()
                yield self._progress("added", command="")
            text, at = string.read(self._buffer)
            self._buffer = self._buffer[at:]
            yield from self._append(text)
            if not string.complete:
                return
            yield from self.abort()
            self._is_finished = not self._is_list

    def finish(self, arguments: str) -> Iterator[ToolProgress]:
        yield from self.abort()
        for command in shell_action(arguments)["commands"][self._count :]:
            self._string = StringDecoder()
            yield self._progress("added", command="")
            yield from self._append(command)
            yield from self.abort()

    def abort(self) -> Iterator[ToolProgress]:
        if self._string is not None:
            yield from self._append(self._string.finish())
            yield self._progress("done", command="".join(self._command_parts))
            self._string = None
            self._command_parts.clear()
            self._count += 1

    def _next_command_begins(self) -> bool:
        """Look for the start of the next command in the buffer, and remove the text before it.
        Return True if the start was found. Return False if more text is needed or no further
        command can follow."""
        if self._is_finished:
            return False
        match = (_NEXT_COMMAND if self._count else _FIRST_COMMAND).match(self._buffer)
        if match is not None:
            self._buffer = self._buffer[match.end() :]
            self._is_list = self._count > 0 or bool(match[1])
            return True
        if self._count and (separator := _SEPARATOR_PREFIX.match(self._buffer)) is not None:
            self._buffer = separator[1] or ""
        elif (
            self._count
            or len(self._buffer) > _MAX_PREFIX_LENGTH
            or not _FIRST_COMMAND_PREFIX.match(self._buffer)
        ):
            self._is_finished = True
        return False

    def _append(self, text: str) -> Iterator[ToolProgress]:
        if text:
            self._command_parts.append(text)
            yield self._progress("delta", delta=text)

    def _progress(self, name: str, **fields: str) -> ToolProgress:
        return ToolProgress(f"command.{name}", {"command_index": self._count, **fields})
