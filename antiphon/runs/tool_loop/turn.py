"""One turn of the tool loop. It separates the calls of server-side tools from the model's other
output.

A turn reads the deltas of the model and returns the deltas to emit. The model writes a call of a
server-side tool as a function call. In the returned deltas, the call is an item of the tool's own
type, such as ``web_search_call``. No tool runs here.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.inference.conversation import PromptTokens, ToolName
from antiphon.stream.deltas import (
    Channel,
    Close,
    Delta,
    Finish,
    Open,
    Progress,
    SampledTokens,
    Text,
)
from antiphon.stream.kinds import KINDS, output_type, with_whole_text
from antiphon.support.text import truncate_middle
from antiphon.tools.base import (
    ArgumentObserver,
    CallContext,
    FollowUpItem,
    PendingCall,
    ToolFunction,
    ToolProgress,
    ToolResult,
)
from antiphon.tools.citations import CitationReader
from antiphon.wire import items as it
from antiphon.wire import tools as tl

from .journal import CallIntent

#: Calls that the client runs, unless they belong to a server-side tool. They end the response.
_CLIENT_CALLS = (it.FunctionCall, it.CustomToolCall)


class ToolCall:
    """A call of a function of a server-side tool.

    - ``model_item``: the call as the model sees it, without arguments.
    - ``is_ignored``: whether the call is neither run nor shown to the client.
    - ``rejection``: the text that tells the model why an ignored call is not run. If an ignored
      call has no rejection, it was ignored because the limit of calls was reached.
    - ``item_id``: the id of the call's item, by which the journal and the tool know the call. An
      ignored call has no item.
    - ``caller``: who made the call (the model or a program), for the item types that show the
      caller. The model does not see calls that a program made.
    """

    def __init__(
        self,
        function: ToolFunction,
        model_item: it.Item,
        call_id: str,
        *,
        item_id: str = "",
        is_ignored: bool = False,
        rejection: str = "",
        caller: it.Caller | None = None,
    ) -> None:
        self.function = function
        #: The key of the item to which the next deltas of the call belong.
        self.key = self.call_id = call_id
        self.item_id = item_id
        self.is_ignored = is_ignored
        self.caller = caller
        #: Whether the conversation already contains the call.
        self.is_in_conversation = False
        #: Whether the arguments are complete.
        self.is_complete = False
        #: Whether the call runs again after an interruption.
        self.is_repeated = False
        #: The note that the tool keeps of the call (``CallContext.keep_note``).
        self.note = b""
        self.is_rejected = bool(rejection)
        self.result: ToolResult | None = (
            ToolResult(text=rejection, failed=True) if rejection else None
        )
        #: Whether the call's item stays open until the next prompt is prepared, although the call
        #: has its result.
        self.is_held = False
        #: The separate item that contains the output.
        self.follow_up: it.Item | None = None
        #: The fields with which the call's item was closed before the follow-up item was opened.
        self._closed_fields: Mapping[str, Any] = {}
        self._observer = (
            function.argument_observer() if function.argument_observer is not None else None
        )
        self._model_item = model_item
        self._text: list[str] = []

    @classmethod
    def create(
        cls,
        function: ToolFunction,
        arguments: str,
        call_id: str,
        *,
        item_id: str,
        caller: it.Caller | None = None,
    ) -> ToolCall:
        """Create a call that the model does not write in this turn: a call that the client has
        approved, a call that a program makes, or a call that runs again."""
        tool = function.tool
        namespace = function.namespace or UNSET
        model_item: it.Item = (
            it.CustomToolCall(call_id=call_id, name=tool.name, input="", namespace=namespace)
            if isinstance(tool, tl.Custom)
            else it.FunctionCall(call_id=call_id, name=tool.name, arguments="", namespace=namespace)
        )
        call = cls(function, model_item, call_id, item_id=item_id, caller=caller)
        call.add_text(arguments)
        return call

    @classmethod
    def from_pending(cls, pending: PendingCall, ids: Callable[[str], str]) -> ToolCall:
        """Create the ``ToolCall`` for a pending call. A pending call has to run before the model is
        called. For example, an MCP call is pending when the client has approved it. ``ids``:
        returns a new id with a prefix."""
        function = pending.function
        call = cls.create(
            function,
            pending.arguments,
            pending.call_id or ids("call"),
            item_id=new_item_id(function, ids),
        )
        call.is_in_conversation = pending.call_id is not None
        return call

    @classmethod
    def resume(
        cls,
        function: ToolFunction,
        intent: CallIntent,
        open_item: it.Item,
        item_id: str,
        note: bytes,
    ) -> ToolCall:
        """Create a call that runs again, because it was interrupted. ``intent``: what it does.
        ``open_item``: the call's item, or the item of its output, if this is a separate item.
        ``item_id``: the id of the call's item. ``note``: what the tool has noted."""
        caller = open_item.caller
        call = cls.create(
            function,
            intent.arguments,
            intent.call_id,
            item_id=item_id,
            caller=None if caller is UNSET else caller,
        )
        call.key = open_item.id
        call.is_repeated = True
        call.note = note
        if open_item.id != item_id:
            call.follow_up = open_item
            call.is_in_conversation = True
        return call

    # --- deltas ----------------------------------------------------------------------------------

    def all_deltas(self) -> tuple[Delta, ...]:
        """Return the deltas of the call up to the end of its arguments. If the conversation already
        contains the call, return no deltas."""
        if self.is_in_conversation:
            return ()
        text = (Text(self.arguments),) if self.function.streams_text and self.arguments else ()
        return (*self.open_deltas(), *text, *self.close_deltas())

    def open_deltas(self) -> tuple[Delta, ...]:
        """Return the deltas that open the call's item and report that it is in progress."""
        item = self.opening_item
        has_step = "in_progress" in KINDS[type(item)].progress
        progress = (Progress("in_progress", self.key),) if has_step else ()
        return (Open(item, self.key), *progress)

    def close_deltas(self) -> tuple[Delta, ...]:
        """Return the deltas that end the arguments.

        If the call runs on this server and its item will contain the output, the item stays open.
        In all other cases, the deltas also close the item.
        """
        function = self.function
        self.is_complete = True
        progress = self.argument_progress(lambda observer: observer.finish(self.arguments))
        if function.handler is not None and function.failed_output is None:
            return (*progress, Close())
        return (*progress, Close(function.parse_fields(self.arguments), self.key))

    def argument_progress(
        self, observe: Callable[[ArgumentObserver], Iterable[ToolProgress]]
    ) -> tuple[Delta, ...]:
        """Return the progress events for the arguments. There are none if the call is ignored
        or has no ``ArgumentObserver``.

        ``observe``: a function that is called with the call's ``ArgumentObserver``. The function
        calls one method of the observer, such as ``feed``, and returns the method's result.
        """
        if self._observer is None or self.is_ignored:
            return ()
        return tuple(Progress(step.name, self.key, step.fields) for step in observe(self._observer))

    def end_deltas(self) -> tuple[Delta, ...]:
        """Return the deltas that end the call. They set the result in the item of the call, or in
        its follow-up item, and close this item."""
        result = self.result
        assert result is not None
        step = "failed" if result.failed else "completed"
        has_step = step in KINDS[type(self.follow_up or self.function.initial_item)].progress
        progress = (Progress(step, self.key),) if has_step else ()
        return (*progress, Close(result.fields, self.key, self.status, result.usage))

    def truncate_result(self, max_bytes: int) -> ToolResult:
        """Truncate the text of the call's result to ``max_bytes``. If a field of the call's output
        item is set to the same text, truncate this field too. Return the new result."""
        assert self.result is not None
        text = truncate_middle(self.result.text, max_bytes)
        fields = {
            name: text if value == self.result.text else value
            for name, value in self.result.fields.items()
        }
        self.result = replace(self.result, text=text, fields=fields)
        return self.result

    def start_follow_up(self, step: FollowUpItem) -> tuple[Delta, ...]:
        """Close the call's item, and open the follow-up item, which contains the output of the
        call. Later deltas of the call belong to this item. Returns these deltas."""
        if self.follow_up is not None:  # the call runs again
            return ()
        closing = Close(step.fields, self.key)
        self._closed_fields = step.fields
        self.follow_up, self.key = self.with_caller(step.item), f"{self.key}+"
        return closing, Open(self.follow_up, self.key)

    # --- items -----------------------------------------------------------------------------------

    @property
    def arguments(self) -> str:
        """The arguments that the call has so far."""
        return "".join(self._text)

    def add_text(self, text: str) -> None:
        """Append text to the arguments."""
        self._text.append(text)

    def with_caller(self, item: it.Item) -> it.Item:
        """Return a copy of ``item`` whose field ``caller`` is set to the caller of this call.

        Return ``item`` unchanged if the caller is not known, or if the item has no field
        ``caller``. If the model itself made the call, also return items of some types unchanged,
        because these types show only a program as the caller.
        """
        if self.caller is None or "caller" not in item.__struct_fields__:
            return item
        if isinstance(self.caller, it.DirectCaller) and KINDS[type(item)].omits_direct_caller:
            return item
        return replace(item, caller=self.caller)

    @property
    def opening_item(self) -> it.Item:
        """The call's item with the values that it has when it is opened."""
        item = replace(self.function.initial_item, id=self.item_id)
        if "call_id" in item.__struct_fields__:
            item = replace(item, call_id=self.call_id)
        return self.with_caller(item)

    @property
    def result_items(self) -> tuple[it.Item, ...]:
        """The call's item in its final state, and the further items of its result. If the client
        runs the call, there is only the call's item, because the result is not known here."""
        result = self.result
        if result is None:
            return (replace(self.opening_item, **self.function.parse_fields(self.arguments)),)
        if self.follow_up is not None:
            call = replace(self.opening_item, **self._closed_fields)
            return (call, replace(self.follow_up, **result.fields))
        call = replace(self.opening_item, **result.fields)
        if "status" in call.__struct_fields__:
            call = replace(call, status=self.status)
        return (call, *result.items)

    @property
    def awaits_client(self) -> bool:
        """Whether the call can continue only after the client has answered other calls."""
        return self.result is not None and self.result.awaits_client

    @property
    def status(self) -> str:
        """The final status of the item that contains the result of the call."""
        if self.result is None or not self.result.failed:
            return "completed"
        return self.function.failed_status if self.follow_up is None else "incomplete"

    def call_item(self) -> it.Item:
        """Return the item that shows the call in later prompts, exactly as the model wrote it."""
        return replace(with_whole_text(self._model_item, self.arguments), call_id=self.call_id)

    def output_item(self, text: str) -> it.Item:
        """Return the output item that shows the model the result of the call. ``text``: the text of
        the result."""
        return output_type(self._model_item)(call_id=self.call_id, output=text)


