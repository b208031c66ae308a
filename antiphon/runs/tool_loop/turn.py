"""One turn of a model: what it says, its calls of tools that run here told apart from the rest.

Deltas in, deltas out: a call becomes the item of its tool. It runs nothing and waits for nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.conversation import PromptTokens
from antiphon.stream.deltas import Close, Delta, Finish, Open, Progress, SampledTokens, Text
from antiphon.stream.kinds import KINDS
from antiphon.tools.base import (
    ArgumentObserver,
    CallContext,
    PendingCall,
    ToolFunction,
    ToolProgress,
    ToolResult,
)
from antiphon.tools.citations import CitationReader
from antiphon.wire import items as it
from antiphon.wire import tools as tl

__all__ = ["ToolCall", "Turn", "conversation_items"]

#: Calls that the client runs unless a tool here does: a turn with one of these ends the response.
_CLIENTS = (it.FunctionCall, it.CustomToolCall)


class ToolCall:
    """A call of an offered tool. ``ignored``: one too many, or ``refused`` in these words, of which
    nobody but the model is told. ``caller``: who made it, where that is told; of a program's call
    the model is not."""

    def __init__(
        self,
        function: ToolFunction,
        shell: it.Item,
        call_id: str,
        *,
        ignored: bool = False,
        refused: str = "",
        caller: it.Caller | None = None,
    ) -> None:
        self.function = function
        self.key = self.call_id = call_id
        self.ignored = ignored
        self.caller = caller
        #: It is in the conversation already.
        self.stands = False
        self.refused = bool(refused)
        self.result: ToolResult | None = ToolResult(text=refused, failed=True) if refused else None
        #: The item that its output has become.
        self.following: it.Item | None = None
        #: What tells of it as it is written.
        self.writing = (
            function.argument_observer() if function.argument_observer is not None else None
        )
        self._shell = shell
        self._text: list[str] = []

    @classmethod
    def made(
        cls, function: ToolFunction, arguments: str, call_id: str, caller: it.Caller | None = None
    ) -> ToolCall:
        """A call that the model does not write now: a client has allowed it, or a program made
        it."""
        tool = function.tool
        namespace = function.namespace or UNSET
        shell: it.Item = (
            it.CustomToolCall(call_id=call_id, name=tool.name, input="", namespace=namespace)
            if isinstance(tool, tl.Custom)
            else it.FunctionCall(call_id=call_id, name=tool.name, arguments="", namespace=namespace)
        )
        call = cls(function, shell, call_id, caller=caller)
        call.write(Text(arguments))
        return call

    @classmethod
    def first(cls, first: PendingCall, ids: Callable[[str], str]) -> ToolCall:
        """One that is run before the model is asked."""
        call = cls.made(first.function, first.arguments, first.call_id or ids("call"))
        call.stands = first.call_id is not None
        return call

    def all_deltas(self) -> tuple[Delta, ...]:
        """All of it at once; nothing of one that has been said."""
        if self.stands:
            return ()
        text = (Text(self.arguments),) if self.function.streams_text and self.arguments else ()
        return (*self.open_deltas(), *text, *self.close_deltas())

    def open_deltas(self) -> tuple[Delta, ...]:
        """Its item, and that work on it has begun."""
        shell = self.shown
        steps = KINDS[type(shell)].progress
        told = (Progress("in_progress", self.key),) if "in_progress" in steps else ()
        return (Open(shell, self.key), *told)

    def follow(self, item: it.Item) -> tuple[it.Item, str]:
        """From now on it is told by this item, made in the name of who made it; by which key."""
        self.following, self.key = self.named(item), f"{self.key}+"
        return self.following, self.key

    def named(self, item: it.Item) -> it.Item:
        """The item, with who made the call."""
        if self.caller is None or "caller" not in item.__struct_fields__:
            return item
        if isinstance(self.caller, it.DirectCaller) and KINDS[type(item)].omits_direct_caller:
            return item
        return replace(item, caller=self.caller)

    def close_deltas(self) -> tuple[Delta, ...]:
        """All of it has been said. One that runs here goes on as an item, unless what comes of it
        is another one."""
        offer = self.function
        steps = self.steps(lambda writing: writing.finish(self.arguments))
        if offer.handler is not None and offer.failed_output is None:
            return (*steps, Close())
        return (*steps, Close(offer.parse_fields(self.arguments), self.key))

    @property
    def shown(self) -> it.Item:
        """Its item as it begins."""
        shell = self.function.initial_item
        if "call_id" in shell.__struct_fields__:
            shell = replace(shell, call_id=self.call_id)
        return self.named(shell)

    @property
    def result_items(self) -> tuple[it.Item, ...]:
        """Its item as it ended, and those that follow it; a client's as it was said."""
        result = self.result
        if result is None:
            return (replace(self.shown, **self.function.parse_fields(self.arguments)),)
        if self.following is not None:
            return (self.shown, replace(self.following, **result.fields))
        return (replace(self.shown, **result.fields, status=self.status), *result.items)

    @property
    def waits(self) -> bool:
        """It goes on when the client has answered."""
        return self.result is not None and self.result.awaits_client

    @property
    def status(self) -> str:
        """How the item ended that tells of it now."""
        if self.result is None or not self.result.failed:
            return "completed"
        return self.function.failed_status if self.following is None else "incomplete"

    def write(self, delta: Text) -> None:
        self._text.append(delta.text)

    def steps(
        self, tell: Callable[[ArgumentObserver], Iterable[ToolProgress]]
    ) -> tuple[Delta, ...]:
        """What is told of its being written."""
        if self.writing is None or self.ignored:
            return ()
        steps = tell(self.writing)
        return tuple(Progress(step.name, self.key, step.fields) for step in steps)

    @property
    def arguments(self) -> str:
        """What the model wrote."""
        return "".join(self._text)

    def item(self) -> it.Item:
        """The call as the model made it."""
        field = "input" if isinstance(self._shell, it.CustomToolCall) else "arguments"
        return replace(self._shell, call_id=self.call_id, **{field: self.arguments})

    def output(self, text: str) -> it.Item:
        """What the model is told came of it."""
        custom = isinstance(self._shell, it.CustomToolCall)
        kind = it.CustomToolCallOutput if custom else it.FunctionCallOutput
        return kind(call_id=self.call_id, output=text)


