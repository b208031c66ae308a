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
from antiphon.sandbox.javascript import CallOutcome, ProgramCall, JavaScript
from antiphon.security.encryption import Seal, SealBroken
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

from .call_results import ANSWERED, call_result, returned
from .typescript import declared, typed

__all__ = ["NAME", "Programs"]

NAME = "program"
_PURPOSE = "program"
_ABOUT = (
    "Runs a JavaScript program that calls tools: several at a time, in loops, with what came of"
    " others. Use it where code can do with the results what you would have to read them for.\n"
    "The program is the body of an async function: use `await` and `return` freely. It puts out"
    " text with `text(...)`, and what it returns; you are told that alone, so put out little."
    " There is nothing else: no files, no network, no timers, no imports; each program begins anew."
    " Call independent tools with `await Promise.all([...])`. A call that fails throws.\n"
)
_NOTHING = "There is nothing to call."
_MANY = "It made too many calls: {most} are possible."
_NO_MORE = "No more calls of tools are possible in this response."
_OBJECT = "The argument must be one object."

#: Outputs of calls that programs make.
_OUTPUTS: tuple[type[Any], ...] = tuple(
    cls for cls, kind in KINDS.items() if kind.answers in ANSWERED
)


class _Mark(Struct, frozen=True, array_like=True):
    """What a fingerprint says: a digest of the code, and the time that it is in the program."""

    digest: bytes
    at: int


_mark = msgspec.msgpack.Decoder(_Mark).decode


class Programs:
    """``Provider`` of ``programmatic_tool_calling``. ``most_calls``: of one program. ``clock``
    gives seconds."""

    def __init__(
        self,
        javascript: JavaScript,
        seal: Seal,
        *,
        clock: Callable[[], float],
        most_calls: int = 128,
    ) -> None:
        self._javascript = javascript
        self._seal = seal
        self._clock = clock
        self._most_calls = most_calls

    def check(self, tool: Any, path: str) -> None:
        """It has no fields."""

    def leading_item(self, tool: Any, opening: ResponseContext) -> it.Item | None:
        return None

    @asynccontextmanager
    async def open(self, tool: Any, opening: ResponseContext) -> AsyncIterator[Toolset]:
        yield Toolset()  # until it is known what there is to call

    async def check_access(self, tool: Any, opening: ResponseContext, path: str) -> None:
        """Raises ``InvalidRequest`` for a program that should go on and cannot."""
        for program in open_programs(opening.items):
            self._opened(program, opening.tenant)
            for call in _calls_of(program, opening.items):
                if len(call) == 1 and isinstance(call[0], it.McpApprovalRequest):
                    raise InvalidRequest(
                        f"No approval response found for MCP approval request {call[0].id}.",
                        param="input",
                    )

    def compose(
        self,
        offers: Sequence[ToolFunction],
        opening: ResponseContext,
        allowed: Mapping[str, PendingCall] = {},
    ) -> Toolset:
        callable_ = {_path(each): each for each in offers if type(each.initial_item) in ANSWERED}
        taken = {each.tool.name for each in offers if each.namespace is None}
        name = NAME
        while name in taken:
            name = f"{name}_"
        at = int(self._clock() * 1000)
        work = _Work(self._javascript, callable_, allowed, self._most_calls)
        offer = ToolFunction(
            tool=tl.Custom(name=name, description=_described(callable_)),
            initial_item=it.Program(call_id="", code="", fingerprint=""),
            handler=partial(work.run, (), at),
            parse_fields=lambda code: {
                "code": code,
                "fingerprint": self._print(code, at, opening.tenant),
            },
            failed_output=_failed,
        )
        first = tuple(
            PendingCall(
                function=replace(
                    offer,
                    call=partial(
                        work.run,
                        _calls_of(program, opening.items),
                        self._opened(program, opening.tenant).at,
                    ),
                ),
                arguments=program.code,
                call_id=program.call_id,
            )
            for program in open_programs(opening.items)
        )
        return Toolset(functions=(offer,), pending_calls=first)

    def _print(self, code: str, at: int, tenant: str) -> str:
        mark = msgspec.msgpack.encode(_Mark(_digest(code), at))
        return self._seal.seal(mark, purpose=_PURPOSE, tenant=tenant)

    def _opened(self, program: it.Program, tenant: str) -> _Mark:
        """Raises ``InvalidRequest`` for a program that was not written here."""
        try:
            sealed = self._seal.open(program.fingerprint, purpose=_PURPOSE, tenant=tenant)
            mark = _mark(sealed)
        except (SealBroken, msgspec.DecodeError):
            mark = None
        if mark is None or mark.digest != _digest(program.code):
            raise InvalidRequest(
                f"The program {program.call_id} cannot go on: its fingerprint does not belong to"
                " its code, or not to this server.",
                param="input",
                code="invalid_value",
            )
        return mark


