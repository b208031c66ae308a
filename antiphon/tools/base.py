"""The interface of server-side tools.

A ``ToolProvider`` implements one tool type of a request. For each response, it offers functions to
the model. Each function is a ``ToolFunction``. A ``ToolFunction`` holds the function's declaration
for the model, the output item with which a call begins, and the handler that runs a call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from antiphon.errors import ToolError
from antiphon.wire import tools as tl
from antiphon.wire.items import Item

from .citations import CitationFinder, CitationNotation

__all__ = [
    "AnyToolProvider",
    "ArgumentObserver",
    "CallContext",
    "CallHandler",
    "FollowUpItem",
    "NestedCall",
    "PendingCall",
    "ResponseContext",
    "RunNestedCalls",
    "ToolCaller",
    "ToolFunction",
    "ToolProgress",
    "ToolProvider",
    "ToolResult",
    "Toolset",
]


#: The class of the tool that a provider implements.
ToolT = TypeVar("ToolT", contravariant=True)


class NestedCall(Struct, frozen=True):
    """A tool call that another tool call makes. For example, a program (JavaScript code of the
    model) calls a tool."""

    function: ToolFunction
    arguments: str


#: Runs nested calls concurrently. Returns, for each call, the items that the call left in the
#: output of the response: the item of the call and, for kinds of calls with a separate output item,
#: that output item. For a call that the client has to run, only the item of the call is returned.
#: For a call that is not allowed, no items are returned.
RunNestedCalls = Callable[[Sequence[NestedCall]], Awaitable[Sequence[tuple[Item, ...]]]]


async def _no_nested_calls(calls: Sequence[NestedCall]) -> Sequence[tuple[Item, ...]]:
    raise ToolError("Tools cannot be called from here.")


async def _never() -> bool:
    return False


async def _no_note(note: bytes) -> bool:
    """Keep no note: nobody can take the call over."""
    return False


class CallContext(Struct, frozen=True, kw_only=True):
    """The context of a running tool call.

    - ``idempotency_key``: identifies the call. If the call runs again after an interruption, the
      key is the same.
    - ``caller``: ``call_id`` of the tool call that made this call. It is None if the model made
      this call. If it is set, the handler must put the result into the items of this call, because
      the calling tool sees only these items.
    - ``max_result_bytes``: approximate space, in bytes of text, that the model's context window has
      left for the result. Longer results are truncated with ``truncate_middle``.
    - ``run_nested_calls``: a function that runs tool calls on behalf of this call.
    - ``trace``: W3C trace context of the call.
    - ``keep_note``: stores a note of the call durably, such as the id of a task that another server
      now works on. If the call is interrupted, it runs again, and finds this note in ``note``.
      Returns False if nobody would run the call again.
    - ``has_ended``: returns whether the response has ended, so that nobody runs the call again.
    """

    tenant: str
    response_id: str
    call_id: str
    max_result_bytes: int
    idempotency_key: str = ""
    caller: str | None = None
    run_nested_calls: RunNestedCalls = _no_nested_calls
    trace: Mapping[str, str] = {}
    note: bytes = b""
    keep_note: Callable[[bytes], Awaitable[bool]] = _no_note
    has_ended: Callable[[], Awaitable[bool]] = _never


class ToolProgress(Struct, frozen=True):
    """A progress event of a running tool call.

    - ``name``: the name of the event, for example ``searching``. See ``ItemKind.progress``.
    - ``fields``: further fields of the event.

    Handlers do not yield the first event, ``in_progress``, and the final event, ``completed`` or
    ``failed``. The run sends the first when the call begins, and the final one when the handler
    returns its result.
    """

    name: str
    fields: Mapping[str, Any] = {}


class FollowUpItem(Struct, frozen=True):
    """The handler of a call yields this object to put the output of the call into a separate item.
    The item of the call gets the fields in ``fields`` and is closed. Then ``item`` is opened.

    If the handler yields more ``ToolProgress`` objects, their events belong to ``item``. The fields
    of the handler's ``ToolResult`` are set on ``item``. The model is shown ``item`` instead of the
    text of the ``ToolResult``.
    """

    item: Item
    fields: Mapping[str, Any] = {}


class ToolResult(Struct, frozen=True, kw_only=True):
    """The result of a tool call.

    - ``text``: the result as the model sees it.
    - ``fields``: fields to set on the output item of the call.
    - ``failed``: whether the call failed.
    - ``has_run``: False if the tool has certainly not run, so an approval of the call stays good.
    - ``items``: output items that follow the call. The model sees these items instead of ``text``.
    - ``usage``: added to ``tool_usage`` of the response.
    - ``awaits_client``: whether the client has to answer nested calls first. A later response then
      continues this call.
    """

    text: str = ""
    fields: Mapping[str, Any] = {}
    failed: bool = False
    has_run: bool = True
    items: tuple[Item, ...] = ()
    usage: Mapping[str, Any] = {}
    awaits_client: bool = False


#: Runs one call. Parameters: the call's arguments as the model wrote them (for a custom tool, the
#: call's input), and the context. Yields progress events, at most one ``FollowUpItem`` if the
#: output is a separate item, and the result last. An exception makes the call fail. The model sees
#: the message of a ``ToolError``, but no details of other exceptions. Closing the generator stops
#: the call.
CallHandler = Callable[
    [str, CallContext], AsyncGenerator[ToolProgress | FollowUpItem | ToolResult, None]
]


class ArgumentObserver(Protocol):
    """Turns the arguments of one call into progress events while the model writes them."""

    def feed(self, text: str) -> Iterable[ToolProgress]:
        """Process the next piece of the arguments."""

    def finish(self, arguments: str) -> Iterable[ToolProgress]:
        """Process the end of the arguments. ``arguments`` is the whole text. If the model did not
        write the call (for example, a program made it), ``feed`` is not called before."""

    def abort(self) -> Iterable[ToolProgress]:
        """Called if the model stopped in the middle of the arguments. Return the events that end
        unfinished parts. For example, if an event has begun a shell command, return the event that
        ends this command."""


class ToolFunction(Struct, frozen=True, kw_only=True):
    """A function that the model can call. It also defines how its calls run and how they appear in
    the output.

    - ``initial_item``: the output item with which a call begins. Later, the item gets more fields.
    - ``streams_text``: whether the arguments are streamed as the text of that item.
    - ``argument_observer``: makes the observer that turns the arguments into progress events.
    - ``handler``: runs a call. If it is None, the client runs the call.
    - ``parse_fields``: computes fields of the item from the arguments. It is used for calls that
      the client runs and for calls that fail.
    - ``effects``: what a call changes outside of the response. ``none``: it only reads, so it may
      run early and again. ``idempotent``: it may run again with the same idempotency key. ``any``:
      it must not run twice.
    - ``server``: identifies who runs the call, for the client's approval of it.
    - ``namespace``: distinguishes functions with the same name.
    - ``deferred``: the model sees the function only after ``tool_search`` has found it.
    - ``reads_images``: whether the function reads the images of the conversation. If so, a model
      that reads only text can pass them on.
    - ``failed_output``: makes the output item of a failed call, from the ``call_id`` and the reason
      for the failure. It is set only if the output of a call is a separate item. In this case, the
      item of the call is closed as soon as the model has written the call. The closed item has the
      fields that ``parse_fields`` returns.
    """

    tool: tl.Function | tl.Custom
    initial_item: Item
    handler: CallHandler | None = None
    parse_fields: Callable[[str], Mapping[str, Any]] = lambda arguments: {}
    argument_observer: Callable[[], ArgumentObserver] | None = None
    streams_text: bool = False
    effects: Literal["none", "idempotent", "any"] = "any"
    server: str = ""
    #: The status of the item of a failed call.
    failed_status: str = "failed"
    namespace: str | None = None
    deferred: bool = False
    failed_output: Callable[[str, str], Item] | None = None
    reads_images: bool = False


class PendingCall(Struct, frozen=True, kw_only=True):
    """A tool call in the conversation that has to run before the model is called.

    There are two cases. If the client has approved the call, ``approval_request_id`` is the id of
    the approval request. If the call has begun in an earlier response and continues now,
    ``call_id`` is the id of the call.
    """

    function: ToolFunction
    arguments: str
    approval_request_id: str | None = None
    call_id: str | None = None


class Toolset(Struct, frozen=True, kw_only=True):
    """The functions that a provider offers for one response.

    - ``citation_notation``: the form of the citation marks, such as ``【f3】``, that the model
      writes for this tool.
    - ``citation_finder``: finds the places where a finished message mentions files by name.
    - ``pending_calls``: calls that have to run before the model is called.
    - ``fields``: fields to set on the leading item (see ``ToolProvider.leading_item``), if the tool
      has one.
    - ``failed``: whether the provider could not list the functions. The leading item then contains
      the reason.
    """

    functions: tuple[ToolFunction, ...] = ()
    citation_notation: CitationNotation | None = None
    citation_finder: CitationFinder | None = None
    pending_calls: tuple[PendingCall, ...] = ()
    fields: Mapping[str, Any] = {}
    failed: bool = False


class ResponseContext(Struct, frozen=True, kw_only=True):
    """What a tool provider needs to know about the response in which its tool is used.

    - ``items``: the items of the conversation before the output of the response. They include the
      input of the request.
    - ``api_key``: the name of the API key of the request; None if it had no key.
    - ``interrupted_items``: the output so far, if this response was interrupted and now continues.
    - ``include``: the field ``include`` of the request.
    - ``spent_approvals``: ids of approval requests whose call another response has already run.
    - ``conversation_id``: id of the conversation that the response continues. If the request has
      ``previous_response_id`` instead of ``conversation``, ``conversation_id`` is the id of the
      first response in the chain of earlier responses. If the response continues nothing,
      ``conversation_id`` is empty.
    - ``trace``: W3C trace context of the response.
    """

    tenant: str
    response_id: str
    items: tuple[Item, ...]
    api_key: str | None = None
    interrupted_items: tuple[Item, ...] = ()
    spent_approvals: frozenset[str] = frozenset()
    include: frozenset[str] = frozenset()
    conversation_id: str = ""
    trace: Mapping[str, str] = {}

    @property
    def all_items(self) -> tuple[Item, ...]:
        """The items of the conversation before the output of this response, and the output so
        far."""
        return (*self.items, *self.interrupted_items)


class ToolProvider(Protocol[ToolT]):
    """The implementation of one tool type (``mcp``, ``web_search`` …). A server has one object per
    tool type. The type parameter is the class of the tool, such as ``tl.Mcp``. An implementation
    inherits from this class, and overrides ``open`` and what its tool needs besides."""

    def unavailable_reason(self) -> str | None:
        """Return the reason why the tool cannot be used now, and what to do about it. Return None
        if the tool can be used. As long as it cannot, Antiphon answers requests as if the provider
        did not exist."""
        return None

    def check(self, tool: ToolT, path: str) -> None:
        """Raise ``InvalidRequest`` if ``tool`` has a field or a value that the provider does not
        support. The error names the path of the field. ``path``: the tool's path in the request."""
        return

    async def check_access(self, tool: ToolT, response: ResponseContext, path: str) -> None:
        """Check, before the response starts, whether the tenant may use the objects to which the
        tool refers. It may also check the items of the conversation. For example, an image edit
        needs an earlier image. ``path``: the tool's path in the request.

        Raises ``RequestError`` in two cases:

        - The tool refers to an object that does not exist or belongs to another tenant.
        - The conversation lacks an item that the tool needs.
        """
        return

    def leading_item(self, tool: ToolT, response: ResponseContext) -> Item | None:
        """Return the item with which the output begins, for example ``mcp_list_tools``. Return None
        if the tool has no such item.

        The returned item is in its initial state. When ``open`` has provided the ``Toolset``, the
        caller emits the item and completes it with the values in ``Toolset.fields``.
        """
        return None

    async def declared_functions(
        self, tool: ToolT, response: ResponseContext
    ) -> Sequence[ToolFunction] | None:
        """Return the functions that ``open`` will offer. Return None if they are not known before
        ``open``. The first prompt of a response is rendered with the declared functions. The prompt
        is rendered again if the functions that ``open`` yields are different.

        Of each function, the caller uses only ``tool``, ``namespace`` and the type of
        ``initial_item``. This method acquires no resources. Raises ``RequestError``.
        """
        return None

    def open(self, tool: ToolT, response: ResponseContext) -> AbstractAsyncContextManager[Toolset]:
        """Return a context manager that offers the tool for as long as the response runs.

        The same task enters and exits the context, and this task may be cancelled. A resource that
        must outlive this task, such as an MCP session, is opened and closed in a task of its own.

        Raises ``ToolError`` to continue the response without the tool, and ``ConnectorError`` to
        end the response.
        """


#: A provider whose type of tool is known only at runtime, such as an entry of a registry.
AnyToolProvider = ToolProvider[Any]


@runtime_checkable
class ToolCaller(Protocol):
    """A provider whose tool can call the functions of other tools."""

    def compose(
        self,
        functions: Sequence[ToolFunction],
        response: ResponseContext,
        approved: Mapping[str, PendingCall],
    ) -> Toolset:
        """Return the toolset of this tool. ``functions``: the functions that the tool can call.
        ``approved``: id of an approval request → the nested call that the client has approved."""
