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
    """A tool call that another tool call makes. An example is a program that calls a tool."""

    function: ToolFunction
    arguments: str


#: Runs calls concurrently. Returns, for each call, its items in the output afterwards: the call's
#: item and, for kinds with a separate output item, the output. A call that the client has to run
#: has only the call's item. A call that may not be made has no items.
RunNestedCalls = Callable[[Sequence[NestedCall]], Awaitable[Sequence[tuple[Item, ...]]]]


async def _no_nested_calls(calls: Sequence[NestedCall]) -> Sequence[tuple[Item, ...]]:
    raise ToolError("Tools cannot be called from here.")


class CallContext(Struct, frozen=True, kw_only=True):
    """The context of a running tool call.

    - ``caller``: ``call_id`` of the call that made this one; None if the model made it. A calling
      tool reads the result only from the items of this call.
    - ``max_result_bytes``: approximate space, in bytes of text, that the context of the model has
      left for the result. Longer results are truncated with ``truncate_middle``.
    - ``run_nested_calls``: runs tool calls on behalf of this call.
    """

    tenant: str
    response_id: str
    call_id: str
    max_result_bytes: int
    caller: str | None = None
    run_nested_calls: RunNestedCalls = _no_nested_calls


class ToolProgress(Struct, frozen=True):
    """A progress event of a running call.

    ``name``: a step of the item's kind in ``KINDS``. ``fields``: further fields of its event.
    Handlers do not yield the final ``completed`` and ``failed`` events: these follow from the
    result.
    """

    name: str
    fields: Mapping[str, Any] = {}


class FollowUpItem(Struct, frozen=True):
    """Close the item of the call with these ``fields``, and open ``item``, which will hold the
    output.

    Later progress events and the fields of the result apply to ``item``. The model is shown
    ``item`` instead of the text of the result.
    """

    item: Item
    fields: Mapping[str, Any] = {}


class ToolResult(Struct, frozen=True, kw_only=True):
    """The result of a call.

    - ``text``: what the model is shown.
    - ``fields``: set on the item of the call.
    - ``items``: output items that follow the call. The model is shown them instead of the text.
    - ``usage``: added to ``tool_usage`` of the response.
    - ``awaits_client``: the client has to answer nested calls first. A later response continues
      this call.
    """

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
        """Process the end of the arguments. ``arguments`` is the whole text. ``feed`` is not called
        for a call that no model wrote."""

    def abort(self) -> Iterable[ToolProgress]:
        """Close whatever is open: the arguments are incomplete, and no more will come."""


class ToolFunction(Struct, frozen=True, kw_only=True):
    """A function that the model is shown, and the way its calls are run and shown to the client.

    - ``initial_item``: the item of a call when it opens.
    - ``streams_text``: the arguments are streamed as the text of that item.
    - ``argument_observer``: turns the arguments into progress events.
    - ``handler``: runs a call; None: the client runs it.
    - ``parse_fields``: computes fields of the item from the arguments, for calls that the client
      runs and for calls that fail.
    - ``namespace``: distinguishes functions with the same name.
    - ``failed_output``: only for kinds of calls whose output is a separate item. Makes the output
      item of a failed call from its ``call_id`` and the reason. For such kinds, the item of the
      call is closed with ``parse_fields`` as soon as the model has written it.
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
    """A call from earlier items, to run before the model is called.

    There are two cases. If the client has approved the call, ``approval_request_id`` is the id of
    the approval request. If the call itself is in the conversation and continues now, ``call_id``
    is its id.
    """

    function: ToolFunction
    arguments: str
    approval_request_id: str | None = None
    call_id: str | None = None


class Toolset(Struct, frozen=True, kw_only=True):
    """The functions that a provider offers for one response.

    - ``fields``: set on the leading item, if there is one.
    - ``failed``: no functions could be listed; the leading item contains the reason.
    - ``citation_notation``: the citation marks that the model writes for this tool.
    - ``citation_finder``: finds citations by name in a finished message.
    """

    functions: tuple[ToolFunction, ...] = ()
    citation_notation: CitationNotation | None = None
    citation_finder: CitationFinder | None = None
    pending_calls: tuple[PendingCall, ...] = ()
    fields: Mapping[str, Any] = {}
    failed: bool = False


class ResponseContext(Struct, frozen=True, kw_only=True):
    """The response for which a tool is opened.

    - ``items``: the items before the response.
    - ``interrupted_items``: the output of this response so far, if it was interrupted.
    - ``include``: the field ``include`` of the request.
    - ``spent_approvals``: ids of approval requests whose call has been run by another response.
    - ``conversation_id``: id of the conversation that the response continues, or of the first
      response of its chain; empty if it continues none.
    """

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
        """Raise ``InvalidRequest``, with the path of the field, for a field or value that the
        provider does not support."""

    def leading_item(self, tool: Any, response: ResponseContext) -> Item | None:
        """Return the item that precedes all other output while the tool is being opened
        (``mcp_list_tools``), in its initial state. Return None if the tool has no such item."""

    def open(self, tool: Any, response: ResponseContext) -> AbstractAsyncContextManager[Toolset]:
        """Offer the tool for as long as the response runs.

        The same task enters and exits the context, and this task may be cancelled. Resources that
        must be entered and exited by one task therefore need a task of their own. Raises
        ``ToolError`` to continue the response without the tool, and ``ConnectorError`` to end the
        response.
        """


@runtime_checkable
class DeclaresFunctions(Protocol):
    """A provider that can name its functions before the tool is opened.

    The first prompt of a response is rendered with the declared functions. If ``open`` offers
    different functions, or the provider declares none, the prompt is rendered again.
    """

    async def declared_functions(
        self, tool: Any, response: ResponseContext
    ) -> Sequence[ToolFunction] | None:
        """Return the functions that ``open`` will offer, or None if they are not known before
        ``open``.

        Only ``tool``, ``namespace`` and the type of ``initial_item`` are used. This method acquires
        no resources. Raises ``RequestError``.
        """


@runtime_checkable
class CallsTools(Protocol):
    """A provider whose tool calls other tools."""

    def compose(
        self,
        functions: Sequence[ToolFunction],
        response: ResponseContext,
        approved: Mapping[str, PendingCall],
    ) -> Toolset:
        """Offer the tool, given the functions that it can call. ``approved``: its nested calls that
        the client has approved, by the id of the approval request."""


@runtime_checkable
class ChecksAccess(Protocol):
    """A provider whose tool refers to objects of a tenant, or requires certain earlier items."""

    async def check_access(self, tool: Any, response: ResponseContext, path: str) -> None:
        """Raise ``RequestError`` for an object that does not exist or belongs to another tenant.
        Called before anything runs. ``path``: the tool's path in the request."""


@runtime_checkable
class ReportsAvailability(Protocol):
    """A provider that may be unavailable. While it is, the server answers requests as if the
    provider did not exist."""

    def unavailable_reason(self) -> str | None:
        """Return the reason why the tool cannot be used now, and the remedy. Return None if it can
        be used."""
