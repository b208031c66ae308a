"""The contract of a tool: what the model is shown, how a call of it looks on the wire, and who runs
it. It knows no model, no run and no HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from antiphon.wire import tools as tl
from antiphon.wire.items import Item

__all__ = ["Call", "Context", "Offer", "Result", "Step", "Toolset"]


class Context(Struct, frozen=True, kw_only=True):
    """For whom a tool works. ``room``: about how many characters the model can still be told."""

    tenant: str
    response_id: str
    call_id: str
    room: int


class Step(Struct, frozen=True):
    """The work has come to a step, by its name in the table of kinds. ``fields``: what its event
    tells besides."""

    name: str
    fields: Mapping[str, Any] = {}


class Result(Struct, frozen=True, kw_only=True):
    """The work is done. ``text`` is what the model is told; ``fields`` are of the call's item.

    ``items`` follow the call in the output, and tell the model in place of the text.
    """

    text: str = ""
    fields: Mapping[str, Any] = {}
    failed: bool = False
    items: tuple[Item, ...] = ()


#: Runs one call: its arguments as the model wrote them (of a custom tool: its input), and for whom.
#: Yields steps, and one result last. What it raises is a failure: a ``ToolError`` with its message,
#: anything else without. Closing the generator stops the work.
Call = Callable[[str, Context], AsyncGenerator[Step | Result, None]]


class Offer(Struct, frozen=True, kw_only=True):
    """A function that the model is shown, and what becomes of a call of it.

    ``shell``: the call as it begins on the wire. ``streamed``: what the model writes is the text of
    that item. ``call`` runs it; None: the client does, and ``read`` makes the item's fields of what
    the model wrote. ``namespace`` tells functions of the same name apart.
    """

    tool: tl.Function | tl.Custom
    shell: Item
    call: Call | None = None
    read: Callable[[str], Mapping[str, Any]] = lambda arguments: {}
    streamed: bool = False
    #: The status of the item of a call that failed.
    failure: str = "failed"
    namespace: str | None = None


class Toolset(Protocol):
    """The tools of one response. Opened before it begins, and closed by the task that opened it."""

    @property
    def offers(self) -> tuple[Offer, ...]: ...

    @property
    def lead(self) -> tuple[Item, ...]:
        """Items that come first in the output."""

    async def close(self) -> None: ...
