"""The items of a conversation that the model sees.

Encrypted reasoning is decrypted. The summary of the newest compaction replaces the items before the
compaction. Two groups of earlier items stay visible: the user's latest messages, and items that
apply to the whole conversation. Numbers of tokens are estimates, because no tokenizer is used here.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import caller_program_id, open_programs
from antiphon.security.encryption import DecryptionError
from antiphon.stream.kinds import KINDS
from antiphon.support.text import truncate_middle
from antiphon.wire import items as it
from antiphon.wire.response import InputTransformation
from antiphon.wire.tags import tag_of

from .configuration import Configuration, configuration_of, update_message
from .encrypted_items import CompactedHistory, TenantSealer

_encode = msgspec.json.Encoder().encode

_SUMMARY = (
    "[The conversation up to here was compacted. Summary of what came before, written for you to "
    "carry on from:]\n\n"
)
_NO_SUMMARY = "(No summary could be written.)"

#: Estimates: tokens of an image or file, bytes of text per token.
_PART_TOKENS = 1000
_TOKEN_BYTES = 3


class VisibleHistory(Struct, frozen=True, kw_only=True):
    """A conversation, divided at its newest compaction.

    - ``before``: the items that the compaction replaces.
    - ``compaction``: the decrypted content of the compaction. If there is no compaction, it is None
      and ``before`` is empty.
    - ``after``: the later items.
    - ``user_token_budget``: the model still sees the user's latest messages in ``before``. This is
      the maximum number of tokens of all these messages together.
    - ``compaction_requested``: whether the input ends with a request to compact.
    - ``configuration``: the settings that items of the conversation have changed.
    - ``input_transformations``: reports about the items that could not be decrypted.
    """

    before: tuple[it.Item, ...]
    compaction: CompactedHistory | None
    after: tuple[it.Item, ...]
    user_token_budget: int
    compaction_requested: bool = False
    configuration: Configuration = Configuration()
    input_transformations: tuple[InputTransformation, ...] = ()

    @property
    def items(self) -> tuple[it.Item, ...]:
        """The items that the model sees."""
        if self.compaction is None:
            return self.after
        recent = _without_unanswered(self.compaction.recent_items, self.after)
        text = _SUMMARY + (self.compaction.summary or _NO_SUMMARY)
        summary = it.Message(role="user", content=(it.InputText(text=text),))
        return (*self._retained(), summary, *recent, *self.after)

    def _retained(self) -> Iterator[it.Item]:
        """Yield the items before the compaction that the model still sees: items that apply to the
        whole conversation, and the user's latest messages. A user message that the client no longer
        sends is taken from the encrypted content of the compaction."""
        assert self.compaction is not None
        recent = set(map(_message_key, self.compaction.recent_items)) - {None}
        sent = recent | set(map(_message_key, self.before))
        not_sent = [
            item for item in self.compaction.user_messages if _message_key(item) not in sent
        ]
        retained = [
            item
            for item in self.before
            if (is_persistent(item) or is_user_message(item)) and _message_key(item) not in recent
        ]
        budget = self.compaction.user_token_budget
        budget = self.user_token_budget if budget is None else min(budget, self.user_token_budget)
        return _limit_user_messages((*not_sent, *retained), budget)

    def compact(self, summary: str, *, keep_tokens: int = 0) -> VisibleHistory:
        """Return the conversation after a compaction.

        ``keep_tokens``: the number of tokens at the end of the conversation that stay unchanged.
        ``summary``: the summary of the items that ``items_to_summarize`` returned for the same
        ``keep_tokens``.
        """
        known = self.compaction.user_messages if self.compaction is not None else ()
        summarized, recent = self._split(keep_tokens)
        users = (item for item in (*known, *self.before, *summarized) if is_user_message(item))
        compaction = CompactedHistory(
            user_messages=tuple(_limit_user_messages(users, self.user_token_budget)),
            summary=summary,
            recent_items=recent,
            user_token_budget=self.user_token_budget,
        )
        return replace(
            self,
            before=(*self.before, *self.after),
            compaction=compaction,
            after=(),
            compaction_requested=False,
        )

    def items_to_summarize(self, *, keep_tokens: int = 0) -> tuple[it.Item, ...]:
        """Return the items that a summary has to cover. These are all items that the model sees,
        except for the newest items that have at most ``keep_tokens`` tokens together."""
        summarized, _ = self._split(keep_tokens)
        if not summarized and (keep_tokens or self.compaction is None):
            return ()
        if self.compaction is None:
            return replace(self, after=summarized).items
        return replace(self, after=summarized[len(self.compaction.recent_items) :]).items

    def _split(self, keep_tokens: int) -> tuple[tuple[it.Item, ...], tuple[it.Item, ...]]:
        """Split the items after the last summary into two groups: the items to summarize, and the
        items that stay. These items stay:

        - the newest items that have at most ``keep_tokens`` tokens together,
        - older calls without an output,
        - older calls of an open program. A program is code that the model wrote. It is open until
          its output is known.
        """
        recent = self.compaction.recent_items if self.compaction is not None else ()
        items = (*recent, *self.after)
        start = _tail_start(items, keep_tokens)
        program_ids = {program.call_id for program in open_programs(items)}
        answered = _answered_ids(items)
        waiting = tuple(
            item
            for item in items[:start]
            # An open program runs again with the results of its calls.
            if _is_waiting(item, answered) or caller_program_id(item) in program_ids
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
    """Return the items that the model sees.

    ``past``: earlier items. ``own``: items of the request. ``user_token_budget``: after a
    compaction, the model still sees the newest of the user's earlier messages. This is the limit
    for their tokens in total (see ``_limit_user_messages``). ``refuse``: if true, an item that
    cannot be decrypted raises ``InvalidRequest``. If false, such an item is left out.
    """
    items = (*past, *own)
    if it.CompactionTrigger in map(type, items):
        items = tuple(item for item in items if type(item) is not it.CompactionTrigger)
    configuration = Configuration()
    if not _MESSAGE_FORMS.keys().isdisjoint(map(type, items)):
        configuration = configuration_of(items)
        items = tuple(map(_as_message, items))
    compaction_requested = bool(own) and isinstance(own[-1], it.CompactionTrigger)
    if _ENCRYPTED.isdisjoint(map(type, items)):
        return VisibleHistory(
            before=(),
            compaction=None,
            after=items,
            user_token_budget=user_token_budget,
            compaction_requested=compaction_requested,
            configuration=configuration,
        )
    transformations: list[InputTransformation] = []

    def on_undecryptable(item: it.Reasoning | _Compaction) -> None:
        if refuse:
            raise _undecryptable(item, own)
        removed = UNSET if item.is_reasoning else tag_of(type(item))
        transformations.append(InputTransformation(id=item.id, item_type=removed))

    start, compaction = _newest_compaction(items, sealer, on_undecryptable)
    after = tuple(_decrypt_reasoning(items, start, sealer, on_undecryptable))
    return VisibleHistory(
        before=items[:start],
        compaction=compaction,
        after=after,
        user_token_budget=user_token_budget,
        compaction_requested=compaction_requested,
        configuration=configuration,
        input_transformations=tuple(transformations),
    )


#: Items with content that has to be decrypted.
_ENCRYPTED = frozenset({it.Compaction, it.ContextCompaction, it.Reasoning})
_Compaction = it.Compaction | it.ContextCompaction
_COMPACTIONS = frozenset({it.Compaction, it.ContextCompaction})

#: Called with an item that cannot be decrypted.
_OnUndecryptable = Callable[[it.Reasoning | _Compaction], None]


def _newest_compaction(
    items: Sequence[it.Item], sealer: TenantSealer, on_undecryptable: _OnUndecryptable
) -> tuple[int, CompactedHistory | None]:
    """Return the index of the item after the newest compaction that can be decrypted, and the
    content of this compaction. If there is no such compaction, return 0 and None.

    ``on_undecryptable``: called with each newer compaction that cannot be decrypted.
    """
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        if is_compaction(item) and item.encrypted_content:
            try:
                return index + 1, sealer.decrypt_compaction(item.encrypted_content)
            except DecryptionError:
                on_undecryptable(item)
    return 0, None


def _decrypt_reasoning(
    items: Sequence[it.Item],
    start: int,
    sealer: TenantSealer,
    on_undecryptable: _OnUndecryptable,
) -> Iterator[it.Item]:
    """Yield the items from index ``start`` on, with decrypted reasoning and without compactions.

    Reasoning with readable content is decrypted too, because it may also contain content that an
    upstream API encrypted. Reasoning that cannot be decrypted:

    - If it has readable content, it is yielded unchanged.
    - If it has no readable content, ``on_undecryptable`` is called. The item is then yielded if it
      has a summary, and is left out if it has none.
    """
    for item in items[start:]:
        if is_compaction(item):
            continue
        if isinstance(item, it.Reasoning) and item.encrypted_content:
            try:
                item = sealer.decrypt_reasoning(item)
            except DecryptionError:
                if not item.content:
                    on_undecryptable(item)
                    if not item.summary:
                        continue
        yield item


def _as_message(item: it.Item) -> it.Item:
    """Return the item as the message that the model sees, if it has such a form."""
    form = _MESSAGE_FORMS.get(type(item))
    return item if form is None else form(item)


def _agent_message(item: it.AgentMessage) -> it.Message:
    """Return a message of an agent as a message of the user. The texts of its parts are one text,
    because Codex divides a message within a line."""
    content = item.content or ""
    parts: tuple[it.Part, ...] = (it.InputText(text=content),) if isinstance(content, str) else ()
    texts: list[str] = []
    for part in (*content, None) if isinstance(content, tuple) else ():
        if isinstance(part, it.EncryptedContent):
            texts.append(part.encrypted_content)
        elif isinstance(part, it.InputText):
            texts.append(part.text)
        else:
            parts += (it.InputText(text="".join(texts)),) if texts else ()
            parts += () if part is None else (part,)
            texts = []
    return it.Message(id=item.id, role="user", content=parts)


#: Type of an item → function that returns it as a message, the form in which the model sees it.
_MESSAGE_FORMS: Mapping[type[it.ItemBase], Callable[[Any], it.Message]] = {
    it.AgentMessage: _agent_message,
    it.ConfigurationUpdate: update_message,
}


def _undecryptable(item: it.Item, own: Sequence[it.Item]) -> InvalidRequest:
    """Return the error for an item that cannot be decrypted. ``own``: the items of the request's
    input. The item may also come from the history before the input."""
    index = next((at for at, each in enumerate(own) if each is item), None)
    param = "previous_response_id" if index is None else f"input[{index}].encrypted_content"
    return InvalidRequest(
        f"The encrypted content for item {item.id} could not be verified. It was not made by this "
        "server for you, or it was damaged.",
        param=param,
        code="invalid_encrypted_content",
    )


# --- calls and their outputs ---------------------------------------------------------------------


def _is_output(item: it.Item) -> bool:
    return KINDS[type(item)].answers is not None


def _answer_id(item: it.Item) -> str | None:
    """Return the id with which an answer refers to this item. Returns None if the item needs no
    answer."""
    return None if _is_output(item) else item.answer_key or None


def _answered_ids(items: Iterable[it.Item]) -> frozenset[str]:
    """Return the ids of all calls and approval requests that have an answer among ``items``."""
    return frozenset(item.answered_key for item in items if item.answered_key)


def _is_waiting(item: it.Item, answered: Container[str]) -> bool:
    """Whether an item still waits for an answer. ``answered``: the ids of the items that have an
    answer. An incomplete call, which a limit has cut off, does not wait, because it was not
    executed."""
    id = _answer_id(item)
    is_cut = item.status == "incomplete"
    return id is not None and not is_cut and id not in answered


def _without_unanswered(
    recent: tuple[it.Item, ...], after: tuple[it.Item, ...]
) -> tuple[it.Item, ...]:
    """Return those items of ``recent`` that the model may see. ``recent``: the recent items that a
    compaction has kept. ``after``: the items after the compaction. These items are left out:

    - items that are also in ``after``, because the client has sent them again,
    - calls and approval requests without an answer, except asynchronous calls,
    - all items of an open program, if one of its calls waits for an answer. A program is code that
      the model wrote. It is open until its output is known.

    If no call of an open program waits, the program can continue. All its items are then returned,
    except those that are also in ``after``.
    """
    items = (*recent, *after)
    answered = _answered_ids(items)
    sent_ids = {id for item in after for id in (_answer_id(item), item.id) if id}
    blocked_programs = {caller_program_id(item) for item in items if _is_waiting(item, answered)}
    can_continue = {
        program.call_id: program.call_id not in blocked_programs for program in open_programs(items)
    }

    def is_visible(item: it.Item) -> bool:
        id = _answer_id(item)
        if id in sent_ids or item.id in sent_ids:
            return False
        program_id = item.call_id if isinstance(item, it.Program) else caller_program_id(item)
        is_complete = id is None or id in answered or item.async_ is True
        return can_continue.get(program_id or "", is_complete)

    return tuple(item for item in recent if is_visible(item))


def _tail_start(items: Sequence[it.Item], max_tokens: int) -> int:
    """Find the newest items that have at most ``max_tokens`` tokens together, and return the index
    of the first of them. If the output of a call is among them, the call is among them too."""
    start, remaining = len(items), max_tokens
    while start > 0 and (remaining := remaining - estimate_tokens(items[start - 1])) >= 0:
        start -= 1
    call_indexes = {_answer_id(item): index for index, item in enumerate(items)}
    pairs = [
        (call_indexes[call_id], index)
        for index, item in enumerate(items)
        if _is_output(item) and (call_id := item.call_id) in call_indexes
    ]
    for call, output in sorted(pairs):
        if call < start <= output:
            start = output + 1
    return start


# --- messages and sizes --------------------------------------------------------------------------


def is_compaction(item: it.Item) -> TypeGuard[_Compaction]:
    """Whether the item stands for the items before it."""
    return type(item) in _COMPACTIONS


def is_user_message(item: it.Item) -> TypeGuard[it.Message]:
    """Whether the item is a message of the user."""
    return isinstance(item, it.Message) and item.role == "user"


def is_persistent(item: it.Item) -> bool:
    """Whether the item applies to the whole conversation, like a system message. Such an item is
    never summarized."""
    return KINDS[type(item)].persistent or item.role in ("system", "developer")


def _message_key(item: it.Item) -> bytes | None:
    """Return a key that identifies a message by its content. Ids cannot be the key, because clients
    that do not store responses send messages without ids. Returns None for items that a compaction
    does not retain."""
    if item.is_message and (is_user_message(item) or is_persistent(item)):
        return _encode((item.role, item.message_parts))
    return None


def _limit_user_messages(items: Iterable[it.Item], max_tokens: int) -> Iterator[it.Item]:
    """Return the items in order, without the oldest user messages. The returned user messages have
    at most ``max_tokens`` tokens together. All items that are not user messages are returned.

    The newest user message is returned even if it alone has more than ``max_tokens`` tokens. If it
    has more than twice ``max_tokens`` tokens, it is truncated to this number. If ``max_tokens`` is
    0, no user message is returned.
    """
    limited: list[it.Item] = []
    remaining: int | None = None
    for item in reversed(tuple(items)):
        if not is_user_message(item):
            limited.append(item)
        elif max_tokens <= 0:
            continue
        elif remaining is None:
            newest = _truncate(item, 2 * max_tokens)
            limited.append(newest)
            remaining = max_tokens - estimate_tokens(newest)
        elif (remaining := remaining - estimate_tokens(item)) >= 0:
            limited.append(item)
    return reversed(limited)


def estimate_tokens(item: it.Item) -> int:
    """Estimate the number of tokens of an item. The estimate is more often too high than too
    low."""
    content = getattr(item, "content", None) or getattr(item, "output", None)
    if not isinstance(content, tuple):
        return len(_encode(item)) // _TOKEN_BYTES + 1
    return sum(
        len(part.text.encode()) // _TOKEN_BYTES + 1 if hasattr(part, "text") else _PART_TOKENS
        for part in content
    )


def _truncate(message: it.Message, max_tokens: int) -> it.Message:
    """Return the message, truncated if it has more than ``max_tokens``. A truncated message has
    only its text parts. If a text is too long, its middle is removed."""
    if estimate_tokens(message) <= max_tokens:
        return message
    parts: list[it.Part] = []
    remaining = max_tokens * _TOKEN_BYTES
    for part in message.content:
        if isinstance(part, it.InputText):
            text = truncate_middle(part.text, remaining, unit="characters")
            remaining = max(0, remaining - len(text))
            parts.append(it.InputText(text=text))
    return replace(message, content=tuple(parts))