async def _never(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    return
    yield


#: Of what is called and is not there.
_NOBODY = ToolFunction(
    tool=tl.Function(name=""),
    initial_item=it.McpCall(server_label="", name="", arguments=""),
    handler=_never,
)


class _Spoken:
    """Any other item: its shell and what was written into it. ``reader``: makes what reads it
    before it is said, if it is a message."""

    def __init__(self, shell: it.Item, reader: Callable[[], CitationReader] | None = None) -> None:
        self._shell = shell
        self._text: dict[str, list[str]] = {}
        reads = reader if isinstance(shell, it.Message) else None
        self._citations = None if reads is None else reads().resume_after(_last_text(shell))

    def write(self, delta: Text) -> None:
        self._text.setdefault(delta.channel, []).append(delta.text)

    def said(self, delta: Text) -> Iterable[Delta]:
        """What is to be said of what was written."""
        if self._citations is None or delta.channel != "text":
            return (delta,)
        return self._citations.feed(delta)

    def end(self) -> Iterable[Delta]:
        """What was held back."""
        return () if self._citations is None else self._citations.finish()

    def item(self) -> it.Item:
        said = {channel: "".join(pieces) for channel, pieces in self._text.items()}
        shell = self._shell
        if isinstance(shell, it.Message):
            make = {"text": it.OutputText, "refusal": it.Refusal}
            parts = [make[c](**{c: text}) for c, text in said.items() if c in make]
            return replace(shell, content=(*shell.content, *parts))
        text = said.get("text", "")
        if isinstance(shell, it.Reasoning):
            before = () if shell.content is UNSET or shell.content is None else shell.content
            return replace(shell, content=(*before, it.ReasoningText(text=text)))
        return shell


def _last_text(shell: it.Item) -> str:
    """What has been said of the part that is written."""
    part = shell.content[-1] if isinstance(shell, it.Message) and shell.content else None
    return part.text if isinstance(part, it.OutputText) else ""


def conversation_items(
    calls: Sequence[ToolCall], told: Callable[[ToolCall], Sequence[it.Item]]
) -> tuple[it.Item, ...]:
    """Calls, and what the model is told of them."""
    said = (call.item() for call in calls if not call.stands)
    return (*said, *(item for call in calls for item in told(call)))


class Turn:
    """``allowed``: how many more calls may run; None: any number. ``refuses``: why a call of that
    name and namespace cannot be; "": it can. ``begun``: the item that was being written when the
    turn was interrupted. ``reader``: makes what reads a message. ``caller``: what its calls say
    of who made them."""

    def __init__(
        self,
        offers: Mapping[tuple[str, str | None], ToolFunction],
        ids: Callable[[str], str],
        *,
        allowed: int | None = None,
        refuses: Callable[[str, str | None], str] = lambda name, namespace: "",
        begun: it.Item | None = None,
        reader: Callable[[], CitationReader] | None = None,
        caller: it.Caller | None = None,
    ) -> None:
        self._caller = caller
        self._reader = reader
        self._offers = offers
        self._ids = ids
        self._allowed = allowed
        self._refuses = refuses
        self._open: ToolCall | _Spoken | None = None if begun is None else _Spoken(begun, reader)
        self._said: list[ToolCall | _Spoken] = [] if self._open is None else [self._open]
        self._sampled = array("I")
        #: The client has to answer a call.
        self.awaits_client = isinstance(begun, _CLIENTS)
        self.finish: Finish | None = None

    @property
    def calls(self) -> list[ToolCall]:
        """The calls that are to run here."""
        return [each for each in self._called if each.function.handler is not None]

    @property
    def _called(self) -> list[ToolCall]:
        return [each for each in self._said if isinstance(each, ToolCall)]

    def items(self, told: Callable[[ToolCall], Sequence[it.Item]]) -> tuple[it.Item, ...]:
        """What the conversation gains. ``told``: what the model is told of a call."""
        said = (each.item() for each in self._said)
        return (*said, *(item for call in self._called for item in told(call)))

    def kept(self, prompt: PromptTokens | None) -> PromptTokens | None:
        """The ids the model saw and wrote."""
        if prompt is None or not self._sampled:
            return None
        return replace(prompt, ids=(*prompt.ids, *self._sampled))

    def take(self, known: Iterable[Delta]) -> tuple[Delta, ...]:
        """What is to be recorded of these deltas. The end is kept in ``finish``."""
        out: list[Delta] = []
        for delta in known:
            if isinstance(delta, Text):  # nearly all are Text or SampledTokens
                out += self._written(delta)
            elif isinstance(delta, SampledTokens):
                self._sampled.extend(delta.ids)
                out.append(delta)
            else:
                out += self._taken(delta)
        return tuple(out)

    def _taken(self, delta: Delta) -> Iterable[Delta]:
        match delta:
            case Open():
                return (*self._over(), *self._opened(delta))
            case Close():
                if isinstance(self._open, ToolCall):
                    return self._over()
                return (*self._over(), delta)
            case Finish():
                self.finish = delta
                return self._ended(is_cut=delta.reason != "stop")
        return (delta,)

    def _ended(self, *, is_cut: bool) -> Iterable[Delta]:
        """What is to be said of the item that the end found open."""
        if isinstance(self._open, ToolCall):
            call = self._open
            return call.steps(lambda w: w.abort() if is_cut else w.finish(call.arguments))
        return self._open.end() if self._open is not None else ()

    def _written(self, delta: Text) -> Iterable[Delta]:
        now = self._open
        if now is None:
            return (delta,)
        now.write(delta)
        if isinstance(now, _Spoken):
            return now.said(delta)
        if now.ignored or not now.function.streams_text:
            return now.steps(lambda writing: writing.feed(delta.text))
        return (delta,)

    def _opened(self, delta: Open) -> Iterable[Delta]:
        item = delta.item
        offer, refused = None, ""
        if isinstance(item, it.FunctionCall | it.CustomToolCall):
            namespace = None if item.namespace is UNSET else item.namespace
            offer = self._offers.get((item.name, namespace))
            refused = self._refuses(item.name, namespace)
        if refused and self._allowed != 0:
            call_id = self._ids("call")
            self._open = call = ToolCall(_NOBODY, item, call_id, ignored=True, refused=refused)
            self._said.append(call)
            return ()
        if offer is None:
            self.awaits_client |= isinstance(item, _CLIENTS)
            self._open = _Spoken(item, self._reader)
            self._said.append(self._open)
            if self._caller is not None and isinstance(item, _CLIENTS):
                return (replace(delta, item=replace(item, caller=self._caller)),)
            return (delta,)
        ignored = offer.handler is not None and self._allowed == 0
        if offer.handler is not None and self._allowed:
            self._allowed -= 1
        call_id = self._ids("call")
        self._open = call = ToolCall(offer, item, call_id, ignored=ignored, caller=self._caller)
        self._said.append(call)
        if ignored:
            return ()
        return call.open_deltas()

    def _over(self) -> Iterable[Delta]:
        """The open call has been said."""
        now, self._open = self._open, None
        if isinstance(now, _Spoken):
            return now.end()
        if now is None or now.ignored:
            return ()
        self.awaits_client |= now.function.handler is None
        return now.close_deltas()
