"""Building conversations from requests and the store: chains, references, rejections."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import InvalidRequest, NotFound
from antiphon.inference.conversation import Conversation, Options
from antiphon.runs.service import Service
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.cursors import PageParams
from antiphon.wire.items import LocalShellCallOutput
from antiphon.wire.response import Response
from tests.runs.scripted_service import create, make_service

CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}


async def respond(service: Service, **fields: Any) -> Response:
    return await (await create(service, **fields)).drive()


def texts(requests: tuple[Conversation, Options]) -> list[str]:
    return [
        "".join(part.text for part in item.content)  # type: ignore[union-attr]
        for item in requests[0].items
        if hasattr(item, "content")
    ]


async def test_chain_restores_items_but_not_instructions() -> None:
    backend = ScriptedBackend(["one", "two", "three"])
    service = make_service(backend)
    first = await respond(service, input="a", instructions="Be brief.", temperature=0.5)
    second = await respond(service, input="b", previous_response_id=first.id)
    await respond(service, input="c", previous_response_id=second.id)
    assert texts(backend.requests[2]) == ["a", "one", "b", "two", "c"]
    assert backend.requests[0][0].instructions == "Be brief."
    assert backend.requests[2][0].instructions is None
    assert backend.requests[2][1].temperature == 1.0


async def test_response_can_be_continued_twice() -> None:
    backend = ScriptedBackend(["root", "left", "right"])
    service = make_service(backend)
    root = await respond(service, input="a")
    await respond(service, input="b", previous_response_id=root.id)
    await respond(service, input="c", previous_response_id=root.id)
    assert texts(backend.requests[2]) == ["a", "root", "c"]


@pytest.mark.parametrize("why", ["unknown", "deleted", "not stored", "of another tenant", "failed"])
async def test_unusable_previous_response_is_rejected(why: str) -> None:
    store = MemoryStore()
    service = make_service(ScriptedBackend(["x"]), store)
    first = await respond(service, store=why != "not stored")
    previous, tenant = first.id, "t"
    match why:
        case "unknown":
            previous = "resp_none"
        case "deleted":
            await service.delete("t", first.id)
        case "of another tenant":
            tenant = "u"
        case "failed":
            from antiphon.errors import BackendError

            broken = make_service(ScriptedBackend([BackendError("!")]), store)
            previous = (await respond(broken, input="again")).id
    with pytest.raises(InvalidRequest) as refused:
        await create(service, tenant, previous_response_id=previous)
    assert refused.value.param == "previous_response_id"
    if why != "failed":
        assert refused.value.message == f"Previous response with id '{previous}' not found."
        assert refused.value.code == "previous_response_not_found"


async def test_item_reference_is_resolved() -> None:
    backend = ScriptedBackend(["one", "two"])
    service = make_service(backend)
    first = await respond(service, input="a")
    reference = {"type": "item_reference", "id": first.output[0].id}
    await respond(service, input=[reference, {"role": "user", "content": "b"}])
    assert texts(backend.requests[1]) == ["one", "b"]


async def test_unknown_item_reference_returns_404() -> None:
    service = make_service(ScriptedBackend(["one"]))
    first = await respond(service, store=False)
    with pytest.raises(NotFound, match="Items are not persisted"):
        await create(service, input=[{"id": first.output[0].id}])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([OUTPUT], "No tool call found for function call output with call_id call_1."),
        ([CALL], "No tool output found for function call call_1."),
    ],
)
async def test_calls_and_outputs_must_match(items: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        service = make_service(ScriptedBackend())
        await create(service, input=[{"role": "user", "content": "x"}, *items])
    assert (refused.value.message, refused.value.param) == (message, "input")


@pytest.mark.requirement("API-DUPLICATE-OUTPUT")
async def test_second_output_of_a_call_is_rejected_with_its_path() -> None:
    service = make_service(ScriptedBackend(["one", "two"]))
    user = {"role": "user", "content": "x"}
    with pytest.raises(InvalidRequest, match="Duplicate output for function call") as refused:
        await create(service, input=[user, CALL, OUTPUT, {**OUTPUT, "output": "other"}])
    assert refused.value.param == "input[3].call_id"
    first = await respond(service, input=[user, CALL, OUTPUT])
    with pytest.raises(InvalidRequest, match="exactly one output") as refused:
        await create(service, input=[user, OUTPUT], previous_response_id=first.id)
    assert refused.value.param == "input[1].call_id"


async def test_call_ids_may_repeat_with_an_output_each() -> None:
    """Some clients number the calls of each turn from 0."""
    user = {"role": "user", "content": "x"}
    await respond(make_service(ScriptedBackend()), input=[CALL, OUTPUT, user, CALL, OUTPUT])


async def test_outputs_come_after_their_calls() -> None:
    talk = {"role": "user", "content": "x"}
    await respond(make_service(ScriptedBackend()), input=[CALL, talk, OUTPUT])
    with pytest.raises(InvalidRequest, match="No tool call found"):
        await create(make_service(ScriptedBackend()), input=[OUTPUT, talk, CALL])


async def test_truncated_call_needs_no_output() -> None:
    cut = {**CALL, "status": "incomplete"}
    await respond(make_service(ScriptedBackend()), input=[cut, {"role": "user", "content": "x"}])


async def test_items_get_ids_and_are_listed_newest_first() -> None:
    service = make_service(ScriptedBackend(["one", "two"]))
    first = await respond(service, input="a")
    second = await respond(service, input="b", previous_response_id=first.id)
    listed = await service.input_items("t", second.id, PageParams())
    assert len({item.id for item in listed.data}) == 3
    assert listed.data[0].id == listed.first_id
    page = await service.input_items("t", second.id, PageParams(limit=2))
    assert page.has_more and page.last_id is not None
    rest = await service.input_items("t", second.id, PageParams(limit=2, after=page.last_id))
    assert not rest.has_more
    assert [item.id for item in (*page.data, *rest.data)] == [item.id for item in listed.data]
    oldest = await service.input_items("t", second.id, PageParams(order="asc"))
    assert [item.id for item in oldest.data] == [item.id for item in reversed(listed.data)]
    with pytest.raises(InvalidRequest):
        await service.input_items("t", second.id, PageParams(after="msg_none"))
    with pytest.raises(NotFound):
        await service.input_items("u", second.id, PageParams())


@pytest.mark.parametrize("names", ["id", "call_id", "id of the item", "both"])
async def test_local_shell_output_names_its_call_by_id_or_call_id(names: str) -> None:
    """OpenAI's types have ``id`` alone, its guide ``call_id``."""
    call = {
        "type": "local_shell_call",
        "id": "lsh_1",
        "call_id": "call_1",
        "action": {"type": "exec", "command": ["ls"], "env": {}},
    }
    ways = {
        "id": {"id": "call_1"},
        "call_id": {"call_id": "call_1"},
        "id of the item": {"id": "lsh_1"},
        "both": {"id": "lsh_1", "call_id": "call_1"},
    }
    output = {"type": "local_shell_call_output", "output": "a.txt", **ways[names]}
    backend = ScriptedBackend(["ok"])
    requests: Any = [{"role": "user", "content": "Files?"}, call, output]
    await respond(make_service(backend), input=requests)
    found = backend.requests[0][0].items[-1]
    assert isinstance(found, LocalShellCallOutput) and found.call_id == "call_1"
    assert found.id not in ("", "lsh_1", "call_1")


@pytest.mark.parametrize(
    ("call", "output", "name"),
    [
        (
            {"type": "shell_call", "action": {"commands": []}},
            {"type": "shell_call_output", "output": []},
            "shell call",
        ),
        (
            {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
            {"type": "apply_patch_call_output", "status": "completed"},
            "apply patch call",
        ),
    ],
)
async def test_calls_of_client_tools_need_outputs(call: Any, output: Any, name: str) -> None:
    service = make_service(ScriptedBackend(["ok"]))
    messages = {"role": "user", "content": "hi"}
    for only, missing in ((call, "output"), (output, "call")):
        with pytest.raises(InvalidRequest, match=f"No tool {missing} found for {name}"):
            await respond(service, input=[messages, {**only, "call_id": "call_1"}])
