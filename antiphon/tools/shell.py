"""shell, as responses have it: commands of the model run in a container here, or on the client's
machine, by what the request says. It does not know how containers are isolated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, NotFound, RunError, ToolError
from antiphon.sandbox.base import Outcome
from antiphon.tools.client_tools.provider import CLIENT_TOOLS, shell_function
from antiphon.tools.client_tools.shell_arguments import Commands, commands_of
from antiphon.tools.containers.container import Container
from antiphon.tools.containers.registry import Containers
from antiphon.tools.containers.skills import Equipped, told, told_local
from antiphon.wire import containers as wc
from antiphon.wire.items import Item, ShellCall, ShellCallOutput
from antiphon.wire.parsing.fields import known
from antiphon.wire.skills import local_skills

from .base import CallContext, FollowUpItem, ResponseContext, Result, Step, ToolFunction, Toolset

__all__ = ["Shell"]

_HERE = ("container_auto", "container_reference")
_ABOUT = (
    "Runs shell commands in a Linux container without network, one after the other, each in a"
    " shell of its own. Files lie in /mnt/data."
)
_MOST_COMMANDS = 32


class Shell:
    """``Provider`` of ``shell``. Without ``containers`` it is the client's alone."""

    def __init__(self, containers: Containers | None) -> None:
        self._containers = containers
        self._client = CLIENT_TOOLS["shell"]

    def check(self, tool: Any, path: str) -> None:
        environment = _environment(tool)
        kind = environment.get("type")
        where = f"{path}.environment"
        if kind == "local":
            given = known(environment, {"type", "skills"}, where)
            local_skills(given.get("skills", []), f"{where}.skills")
            return
        if self._containers is None:
            raise InvalidRequest(
                "This server runs no commands: use an environment of type 'local'.",
                param=where,
                code="unsupported_tool",
            )
        if kind == "container_reference":
            known(environment, {"type", "container_id"}, where)
            if not isinstance(environment.get("container_id"), str):
                raise InvalidRequest(
                    f"Missing required parameter: '{where}.container_id'.",
                    param=f"{where}.container_id",
                    code="missing_required_parameter",
                )
            return
        asked = wc.auto(environment, where, "container_auto")
        self._containers.rules.check(asked.memory_limit, f"{where}.memory_limit")

    async def admit(self, tool: Any, opening: ResponseContext, path: str) -> None:
        """Raises ``RequestError`` for a container, a file or a skill that is none of the
        tenant's."""
        environment, where = _environment(tool), f"{path}.environment"
        if self._containers is None or environment.get("type") not in _HERE:
            return
        if environment["type"] == "container_reference":
            named = environment["container_id"]
            self._containers.check(opening.tenant, named, f"{where}.container_id")
        else:
            asked = wc.auto(environment, where, "container_auto")
            await self._containers.admit(opening.tenant, asked, where)

    def lead(self, tool: Any, opening: ResponseContext) -> Item | None:
        return None

    def open(self, tool: Any, opening: ResponseContext) -> AbstractAsyncContextManager[Toolset]:
        if self._containers is None or _environment(tool).get("type") not in _HERE:
            return self._local(tool, opening)
        return self._hosted(self._containers, _environment(tool), opening)

    @asynccontextmanager
    async def _local(self, tool: Any, opening: ResponseContext) -> AsyncIterator[Toolset]:
        skills = told_local(local_skills(_environment(tool).get("skills") or [], "skills"))
        async with self._client.open(tool, opening) as toolset:
            yield replace(toolset, offers=tuple(_with(each, skills) for each in toolset.offers))

    @asynccontextmanager
    async def _hosted(
        self, containers: Containers, environment: Mapping[str, Any], opening: ResponseContext
    ) -> AsyncIterator[Toolset]:
        try:
            container, skills = await _container(containers, environment, opening)
        except (NotFound, InvalidRequest) as error:
            raise RunError(error.message, code="invalid_prompt") from None
        offer = ToolFunction(
            tool=shell_function(_ABOUT + told(skills)),
            shell=ShellCall(
                call_id="",
                action={"commands": [], "timeout_ms": None, "max_output_length": None},
                environment={"type": "container_reference", "container_id": container.id},
            ),
            call=partial(_run, container),
            read=_action,
            writing=Commands,
            failure="incomplete",
        )
        try:
            yield Toolset(offers=(offer,))
        finally:
            containers.release(container)


