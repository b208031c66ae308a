"""code_interpreter, as responses have it: the model writes Python, which runs in a container; files
that it made are cited in the answer. It does not know how containers are isolated.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from antiphon.errors import InvalidRequest, NotFound, RunError, ToolError
from antiphon.sandbox.base import Ended, Outcome
from antiphon.tools.containers.container import Container
from antiphon.tools.containers.registry import Containers
from antiphon.tools.containers.skills import told
from antiphon.wire import containers as wc
from antiphon.wire import tools as tl
from antiphon.wire.items import Annotation, CodeInterpreterCall, Item
from antiphon.wire.parts import ContainerFileCitation

from .base import CallContext, ResponseContext, Result, Step, ToolFunction, Toolset

__all__ = ["NAME", "CodeInterpreter", "cited"]

#: As models were taught to call it.
NAME = "python"
_OUTPUTS = "code_interpreter_call.outputs"
_ABOUT = (
    "Runs Python code and tells what it wrote, with the value of its last expression. Variables"
    " stay from call to call. Files lie in /mnt/data; what you save there the user can download,"
    " under links like sandbox:/mnt/data/name. There is no network."
)
_SAID: dict[Ended, str] = {
    "timeout": "It took too long and was interrupted.",
    "memory": "It used more memory than there is and was ended.",
    "output": "It wrote too much and was interrupted.",
    "stopped": "It was stopped.",
    "died": "Python ended.",
}
_LOST = "Variables are gone; files are not."
_MOST_IMAGES = 10
_MOST_IMAGE_BYTES = 4 << 20


class CodeInterpreter:
    """``Provider`` of ``code_interpreter``."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers

    def check(self, tool: Any, path: str) -> None:
        if isinstance(tool.container, str):
            return
        asked = wc.auto(tool.container, f"{path}.container")
        self._containers.rules.check(asked.memory_limit, f"{path}.container.memory_limit")

    async def admit(self, tool: Any, opening: ResponseContext, path: str) -> None:
        """Raises ``RequestError`` for a container or a file that is none of the tenant's."""
        where = f"{path}.container"
        if isinstance(tool.container, str):
            self._containers.check(opening.tenant, tool.container, where)
        else:
            await self._containers.admit(opening.tenant, wc.auto(tool.container, where), where)

    def lead(self, tool: Any, opening: ResponseContext) -> Item | None:
        return None

    @asynccontextmanager
    async def open(self, tool: Any, opening: ResponseContext) -> AsyncIterator[Toolset]:
        work = _Work(self._container(tool, opening), with_outputs=_OUTPUTS in opening.include)
        offer = ToolFunction(
            tool=tl.Custom(name=NAME, description=_ABOUT + told(work.container.skills)),
            shell=CodeInterpreterCall(container_id=work.container.id),
            call=work.run,
            streamed=True,
        )
        try:
            yield Toolset(offers=(offer,), naming=work.cited)
        finally:
            self._containers.release(work.container)

    def _container(self, tool: Any, opening: ResponseContext) -> Container:
        """The one that is named, or that of the last call before, or a new one."""
        try:
            if isinstance(tool.container, str):
                return self._containers.hold(opening.tenant, tool.container)
            asked = wc.auto(tool.container, "container")
            return self._containers.take(opening.tenant, asked, opening.items)
        except (NotFound, InvalidRequest) as error:
            raise RunError(error.message, code="invalid_prompt") from None


class _Work:
    """What one response does in its container."""

    def __init__(self, container: Container, *, with_outputs: bool) -> None:
        self.container = container
        self._with_outputs = with_outputs
        #: Made and not cited yet, by their paths.
        self._made: dict[str, wc.ContainerFile] = {}

    async def run(self, code: str, context: CallContext) -> AsyncGenerator[Step | Result, None]:
        """One call."""
        yield Step("interpreting")
        try:
            outcome, made = await self.container.python(code)
        except NotFound as error:
            raise ToolError(error.message) from None
        self._made.update((file.path, file) for file in made)
        shown = self._with_outputs or context.caller is not None
        outputs = await self._outputs(outcome) if shown else None
        failed = outcome.ended not in ("done", "raised")
        yield Result(text=_told(outcome, made), fields={"outputs": outputs}, failed=failed)

    def cited(self, text: str) -> list[Annotation]:
        """What a message cites. A file is cited by one."""
        made, self._made = self._made, {}
        return cited(made, text)

    async def _outputs(self, outcome: Outcome) -> tuple[dict[str, Any], ...]:
        """As clients see them: logs, and images as data URLs."""
        found: list[dict[str, Any]] = []
        if outcome.output:
            found.append({"type": "logs", "logs": outcome.output})
        images = {f"/mnt/data/{path}" for path in outcome.images[:_MOST_IMAGES]}
        for path in sorted(images & self._made.keys()):
            if self._made[path].bytes <= _MOST_IMAGE_BYTES:
                content = await self.container.read(self._made[path].id)
                url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
                found.append({"type": "image", "url": url})
        return tuple(found)


def cited(made: Mapping[str, wc.ContainerFile], text: str) -> list[Annotation]:
    """The files, by their paths, where a text names them; those that it does not, at its end."""
    return [
        ContainerFileCitation(
            container_id=file.container_id,
            file_id=file.id,
            filename=path.rsplit("/", 1)[-1],
            start_index=start,
            end_index=stop,
        )
        for path, file in made.items()
        for start, stop in _places(path, text) or [(len(text), len(text))]
    ]


def _places(path: str, text: str) -> list[tuple[int, int]]:
    name = re.escape(path.rsplit("/", 1)[-1])
    pattern = rf"(?:sandbox:)?{re.escape(path)}|(?<![\w./-]){name}(?![\w-])"
    return [found.span() for found in re.finditer(pattern, text)]


def _told(outcome: Outcome, made: tuple[wc.ContainerFile, ...]) -> str:
    """What the model is told."""
    lines = [outcome.output.rstrip("\n")] if outcome.output.strip() else []
    if outcome.ended in _SAID:
        lines.append(_SAID[outcome.ended])
    if not outcome.kept:
        lines.append(_LOST)
    if made:
        lines.append("Files written: " + ", ".join(file.path for file in made[:20]))
    return "\n".join(lines) or "It ran and wrote nothing."
