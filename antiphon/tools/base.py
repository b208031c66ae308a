"""The contract of server-side tools.

A ``ToolProvider`` implements one tool type of a request. For each response it offers functions
to the model; a ``ToolFunction`` says how the model sees the function, which item a call of it
becomes, and what runs the call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from antiphon.errors import ToolError
from antiphon.wire import tools as tl
from antiphon.wire.items import Item

from .citations import CitationFinder, CitationNotation

__all__ = [
    "ArgumentObserver",
    "CallContext",
    "CallHandler",
    "CallsTools",
    "ChecksAccess",
    "DeclaresFunctions",
    "FollowUpItem",
    "NestedCall",
    "PendingCall",
    "ReportsAvailability",
    "ResponseContext",
    "RunNestedCalls",
    "ToolFunction",
    "ToolProgress",
    "ToolProvider",
    "ToolResult",
    "Toolset",
]


class NestedCall(Struct, frozen=True):
    """A tool call that another call makes, such as that of a program."""

    function: ToolFunction
    arguments: str


#: Runs calls concurrently. Returns, for each call, its items in the output afterwards: the call's
#: item and, for kinds with a separate output item, the output. A call that the client has to run
#: has only the call's item. A call that may not be made has no items.
RunNestedCalls = Callable[[Sequence[NestedCall]], Awaitable[Sequence[tuple[Item, ...]]]]


async def _no_nested_calls(calls: Sequence[NestedCall]) -> Sequence[tuple[Item, ...]]:
    raise ToolError("Tools cannot be called from here.")


class CallContext(Struct, frozen=True, kw_only=True):
    """The facts about a call that its tool may use.

    ``caller``: the ``call_id`` of the call that made this one; None if the model made it. A caller
    that is a program sees the result only through the call's items. ``max_result_bytes``: the
    approximate space for the result in the model's context, in bytes of text; longer results are
    truncated with ``truncate_middle``. ``run_nested_calls``: makes calls on behalf of this one.
    """

    tenant: str
    response_id: str
    call_id: str
    max_result_bytes: int
    caller: str | None = None
    run_nested_calls: RunNestedCalls = _no_nested_calls


class ToolProgress(Struct, frozen=True):
    """A progress event of a running call.

    ``name`` is a step of the item's kind in ``KINDS``, ``fields`` are further fields of its
    event. The final ``completed`` and ``failed`` events follow from the result and are not sent
    this way."""

    name: str
    fields: Mapping[str, Any] = {}


class FollowUpItem(Struct, frozen=True):
    """Close the call's item with these ``fields`` and open ``item``, which holds the output.

    Later progress and the result's fields belong to ``item``. The model is shown ``item``
    instead of the result's text."""

    item: Item
    fields: Mapping[str, Any] = {}


class ToolResult(Struct, frozen=True, kw_only=True):
    """The result of a call. ``text`` is shown to the model; ``fields`` are set on the call's item.

    ``items`` follow the call in the output and are shown to the model instead of the text.
    ``usage`` is added to ``tool_usage`` of the response. ``awaits_client``: the client has to
    answer calls first, and a later response continues this call."""

    text: str = ""
    fields: Mapping[str, Any] = {}
    failed: bool = False
    items: tuple[Item, ...] = ()
    usage: Mapping[str, Any] = {}
    awaits_client: bool = False


#: Runs one call. Arguments: the call's arguments as the model wrote them (for a custom tool, its
#: input), and the context. Yields progress, at most one ``FollowUpItem`` where the output is a
#: separate item, and one result last. An exception fails the call: the model is shown the message
#: of a ``ToolError`` and no detail of any other. Closing the generator stops the work.
CallHandler = Callable[
    [str, CallContext], AsyncGenerator[ToolProgress | FollowUpItem | ToolResult, None]
]


class ArgumentObserver(Protocol):
    """Turns the arguments of one call into progress events while the model writes them."""

    def feed(self, text: str) -> Iterable[ToolProgress]:
        """Process the next piece of the arguments."""

    def finish(self, arguments: str) -> Iterable[ToolProgress]:
        """Process the end. ``arguments`` is the whole text: a call that no model wrote comes
        without ``feed``."""

    def abort(self) -> Iterable[ToolProgress]:
        """Close what is open; the arguments are incomplete and no more will come."""


