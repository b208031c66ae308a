"""The ``programmatic_tool_calling`` tool: the model writes JavaScript programs that call tools. The
model sees only the output of a program.

The state of a program is not stored. To continue a program, Antiphon runs it again from its
beginning and gives it the results of its earlier calls. These results are in the conversation. So
another response or another process can continue the program.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import caller_program_id, open_programs
from antiphon.sandbox.javascript import CallOutcome, JavaScript, ProgramCall
from antiphon.security.encryption import DecryptionError, Encryptor
from antiphon.support.text import truncate_middle
from antiphon.tools.base import (
    CallContext,
    NestedCall,
    PendingCall,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)
from antiphon.wire import items as it
from antiphon.wire import tools as tl

from .call_results import call_result, call_target, is_callable, is_output, return_type
from .typescript import function_declaration, schema_type

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


class _Fingerprint(Struct, frozen=True, array_like=True):
    """The decrypted fingerprint of a program (JavaScript code of the model): a digest of its code,
    and its start time in Unix milliseconds. Antiphon checks the fingerprint before it continues a
    program."""

    digest: bytes
    started_ms: int


_decode_fingerprint = msgspec.msgpack.Decoder(_Fingerprint).decode


class ProgramProvider(ToolProvider[tl.ProgrammaticToolCalling]):
    """``ToolProvider`` of ``programmatic_tool_calling``: the model writes JavaScript programs that
    call tools.

    ``max_calls``: maximum number of tool calls of one program. ``clock`` returns Unix seconds.
    """

    def __init__(
        self,
        javascript: JavaScript,
        encryptor: Encryptor,
        *,
        clock: Callable[[], float],
        max_calls: int = 128,
    ) -> None:
        self._javascript = javascript
        self._encryptor = encryptor
        self._clock = clock
        self._max_calls = max_calls

    async def declared_functions(
        self, tool: tl.ProgrammaticToolCalling, response: ResponseContext
    ) -> tuple[ToolFunction, ...]:
        return ()  # the function is offered by ``compose``

    @asynccontextmanager
    async def open(
        self, tool: tl.ProgrammaticToolCalling, response: ResponseContext
    ) -> AsyncIterator[Toolset]:
        yield Toolset()  # the function is offered by ``compose``

    async def check_access(
        self, tool: tl.ProgrammaticToolCalling, response: ResponseContext, path: str
    ) -> None:
        """Raise ``InvalidRequest`` if the conversation contains an unfinished program (JavaScript
        code of the model) that cannot continue. For example, one of its tool calls still needs an
        approval."""
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
        approved: Mapping[str, PendingCall] = {},
    ) -> Toolset:
        functions_by_path = {
            _path(each): each for each in functions if is_callable(each.initial_item)
        }
        used_names = {each.tool.name for each in functions if each.namespace is None}
        name = NAME
        while name in used_names:
            name = f"{name}_"
        started_ms = int(self._clock() * 1000)
        session = _ProgramSession(self._javascript, functions_by_path, approved, self._max_calls)
        function = ToolFunction(
            tool=tl.Custom(name=name, description=_description(functions_by_path)),
            initial_item=it.Program(call_id="", code="", fingerprint=""),
            handler=partial(session.run, (), started_ms),
            parse_fields=lambda code: {
                "code": code,
                "fingerprint": self._fingerprint(code, started_ms, response.tenant),
            },
            failed_output=_failed_output,
            effects="idempotent",  # it gets the results of its earlier calls
        )
        continued_calls = tuple(
            PendingCall(
                function=replace(
                    function,
                    handler=partial(
                        session.run,
                        _calls_of(program, response.items),
                        self._verify(program, response.tenant).started_ms,
                    ),
                ),
                arguments=program.code,
                call_id=program.call_id,
            )
            for program in open_programs(response.items)
        )
        return Toolset(functions=(function,), pending_calls=continued_calls)

    def _fingerprint(self, code: str, started_ms: int, tenant: str) -> str:
        fingerprint = msgspec.msgpack.encode(_Fingerprint(_digest(code), started_ms))
        return self._encryptor.encrypt(fingerprint, purpose=_PURPOSE, tenant=tenant)

    def _verify(self, program: it.Program, tenant: str) -> _Fingerprint:
        """Decrypt and return the fingerprint of a JavaScript program.

        Raises ``InvalidRequest`` if the fingerprint cannot be decrypted, or if it belongs to other
        code than the code of this program.
        """
        try:
            sealed = self._encryptor.decrypt(program.fingerprint, purpose=_PURPOSE, tenant=tenant)
            fingerprint = _decode_fingerprint(sealed)
        except (DecryptionError, msgspec.DecodeError):
            fingerprint = None
        if fingerprint is None or fingerprint.digest != _digest(program.code):
            raise InvalidRequest(
                f"The program {program.call_id} cannot continue: its fingerprint does not match"
                " its code or this server's key.",
                param="input",
                code="invalid_value",
            )
        return fingerprint


class _ProgramSession:
    """Runs the programs (JavaScript code of the model) of one response."""

    def __init__(
        self,
        javascript: JavaScript,
        functions_by_path: Mapping[tuple[str, ...], ToolFunction],
        approved: Mapping[str, PendingCall],
        max_calls: int,
    ) -> None:
        self._javascript = javascript
        self._functions_by_path = functions_by_path
        self._approved = approved
        self._max_calls = max_calls

    async def run(
        self,
        recorded: Sequence[tuple[it.Item, ...]],
        started_ms: int,
        code: str,
        context: CallContext,
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        """Run one JavaScript program. This is the handler of the tool.

        - ``recorded``: the tool calls that the program has made so far. Each entry contains the
          item of the call and, if the call is answered, the item with the answer.
        - ``started_ms``: start time of the program in Unix milliseconds.

        The program runs until it waits for tool calls. It gets the results of all these calls
        together, in the order in which it made the calls, so its behaviour cannot depend on which
        call was faster.
        """
        recorded_calls = _RecordedCalls(recorded)
        outcomes: list[CallOutcome] = []
        while True:
            state = await self._javascript.advance(
                code,
                tuple(self._functions_by_path),
                outcomes,
                time_ms=started_ms,
                tenant=context.tenant,
            )
            if not state.pending_calls:
                break
            if len(outcomes) + len(state.pending_calls) > self._max_calls:
                state = replace(state, error=_TOO_MANY_CALLS.format(most=self._max_calls))
                break
            new_outcomes = await self._resolve_calls(state.pending_calls, recorded_calls, context)
            if new_outcomes is None:
                yield ToolResult(awaits_client=True)
                return
            outcomes += new_outcomes
        lines = [state.output] if state.output else []
        if state.error is not None:
            lines.append(f"The program failed. {state.error}")
        output = it.ProgramOutput(
            call_id=context.call_id,
            result=truncate_middle("\n".join(lines), context.max_result_bytes),
            status="incomplete" if state.error is not None else "completed",
        )
        yield ToolResult(text=output.result, failed=state.error is not None, items=(output,))

    async def _resolve_calls(
        self, calls: Sequence[ProgramCall], recorded: _RecordedCalls, context: CallContext
    ) -> list[CallOutcome] | None:
        """Return the outcomes of ``calls``, the tool calls for which a program waits, in order.
        Calls that are not in ``recorded`` yet are run. Return None if the client has to answer at
        least one of the calls."""
        outcomes: list[CallOutcome | None] = [None] * len(calls)
        awaits_client = False
        nested_calls: dict[int, NestedCall] = {}
        for index, each in enumerate(calls):
            function = self._functions_by_path.get(each.path)
            arguments = None if function is None else _arguments(function, each.argument)
            if function is None or arguments is None:
                outcomes[index] = CallOutcome(json.dumps(_NOT_AN_OBJECT), failed=True)
            elif (call := recorded.take(function.initial_item)) is not None:
                if (continued_calls := self._approved.get(call[0].id)) is not None:
                    nested_calls[index] = NestedCall(
                        continued_calls.function, continued_calls.arguments
                    )
                    continue
                outcomes[index] = call_result(call, function.tool)
                awaits_client |= outcomes[index] is None
            else:
                nested_calls[index] = NestedCall(function, arguments)
        if nested_calls:
            done = await context.run_nested_calls(tuple(nested_calls.values()))
            for (index, each_wanted), call in zip(nested_calls.items(), done, strict=True):
                outcome = (
                    call_result(call, each_wanted.function.tool) if call else _call_limit_outcome()
                )
                outcomes[index] = outcome
                awaits_client |= outcome is None
        return None if awaits_client else [each for each in outcomes if each is not None]


class _RecordedCalls:
    """The tool calls of one program that are in the conversation. A program is JavaScript code that
    the model wrote. The calls are grouped by the function that they call. In each group, the calls
    are in the order in which the program made them."""

    def __init__(self, calls: Sequence[tuple[it.Item, ...]]) -> None:
        self._calls: dict[tuple[str, ...], deque[tuple[it.Item, ...]]] = {}
        for call in calls:
            self._calls.setdefault(call_target(call[0]), deque()).append(call)

    def take(self, initial_item: it.Item) -> tuple[it.Item, ...] | None:
        """Return the oldest recorded tool call of one function, and remove it from the record. The
        result is the item of the call and, if the call is answered, the item with the answer.
        Return None if no recorded call of this function is left.

        ``initial_item``: a call item that names the function, for example the item with which a
        call of the function begins.
        """
        queue = self._calls.get(call_target(initial_item))
        return queue.popleft() if queue else None


def _calls_of(program: it.Program, items: Sequence[it.Item]) -> list[tuple[it.Item, ...]]:
    """Return the tool calls that a program made, in order. Each call is a tuple of one or two
    items.

    - If the call needed no approval, the first item is the call, and the second item is its output.
    - If the call needed approval, the first item is the approval request. The second item is the
      call if it has run. If the call has not run yet, the second item is the client's approval
      response.

    If ``items`` does not contain the second item, the tuple has only the first item.
    """
    outputs: dict[str, it.Item] = {}
    approval_request_ids = {item.id for item in it.of_type(items, it.McpApprovalRequest)}
    for item in items:
        if is_output(item):
            outputs[item.call_id or ""] = item
        elif item.approval_request_id in approval_request_ids:
            outputs[item.approval_request_id or ""] = item
    calls: list[tuple[it.Item, ...]] = []
    for item in items:
        if caller_program_id(item) != program.call_id or not is_callable(item):
            continue
        if item.approval_request_id in approval_request_ids:
            continue
        name = item.answer_key
        calls.append((item, outputs[name]) if name in outputs else (item,))
    return calls


def _path(function: ToolFunction) -> tuple[str, ...]:
    name = function.tool.name
    return (name,) if function.namespace is None else (function.namespace, name)


def _arguments(function: ToolFunction, argument: str) -> str | None:
    """Return the arguments of a program's tool call, in the form in which a model writes them.
    ``argument``: the value that the program passed, as JSON. Return None if the tool needs an
    object and the program passed another value."""
    if isinstance(function.tool, tl.Function):
        return argument or "{}" if not argument or argument.startswith("{") else None
    value = json.loads(argument) if argument else ""
    text = value if isinstance(value, str) else argument
    return text.encode("utf-8", "replace").decode()


def _description(functions_by_path: Mapping[tuple[str, ...], ToolFunction]) -> str:
    """Return the description of the tool that runs programs. It declares, in TypeScript, the
    functions that programs can call.

    Deferred functions that a tool search can find are left out.
    """
    declarations = [
        function_declaration(
            path,
            _tool_description(function.tool),
            _parameter_declaration(function.tool),
            return_type(function.initial_item, function.tool),
        )
        for path, function in functions_by_path.items()
        if not (
            function.tool.defer_loading is True
            and "direct" in (function.tool.allowed_callers or ())
        )
    ]
    return _DESCRIPTION + (
        "\n\n".join(["What it can call:", *declarations]) if declarations else _NO_FUNCTIONS
    )


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


def _call_limit_outcome() -> CallOutcome:
    return CallOutcome(json.dumps(_CALL_LIMIT_REACHED), failed=True)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()
