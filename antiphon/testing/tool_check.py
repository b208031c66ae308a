"""Check of the contract of a tool provider, for authors of tools. It raises ``AssertionError`` if
the provider breaks the contract.

A ``ToolCheckCase`` contains the calls that the check makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.dialects.grammar.json_schema import check_schema
from antiphon.errors import InvalidRequest, ToolError
from antiphon.stream.kinds import KINDS
from antiphon.tools.base import (
    AnyToolProvider,
    CallContext,
    FollowUpItem,
    ResponseContext,
    ToolCaller,
    ToolFunction,
    ToolProgress,
    ToolResult,
    Toolset,
)
from antiphon.wire import tools as tl

from .tool_events import items_of_call

__all__ = ["ToolCheckCase", "check_tool"]

_SECONDS = 60.0
#: Maximum number of bytes of a result, and maximum number of bytes that its items add to it.
_MAX_RESULT_BYTES, _ITEM_OVERHEAD_BYTES = 10_000, 4_000
#: Arguments that a model may write by mistake.
_GARBAGE = ("", "{", "[1]", '{"a": "\\ud800", "b": "\\u0000"}', "null", '"x"', "{}")


class ToolCheckCase(Struct, frozen=True, kw_only=True):
    """The tool and the calls with which a provider is checked. A call is the name of a function and
    its arguments.

    - ``tool``: the tool as a request contains it.
    - ``successful_call``: a call that succeeds. If clients run the functions of the tool, it can be
      any call, because the check does not run it.
    - ``failing_call``: a call that fails.
    - ``hanging_call``: a call that does not end by itself.
    - ``long_call``: a call whose result exceeds the size limit.
    - ``rejected_tools``: tools in a request that the provider must reject.
    - ``tenant``: the tenant for which the calls are made.
    """

    tool: Any
    successful_call: tuple[str, str]
    long_call: tuple[str, str] | None = None
    failing_call: tuple[str, str] | None = None
    hanging_call: tuple[str, str] | None = None
    rejected_tools: Sequence[Any] = ()
    tenant: str = "t"


async def check_tool(provider: AnyToolProvider, case: ToolCheckCase) -> None:
    """Check a tool provider: opening, functions, parallel calls, failures and cancellation.

    For each call, the response items of the call are also checked, because clients see only these
    items. At the end, no task may still be running.
    """
    async with asyncio.timeout(_SECONDS):
        _check_rejections(provider, case)
        response = ResponseContext(tenant=case.tenant, response_id="resp_check", items=())
        provider.check(case.tool, "tools[0]")
        lead = provider.leading_item(case.tool, response)
        assert lead is None or type(lead) in KINDS, "the type of the leading item is unknown"
        await _check_declared_functions(provider, case, response)
        async with _open(provider, case.tool, response) as toolset:
            _check_functions(toolset)
            assert not toolset.failed, "the toolset failed to open"
            if lead is not None:
                msgspec.structs.replace(lead, **dict(toolset.fields))
            if _find_function(toolset, case.successful_call).handler is None:
                await _check_client_call(_find_function(toolset, case.successful_call), case)
            else:
                await _check_calls(toolset, case)
        await _check_parallel_use(provider, case, response)
        once = len(asyncio.all_tasks())
        await _check_parallel_use(provider, case, response)
        assert len(asyncio.all_tasks()) <= once, "each use of the provider leaves a running task"


@asynccontextmanager
async def _open(
    provider: AnyToolProvider, tool: object, response: ResponseContext
) -> AsyncIterator[Toolset]:
    """Open the toolset of a provider for one tool of a request. The toolset of a provider that
    calls other tools (``ToolCaller``) is built without other tools."""
    async with provider.open(tool, response) as toolset:
        if isinstance(provider, ToolCaller):
            toolset = provider.compose((), response, {})
        yield toolset


async def _check_declared_functions(
    provider: AnyToolProvider, case: ToolCheckCase, response: ResponseContext
) -> None:
    """Check that ``provider.declared_functions``, which announces the functions of the tool,
    returns the same functions as ``provider.open``."""
    declared = await provider.declared_functions(case.tool, response)
    if declared is None:
        return
    async with provider.open(case.tool, response) as toolset:
        offered = [(each.tool, each.namespace) for each in toolset.functions]
    expected = [(each.tool, each.namespace) for each in declared]
    assert offered == expected, f"declared_functions returns {expected}, but open returns {offered}"


async def _check_client_call(function: ToolFunction, case: ToolCheckCase) -> None:
    """Check a function that the client runs. Every call must become an item of the response, even
    if its arguments are invalid."""
    for arguments in (case.successful_call[1], *_GARBAGE):
        assert await _call_items(function, case, arguments), "a call did not become an item"


async def _call_items(function: ToolFunction, case: ToolCheckCase, arguments: str) -> list[Any]:
    return await items_of_call(
        function, arguments, tenant=case.tenant, max_result_bytes=_MAX_RESULT_BYTES
    )


def _check_rejections(provider: AnyToolProvider, case: ToolCheckCase) -> None:
    for tool in case.rejected_tools:
        try:
            provider.check(tool, "tools[7]")
        except InvalidRequest as refused:
            assert (refused.param or "").startswith("tools[7]"), (
                "the error does not have the path of the tool"
            )
        else:
            raise AssertionError(f"{tool} was not rejected")


def _check_functions(toolset: Toolset) -> None:
    names = [(function.tool.name, function.namespace) for function in toolset.functions]
    assert names, "the toolset has no functions"
    assert len(set(names)) == len(names), "two functions have the same name"
    for function in toolset.functions:
        tool = function.tool
        name = f"{tool.name!r}"
        assert tool.name and all(c.isascii() and (c.isalnum() or c in "_-") for c in tool.name), (
            f"the name {name} has characters that models cannot write"
        )
        assert type(function.initial_item) in KINDS, f"the type of the item of {name} is unknown"
        if isinstance(tool, tl.Function) and tool.parameters is not None:
            assert tool.parameters.get("type") == "object", (
                f"the parameters of {name} are not an object"
            )
            check_schema(msgspec.json.encode(tool.parameters).decode(), "parameters")
        msgspec.json.encode(tool)


async def _check_calls(toolset: Toolset, case: ToolCheckCase) -> None:
    result = await _call(_find_function(toolset, case.successful_call), case)
    assert not result.failed, f"{case.successful_call} failed: {result.text}"
    assert result.text or result.items, "the result of a call has neither text nor items"
    items = await _call_items(
        _find_function(toolset, case.successful_call), case, case.successful_call[1]
    )
    ended = _status(_find_function(toolset, case.successful_call), items)
    assert ended == "completed", f"a successful call has the status {ended!r}"
    assert type(items[0]) is type(_find_function(toolset, case.successful_call).initial_item), (
        "the item of the call has another type than initial_item"
    )
    again = [_call(_find_function(toolset, case.successful_call), case) for _ in range(4)]
    for each in await asyncio.gather(*again):
        assert not each.failed, "parallel calls of the same function failed"
    if case.failing_call is not None:
        failed = await _call(
            _find_function(toolset, case.failing_call), case, arguments=case.failing_call[1]
        )
        assert failed.failed, f"{case.failing_call} did not fail"
        assert failed.text, "a failed call has no text for the model"
        function = _find_function(toolset, case.failing_call)
        ended = _status(function, await _call_items(function, case, case.failing_call[1]))
        wanted = function.failed_status if function.failed_output is None else "incomplete"
        assert ended == wanted, f"a failed call has the status {ended!r}"
    if case.long_call is not None:
        await _check_result_size(_find_function(toolset, case.long_call), case, case.long_call[1])
    for garbage in _GARBAGE:
        function = _find_function(toolset, case.successful_call)
        await _call(function, case, arguments=garbage)
        await _call_items(function, case, garbage)
    if case.hanging_call is not None:
        await _check_cancellation(
            _find_function(toolset, case.hanging_call), case, case.hanging_call[1]
        )
        after = await _call(_find_function(toolset, case.successful_call), case)
        assert not after.failed, "calls fail after another call was cancelled"


def _status(function: ToolFunction, items: Sequence[Any]) -> str:
    """Return the final status of a call. ``items``: the items of the call. If the output of a call
    is a separate item, the status is that of the output item."""
    result: str = items[0 if function.failed_output is None else -1].status
    return result


async def _check_result_size(function: ToolFunction, case: ToolCheckCase, arguments: str) -> None:
    """Check that a result above the size limit is truncated. The response items of the call contain
    the result, so the check measures these items, and allows ``_ITEM_OVERHEAD_BYTES`` more than the
    limit for their other content."""
    items = await _call_items(function, case, arguments)
    size = len(msgspec.json.encode(items))
    assert size <= _MAX_RESULT_BYTES + _ITEM_OVERHEAD_BYTES, (
        f"the items of a call have {size} bytes, but {_MAX_RESULT_BYTES} are allowed"
    )


def _find_function(toolset: Toolset, named: tuple[str, str]) -> ToolFunction:
    result = [function for function in toolset.functions if function.tool.name == named[0]]
    assert result, f"the toolset has no function {named[0]!r}"
    return result[0]


async def _call(
    function: ToolFunction, case: ToolCheckCase, *, arguments: str | None = None
) -> ToolResult:
    """Call the tool function and return its result. Checks that the function yields nothing after
    the result. If the tool raises ``ToolError``, returns a failed result.

    ``arguments``: the arguments of the call; None means those of the successful call in ``case``.
    """
    assert function.handler is not None
    shell = function.initial_item
    known = KINDS[type(shell)].progress
    values = case.successful_call[1] if arguments is None else arguments
    results: list[ToolResult] = []
    try:
        async with aclosing(function.handler(values, _context(case))) as steps:
            async for step in steps:
                assert not results, "the call yielded something after its result"
                if isinstance(step, FollowUpItem):
                    assert shell is function.initial_item, "the call has more than one FollowUpItem"
                    msgspec.json.encode(msgspec.structs.replace(shell, **dict(step.fields)))
                    shell = step.item
                    known = KINDS[type(shell)].progress
                elif isinstance(step, ToolProgress):
                    assert step.name in known, f"{step.name!r} is not a progress step of the item"
                else:
                    results.append(step)
    except ToolError as error:
        return ToolResult(text=error.message, failed=True)
    assert len(results) == 1, "a call without a result"
    unknown = set(results[0].fields) - set(shell.__struct_fields__)
    assert not unknown, f"the item has no fields {unknown}"
    item = msgspec.structs.replace(shell, **dict(results[0].fields))
    msgspec.json.encode(item)
    results[0].text.encode()  # fails for half of a surrogate pair
    return (
        results[0]
        if shell is function.initial_item
        else msgspec.structs.replace(results[0], items=(item,))
    )


async def _check_cancellation(function: ToolFunction, case: ToolCheckCase, arguments: str) -> None:
    """Check that a call of the tool ends soon after it was cancelled."""
    assert function.handler is not None
    steps = function.handler(arguments, _context(case))

    async def drain() -> None:
        async with aclosing(steps):
            async for _ in steps:
                pass

    task = asyncio.create_task(drain())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done(), "hanging_call ended by itself"
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=10)
    assert done, "a cancelled call did not stop"


async def _check_parallel_use(
    provider: AnyToolProvider, case: ToolCheckCase, response: ResponseContext
) -> None:
    """Check that several tasks can open the provider at the same time. Check that a task with an
    open provider can be cancelled, and that the provider still works afterwards."""
    is_open = asyncio.Event()

    async def holds() -> None:
        async with _open(provider, case.tool, response):
            is_open.set()
            await asyncio.Event().wait()

    async def uses() -> None:
        async with _open(provider, case.tool, response) as toolset:
            function = _find_function(toolset, case.successful_call)
            assert function.handler is None or not (await _call(function, case)).failed

    held = asyncio.create_task(holds())
    await is_open.wait()
    await asyncio.gather(uses(), uses())
    held.cancel()
    await asyncio.wait([held])
    assert held.cancelled(), "the task with an open provider could not be cancelled"
    await uses()


def _context(case: ToolCheckCase) -> CallContext:
    return CallContext(
        tenant=case.tenant,
        response_id="resp_check",
        call_id="call_1",
        max_result_bytes=_MAX_RESULT_BYTES,
    )
