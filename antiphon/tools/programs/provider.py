"""programmatic_tool_calling, as responses have it: the model writes JavaScript that calls tools,
and is told what the program puts out. It does not know how programs are isolated.

A program is never kept: it is run again from its beginning with what came of its calls so far,
which stands in the conversation. So it can go on in another response and in another process.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.conversation import caller_program_id, open_programs
from antiphon.errors import InvalidRequest
from antiphon.sandbox.javascript import CallOutcome, JavaScript, ProgramCall
from antiphon.security.encryption import DecryptionError, Encryptor
from antiphon.stream.kinds import KINDS
from antiphon.text import truncate_middle
from antiphon.tools.base import (
    CallContext,
    NestedCall,
    PendingCall,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolResult,
    Toolset,
)
from antiphon.wire import items as it
from antiphon.wire import tools as tl

from .call_results import CALL_TARGETS, call_result, return_type
from .typescript import function_declaration, schema_type

__all__ = ["NAME", "ProgramProvider"]

NAME = "program"
_PURPOSE = "program"
_DESCRIPTION = (
    "Runs a JavaScript program that calls tools: several at a time, in loops, with what came of"
    " others. Use it where code can do with the results what you would have to read them for.\n"
    "The program is the body of an async function: use `await` and `return` freely. It puts out"
    " text with `text(...)`, and what it returns; you are told that alone, so put out little."
    " There is nothing else: no files, no network, no timers, no imports; each program begins anew."
    " Call independent tools with `await Promise.all([...])`. A call that fails throws.\n"
)
_NO_FUNCTIONS = "There is nothing to call."
_TOO_MANY_CALLS = "It made too many calls: {most} are possible."
_CALL_LIMIT_REACHED = "No more calls of tools are possible in this response."
_NOT_AN_OBJECT = "The argument must be one object."

#: Outputs of calls that programs make.
_OUTPUTS: tuple[type[Any], ...] = tuple(
    cls for cls, kind in KINDS.items() if kind.answers in CALL_TARGETS
)


class _Fingerprint(Struct, frozen=True, array_like=True):
    """What a fingerprint says: a digest of the code, and the time that it is in the program."""

    digest: bytes
    started_ms: int


_decode_fingerprint = msgspec.msgpack.Decoder(_Fingerprint).decode


class ProgramProvider:
    """``Provider`` of ``programmatic_tool_calling``. ``most_calls``: of one program. ``clock``
    gives seconds."""

    def __init__(
        self,
        javascript: JavaScript,
        seal: Encryptor,
        *,
        clock: Callable[[], float],
        max_calls: int = 128,
    ) -> None:
        self._javascript = javascript
        self._seal = seal
        self._clock = clock
        self._max_calls = max_calls

    def check(self, tool: Any, path: str) -> None:
        """It has no fields."""

    def leading_item(self, tool: Any, response: ResponseContext) -> it.Item | None:
        return None

    async def declared_functions(
        self, tool: Any, response: ResponseContext
    ) -> tuple[ToolFunction, ...]:
        return ()  # ``compose`` offers the function

    @asynccontextmanager
    async def open(self, tool: Any, response: ResponseContext) -> AsyncIterator[Toolset]:
        yield Toolset()  # until it is known what there is to call

    async def check_access(self, tool: Any, response: ResponseContext, path: str) -> None:
        """Raises ``InvalidRequest`` for a program that should go on and cannot."""
        for program in open_programs(response.items):
            self._verify(program, response.tenant)
            for call in _calls_of(program, response.items):
                if len(call) == 1 and isinstance(call[0], it.McpApprovalRequest):
                    raise InvalidRequest(
                        f"No approval response found for MCP approval request {call[0].id}.",
                        param="input",
                    )

    def compose(
        self,
        functions: Sequence[ToolFunction],
        response: ResponseContext,
        allowed: Mapping[str, PendingCall] = {},
    ) -> Toolset:
        callable_ = {
            _path(each): each for each in functions if type(each.initial_item) in CALL_TARGETS
        }
        taken = {each.tool.name for each in functions if each.namespace is None}
        name = NAME
        while name in taken:
            name = f"{name}_"
        at = int(self._clock() * 1000)
        work = _ProgramSession(self._javascript, callable_, allowed, self._max_calls)
        function = ToolFunction(
            tool=tl.Custom(name=name, description=_description(callable_)),
            initial_item=it.Program(call_id="", code="", fingerprint=""),
            handler=partial(work.run, (), at),
            parse_fields=lambda code: {
                "code": code,
                "fingerprint": self._fingerprint(code, at, response.tenant),
            },
            failed_output=_failed_output,
        )
        first = tuple(
            PendingCall(
                function=replace(
                    function,
                    handler=partial(
                        work.run,
                        _calls_of(program, response.items),
                        self._verify(program, response.tenant).started_ms,
                    ),
                ),
                arguments=program.code,
                call_id=program.call_id,
            )
            for program in open_programs(response.items)
        )
        return Toolset(functions=(function,), pending_calls=first)

    def _fingerprint(self, code: str, started_ms: int, tenant: str) -> str:
        mark = msgspec.msgpack.encode(_Fingerprint(_digest(code), started_ms))
        return self._seal.encrypt(mark, purpose=_PURPOSE, tenant=tenant)

    def _verify(self, program: it.Program, tenant: str) -> _Fingerprint:
        """Raises ``InvalidRequest`` for a program that was not written here."""
        try:
            sealed = self._seal.decrypt(program.fingerprint, purpose=_PURPOSE, tenant=tenant)
            mark = _decode_fingerprint(sealed)
        except (DecryptionError, msgspec.DecodeError):
            mark = None
        if mark is None or mark.digest != _digest(program.code):
            raise InvalidRequest(
                f"The program {program.call_id} cannot go on: its fingerprint does not belong to"
                " its code, or not to this server.",
                param="input",
                code="invalid_value",
            )
        return mark


class _ProgramSession:
    """What the programs of one response can call."""

    def __init__(
        self,
        javascript: JavaScript,
        callable_: Mapping[tuple[str, ...], ToolFunction],
        approved: Mapping[str, PendingCall],
        max_calls: int,
    ) -> None:
        self._javascript = javascript
        self._callable = callable_
        self._approved = approved
        self._max_calls = max_calls

    async def run(
        self,
        recorded: Sequence[tuple[it.Item, ...]],
        started_ms: int,
        code: str,
        context: CallContext,
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        """One program. ``before``: its calls so far. All calls that it waits for are answered at
        once, in their order: what it does next must not hang on which of them was quicker."""
        known = _RecordedCalls(recorded)
        answers: list[CallOutcome] = []
        while True:
            stage = await self._javascript.advance(
                code, tuple(self._callable), answers, time_ms=started_ms
            )
            if not stage.pending_calls:
                break
            if len(answers) + len(stage.pending_calls) > self._max_calls:
                stage = replace(stage, error=_TOO_MANY_CALLS.format(most=self._max_calls))
                break
            more = await self._answer_calls(stage.pending_calls, known, context)
            if more is None:
                yield ToolResult(awaits_client=True)
                return
            answers += more
        lines = [stage.output] if stage.output else []
        if stage.error is not None:
            lines.append(f"The program failed. {stage.error}")
        output = it.ProgramOutput(
            call_id=context.call_id,
            result=truncate_middle("\n".join(lines), context.max_result_bytes),
            status="incomplete" if stage.error is not None else "completed",
        )
        yield ToolResult(text=output.result, failed=stage.error is not None, items=(output,))

    async def _answer_calls(
        self, calls: Sequence[ProgramCall], recorded: _RecordedCalls, context: CallContext
    ) -> list[CallOutcome] | None:
        """None: the client has to answer some of them."""
        answers: list[CallOutcome | None] = [None] * len(calls)
        waiting = False
        wanted: dict[int, NestedCall] = {}
        for place, each in enumerate(calls):
            function = self._callable.get(each.path)
            arguments = None if function is None else _arguments(function, each.argument)
            if function is None or arguments is None:
                answers[place] = CallOutcome(json.dumps(_NOT_AN_OBJECT), failed=True)
            elif (call := recorded.take(function.initial_item)) is not None:
                if (first := self._approved.get(call[0].id)) is not None:
                    wanted[place] = NestedCall(first.function, first.arguments)
                    continue
                answers[place] = call_result(call, function.tool)
                waiting |= answers[place] is None
            else:
                wanted[place] = NestedCall(function, arguments)
        if wanted:
            done = await context.run_nested_calls(tuple(wanted.values()))
            for (place, each_wanted), call in zip(wanted.items(), done, strict=True):
                found = (
                    call_result(call, each_wanted.function.tool) if call else _call_limit_answer()
                )
                answers[place] = found
                waiting |= found is None
        return None if waiting else [each for each in answers if each is not None]


class _RecordedCalls:
    """The calls of a program that stand in the conversation, by what they call, in their order."""

    def __init__(self, calls: Sequence[tuple[it.Item, ...]]) -> None:
        self._calls: dict[tuple[str, ...], deque[tuple[it.Item, ...]]] = {}
        for call in calls:
            self._calls.setdefault(self._target(call[0]), deque()).append(call)

    def take(self, initial_item: it.Item) -> tuple[it.Item, ...] | None:
        """The next call of what has such calls."""
        left = self._calls.get(self._target(initial_item))
        return left.popleft() if left else None

    @staticmethod
    def _target(item: it.Item) -> tuple[str, ...]:
        return CALL_TARGETS[type(item)](item)


def _calls_of(program: it.Program, items: Sequence[it.Item]) -> list[tuple[it.Item, ...]]:
    """The calls that a program made, each with what came of it. One that had to be allowed is the
    request, and what the client said, or the call if it has been made."""
    came: dict[str, it.Item] = {}
    asked = {item.id for item in items if isinstance(item, it.McpApprovalRequest)}
    for item in items:
        if isinstance(item, _OUTPUTS):
            came[item.call_id] = item
        elif isinstance(item, it.McpApprovalResponse):
            came[item.approval_request_id] = item
        elif isinstance(item, it.McpCall) and item.approval_request_id in asked:
            came[item.approval_request_id or ""] = item
    found: list[tuple[it.Item, ...]] = []
    for item in items:
        if caller_program_id(item) != program.call_id or type(item) not in CALL_TARGETS:
            continue
        if isinstance(item, it.McpCall) and item.approval_request_id in asked:
            continue
        name = item.id if isinstance(item, it.McpApprovalRequest) else getattr(item, "call_id", "")
        found.append((item, came[name]) if name in came else (item,))
    return found


def _path(function: ToolFunction) -> tuple[str, ...]:
    name = function.tool.name
    return (name,) if function.namespace is None else (function.namespace, name)


def _arguments(function: ToolFunction, argument: str) -> str | None:
    """As a model would write them; None if there is no making sense of them."""
    if isinstance(function.tool, tl.Function):
        return argument or "{}" if not argument or argument.startswith("{") else None
    value = json.loads(argument) if argument else ""
    text = value if isinstance(value, str) else argument
    return text.encode("utf-8", "replace").decode()


def _description(callable_: Mapping[tuple[str, ...], ToolFunction]) -> str:
    """What can be called, as TypeScript has it. What a search would have to find first is not
    told."""
    told = [
        function_declaration(
            path,
            _tool_description(function.tool),
            _parameter_declaration(function.tool),
            return_type(function.initial_item, function.tool),
        )
        for path, function in callable_.items()
        if not (
            function.tool.defer_loading is True
            and "direct" in (function.tool.allowed_callers or ())
        )
    ]
    return _DESCRIPTION + ("\n\n".join(["What it can call:", *told]) if told else _NO_FUNCTIONS)


def _tool_description(tool: tl.Function | tl.Custom) -> str:
    return tool.description if isinstance(tool.description, str) else ""


def _parameter_declaration(tool: tl.Function | tl.Custom) -> str:
    if isinstance(tool, tl.Custom):
        return "input: string"
    if not (tool.parameters or {}).get("properties"):
        return ""
    return f"args: {schema_type(tool.parameters)}"


def _failed_output(call_id: str, reason: str) -> it.Item:
    return it.ProgramOutput(
        call_id=call_id, result=f"The program failed. {reason}", status="incomplete"
    )


def _call_limit_answer() -> CallOutcome:
    return CallOutcome(json.dumps(_CALL_LIMIT_REACHED), failed=True)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()
