"""Recall: what of a conversation the model is shown again.

Sealed thinking is opened. Of what stands before the newest compaction only its summary is left, and
what the user said lately; what holds for the whole conversation stays. It knows no model and no
templates: sizes are estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeGuard

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.conversation import caller_program_id, open_programs
from antiphon.errors import InvalidRequest
from antiphon.security.encryption import DecryptionError
from antiphon.stream.kinds import KINDS
from antiphon.text import truncate_middle
from antiphon.wire import items as it
from antiphon.wire.response import InputTransformation

from .encrypted_items import CompactedHistory, TenantSealer

__all__ = [
    "VisibleHistory",
    "build_visible_history",
    "estimate_tokens",
    "is_persistent",
    "is_user_message",
]

_encode = msgspec.json.Encoder().encode

_SUMMARY = (
    "[The conversation up to here was compacted. Summary of what came before, written for you to "
    "carry on from:]\n\n"
)
_NO_SUMMARY = "(No summary could be written.)"

#: What a picture or a file is taken to weigh, and how many bytes of text are taken for a token.
_PART_TOKENS = 1000
_TOKEN_BYTES = 3


class VisibleHistory(Struct, frozen=True, kw_only=True):
    """A conversation, cut at its newest compaction: what stands before it, what it stands for
    (None: there is none, and nothing stands before), what comes after. ``triggered``: it ends in a
    wish to be compacted. ``room``: tokens for what the user said before. ``removed``: what could
    not be opened."""

    before: tuple[it.Item, ...]
    compaction: CompactedHistory | None
    after: tuple[it.Item, ...]
    user_token_budget: int
    compaction_requested: bool = False
    removed: tuple[InputTransformation, ...] = ()

    @property
    def items(self) -> tuple[it.Item, ...]:
        """What the model is shown."""
        if self.compaction is None:
            return self.after
        rest = _unanswered_left_out(self.compaction.rest, self.after)
        summary = _SUMMARY + (self.compaction.summary or _NO_SUMMARY)
        told = it.Message(role="user", content=(it.InputText(text=summary),))
        return (*self._kept(), told, *rest, *self.after)

    def _kept(self) -> Iterator[it.Item]:
        """Of what stands before: what holds on, and what the user said lately. A client that no
        longer sends it finds it in what was sealed."""
        assert self.compaction is not None
        rest = set(map(_words, self.compaction.rest)) - {None}
        seen = rest | set(map(_words, self.before))
        lost = [item for item in self.compaction.said if _words(item) not in seen]
        there = [
            item
            for item in self.before
            if (is_persistent(item) or is_user_message(item)) and _words(item) not in rest
        ]
        return _lately((*lost, *there), self.user_token_budget)

    def compact(self, summary: str, *, keep_tokens: int = 0) -> VisibleHistory:
        """The same conversation with all of it in the past: in a summary of what ``summarised``
        gives for the same ``rest``, which is how many tokens of its end stay as they are."""
        said = self.compaction.said if self.compaction is not None else ()
        old, new = self._split(keep_tokens)
        before = (*self.before, *self.after)
        users = (item for item in (*said, *self.before, *old) if is_user_message(item))
        past = CompactedHistory(
            said=tuple(_lately(users, self.user_token_budget)), summary=summary, rest=new
        )
        return replace(self, before=before, compaction=past, after=(), compaction_requested=False)

    def items_to_summarize(self, *, keep_tokens: int = 0) -> tuple[it.Item, ...]:
        """What a summary has to tell of: what the model is shown but for the end that stays."""
        old, _ = self._split(keep_tokens)
        if not old and (keep_tokens or self.compaction is None):
            return ()
        return replace(
            self, after=old if self.compaction is None else old[len(self.compaction.rest) :]
        ).items

    def _split(self, rest: int) -> tuple[tuple[it.Item, ...], tuple[it.Item, ...]]:
        """What comes after the summary there is: the part to be summarised, and the part that
        stays, in which calls are that wait for their output."""
        items = (*(self.compaction.rest if self.compaction is not None else ()), *self.after)
        start = _tail(items, rest)
        going = {program.call_id for program in open_programs(items)}
        waiting = tuple(
            item
            for item in items[:start]
            if _waits(item, items) or caller_program_id(item) in going  # it is run again by them
        )
        return items[:start], (*waiting, *items[start:])


def build_visible_history(
    past: Sequence[it.Item],
    own: Sequence[it.Item],
    sealer: TenantSealer,
    *,
    user_token_budget: int,
    refuse: bool,
) -> VisibleHistory:
    """``past`` items and those of the request. ``refuse``: what cannot be opened is an
    ``InvalidRequest`` that names it; otherwise it is left out."""
    items = tuple(item for item in (*past, *own) if not isinstance(item, it.CompactionTrigger))
    removed: list[InputTransformation] = []

    def broken(item: it.Reasoning | it.Compaction, index: int) -> None:
        if refuse:
            raise _not_ours(item, index - len(past))
        removed.append(InputTransformation(id=item.id, type=_REMOVED[type(item)]))

    cut, opened = _newest_compaction(items, sealer, broken)
    after = tuple(_thoughts_opened(items, cut, sealer, broken))
    return VisibleHistory(
        before=items[:cut],
        compaction=opened,
        after=after,
        user_token_budget=user_token_budget,
        compaction_requested=bool(own) and isinstance(own[-1], it.CompactionTrigger),
        removed=tuple(removed),
    )


_REMOVED: Mapping[type[it.ItemBase], Literal["reasoning", "compaction"]] = {
    it.Reasoning: "reasoning",
    it.Compaction: "compaction",
}

_Broken = Callable[[it.Reasoning | it.Compaction, int], None]


def _newest_compaction(
    items: Sequence[it.Item], sealed: TenantSealer, broken: _Broken
) -> tuple[int, CompactedHistory | None]:
    """The newest that opens; ``items[:n]`` is what it and those before it stand for."""
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        if isinstance(item, it.Compaction):
            try:
                return index + 1, sealed.decrypt_compaction(item.encrypted_content)
            except DecryptionError:
                broken(item, index)
    return 0, None


def _thoughts_opened(
    items: Sequence[it.Item], start: int, sealed: TenantSealer, broken: _Broken
) -> Iterator[it.Item]:
    """The items from ``start`` on, without compactions. Thinking that can be read as it is need
    not open; if it does, there may be what an upstream sealed in it."""
    for index in range(start, len(items)):
        item = items[index]
        if isinstance(item, it.Compaction):
            continue
        if isinstance(item, it.Reasoning) and item.encrypted_content:
            try:
                item = sealed.decrypt_reasoning(item)
            except DecryptionError:
                if not item.content:
                    broken(item, index)
                    if not item.summary:
                        continue
        yield item


def _not_ours(item: it.Item, index: int) -> InvalidRequest:
    param = f"input[{index}].encrypted_content" if index >= 0 else "previous_response_id"
    return InvalidRequest(
        f"The encrypted content for item {item.id} could not be verified. It was not made by this "
        "server for you, or it was damaged.",
        param=param,
        code="invalid_encrypted_content",
    )


# --- calls and their outputs ---------------------------------------------------------------------


def _is_output(item: it.Item) -> bool:
    return KINDS[type(item)].answers is not None


def _awaited(item: it.Item) -> str | None:
    """By what id an answer to this item would name it."""
    if isinstance(item, it.McpApprovalRequest):
        return item.id
    return None if _is_output(item) else getattr(item, "call_id", None) or None


def _answered(items: Iterable[it.Item]) -> frozenset[str]:
    """The ids that these items answer to."""
    found = (
        item.approval_request_id
        if isinstance(item, it.McpApprovalResponse)
        else getattr(item, "call_id", None)
        for item in items
        if isinstance(item, it.McpApprovalResponse) or _is_output(item)
    )
    return frozenset(id for id in found if id)


def _waits(item: it.Item, items: Sequence[it.Item]) -> bool:
    id = _awaited(item)
    cut = getattr(item, "status", None) == "incomplete"  # by a limit: nobody was asked
    return id is not None and not cut and id not in _answered(items)


def _unanswered_left_out(
    rest: tuple[it.Item, ...], after: tuple[it.Item, ...]
) -> tuple[it.Item, ...]:
    """A call that waited when its conversation was compacted is shown with its output, or not at
    all; nor where the client sends it itself. A program that waited stays with its calls, if it can
    go on."""
    items = (*rest, *after)
    answered = _answered(items)
    there = {id for item in after for id in (_awaited(item), item.id) if id}
    stuck = {caller_program_id(item) for item in items if _waits(item, items)}
    going = {program.call_id: program.call_id not in stuck for program in open_programs(items)}

    def stays(item: it.Item) -> bool:
        id = _awaited(item)
        if id in there or item.id in there:
            return False
        program = item.call_id if isinstance(item, it.Program) else caller_program_id(item)
        return going.get(program or "", id is None or id in answered)

    return tuple(item for item in rest if stays(item))


def _tail(items: Sequence[it.Item], room: int) -> int:
    """Where the newest items begin that weigh no more than ``room`` together, so that no call is
    torn from its output."""
    start, left = len(items), room
    while start > 0 and (left := left - estimate_tokens(items[start - 1])) >= 0:
        start -= 1
    places = {_awaited(item): index for index, item in enumerate(items)}
    pairs = [
        (places[call_id], index)
        for index, item in enumerate(items)
        if _is_output(item) and (call_id := getattr(item, "call_id", None)) in places
    ]
    while torn := [output for call, output in pairs if call < start <= output]:
        start = max(torn) + 1
    return start


# --- what is kept, and what it weighs ------------------------------------------------------------


def is_user_message(item: it.Item) -> TypeGuard[it.Message]:
    """The user said it."""
    return isinstance(item, it.Message) and item.role == "user"


def _words(item: it.Item) -> bytes | None:
    """By what a message that is kept is known again: clients that store nothing give no ids."""
    if isinstance(item, it.Message) and (is_user_message(item) or is_persistent(item)):
        return _encode((item.role, item.content))
    return None


def is_persistent(item: it.Item) -> bool:
    """It says how the whole conversation is to go, and is never summarised."""
    return KINDS[type(item)].persistent or (
        isinstance(item, it.Message) and item.role in ("system", "developer")
    )


def _lately(items: Iterable[it.Item], room: int) -> Iterator[it.Item]:
    """The items in order, of the user's messages only the newest within ``room`` tokens. The
    newest of all stays in any case, cut if it alone is longer than twice that."""
    kept: list[it.Item] = []
    left: int | None = None
    for item in reversed(tuple(items)):
        if not is_user_message(item):
            kept.append(item)
        elif left is None:
            newest = _shortened(item, 2 * room)
            kept.append(newest)
            left = room - estimate_tokens(newest)
        elif (left := left - estimate_tokens(item)) >= 0:
            kept.append(item)
    return reversed(kept)


def estimate_tokens(item: it.Item) -> int:
    """Tokens, roughly and rather too many."""
    content = getattr(item, "content", None) or getattr(item, "output", None)
    if not isinstance(content, tuple):
        return len(_encode(item)) // _TOKEN_BYTES + 1
    return sum(
        len(part.text.encode()) // _TOKEN_BYTES + 1 if hasattr(part, "text") else _PART_TOKENS
        for part in content
    )


def _shortened(message: it.Message, most: int) -> it.Message:
    """The message, if it weighs more than ``most`` the middle of its texts left out."""
    if estimate_tokens(message) <= most:
        return message
    parts: list[it.Part] = []
    left = most * _TOKEN_BYTES
    for part in message.content:
        if isinstance(part, it.InputText):
            text = truncate_middle(part.text, left, unit="characters")
            left = max(0, left - len(text))
            parts.append(it.InputText(text=text))
    return replace(message, content=tuple(parts))
