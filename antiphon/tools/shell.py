"""The ``shell`` tool: runs the shell commands that the model writes. The request decides whether
they run in a container of Antiphon or on the client's machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, RequestError, ToolError
from antiphon.sandbox.base import ExecutionResult
from antiphon.tools.client_tools.provider import CLIENT_TOOLS, shell_function
from antiphon.tools.client_tools.shell_arguments import CommandObserver, shell_action
from antiphon.tools.containers.handle import ContainerHandle, command_events
from antiphon.tools.containers.network import network_prompt
from antiphon.tools.containers.registry import ContainerChoice, ContainerRegistry, network_policy
from antiphon.tools.containers.skills import SkillSummary, local_skills_prompt, skills_prompt
from antiphon.wire.items import ShellCall, ShellCallOutput
from antiphon.wire.parsing.errors import missing_parameter
from antiphon.wire.parsing.fields import known_fields
from antiphon.wire.resources import containers as wc
from antiphon.wire.resources.skills import read_local_skills
from antiphon.wire.tools import Shell

from .base import (
    CallContext,
    FollowUpItem,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)

_HOSTED_ENVIRONMENTS = ("container_auto", "container_reference")
_DESCRIPTION = (
    "Runs shell commands in a Linux container{network}, one after the other, each in its"
    " own shell. Files are in /mnt/data."
)
_MAX_COMMANDS = 32


class ShellProvider(ToolProvider[Shell]):
    """``ToolProvider`` of ``shell``.

    If ``containers`` is None, only the client can run commands. ``reason``: text that tells clients
    why Antiphon cannot run commands.
    """

    def __init__(self, containers: ContainerRegistry | None, reason: str = "") -> None:
        self._containers = containers
        self._reason = reason
        self._client = CLIENT_TOOLS["shell"]

    def check(self, tool: Shell, path: str) -> None:
        environment = _environment(tool)
        kind = environment.get("type")
        where = f"{path}.environment"
        if kind == "local":
            fields = known_fields(environment, {"type", "skills"}, where)
            read_local_skills(fields.get("skills", []), f"{where}.skills")
            return
        if self._containers is None:
            raise InvalidRequest(
                "This server runs no commands: use an environment of type 'local'."
                f" {self._reason}".rstrip(),
                param=where,
                code="unsupported_tool",
            )
        if kind == "container_reference":
            known_fields(environment, {"type", "container_id"}, where)
            if not isinstance(environment.get("container_id"), str):
                raise missing_parameter(f"{where}.container_id")
        self._containers.policy.check(_choice(environment, where), where)

    async def check_access(self, tool: Shell, response: ResponseContext, path: str) -> None:
        """Raise ``RequestError`` if the request names a container, file or skill that does not
        exist or belongs to another tenant."""
        environment, where = _environment(tool), f"{path}.environment"
        if self._containers is None or environment.get("type") not in _HOSTED_ENVIRONMENTS:
            return
        choice = _choice(environment, where)
        where = f"{where}.container_id" if isinstance(choice, str) else where
        await self._containers.check_access(response.tenant, choice, where)

    async def declared_functions(
        self, tool: Shell, response: ResponseContext
    ) -> tuple[ToolFunction, ...]:
        environment, containers = _environment(tool), self._containers
        if containers is None or environment.get("type") not in _HOSTED_ENVIRONMENTS:
            return await self._local_functions(tool, response)
        choice = _choice(environment)
        return (
            _hosted_function(*await containers.describe(response.tenant, choice, response.items)),
        )

    def open(self, tool: Shell, response: ResponseContext) -> AbstractAsyncContextManager[Toolset]:
        if self._containers is None or _environment(tool).get("type") not in _HOSTED_ENVIRONMENTS:
            return self._local(tool, response)
        return self._hosted(self._containers, _environment(tool), response)

    @asynccontextmanager
    async def _local(self, tool: Shell, response: ResponseContext) -> AsyncIterator[Toolset]:
        yield Toolset(functions=await self._local_functions(tool, response))

    async def _local_functions(
        self, tool: Shell, response: ResponseContext
    ) -> tuple[ToolFunction, ...]:
        skills = local_skills_prompt(
            read_local_skills(_environment(tool).get("skills") or [], "skills")
        )
        functions = await self._client.declared_functions(tool, response)
        return tuple(_extend_description(function, skills) for function in functions)

    @asynccontextmanager
    async def _hosted(
        self,
        containers: ContainerRegistry,
        environment: Mapping[str, object],
        response: ResponseContext,
    ) -> AsyncIterator[Toolset]:
        choice = _choice(environment)
        async with containers.used(response.tenant, choice, response.all_items) as container:
            policy = network_policy(choice, container)
            function = replace(
                _hosted_function(container.skills, policy, container.id),
                handler=partial(_run_commands, container),
            )
            yield Toolset(functions=(function,))


def _hosted_function(
    skills: Iterable[SkillSummary], policy: wc.NetworkPolicy | None, container_id: str = ""
) -> ToolFunction:
    """Return the description of the tool function ``shell``, with which the model runs commands in
    a container. The caller sets the handler, which runs the commands."""
    network = network_prompt(policy)
    description = _DESCRIPTION.format(network="" if network else " without network") + network
    return ToolFunction(
        tool=shell_function(description + skills_prompt(skills)),
        initial_item=ShellCall(
            call_id="",
            action={"commands": [], "timeout_ms": None, "max_output_length": None},
            environment={"type": "container_reference", "container_id": container_id},
        ),
        parse_fields=_parse_action,
        argument_observer=CommandObserver,
        failed_status="incomplete",
    )


def _choice(environment: Mapping[str, Any], path: str = "environment") -> ContainerChoice:
    """Return the id of the container that the request names, or else what a container that the
    server chooses must have. ``path``: the request field (for the error message)."""
    if environment.get("type") == "container_reference":
        return str(environment["container_id"])
    return wc.read_auto_container(environment, path, "container_auto")


def _extend_description(function: ToolFunction, text: str) -> ToolFunction:
    """Return the function with ``text`` added to its description."""
    return replace(
        function, tool=replace(function.tool, description=f"{function.tool.description}{text}")
    )


async def _run_commands(
    container: ContainerHandle, arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | FollowUpItem | ToolResult, None]:
    """Run the commands of one call, one after the other. After a command that was stopped, for
    example because of a timeout, the remaining commands do not run."""
    fields = _parse_action(arguments)
    action = fields["action"]
    if not action["commands"]:
        raise ToolError("There is no command.")
    if len(action["commands"]) > _MAX_COMMANDS:
        raise ToolError(f"A call may contain at most {_MAX_COMMANDS} commands.")
    timeout_ms, max_output = action["timeout_ms"], action["max_output_length"]
    try:
        await container.ensure_ready()
    except RequestError as error:
        raise ToolError(error.message) from None
    yield FollowUpItem(
        ShellCallOutput(call_id=context.call_id, output=(), max_output_length=max_output), fields
    )
    outputs: list[dict[str, Any]] = []
    commands = action["commands"]
    command_bytes = context.max_result_bytes // len(commands)
    for at, command in enumerate(commands):
        run = partial(
            container.run_command,
            command,
            timeout_s=1e9 if timeout_ms is None else timeout_ms / 1000,
            max_output=command_bytes if max_output is None else min(max_output, command_bytes),
        )
        async with aclosing(command_events(run)) as events:
            try:
                async for event in events:
                    outcome = event.result
                    if outcome is None:
                        texts = {"stdout": event.stdout, "stderr": event.stderr}
                        delta = {name: text for name, text in texts.items() if text}
                        yield ToolProgress("output.delta", {"command_index": at, "delta": delta})
            except (RequestError, ToolError) as error:  # the output of earlier commands is kept
                outcome = ExecutionResult(
                    output="", stderr=error.message, end_reason="died", exit_code=1
                )
        assert outcome is not None  # the last event has the result
        outputs.append(_output(outcome))
        yield ToolProgress("output.done", {"command_index": at, "output": (outputs[-1],)})
        if outcome.end_reason not in ("done", "raised"):
            break
    yield ToolResult(fields={"output": tuple(outputs)})


def _parse_action(arguments: str) -> Mapping[str, Any]:
    """Return the field ``action`` for the item of a shell call: the commands and their limits,
    parsed from the arguments of the call."""
    return {"action": shell_action(arguments)}


def _output(outcome: ExecutionResult) -> dict[str, Any]:
    """Return the output of one command in the form of the ``shell_call_output`` item."""
    timed_out = outcome.end_reason == "timeout"
    return {
        "stdout": outcome.output,
        "stderr": outcome.stderr,
        "outcome": {"type": "timeout"}
        if timed_out
        else {"type": "exit", "exit_code": 0 if outcome.exit_code is None else outcome.exit_code},
    }


def _environment(tool: Shell) -> Mapping[str, Any]:
    """Return the environment in which the commands of the shell tool run. If the request sets no
    environment, return an environment of the type ``local``: the client runs the commands."""
    environment = tool.environment
    return {"type": "local"} if environment is UNSET or environment is None else dict(environment)
