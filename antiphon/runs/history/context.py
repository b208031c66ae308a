"""From a request and the store to the conversation the model will see.

A chain restores the inputs and outputs of every ancestor, oldest first: never instructions, tools
or settings, which belong to the request that brought them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.conversation import Conversation, Kept, open_programs, program_of
from antiphon.errors import InvalidRequest, NotFound
from antiphon.store.base import Store, StoredResponse
from antiphon.stream.kinds import KINDS
from antiphon.stream.writer import Ids
from antiphon.wire import items as it

from .chain_cache import Chains
from .session_chains import Recent
from .visible_history import Recalled

__all__ = ["Context", "Recall", "admit", "assemble", "check_pairs", "history"]


class Context(Struct, frozen=True, kw_only=True):
    """What a request is asked in. ``input``: the part of it this request brought, ids given and
    references resolved; ``recalled``: what of it all the model is shown."""

    recalled: Recalled
    input: tuple[it.Item, ...]
    instructions: str | None = None
    kept: Kept | None = None
    #: The responses it continues, oldest first.
    chain: tuple[StoredResponse, ...] = ()
    #: What a stored prompt says before all else, in this request only.
    lead: tuple[it.Item, ...] = ()

    @property
    def conversation(self) -> Conversation:
        """What the model is shown. Errors name the places of the request's own items, which are
        the last ones."""
        items = (*self.lead, *self.recalled.items)
        own = sum(not isinstance(item, it.CompactionTrigger) for item in self.input)
        return Conversation(
            items=items,
            instructions=self.instructions,
            kept=self.kept,
            past=len(items) - own,
        )


#: What the model is shown of the past and of the request's own items.
Recall = Callable[[tuple[it.Item, ...], tuple[it.Item, ...]], Recalled]


async def assemble(
    store: Store,
    tenant: str,
    *,
    input: tuple[it.Item, ...],
    instructions: str | None,
    previous_response_id: str | None,
    conversation_id: str | None = None,
    recall: Recall,
    recent: Recent | None = None,
    chains: Chains,
    ids: Ids,
) -> Context:
    """The past is a chain of responses, stored or ``recent``, or a conversation, never both.

    Raises ``InvalidRequest`` for an unknown or unfinished previous response, for outputs without
    their call and calls without their output, and ``NotFound`` for an item that is not stored."""
    chain: tuple[StoredResponse, ...] = ()
    if previous_response_id is not None:
        chain = recent.chain(previous_response_id) or () if recent is not None else ()
        chain = chain or await _chain(chains, tenant, previous_response_id)
    past = history(chain)
    if conversation_id is not None:
        past = await store.conversation_items(tenant, conversation_id)
    own = await admit(input, store, tenant, ids, past)
    recalled = recall(past, own)
    check_pairs(recalled.items, waiting=recalled.triggered)
    compacted = any(isinstance(item, it.Compaction) for item in own)
    return Context(
        recalled=recalled,
        input=own,
        instructions=instructions,
        kept=None if compacted else _kept(chain),  # those are of what was compacted
        chain=chain,
    )


async def _chain(chains: Chains, tenant: str, response_id: str) -> tuple[StoredResponse, ...]:
    chain = await chains.of(tenant, response_id)
    if chain is None:
        raise _no_previous(response_id)
    if not chain[-1].response.store:  # kept for a while, because it was made in the background
        raise _no_previous(response_id)
    status = chain[-1].response.status
    if status not in ("completed", "incomplete"):
        raise InvalidRequest(
            f"Previous response with id '{response_id}' is {status}: "
            "only a completed or incomplete response can be continued.",
            param="previous_response_id",
        )
    return chain


def _no_previous(response_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"Previous response with id '{response_id}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def history(chain: Iterable[StoredResponse]) -> tuple[it.Item, ...]:
    """Every input and output item of a chain, oldest first."""
    return tuple(item for stored in chain for item in (*stored.input, *stored.response.output))


async def admit(
    items: Iterable[it.Item],
    store: Store,
    tenant: str,
    ids: Ids,
    past: tuple[it.Item, ...] = (),
    *,
    param: str = "input",
) -> tuple[it.Item, ...]:
    """The items with ids, and for a reference the item it stands for: of ``past``, or stored. An
    image that is named by its id alone is a reference too. ``param``: where the items were given.

    Raises ``NotFound``."""
    admitted = tuple([await _admit(item, store, tenant, ids, past, param) for item in items])
    return tuple(_answering(item, (*past, *admitted), ids) for item in admitted)


async def _admit(
    item: it.Item, store: Store, tenant: str, ids: Ids, past: tuple[it.Item, ...], param: str
) -> it.Item:
    if not isinstance(item, it.ItemReference) and not _names_image(item):
        return item if item.id else replace(item, id=ids(KINDS[type(item)].prefix))
    found = next((known for known in past if known.id == item.id), None)
    if found is None:
        found = await store.item(tenant, item.id)
    if found is None:
        raise NotFound(
            f"Item with id '{item.id}' not found. Items are not persisted when `store` is set to "
            "false. Try again with `store` set to true, or remove this item from your input.",
            param=param,
        )
    return found


def _names_image(item: it.Item) -> bool:
    """OpenAI's guide has ``{"type": "image_generation_call", "id": …}`` for an image to go on
    with."""
    return (
        isinstance(item, it.ImageGenerationCall)
        and bool(item.id)
        and item.result is None
        and item.status == "completed"
    )


def _answering(item: it.Item, known: Iterable[it.Item], ids: Ids) -> it.Item:
    """OpenAI's clients name in the id of an output of ``local_shell`` the call that it answers, by
    its id or its item's; others have a ``call_id``."""
    if not isinstance(item, it.LocalShellCallOutput):
        return item
    named = item.id if item.call_id is UNSET else item.call_id
    for call in known:
        if isinstance(call, it.LocalShellCall) and named in (call.id, call.call_id):
            id = ids(KINDS[type(item)].prefix) if item.id == named else item.id
            return replace(item, id=id, call_id=call.call_id)
    return item


