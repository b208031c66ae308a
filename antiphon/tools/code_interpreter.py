"""The ``code_interpreter`` tool: runs Python code that the model writes, in a container.

The answer cites the files that the code writes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from antiphon.errors import RequestError, ToolError
from antiphon.sandbox.base import EndReason, ExecutionResult
from antiphon.tools.containers.handle import ContainerHandle
from antiphon.tools.containers.network import network_prompt
from antiphon.tools.containers.registry import ContainerChoice, ContainerRegistry, network_policy
from antiphon.tools.containers.skills import SkillSummary, skills_prompt
from antiphon.wire import tools as tl
from antiphon.wire.items import Annotation, CodeInterpreterCall
from antiphon.wire.parts import ContainerFileCitation
from antiphon.wire.resources import containers as wc

from .base import (
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)

#: The function name that models were trained on.
NAME = "python"
_INCLUDE_OUTPUTS = "code_interpreter_call.outputs"
_DESCRIPTION = (
    "Runs Python code and returns its output and the value of its last expression. Variables"
    " persist between calls. Files are in /mnt/data; the user can download what you save there,"
    " under links like sandbox:/mnt/data/name."
)
_NO_NETWORK = " There is no network."
_ENDED_TEXT: dict[EndReason, str] = {
    "timeout": "It took too long and was interrupted.",
    "memory": "It exceeded the memory limit and was stopped.",
    "output": "It wrote too much and was interrupted.",
    "stopped": "It was stopped.",
    "died": "Python ended.",
}
_STATE_LOST_TEXT = "Variables are gone; files are not."
#: Patterns to find filenames in a message: the words of a filename, and the characters that must
#: not stand before or after it.
_WORD = re.compile(r"\w+")
_NAME_BEGINS_BEFORE = re.compile(r"[\w./-]")
_NAME_CONTINUES = re.compile(r"[\w-]")
_LINK_SCHEME = "sandbox:"
_MAX_LOOKUPS = 50_000
_MAX_IMAGES = 10
_MAX_IMAGE_BYTES = 4 << 20


class CodeInterpreterProvider(ToolProvider[tl.CodeInterpreter]):
    """``ToolProvider`` of ``code_interpreter``."""

    def __init__(self, containers: ContainerRegistry) -> None:
        self._containers = containers

    def check(self, tool: tl.CodeInterpreter, path: str) -> None:
        where = f"{path}.container"
        self._containers.policy.check(_choice(tool, where), where)

    async def check_access(
        self, tool: tl.CodeInterpreter, response: ResponseContext, path: str
    ) -> None:
        """Raise ``RequestError`` if the request names a container or file that does not exist or
        belongs to another tenant."""
        where = f"{path}.container"
        await self._containers.check_access(response.tenant, _choice(tool, where), where)

    async def declared_functions(
        self, tool: tl.CodeInterpreter, response: ResponseContext
    ) -> tuple[ToolFunction, ...]:
        choice, packages = _choice(tool), self._containers.policy.packages
        skills, policy = await self._containers.describe(response.tenant, choice, response.items)
        return (_function(skills, policy, packages),)

    @asynccontextmanager
    async def open(
        self, tool: tl.CodeInterpreter, response: ResponseContext
    ) -> AsyncIterator[Toolset]:
        choice, packages = _choice(tool), self._containers.policy.packages
        async with self._containers.used(response.tenant, choice, response.all_items) as container:
            session = _CodeSession(container, with_outputs=_INCLUDE_OUTPUTS in response.include)
            function = replace(
                _function(container.skills, network_policy(choice, container), packages),
                initial_item=CodeInterpreterCall(container_id=container.id),
                handler=session.run,
            )
            yield Toolset(functions=(function,), citation_finder=session.file_citations)


def _choice(tool: tl.CodeInterpreter, path: str = "container") -> ContainerChoice:
    """Return the id of the container that the request names, or else what a container that the
    server chooses must have. ``path``: the request field (for the error message)."""
    container = tool.container
    return container if isinstance(container, str) else wc.read_auto_container(container, path)


def _function(
    skills: Sequence[SkillSummary], policy: wc.NetworkPolicy | None, packages: Sequence[str]
) -> ToolFunction:
    """Return the ``ToolFunction`` that describes the code interpreter to the model. The caller must
    set ``handler``, and the container id in ``initial_item``, before calls can run. ``packages``:
    what the code can import besides the standard library."""
    imports = f" It can import {', '.join(packages)}." if packages else ""
    network = network_prompt(policy) or _NO_NETWORK
    description = _DESCRIPTION + imports + network + skills_prompt(skills)
    return ToolFunction(
        tool=tl.Custom(name=NAME, description=description),
        initial_item=CodeInterpreterCall(container_id=""),
        streams_text=True,
    )


class _CodeSession:
    """Runs the code interpreter calls of one response in a container."""

    def __init__(self, container: ContainerHandle, *, with_outputs: bool) -> None:
        self.container = container
        self._with_outputs = with_outputs
        #: Files that the code has written and that no message has cited yet, by path.
        self._uncited_files: dict[str, wc.ContainerFile] = {}

    async def run(
        self, code: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        """Run the code of one call. This is the handler of the tool."""
        yield ToolProgress("interpreting")
        try:
            outcome, files = await self.container.run_python(code)
        except RequestError as error:
            raise ToolError(error.message) from None
        self._uncited_files.update((file.path, file) for file in files)
        with_outputs = self._with_outputs or context.caller is not None
        outputs = await self._outputs(outcome) if with_outputs else None
        failed = outcome.end_reason not in ("done", "raised")
        yield ToolResult(
            text=_result_text(outcome, files), fields={"outputs": outputs}, failed=failed
        )

    def file_citations(self, text: str) -> list[Annotation]:
        """Return annotations that cite, in the message ``text``, the files that the model's code
        has written since the last message. Each file is cited in only one message."""
        files, self._uncited_files = self._uncited_files, {}
        return file_citations(files, text)

    async def _outputs(self, outcome: ExecutionResult) -> tuple[dict[str, Any], ...]:
        """Return the outputs of the code in the form of the API: logs, and images as data URLs."""
        outputs: list[dict[str, Any]] = []
        if outcome.output:
            outputs.append({"type": "logs", "logs": outcome.output})
        images = {f"/mnt/data/{path}" for path in outcome.images[:_MAX_IMAGES]}
        for path in sorted(images & self._uncited_files.keys()):
            if self._uncited_files[path].bytes <= _MAX_IMAGE_BYTES:
                content = await self.container.read_file(self._uncited_files[path].id)
                url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
                outputs.append({"type": "image", "url": url})
        return tuple(outputs)


def file_citations(files: Mapping[str, wc.ContainerFile], text: str) -> list[Annotation]:
    """Return the citations of files in a text. ``files``: the files by path.

    - A file is cited at every place where the text mentions it.
    - A file that the text does not mention is cited at the end of the text.
    - After ``_MAX_LOOKUPS`` comparisons of filenames with the text, all remaining files are cited
      at the end, so the running time is linear in the length of the text, for any number of files.
    """
    mentions = _MentionFinder(files, text)
    return [
        ContainerFileCitation(
            container_id=file.container_id,
            file_id=file.id,
            filename=path.rsplit("/", 1)[-1],
            start_index=start,
            end_index=end,
        )
        for path, file in files.items()
        for start, end in mentions.find(path) or [(len(text), len(text))]
    ]


class _MentionFinder:
    """Finds the places where a text mentions files.

    It splits the text into words once and indexes the words that occur in filenames. To find a
    file, it takes the word of the filename that is rarest in the text. It compares the filename
    with the text only at the places of this word.
    """

    def __init__(self, files: Iterable[str], text: str) -> None:
        self._text = text
        self._lookups = 0
        words = {word for path in files for word in _WORD.findall(_base_name(path))}
        #: Word of a filename → its positions in the text.
        self._positions: dict[str, list[int]] = {}
        for match in _WORD.finditer(text):
            if match[0] in words:
                self._positions.setdefault(match[0], []).append(match.start())

    def find(self, path: str) -> list[tuple[int, int]]:
        """Return the start and end of each mention of a file. The text mentions a file by its path
        or by its name alone. If ``sandbox:`` stands before the path, it is part of the mention."""
        name = _base_name(path)
        words = [
            (self._positions.get(match[0], []), match.start()) for match in _WORD.finditer(name)
        ]
        rarest, offset = min(words, key=lambda word: len(word[0]), default=([], 0))
        self._lookups += len(rarest)
        if self._lookups > _MAX_LOOKUPS:
            return []
        spans = (self._span(path, name, position - offset) for position in rarest)
        return [span for span in spans if span is not None]

    def _span(self, path: str, name: str, at: int) -> tuple[int, int] | None:
        """Return the start and end of the mention whose filename begins at ``at``. Return None if
        the text does not mention the file there."""
        text, end = self._text, at + len(name)
        if at < 0 or not text.startswith(name, at) or _NAME_CONTINUES.match(text, end):
            return None
        start = end - len(path)
        if start >= 0 and text.startswith(path, start):
            return start - len(_LINK_SCHEME) * text.endswith(_LINK_SCHEME, 0, start), end
        return None if at and _NAME_BEGINS_BEFORE.match(text, at - 1) else (at, end)


def _base_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _result_text(outcome: ExecutionResult, files: tuple[wc.ContainerFile, ...]) -> str:
    """Return the text that the model is shown as the result of its code."""
    lines = [outcome.output.rstrip("\n")] if outcome.output.strip() else []
    if outcome.end_reason in _ENDED_TEXT:
        lines.append(_ENDED_TEXT[outcome.end_reason])
    if not outcome.variables_kept:
        lines.append(_STATE_LOST_TEXT)
    if files:
        lines.append("Files written: " + ", ".join(file.path for file in files[:20]))
    return "\n".join(lines) or "It ran and wrote nothing."
