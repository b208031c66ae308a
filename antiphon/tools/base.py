"""The contract of a tool: what the model is shown, how a call of it looks on the wire, and who runs
it. It knows no model, no run and no HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from antiphon.errors import ToolError
from antiphon.wire import tools as tl
from antiphon.wire.items import Item

from .citations import Naming, Notation

__all__ = [
    "ArgumentObserver",
    "Ask",
    "Call",
    "CallContext",
    "CallsTools",
    "ChecksAccess",
    "FollowUpItem",
    "NestedCall",
    "PendingCall",
    "Provider",
    "ResponseContext",
    "Result",
    "Step",
    "ToolFunction",
    "Toolset",
]


class NestedCall(Struct, frozen=True):
    """A call that another call makes."""

    offer: ToolFunction
    arguments: str


#: Makes calls side by side. Of each, what is in the output afterwards: the call, and what came of
#: it if that is an item apart. One that the client has to run stands alone; one that may not be
#: made leaves nothing.
Ask = Callable[[Sequence[NestedCall]], Awaitable[Sequence[tuple[Item, ...]]]]


async def _nobody(wanted: Sequence[NestedCall]) -> Sequence[tuple[Item, ...]]:
    raise ToolError("Nothing can be called from here.")


class CallContext(Struct, frozen=True, kw_only=True):
    """For whom a tool works. ``room``: about how many bytes of text the model can still be told of
    this call (``trimmed``). ``caller``: the call that made this one; None: the model. All that such
    a caller is to know of it must be in its items. ``ask``: makes calls in the name of this one."""

    tenant: str
    response_id: str
    call_id: str
    room: int
    caller: str | None = None
    ask: Ask = _nobody


class Step(Struct, frozen=True):
    """The work has come to a step, by its name in the table of kinds. ``fields``: what its event
    tells besides. That it is ``completed``, or ``failed``, is told by its result."""

    name: str
    fields: Mapping[str, Any] = {}


class FollowUpItem(Struct, frozen=True):
    """The call's item is over, with these fields, and another one follows that tells the model in
    place of a text: steps and the result's fields are its own from now on."""

    item: Item
    fields: Mapping[str, Any] = {}


class Result(Struct, frozen=True, kw_only=True):
    """The work is done. ``text`` is what the model is told; ``fields`` are of the call's item.

    ``items`` follow the call in the output, and tell the model in place of the text. ``used``:
    what the call cost, as ``tool_usage`` of the response tells it. ``waiting``: the client has
    calls to answer first; another response goes on with it.
    """

    text: str = ""
    fields: Mapping[str, Any] = {}
    failed: bool = False
    items: tuple[Item, ...] = ()
    used: Mapping[str, Any] = {}
    waiting: bool = False


#: Runs one call: its arguments as the model wrote them (of a custom tool: its input), and for whom.
#: Yields steps, a ``Next`` if its output is an item of its own, and one result last. What it raises
#: is a failure: a ``ToolError`` with its message, anything else without. Closing the generator
#: stops the work.
Call = Callable[[str, CallContext], AsyncGenerator[Step | FollowUpItem | Result, None]]


class ArgumentObserver(Protocol):
    """Follows what the model writes of one call, and tells it in steps."""

    def feed(self, text: str) -> Iterable[Step]:
        """More of it."""

    def end(self, written: str) -> Iterable[Step]:
        """It is whole: all of it again, since not all that is called is written by a model."""

    def cut(self) -> Iterable[Step]:
        """It is not, and nothing more comes: what was begun is over."""


class ToolFunction(Struct, frozen=True, kw_only=True):
    """A function that the model is shown, and what becomes of a call of it.

    ``shell``: the call as it begins on the wire. ``streamed``: what the model writes is the text of
    that item; ``writing``: it is told in steps. ``call`` runs it; None: the client does. ``read``
    makes the item's fields of what the model wrote: of what the client runs, and of a call that
    failed. ``namespace`` tells functions of the same name apart. With ``apart`` what comes of a
    call is another item, and the call's own is over when it has been said, with what ``read`` makes
    of it; it gives the item of a call, by its id, that failed, and why.
    """

    tool: tl.Function | tl.Custom
    shell: Item
    call: Call | None = None
    read: Callable[[str], Mapping[str, Any]] = lambda arguments: {}
    writing: Callable[[], ArgumentObserver] | None = None
    streamed: bool = False
    #: The status of the item of a call that failed.
    failure: str = "failed"
    namespace: str | None = None
    apart: Callable[[str, str], Item] | None = None


class PendingCall(Struct, frozen=True, kw_only=True):
    """A call to be run before the model is asked: what a client has allowed, which the item
    ``request`` asked for, or one that stands in the conversation under this ``call_id`` and goes
    on."""

    offer: ToolFunction
    arguments: str
    request: str | None = None
    call_id: str | None = None


class Toolset(Struct, frozen=True, kw_only=True):
    """What a tool of a request came to. ``fields`` are those of its leading item, if it has one;
    ``failed``: the item says why there is nothing to offer. ``notation``: how the model cites
    what it was shown; ``naming``: what it cites by name."""

    offers: tuple[ToolFunction, ...] = ()
    notation: Notation | None = None
    naming: Naming | None = None
    first: tuple[PendingCall, ...] = ()
    fields: Mapping[str, Any] = {}
    failed: bool = False


class ResponseContext(Struct, frozen=True, kw_only=True):
    """For which response a tool is opened. ``items``: what came before; ``begun``: what the
    response had done when it was interrupted; ``include``: what the request wants to be told
    besides."""

    tenant: str
    response_id: str
    items: tuple[Item, ...]
    begun: tuple[Item, ...] = ()
    include: frozenset[str] = frozenset()


class Provider(Protocol):
    """Brings the tools of one type (``mcp``, ``web_search`` …) to responses. One a server; it knows
    what the operator set."""

    def check(self, tool: Any, path: str) -> None:
        """Raises ``InvalidRequest``, with the path of the field, for what it cannot do."""

    def lead(self, tool: Any, opening: ResponseContext) -> Item | None:
        """The item that stands first in the output while the tool is opened (``mcp_list_tools``),
        as it begins; None if there is none."""

    def open(self, tool: Any, opening: ResponseContext) -> AbstractAsyncContextManager[Toolset]:
        """What the request's tool comes to, for as long as its response is worked on. It is entered
        and left by one task, which may be cancelled; what needs a task of its own has one. Raises
        ``ToolError``: then the response goes on without it."""


@runtime_checkable
class CallsTools(Protocol):
    """A provider whose tool calls other tools."""

    def compose(
        self,
        offers: Sequence[ToolFunction],
        opening: ResponseContext,
        allowed: Mapping[str, PendingCall],
    ) -> Toolset:
        """What it offers, once it is known what it can call. ``allowed``: what calls of it asked
        for and the client has allowed, by the items that asked."""


@runtime_checkable
class ChecksAccess(Protocol):
    """A provider of tools that name what belongs to a tenant, or need something that came
    before."""

    async def admit(self, tool: Any, opening: ResponseContext, path: str) -> None:
        """Raises ``RequestError`` for what is none of the tenant's or is not there, before anything
        is run. ``path``: where the request has the tool."""
