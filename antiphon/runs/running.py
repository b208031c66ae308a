"""Runs the calls of a turn side by side, each within its bounds. What a tool raises becomes a
result that failed. It knows no model and no particular tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import ToolError
from antiphon.stream.deltas import Close, Delta, Open, Progress
from antiphon.stream.kinds import KINDS
from antiphon.tools.base import Context, Next, Result
from antiphon.wire import items as it

from .turn import Called

__all__ = ["Bounds", "Place", "error_fields", "room", "run_all"]

_log = structlog.get_logger(__name__)

#: Bytes a token stands for, at least: what is told of tools must fit the context.
_BYTES = 2
_USUAL_SIZE = 32_768
_LEAST_TOLD = 500
#: Of JSON-RPC.
_INTERNAL_ERROR = -32603


class Bounds(Struct, frozen=True, kw_only=True):
    """Of one response: ``turns``; ``calls`` of tools that run here, None: any number; ``seconds``
    in which it may call tools, None: any number. ``at_end``: what it does that has reached one of
    these: answer with what it has, or end ``incomplete``. ``side_by_side``: calls that run at a
    time. ``call_s``: seconds one may take."""

    turns: int = 32
    calls: int | None = None
    seconds: float | None = None
    side_by_side: int = 8
    call_s: float = 300.0
    at_end: Literal["answer", "incomplete"] = "answer"


class Place(Struct, frozen=True, kw_only=True):
    """For which response calls run, how many bytes the model can still be told of each, how many
    run at a time, and how many seconds each may take."""

    tenant: str
    response_id: str
    room: int
    side_by_side: int
    call_s: float


_News = asyncio.Queue[Delta | None]


async def run_all(calls: Sequence[Called], place: Place) -> AsyncGenerator[Delta, None]:
    """Run them; what they do, as it happens. Closing this stops them."""
    news: _News = asyncio.Queue()
    places = asyncio.Semaphore(place.side_by_side)
    tasks = [asyncio.create_task(_run(call, place, news, places)) for call in calls]
    try:
        left = len(tasks)
        while left:
            delta = await news.get()
            if delta is None:
                left -= 1
            else:
                yield delta
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(call: Called, place: Place, news: _News, places: asyncio.Semaphore) -> None:
    try:
        async with places:
            result = call.result = await _result(call, place, news)
        following = call.following
        if result.failed and "failed" in KINDS[type(following or call.offer.shell)].progress:
            news.put_nowait(Progress("failed", call.key))
        if result.failed and not result.fields:
            fields = error_fields(following or call.offer.shell, result.text)
            result = replace(result, fields=fields)
        failure = call.offer.failure if following is None else "incomplete"
        status = failure if result.failed else "completed"
        news.put_nowait(Close(result.fields, call.key, status, result.used))
        if following is not None and not result.failed:
            call.result = replace(result, items=(replace(following, **result.fields),))
        for item in result.items:
            news.put_nowait(Open(item))
            news.put_nowait(Close())
    finally:
        news.put_nowait(None)


async def _result(call: Called, place: Place, news: _News) -> Result:
    run = call.offer.call
    assert run is not None
    context = Context(
        tenant=place.tenant,
        response_id=place.response_id,
        call_id=call.call_id,
        room=place.room,
    )
    try:
        async with (
            asyncio.timeout(place.call_s),
            aclosing(run(call.arguments, context)) as steps,
        ):
            async for step in steps:
                if isinstance(step, Result):
                    return step
                if isinstance(step, Next):
                    news.put_nowait(Close(step.fields, call.key))
                    news.put_nowait(Open(step.item, call.follow(step.item)))
                elif step.name != "failed":  # as every failure is, once
                    news.put_nowait(Progress(step.name, call.key, step.fields))
    except TimeoutError:
        return Result(text="The tool took too long and was stopped.", failed=True)
    except ToolError as error:
        return Result(text=error.message, failed=True)
    except Exception:
        _log.exception("a tool failed", response=place.response_id, tool=call.offer.tool.name)
        return Result(text="The tool failed.", failed=True)
    return Result(text="The tool gave no result.", failed=True)


def error_fields(item: it.Item, why: str) -> Mapping[str, Any]:
    """How an item tells why it failed, if it can."""
    if isinstance(item, it.McpCall):
        return {"error": {"type": "mcp_protocol_error", "code": _INTERNAL_ERROR, "message": why}}
    if isinstance(item, it.ImageGenerationCall):
        code = "image_generation_failed"
        return {"error": {"type": "server_error", "code": code, "message": why, "param": None}}
    if isinstance(item, it.ShellCallOutput):
        outcome = {"type": "exit", "exit_code": 1}
        return {"output": ({"stdout": "", "stderr": why, "outcome": outcome},)}
    return {"error": why} if isinstance(item, it.McpListTools) else {}


def room(context_size: int | None, used: int) -> int:
    """Bytes the model can still be told, of which the calls of a turn may use half. ``used``:
    tokens."""
    left = (context_size or _USUAL_SIZE) - used
    return max(_LEAST_TOLD, left * _BYTES // 2)
