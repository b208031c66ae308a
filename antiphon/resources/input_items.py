"""Input items of a request: assign ids, resolve references, check that calls and outputs match."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeGuard

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, NotFound
from antiphon.inference.conversation import caller_program_id, open_programs
from antiphon.store.base import Store
from antiphon.stream.kinds import KINDS
from antiphon.stream.writer import Ids
from antiphon.wire import items as it


async def resolve_items(
    items: Iterable[it.Item],
    store: Store,
    tenant: str,
    ids: Ids,
    past: tuple[it.Item, ...] = (),
    *,
    param: str = "input",
) -> tuple[it.Item, ...]:
    """Return the items, each with an id. A reference is replaced by the item that it refers to,
    which is in ``past`` or in the store. An image generation call that has only an id is also a
    reference.

    - ``ids``: function that gets the prefix of an id and returns a new id.
    - ``past``: the earlier items of the conversation.
    - ``param``: path of the items in the request, for error messages.

    An output of a function without ``call_id`` gets the id of the only call that it can answer.
    Raises ``NotFound`` if there is no item for a reference. Raises ``InvalidRequest`` if there is
    not exactly one call for an output without ``call_id``.
    """
    items = tuple(items)
    earlier: dict[str, it.Item] | None = None
    admitted: list[it.Item] = []
    for item in items:
        if not _is_reference(item):
            admitted.append(_with_id(item, ids))
            continue
        if earlier is None:
            earlier = {known.id: known for known in reversed(past)}
        admitted.append(await _resolve(item, store, tenant, earlier, param))
    if any(map(lacks_call_id, admitted)):
        for index, item in enumerate(admitted):
            if lacks_call_id(item):
                known = (*past, *admitted[:index])
                admitted[index] = _answering(item, known, f"{param}[{index}]")
    if it.LocalShellCallOutput not in map(type, admitted):
        return tuple(admitted)
    calls: dict[str, it.LocalShellCall] = {}
    for call in it.of_type((*past, *admitted), it.LocalShellCall):
        calls.setdefault(call.id, call)
        calls.setdefault(call.call_id, call)
    return tuple(_with_call_id(item, calls, ids) for item in admitted)


async def _resolve(
    item: it.Item, store: Store, tenant: str, past: Mapping[str, it.Item], param: str
) -> it.Item:
    """Return the item to which the reference ``item`` refers. ``past``: id → earlier item of the
    conversation. ``param``: the path of the reference in the request. Raises ``NotFound`` with this
    path."""
    found = past.get(item.id)
    if found is None:
        found = await store.load_item(tenant, item.id)
    if found is None:
        raise NotFound(
            f"Item with id '{item.id}' not found. Items are not persisted when `store` is set to "
            "false. Try again with `store` set to true, or remove this item from your input.",
            param=param,
        )
    return found


def _with_id(item: it.Item, ids: Ids) -> it.Item:
    return item if item.id else replace(item, id=ids(KINDS[type(item)].prefix))


def _is_reference(item: it.Item) -> bool:
    """Return whether an item is a reference to an earlier item.

    In OpenAI's guide, ``{"type": "image_generation_call", "id": …}`` is a reference too: a client
    sends it to edit an earlier image.
    """
    return isinstance(item, it.ItemReference) or (
        isinstance(item, it.ImageGenerationCall)
        and bool(item.id)
        and item.result is None
        and item.status == "completed"
    )


def lacks_call_id(item: it.Item) -> TypeGuard[it.FunctionCallOutput]:
    """Whether an item is an output of a function that names no call."""
    return isinstance(item, it.FunctionCallOutput) and item.call_id is UNSET


def _answering(output: it.FunctionCallOutput, items: Sequence[it.Item], path: str) -> it.Item:
    """Return an output that names no call, with the id of the call that it answers. This is the
    only call without an output that has the name and the namespace of the output, as far as they
    are given. ``items``: the items before the output. ``path``: the path of the output. Raises
    ``InvalidRequest``."""
    answered = {item.call_id for item in items if KINDS[type(item)].answers is not None}
    calls = [
        item.call_id
        for item in it.of_type(items, it.FunctionCall)
        if item.call_id not in answered
        and item.status != "incomplete"
        and output.name in (UNSET, item.name)
        and output.namespace in (UNSET, item.namespace)
    ]
    if len(calls) == 1:
        return replace(output, call_id=calls[0])
    named = "" if output.name is UNSET else f" of '{output.name}'"
    raise InvalidRequest(
        f"This output names no call, and {len(calls) or 'no'} calls{named} wait for an output. Set"
        " 'call_id' to the id of the call.",
        param=f"{path}.call_id",
        code="missing_required_parameter",
    )


def _with_call_id(item: it.Item, calls: Mapping[str, it.LocalShellCall], ids: Ids) -> it.Item:
    """Set the ``call_id`` of a ``local_shell`` output. Other items are returned unchanged.
    ``calls``: the calls, each under its item id and also under its call id. ``ids``: returns a new
    id for a prefix.

    OpenAI's clients set only the field ``id`` of the output, either to the call id or to the id of
    the call's item. In this case, the output gets a new ``id``. Other clients set ``call_id``
    themselves.
    """
    named = item.named_call
    call = calls.get(named) if item.id_names_call else None
    if call is None:
        return item
    id = ids(KINDS[type(item)].prefix) if item.id == named else item.id
    return replace(item, id=id, call_id=call.call_id)


def belongs_to_call(item: it.Item) -> bool:
    """Return whether ``check_call_outputs`` must know an item."""
    return bool(item.call_id) or KINDS[type(item)].answers is not None


def check_call_outputs(
    items: Iterable[it.Item],
    *,
    waiting: bool = False,
    own: Sequence[it.Item] = (),
    param: str = "input",
) -> None:
    """Check that each output comes after its call, and that each call has exactly one output.

    - Calls of a finished program (code that the model wrote and that calls tools) need no output.
    - If ``waiting`` is true, calls may still wait for their outputs. Callers set ``waiting`` if the
      request compacts the conversation.
    - Several calls may have the same id if each call has its own output, because some clients
      number their calls from 0 in each turn.
    - An asynchronous call may have no output yet, or several.

    ``own``: the items of the request, without earlier items of the conversation. If one of them is
    a surplus output, the error names its position. ``param``: the path of the items in the request,
    for the error. The error messages are OpenAI's, because clients match on them. Raises
    ``InvalidRequest``.
    """
    items = tuple(items)
    open_program_ids = {program.call_id for program in open_programs(items)}
    preceding: set[str | UnsetType | None] = set()
    calls: dict[str, str] = {}
    outputs: dict[str, str] = {}
    finished: set[str] = set()
    for item in items:
        call_id = item.call_id
        kind = KINDS[type(item)]
        if kind.answers is None:
            preceding.add(call_id)
        elif (named := item.named_call) and named not in preceding:
            # An output cannot be shown to the model without its call, even if the output is
            # incomplete. Only the outputs of hosted searches need not name a call.
            raise _unknown_call(KINDS[kind.answers].call_name or "program", named, param)
        if not call_id or item.status == "incomplete":
            continue  # an incomplete call was never executed
        if kind.call_name:
            calls[call_id] = kind.call_name
            if not _needs_output(item, open_program_ids):
                finished.add(call_id)
        elif kind.answers is not None and (name := KINDS[kind.answers].call_name):
            if call_id not in calls:  # its call is incomplete
                raise _unknown_call(name, call_id, param)
            outputs[call_id] = name
    _check_single_outputs(items, outputs, own, param)
    unanswered = [each for each in calls if each not in outputs and each not in finished]
    if unanswered and not waiting:
        name = calls[unanswered[0]]
        raise InvalidRequest(f"No tool output found for {name} {unanswered[0]}.", param=param)


def _needs_output(call: it.Item, open_program_ids: Container[str]) -> bool:
    """Whether a call must have an output: no asynchronous one, and none of a finished program."""
    program = caller_program_id(call)
    return call.async_ is not True and (program is None or program in open_program_ids)


def _unknown_call(name: str, call_id: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"No tool call found for {name} output with call_id {call_id}.", param=param
    )


def check_programs(past: Iterable[it.Item], own: Sequence[it.Item]) -> None:
    """Check that each program that has made a call is in the conversation: without its program, the
    model would see neither the call nor its output. ``past``: earlier items. ``own``: the items of
    the request, which are checked. Raises ``InvalidRequest``."""
    called = {
        index: program
        for index, item in enumerate(own)
        if (program := caller_program_id(item)) is not None
    }
    if not called:
        return
    known = {item.call_id for item in it.of_type((*past, *own), it.Program)}
    for index, program in called.items():
        if program not in known:
            raise InvalidRequest(
                f"No program found with call_id {program}.", param=f"input[{index}].caller"
            )


def _check_single_outputs(
    items: Sequence[it.Item], names: Mapping[str, str], own: Sequence[it.Item], param: str
) -> None:
    """Check that no call has several outputs, except asynchronous calls. Raises ``InvalidRequest``.

    ``items``: the items of the conversation, including ``own``. ``names``: call id → type of the
    call in error messages, such as ``function call``. ``own``: the items of this request. If one of
    them is the surplus output, the error names its position.
    """
    if not names:
        return
    allowed: dict[str, float] = {}
    for item in items:
        call_id, kind = item.call_id, KINDS[type(item)]
        if call_id and item.status != "incomplete":
            outputs = math.inf if item.async_ is True else 1 if kind.call_name else 0
            used = 1 if kind.answers is not None else 0
            allowed[call_id] = allowed.get(call_id, 0) + outputs - used
    for call_id, left in allowed.items():
        if left < 0 and call_id in names:
            indexes = [
                index
                for index, item in enumerate(own)
                if item.call_id == call_id and KINDS[type(item)].answers is not None
            ]
            raise InvalidRequest(
                f"Duplicate output for {names[call_id]} with call_id {call_id}. Each call must have"
                " exactly one output.",
                param=f"{param}[{indexes[-1]}].call_id" if indexes else param,
            )
