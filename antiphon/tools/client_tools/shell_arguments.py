"""The commands of a shell call, out of what a model writes, as it writes. It runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from antiphon.dialects.json_stream import StringDecoder
from antiphon.tools.arguments import non_negative_int, parse_lenient
from antiphon.tools.base import ToolProgress

__all__ = ["CommandObserver", "shell_action"]

#: Up to the first command, as nearly all models write; what that may begin with, and between two.
_HEAD = re.compile(r'\s*\{\s*"commands?"\s*:\s*(\[?)\s*"')
_BEGUN = re.compile(r'\s*(?:\{\s*(?:"(?:[a-z]*(?:"\s*(?::\s*(?:\[\s*)?)?)?)?)?)?\Z')
_NEXT = re.compile(r'\s*,\s*"')
_BETWEEN = re.compile(r"\s*(,?)\s*\Z")
_LONGEST_HEAD = 128


def shell_action(arguments: str) -> Mapping[str, Any]:
    """The action of a shell call; what is no JSON is one command."""
    asked = parse_lenient(arguments, "commands")
    commands = asked.get("commands", asked.get("command"))
    if isinstance(commands, str):
        commands = [commands]
    if not isinstance(commands, list):
        commands = []
    return {
        "commands": [each for each in commands if isinstance(each, str)],
        "timeout_ms": non_negative_int(asked.get("timeout_ms")),
        "max_output_length": non_negative_int(asked.get("max_output_length")),
    }


class CommandObserver:
    """``Writing`` of a shell call. What is written otherwise than expected is told at its end."""

    def __init__(self) -> None:
        self._rest = ""
        #: The command being written, and what it says so far.
        self._string: StringDecoder | None = None
        self._said: list[str] = []
        self._count = 0
        self._is_list = self._is_over = False

    def feed(self, text: str) -> Iterator[ToolProgress]:
        if self._is_over:
            return
        self._rest += text
        while True:
            string = self._string
            if string is None:
                if not self._begins():
                    return
                string = self._string = StringDecoder()
                yield self._step("added", command="")
            said, at = string.read(self._rest)
            self._rest = self._rest[at:]
            yield from self._more(said)
            if not string.complete:
                return
            yield from self.abort()
            self._is_over = not self._is_list

    def finish(self, arguments: str) -> Iterator[ToolProgress]:
        yield from self.abort()
        for command in shell_action(arguments)["commands"][self._count :]:
            self._string = StringDecoder()
            yield self._step("added", command="")
            yield from self._more(command)
            yield from self.abort()

    def abort(self) -> Iterator[ToolProgress]:
        if self._string is not None:
            yield from self._more(self._string.finish())
            yield self._step("done", command="".join(self._said))
            self._string = None
            self._said.clear()
            self._count += 1

    def _begins(self) -> bool:
        """Whether the next command begins in the rest; if none can, that is the end of them."""
        if self._is_over:
            return False
        found = (_NEXT if self._count else _HEAD).match(self._rest)
        if found is not None:
            self._rest = self._rest[found.end() :]
            self._is_list = self._count > 0 or bool(found[1])
            return True
        if self._count and (between := _BETWEEN.match(self._rest)) is not None:
            self._rest = between[1]
        elif self._count or len(self._rest) > _LONGEST_HEAD or not _BEGUN.match(self._rest):
            self._is_over = True
        return False

    def _more(self, text: str) -> Iterator[ToolProgress]:
        if text:
            self._said.append(text)
            yield self._step("delta", delta=text)

    def _step(self, name: str, **fields: str) -> ToolProgress:
        return ToolProgress(f"command.{name}", {"command_index": self._count, **fields})