#: Output type → the type of the call it answers, and what errors call it.
_ANSWERS: Mapping[type[it.ItemBase], tuple[type[it.ItemBase], str]] = {
    it.FunctionCallOutput: (it.FunctionCall, "function call"),
    it.CustomToolCallOutput: (it.CustomToolCall, "custom tool call"),
    it.ComputerCallOutput: (it.ComputerCall, "computer call"),
    it.LocalShellCallOutput: (it.LocalShellCall, "local shell call"),
    it.ShellCallOutput: (it.ShellCall, "shell call"),
    it.ApplyPatchCallOutput: (it.ApplyPatchCall, "apply patch call"),
}
_CALLS = dict(_ANSWERS.values())


def check_pairs(items: Iterable[it.Item], *, waiting: bool = False) -> None:
    """Every output has its call and, unless calls may be ``waiting``, every call its output, in
    whatever order they come. Calls of a program that is over need none.

    The messages are those of OpenAI's API, which clients match on.
    """
    items = tuple(items)
    going = {program.call_id for program in open_programs(items)}
    calls: dict[str, str] = {}
    outputs: dict[str, str] = {}
    over: set[str] = set()
    for item in items:
        call_id = getattr(item, "call_id", None)
        if not call_id or getattr(item, "status", None) == "incomplete":
            continue  # a call that a limit cut was never handed out to be run
        program = program_of(item)
        if (name := _CALLS.get(type(item))) is not None:
            calls[call_id] = name
            if program is not None and program not in going:
                over.add(call_id)
        elif (answer := _ANSWERS.get(type(item))) is not None:
            outputs[call_id] = answer[1]
    for call_id, name in outputs.items():
        if call_id not in calls:
            raise InvalidRequest(
                f"No tool call found for {name} output with call_id {call_id}.", param="input"
            )
    for call_id, name in calls.items():
        if call_id not in outputs and call_id not in over and not waiting:
            raise InvalidRequest(f"No tool output found for {name} {call_id}.", param="input")


def _kept(chain: tuple[StoredResponse, ...]) -> Kept | None:
    """The token ids the model last saw and wrote, rebuilt from what each turn added."""
    ids = array("I")
    fingerprint: str | None = None
    for stored in chain:
        tokens = stored.tokens
        if tokens is None:
            fingerprint = None
            continue
        if tokens.fingerprint != fingerprint and tokens.base:
            return None
        del ids[tokens.base :]
        ids.frombytes(tokens.ids)
        fingerprint = tokens.fingerprint
    return Kept(ids=tuple(ids), fingerprint=fingerprint) if fingerprint is not None else None