class ToolFunction(Struct, frozen=True, kw_only=True):
    """A function that the model is shown, and how a call of it is run and shown to the client.

    ``initial_item``: the call's item as it opens. ``streams_text``: the arguments are streamed as
    the text of that item. ``argument_observer``: turns the arguments into progress events instead.
    ``handler``: runs a call; None: the client runs it. ``parse_fields``: computes the item's fields
    from the arguments, for calls that the client runs and for calls that fail. ``namespace``:
    separates functions of the same name.

    ``failed_output`` is set for kinds whose output is a separate item. The call's item is then
    closed with ``parse_fields`` as soon as it is written, and ``failed_output`` makes the output
    item of a failed call from its ``call_id`` and the reason.
    """

    tool: tl.Function | tl.Custom
    initial_item: Item
    handler: CallHandler | None = None
    parse_fields: Callable[[str], Mapping[str, Any]] = lambda arguments: {}
    argument_observer: Callable[[], ArgumentObserver] | None = None
    streams_text: bool = False
    #: The status of the item of a failed call.
    failed_status: str = "failed"
    namespace: str | None = None
    failed_output: Callable[[str, str], Item] | None = None


class PendingCall(Struct, frozen=True, kw_only=True):
    """A call that runs before the model is called.

    There are two kinds. If the client has approved the call, ``approval_request_id`` is the id of
    the approval request. If the call continues from an earlier response, it is in the conversation
    under its ``call_id``.
    """

    function: ToolFunction
    arguments: str
    approval_request_id: str | None = None
    call_id: str | None = None


class Toolset(Struct, frozen=True, kw_only=True):
    """The functions that a provider offers for one response.

    ``fields``: set on the leading item, if there is one. ``failed``: the leading item says why
    there are no functions. ``citation_notation``: the marks with which the model cites what it was
    shown. ``citation_finder``: finds citations by name in a finished message.
    """

    functions: tuple[ToolFunction, ...] = ()
    citation_notation: CitationNotation | None = None
    citation_finder: CitationFinder | None = None
    pending_calls: tuple[PendingCall, ...] = ()
    fields: Mapping[str, Any] = {}
    failed: bool = False


class ResponseContext(Struct, frozen=True, kw_only=True):
    """The response for which a tool is opened.

    ``items`` precede the response. ``interrupted_items`` are its own output so far, if it was
    interrupted. ``include`` is the request's ``include``. ``spent_approvals``: ids of approval
    requests whose call another response ran. ``conversation_id``: the id of the conversation, or of
    the first response of the chain, that the response continues; empty if it continues none."""

    tenant: str
    response_id: str
    items: tuple[Item, ...]
    interrupted_items: tuple[Item, ...] = ()
    spent_approvals: frozenset[str] = frozenset()
    include: frozenset[str] = frozenset()
    conversation_id: str = ""

    @property
    def all_items(self) -> tuple[Item, ...]:
        """The items that precede the response, and its own output so far."""
        return (*self.items, *self.interrupted_items)


class ToolProvider(Protocol):
    """The implementation of one tool type (``mcp``, ``web_search`` …); one per server."""

    def check(self, tool: Any, path: str) -> None:
        """Raise ``InvalidRequest``, with the path of the field, for what the provider cannot do."""

    def leading_item(self, tool: Any, response: ResponseContext) -> Item | None:
        """Return the item that comes first in the output while the tool is opened
        (``mcp_list_tools``), as it opens; None if there is none."""

    def open(self, tool: Any, response: ResponseContext) -> AbstractAsyncContextManager[Toolset]:
        """Offer the tool for as long as the response runs.

        One task enters and leaves the context, and it may be cancelled; resources that must be
        entered and left by the same task need a task of their own. Raises ``ToolError``: then
        the response continues without the tool. Raises ``ConnectorError``
        to end the response."""


@runtime_checkable
class DeclaresFunctions(Protocol):
    """A provider that can tell its functions before the tool is opened.

    The first prompt of a response is rendered with the declared functions. If ``open`` offers other
    functions, or the provider declares none, the prompt is rendered again."""

    async def declared_functions(
        self, tool: Any, response: ResponseContext
    ) -> Sequence[ToolFunction] | None:
        """Return the functions that ``open`` will offer, or None if only ``open`` can tell.

        Only ``tool``, ``namespace`` and the type of ``initial_item`` matter. Nothing is acquired.
        Raises ``RequestError``."""


@runtime_checkable
class CallsTools(Protocol):
    """A provider whose tool calls other tools."""

    def compose(
        self,
        functions: Sequence[ToolFunction],
        response: ResponseContext,
        approved: Mapping[str, PendingCall],
    ) -> Toolset:
        """Offer the tool, given the functions it can call. ``approved``: the calls it made that the
        client has approved, by the ids of their approval requests."""


@runtime_checkable
class ChecksAccess(Protocol):
    """A provider whose tool names objects of a tenant, or needs earlier items."""

    async def check_access(self, tool: Any, response: ResponseContext, path: str) -> None:
        """Raise ``RequestError`` for an object that does not exist or belongs to another tenant.
        Called before anything runs. ``path``: the tool's path in the request."""


@runtime_checkable
class ReportsAvailability(Protocol):
    """A provider that does not always work. Requests are answered as if it were missing then."""

    def unavailable_reason(self) -> str | None:
        """Return why the tool cannot be used now, and what to do; None if it can."""
