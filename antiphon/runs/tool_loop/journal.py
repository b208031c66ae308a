"""The journal of the tool calls of one response, so that no call runs twice unnoticed.

Theory. Before a call starts, its intent is stored. Its key is the id of the call's item, which the
tool gets as the idempotency key. When the call has ended, the items that it left are stored as its
result. A process that takes over the run begins the entries of all calls whose items are still
open. There are three cases:

- The entry is new. The call has not started. It never will, because a process that begins an entry
  runs the call only if the entry is its own.
- The entry has a result, with which the call's items are closed.
- The entry has no result. The call may have been done.

A tool may keep a note of what another server does for a call (``CallContext.keep_note``). The note
is stored in the place of the result, and a call with a note can always run again.

A foreground run ends with its process, so nobody would read its journal, and it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from antiphon.errors import StoreError
from antiphon.runs.background.event_log_writer import retry_until_available
from antiphon.runs.execution.run import ReaderGone
from antiphon.store.journal import Journal, JournalEntry
from antiphon.wire.items import Item

if TYPE_CHECKING:
    from .turn import ToolCall

#: The beginning of a note, which no result has: results are JSON.
_NOTE = b"note:"
_encode = msgspec.json.Encoder().encode


class CallIntent(Struct, frozen=True, kw_only=True):
    """What a call is about to do: the function, its arguments, and the id by which the model knows
    the call."""

    name: str
    namespace: str | None
    arguments: str
    call_id: str


class JournaledCall(Struct, frozen=True):
    """What the journal knows about a call that was interrupted. ``intent``: None if the call has
    not started. ``items``: the items that the call has left; None if its result is not known.
    ``note``: what the tool has noted (``CallContext.note``)."""

    intent: CallIntent | None = None
    items: tuple[Item, ...] | None = None
    note: bytes = b""


class CallJournal:
    """The journal of a response that nobody can take over. It records nothing."""

    async def begin(self, calls: Sequence[ToolCall]) -> None:
        """Store the intents of calls that are about to start. Raises ``ReaderGone`` if one of them
        must not start, because the run has ended or another process has taken it over."""

    async def keep_note(self, call: ToolCall, note: bytes) -> bool:
        """Store the note of a running call, and return True. Returns False if nobody reads it."""
        return False

    async def has_ended(self, call: ToolCall) -> bool:
        """Return whether the response of a call has ended, so nobody runs the call again. Returns
        False if the store does not answer."""
        return True

    async def finish(self, call: ToolCall) -> None:
        """Store the result of a call."""

    async def recover(self, keys: Collection[str]) -> Mapping[str, JournaledCall]:
        """Return what is known about interrupted calls, by key. Afterwards, no other process can
        start those that have not started."""
        return {}


_decode_intent = msgspec.json.Decoder(CallIntent).decode
_decode_items = msgspec.json.Decoder(tuple[Item, ...]).decode


class StoredCallJournal(CallJournal):
    """The journal of a background response, in the store.

    ``attempt``: identifies this attempt to produce the response. ``clock`` returns Unix seconds.
    """

    def __init__(
        self,
        journal: Journal,
        tenant: str,
        response_id: str,
        *,
        attempt: str,
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._tenant = tenant
        self._response_id = response_id
        self._attempt = attempt
        self._clock = clock

    async def begin(self, calls: Sequence[ToolCall]) -> None:
        entries = await self._begin_safely({call.item_id: _encode(_intent(call)) for call in calls})
        if any(entry is None or entry.attempt != self._attempt for entry in entries):
            raise ReaderGone

    async def keep_note(self, call: ToolCall, note: bytes) -> bool:
        call.note = note
        await self._settle(call, None, _NOTE + note)
        return True

    async def has_ended(self, call: ToolCall) -> bool:
        # Only a run that has not ended gets a new entry.
        key = f"{call.item_id}/end/{self._attempt}"
        try:
            return (await self._begin({key: b""}))[0] is None
        except StoreError:
            return False

    async def finish(self, call: ToolCall) -> None:
        old = _NOTE + call.note if call.note else None
        await self._settle(call, old, _encode(call.result_items))

    async def _settle(self, call: ToolCall, old: bytes | None, new: bytes) -> None:
        await retry_until_available(
            lambda: self._journal.settle(self._tenant, call.item_id, old, new)
        )

    async def recover(self, keys: Collection[str]) -> Mapping[str, JournaledCall]:
        entries = await self._begin_safely(dict.fromkeys(keys, b""))
        return {entry.key: self._read(entry) for entry in entries if entry is not None}

    async def _begin_safely(self, intents: Mapping[str, bytes]) -> tuple[JournalEntry | None, ...]:
        return await retry_until_available(lambda: self._begin(intents))

    async def _begin(self, intents: Mapping[str, bytes]) -> tuple[JournalEntry | None, ...]:
        entries = [
            JournalEntry(
                key=key, response_id=self._response_id, attempt=self._attempt, intent=intent
            )
            for key, intent in intents.items()
        ]
        if not entries:
            return ()
        now = int(self._clock())
        return await self._journal.begin(self._tenant, entries, now)

    def _read(self, entry: JournalEntry) -> JournaledCall:
        if not entry.intent:  # begun by ``recover``
            return JournaledCall()
        intent = _decode_intent(entry.intent)
        if entry.result is not None and entry.result.startswith(_NOTE):
            return JournaledCall(intent, note=entry.result.removeprefix(_NOTE))
        return JournaledCall(intent, None if entry.result is None else _decode_items(entry.result))


def _intent(call: ToolCall) -> CallIntent:
    return CallIntent(
        name=call.function.tool.name,
        namespace=call.function.namespace,
        arguments=call.arguments,
        call_id=call.call_id,
    )