async def _container(
    containers: Containers, environment: Mapping[str, Any], opening: ResponseContext
) -> tuple[Container, tuple[Equipped, ...]]:
    """The one that is named, or that of the last call before, or a new one; and the skills that the
    model is to know of."""
    if environment["type"] == "container_reference":
        named = containers.hold(opening.tenant, environment["container_id"])
        return named, named.skills
    asked = wc.auto(environment, "environment", "container_auto")
    skills = await containers.equipment(opening.tenant, asked.skills, "environment.skills")
    return containers.take(opening.tenant, asked, opening.items, skills), skills


def _with(offer: ToolFunction, more: str) -> ToolFunction:
    """The offer, with more that the model is told of it."""
    return replace(offer, tool=replace(offer.tool, description=f"{offer.tool.description}{more}"))


async def _run(
    container: Container, arguments: str, context: CallContext
) -> AsyncGenerator[Step | FollowUpItem | Result, None]:
    """The commands, one after the other; one that does not end is the last."""
    fields = _action(arguments)
    action = fields["action"]
    if not action["commands"]:
        raise ToolError("There is no command.")
    wait, most = action["timeout_ms"], action["max_output_length"]
    try:
        await container.ready()
    except NotFound as error:
        raise ToolError(error.message) from None
    yield FollowUpItem(
        ShellCallOutput(call_id=context.call_id, output=(), max_output_length=most), fields
    )
    outputs: list[dict[str, Any]] = []
    commands = action["commands"][:_MOST_COMMANDS]
    room = context.room // len(commands)
    for at, command in enumerate(commands):
        run = partial(
            container.command,
            command,
            timeout_s=1e9 if wait is None else wait / 1000,
            most=room if most is None else min(most, room),
        )
        async with aclosing(_heard(run)) as pieces:
            async for piece in pieces:
                if isinstance(piece, dict):
                    yield Step("output.delta", {"command_index": at, "delta": piece})
                else:
                    outcome = piece
        outputs.append(_output(outcome))
        yield Step("output.done", {"command_index": at, "output": (outputs[-1],)})
        if outcome.ended not in ("done", "raised"):
            break
    yield Result(fields={"output": tuple(outputs)})


def _action(written: str) -> Mapping[str, Any]:
    """What the call was to do."""
    return {"action": commands_of(written)}


async def _heard(
    run: Callable[..., Awaitable[Outcome]],
) -> AsyncGenerator[dict[str, str] | Outcome, None]:
    """What a command writes, as it comes, and what came of it. Closing this stops it."""
    news: asyncio.Queue[dict[str, str] | None] = asyncio.Queue()

    def told(output: str, errors: str) -> None:
        both = {"stdout": output, "stderr": errors}
        news.put_nowait({name: text for name, text in both.items() if text})

    running = asyncio.ensure_future(run(told=told))
    running.add_done_callback(lambda _: news.put_nowait(None))
    try:
        while (piece := await news.get()) is not None:
            yield piece
        try:
            yield await running
        except (NotFound, ToolError) as error:  # what ran before is told all the same
            yield Outcome(output="", errors=error.message, ended="died", exit_code=1)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _output(outcome: Outcome) -> dict[str, Any]:
    timed_out = outcome.ended == "timeout"
    return {
        "stdout": outcome.output,
        "stderr": outcome.errors,
        "outcome": {"type": "timeout"}
        if timed_out
        else {"type": "exit", "exit_code": 0 if outcome.exit_code is None else outcome.exit_code},
    }


def _environment(tool: Any) -> Mapping[str, Any]:
    """Where a request that says nothing wants its commands to be run: with the client."""
    found = tool.environment
    return {"type": "local"} if found is UNSET or found is None else dict(found)