class _Work:
    """What the programs of one response can call."""

    def __init__(
        self,
        javascript: JavaScript,
        callable_: Mapping[tuple[str, ...], ToolFunction],
        allowed: Mapping[str, PendingCall],
        most_calls: int,
    ) -> None:
        self._javascript = javascript
        self._callable = callable_
        self._allowed = allowed
        self._most_calls = most_calls

    async def run(
        self, before: Sequence[tuple[it.Item, ...]], at: int, code: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        """One program. ``before``: its calls so far. All calls that it waits for are answered at
        once, in their order: what it does next must not hang on which of them was quicker."""
        known = _Known(before)
        answers: list[CallOutcome] = []
        while True:
            stage = await self._javascript.advance(code, tuple(self._callable), answers, at=at)
            if not stage.asked:
                break
            if len(answers) + len(stage.asked) > self._most_calls:
                stage = replace(stage, error=_MANY.format(most=self._most_calls))
                break
            more = await self._answered(stage.asked, known, context)
            if more is None:
                yield ToolResult(awaits_client=True)
                return
            answers += more
        lines = [stage.said] if stage.said else []
        if stage.error is not None:
            lines.append(f"The program failed. {stage.error}")
        output = it.ProgramOutput(
            call_id=context.call_id,
            result=truncate_middle("\n".join(lines), context.max_result_bytes),
            status="incomplete" if stage.error is not None else "completed",
        )
        yield ToolResult(text=output.result, failed=stage.error is not None, items=(output,))

    async def _answered(
        self, asked: Sequence[ProgramCall], known: _Known, context: CallContext
    ) -> list[CallOutcome] | None:
        """None: the client has to answer some of them."""
        answers: list[CallOutcome | None] = [None] * len(asked)
        waiting = False
        wanted: dict[int, NestedCall] = {}
        for place, each in enumerate(asked):
            offer = self._callable.get(each.path)
            arguments = None if offer is None else _arguments(offer, each.argument)
            if offer is None or arguments is None:
                answers[place] = CallOutcome(json.dumps(_OBJECT), failed=True)
            elif (call := known.take(offer.initial_item)) is not None:
                if (first := self._allowed.get(call[0].id)) is not None:
                    wanted[place] = NestedCall(first.function, first.arguments)
                    continue
                answers[place] = call_result(call, offer.tool)
                waiting |= answers[place] is None
            else:
                wanted[place] = NestedCall(offer, arguments)
        if wanted:
            done = await context.run_nested_calls(tuple(wanted.values()))
            for (place, each_wanted), call in zip(wanted.items(), done, strict=True):
                found = call_result(call, each_wanted.function.tool) if call else _refused()
                answers[place] = found
                waiting |= found is None
        return None if waiting else [each for each in answers if each is not None]


class _Known:
    """The calls of a program that stand in the conversation, by what they call, in their order."""

    def __init__(self, calls: Sequence[tuple[it.Item, ...]]) -> None:
        self._calls: dict[tuple[str, ...], deque[tuple[it.Item, ...]]] = {}
        for call in calls:
            self._calls.setdefault(self._called(call[0]), deque()).append(call)

    def take(self, shell: it.Item) -> tuple[it.Item, ...] | None:
        """The next call of what has such calls."""
        left = self._calls.get(self._called(shell))
        return left.popleft() if left else None

    @staticmethod
    def _called(item: it.Item) -> tuple[str, ...]:
        return ANSWERED[type(item)](item)


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
        if caller_program_id(item) != program.call_id or type(item) not in ANSWERED:
            continue
        if isinstance(item, it.McpCall) and item.approval_request_id in asked:
            continue
        name = item.id if isinstance(item, it.McpApprovalRequest) else getattr(item, "call_id", "")
        found.append((item, came[name]) if name in came else (item,))
    return found


def _path(offer: ToolFunction) -> tuple[str, ...]:
    name = offer.tool.name
    return (name,) if offer.namespace is None else (offer.namespace, name)


def _arguments(offer: ToolFunction, given: str) -> str | None:
    """As a model would write them; None if there is no making sense of them."""
    if isinstance(offer.tool, tl.Function):
        return given or "{}" if not given or given.startswith("{") else None
    value = json.loads(given) if given else ""
    text = value if isinstance(value, str) else given
    return text.encode("utf-8", "replace").decode()


def _described(callable_: Mapping[tuple[str, ...], ToolFunction]) -> str:
    """What can be called, as TypeScript has it. What a search would have to find first is not
    told."""
    told = [
        declared(
            path, _about(offer.tool), _taken(offer.tool), returned(offer.initial_item, offer.tool)
        )
        for path, offer in callable_.items()
        if not (offer.tool.defer_loading is True and "direct" in (offer.tool.allowed_callers or ()))
    ]
    return _ABOUT + ("\n\n".join(["What it can call:", *told]) if told else _NOTHING)


def _about(tool: tl.Function | tl.Custom) -> str:
    return tool.description if isinstance(tool.description, str) else ""


def _taken(tool: tl.Function | tl.Custom) -> str:
    if isinstance(tool, tl.Custom):
        return "input: string"
    if not (tool.parameters or {}).get("properties"):
        return ""
    return f"args: {typed(tool.parameters)}"


def _failed(call_id: str, why: str) -> it.Item:
    return it.ProgramOutput(
        call_id=call_id, result=f"The program failed. {why}", status="incomplete"
    )


def _refused() -> CallOutcome:
    return CallOutcome(json.dumps(_NO_MORE), failed=True)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()