def new_item_id(function: ToolFunction, ids: Callable[[str], str]) -> str:
    """Return an id for the item of a call of this function. ``ids``: returns a new id with a
    prefix."""
    return ids(KINDS[type(function.initial_item)].prefix)


async def _never_called(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    return
    yield


#: The function of rejected calls.
_REJECTED_FUNCTION = ToolFunction(
    tool=tl.Function(name=""),
    initial_item=it.McpCall(server_label="", name="", arguments=""),
    handler=_never_called,
)


class _PlainItem:
    """An item that is not a call of a server-side tool, and its text.

    ``shell``: the item as it was opened, without the text that follows. ``new_citation_reader``:
    creates a reader for the citations in a message.
    """

    def __init__(
        self, shell: it.Item, new_citation_reader: Callable[[], CitationReader] | None = None
    ) -> None:
        self._shell = shell
        self._text: dict[Channel, list[str]] = {}
        self._citations: CitationReader | None = None
        if new_citation_reader is not None and isinstance(shell, it.Message):
            self._citations = new_citation_reader().resume_after(_last_text(shell))

    def feed(self, delta: Text) -> Iterable[Delta]:
        """Record the delta's text and return the deltas to emit for it."""
        self._text.setdefault(delta.channel, []).append(delta.text)
        if self._citations is None or delta.channel != "text":
            return (delta,)
        return self._citations.feed(delta)

    def finish(self) -> Iterable[Delta]:
        """Return the deltas of the text that the citation reader has held back, because the text
        looked like the beginning of a citation."""
        return () if self._citations is None else self._citations.finish()

    def item(self) -> it.Item:
        """Return the item with the text that was added to it so far."""
        texts = {channel: "".join(pieces) for channel, pieces in self._text.items()}
        return reduce(_with_text, texts.items(), self._shell)


def _with_text(item: it.Item, added: tuple[Channel, str]) -> it.Item:
    """Return an item with a text that was added to it. ``added``: the channel and the text."""
    name, text = added
    if (channel := KINDS[type(item)].channels.get(name)) is None:
        return item
    if channel.part is None:  # a call of the client
        return replace(item, **{channel.field: getattr(item, channel.field) + text})
    parts = (*(getattr(item, channel.list_field) or ()), channel.part(**{channel.field: text}))
    return replace(item, **{channel.list_field: parts})


def _last_text(shell: it.Item) -> str:
    """Return the text of the last part of an item. Returns an empty string if the item is not a
    message, or if its last part is not text."""
    part = shell.message_parts[-1] if shell.message_parts else None
    return part.text if isinstance(part, it.OutputText) else ""


def conversation_items(
    calls: Sequence[ToolCall], output_items: Callable[[ToolCall], Sequence[it.Item]]
) -> tuple[it.Item, ...]:
    """Return the items that calls add to the conversation: the calls themselves and their results.
    ``output_items``: for a call, it returns the items that contain the call's result for the
    model."""
    new_calls = (call.call_item() for call in calls if not call.is_in_conversation)
    return (*new_calls, *(item for call in calls for item in output_items(call)))


class Turn:
    """One turn of the tool loop. It reads the deltas of one reply of the model, and collects the
    items and tool calls of this reply.

    - ``functions``: the functions of server-side tools, by name.
    - ``ids``: returns a new id for a prefix.
    - ``max_calls``: how many server-side tool calls may run; None means any number.
    - ``rejection``: returns the reason why a function (name, namespace) may not be called. Returns
      an empty string if it may be called.
    - ``open_item``: the item that was open when the turn was interrupted.
    - ``new_citation_reader``: creates a reader for the citations in a message.
    - ``caller``: the caller to record in each tool call. If it is None, tool calls get no caller.
    - ``async_functions``: the functions of the client whose calls are asynchronous.
    """

    def __init__(
        self,
        functions: Mapping[ToolName, ToolFunction],
        ids: Callable[[str], str],
        *,
        max_calls: int | None = None,
        rejection: Callable[[str, str | None], str] = lambda name, namespace: "",
        open_item: it.Item | None = None,
        new_citation_reader: Callable[[], CitationReader] | None = None,
        caller: it.Caller | None = None,
        async_functions: frozenset[ToolName] = frozenset(),
    ) -> None:
        self._functions = functions
        self._async_functions = async_functions
        self._ids = ids
        self._remaining_calls = max_calls
        self._rejection = rejection
        self._new_citation_reader = new_citation_reader
        self._caller = caller
        self._current: ToolCall | _PlainItem | None = None
        if open_item is not None:
            self._current = _PlainItem(open_item, new_citation_reader)
        self._items: list[ToolCall | _PlainItem] = []
        #: Calls that only read, and that the model has written. They can run while the model still
        #: writes.
        self.early_calls: list[ToolCall] = []
        if self._current is not None:
            self._items.append(self._current)
        self._sampled = array("I")
        #: Whether the model has made an asynchronous call. The model goes on after the turn.
        self.has_async_calls = open_item is not None and open_item.async_ is True
        #: Whether the client has to answer a call before the model goes on.
        self.awaits_client = isinstance(open_item, _CLIENT_CALLS) and not self.has_async_calls
        self.finish: Finish | None = None
        #: Whether the model began a call that may not run. The rest of its reply is then ignored.
        self.is_over = False

    @property
    def calls(self) -> list[ToolCall]:
        """The calls that this server runs, and the ignored calls (see ``ToolCall.is_ignored``).
        Calls that the client runs are not included."""
        return [call for call in self.tool_calls if call.function.handler is not None]

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of functions of server-side tools, including calls that the client runs."""
        return [item for item in self._items if isinstance(item, ToolCall)]

    def take_early_calls(self) -> list[ToolCall]:
        """Return the new ``early_calls``, and forget them."""
        calls, self.early_calls = self.early_calls, []
        return calls

    def new_items(
        self, output_items: Callable[[ToolCall], Sequence[it.Item]]
    ) -> tuple[it.Item, ...]:
        """Return the items that the turn adds to the conversation. ``output_items``:
        a function that returns, for a call, the items with the result that the model sees."""
        written = (
            item.call_item() if isinstance(item, ToolCall) else item.item() for item in self._items
        )
        return (*written, *(item for call in self.tool_calls for item in output_items(call)))

    def prompt_tokens(self, prompt: PromptTokens | None) -> PromptTokens | None:
        """Return ``prompt`` with the token ids sampled in this turn appended. Returns None if no
        token ids are known. Also returns None if a call above the limit of calls has ended the
        turn, because the next prompt shows this call without its arguments."""
        if prompt is None or not self._sampled or self.is_over:
            return None
        return replace(prompt, ids=(*prompt.ids, *self._sampled))

    # --- deltas ----------------------------------------------------------------------------------

    def feed(self, batch: Iterable[Delta]) -> tuple[Delta, ...]:
        """Process deltas of the model and return the deltas to emit. The ``Finish`` delta is not
        emitted, but stored in ``finish``."""
        out: list[Delta] = []
        for delta in batch:
            if self.is_over:
                self._read_end(delta)
            elif isinstance(delta, Text):  # nearly all are Text or SampledTokens
                out += self._feed_text(delta)
            elif isinstance(delta, SampledTokens):
                self._sampled.extend(delta.ids)
                out.append(delta)
            else:
                out += self._feed_other(delta)
        return tuple(out)

    def _read_end(self, delta: Delta) -> None:
        """Process a delta of a turn that ``_end_at`` has ended because the limit of calls was
        reached. All such deltas are ignored, except for the ``Finish`` delta."""
        if isinstance(delta, Finish):
            self.finish = replace(delta, reason="stop", stop_text=None)

    def _feed_text(self, delta: Text) -> Iterable[Delta]:
        current = self._current
        if current is None:
            return (delta,)
        if isinstance(current, _PlainItem):
            return current.feed(delta)
        current.add_text(delta.text)
        if current.is_ignored or not current.function.streams_text:
            return current.argument_progress(lambda observer: observer.feed(delta.text))
        return (delta,)

    def _feed_other(self, delta: Delta) -> Iterable[Delta]:
        match delta:
            case Open():
                return (*self._close_current(), *self._open(delta))
            case Close():
                if isinstance(self._current, ToolCall):
                    return self._close_current()
                return (*self._close_current(), delta)
            case Finish():
                self.finish = delta
                return self._end_current(is_cut=delta.reason != "stop")
        return (delta,)

    def _end_current(self, *, is_cut: bool) -> Iterable[Delta]:
        """Return the last deltas of the item that is open when the reply ends. ``is_cut``: whether
        the reply ended for a reason other than ``stop``. If so, the item is possibly incomplete.
        """
        if isinstance(self._current, ToolCall):
            call = self._current
            call.is_complete = not is_cut
            return call.argument_progress(
                lambda observer: observer.abort() if is_cut else observer.finish(call.arguments)
            )
        return self._current.finish() if self._current is not None else ()

    def _open(self, delta: Open) -> Iterable[Delta]:
        item = delta.item
        function, rejection = None, ""
        if it.is_model_call(item):
            namespace = None if item.namespace is UNSET else item.namespace
            function = self._functions.get((item.name, namespace))
            rejection = self._rejection(item.name, namespace)
        if function is not None and function.handler is not None and self._remaining_calls == 0:
            return self._end_at(function, item)
        if rejection:
            self._add_call(_REJECTED_FUNCTION, item, is_ignored=True, rejection=rejection)
            return ()
        if function is None:
            return self._open_plain(delta)
        if function.handler is not None and self._remaining_calls:
            self._remaining_calls -= 1
        return self._add_call(function, item, is_ignored=False, caller=self._caller).open_deltas()

    def _end_at(self, function: ToolFunction, item: it.Item) -> tuple[Delta, ...]:
        """End the turn, because the model has begun a call above the limit of calls. This call is
        not run. The rest of the model's output, which begins with the arguments of the call, is
        ignored. So the next prompt contains the call without arguments."""
        call = self._add_call(function, item, is_ignored=True)
        if isinstance(item, it.FunctionCall):
            call.add_text("{}")
        self.is_over = True
        return ()

    def _add_call(
        self,
        function: ToolFunction,
        item: it.Item,
        *,
        is_ignored: bool,
        rejection: str = "",
        caller: it.Caller | None = None,
    ) -> ToolCall:
        call = ToolCall(
            function,
            item,
            self._ids("call"),
            item_id="" if is_ignored else new_item_id(function, self._ids),
            is_ignored=is_ignored,
            rejection=rejection,
            caller=caller,
        )
        self._current = call
        self._items.append(call)
        return call

    def _open_plain(self, delta: Open) -> Iterable[Delta]:
        """Open an item that is not a call of a server-side tool, and return the delta for it."""
        item = delta.item
        if isinstance(item, _CLIENT_CALLS):
            if (item.name, item.namespace or None) in self._async_functions:
                item = replace(item, async_=True, call_id=item.call_id or self._ids("call"))
                self.has_async_calls = True
            else:
                self.awaits_client = True
            delta = replace(delta, item=item)
        self._current = _PlainItem(item, self._new_citation_reader)
        self._items.append(self._current)
        if self._caller is not None and isinstance(item, _CLIENT_CALLS):
            return (replace(delta, item=replace(item, caller=self._caller)),)
        return (delta,)

    def _close_current(self) -> Iterable[Delta]:
        """Return the deltas that end the current item."""
        current, self._current = self._current, None
        if isinstance(current, _PlainItem):
            return current.finish()
        if current is None or current.is_ignored:
            return ()
        self.awaits_client |= current.function.handler is None
        if current.function.handler is not None and current.function.effects == "none":
            self.early_calls.append(current)
        return current.close_deltas()
