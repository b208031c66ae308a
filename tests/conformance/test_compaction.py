"""State of stateless clients: encrypted reasoning, compacted conversations, stored prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.inference.conversation import Conversation, Options
from antiphon.resources.prompts import Prompts
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store.base import Store
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire import items as it
from tests.attachments.samples import data_url, png
from tests.conformance.conftest import Clients, Serve
from tests.conformance.scripts import call, event_types, message_deltas, reasoning_deltas
from tests.conformance.server import Ask, Json, engine

SEAL = Encryptor([EncryptionKey(id="a", secret=b"a" * 32)])
TRIGGER = {"type": "compaction_trigger"}
COMPACTION_NOTICE = "this conversation is now compacted"


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def summarizing_model(conversation: Conversation, options: Options) -> Any:
    """Return a model that summarizes on request."""
    last = conversation.items[-1]
    text = "".join(getattr(part, "text", "") for part in getattr(last, "content", ()))
    return "The sum of it." if COMPACTION_NOTICE in text else "Well."


def prompt_texts(backend: Any) -> list[str]:
    """Return the texts of the model's last prompt."""
    conversation, _ = backend.requests[-1]
    return [
        "".join(part.text for part in item.content)
        for item in conversation.items
        if isinstance(item, it.Message | it.Reasoning)
    ]


# --- reasoning -----------------------------------------------------------------------------------


@pytest.mark.requirement("API-ENCRYPTED")
async def test_encrypted_reasoning_round_trips_through_the_client(serve: Serve, ask: Ask) -> None:
    server = serve([[*reasoning_deltas("I ", "think."), *message_deltas("Hi")]], seal=SEAL)
    answer = await ask(server, store=False, include=["reasoning.encrypted_content"])
    reasoning, message = answer.output
    assert reasoning["content"][0]["text"] == "I think."
    assert "think" not in reasoning["encrypted_content"]
    for event in answer.events:
        if event["type"] == "response.output_item.done" and event["output_index"] == 0:
            assert event["item"] == reasoning
    backend = ScriptedBackend(["ok"])
    replica = serve(backend, on=MemoryStore(), seal=SEAL)
    bare = {**reasoning, "content": None}
    await ask(replica, input=[user("hi"), bare, message, user("and?")], store=False)
    assert prompt_texts(backend)[1] == "I think."
    await ask(replica, input=[user("hi"), {**bare, "id": "rs_other"}, message], store=False)
    assert prompt_texts(backend)[1] == "I think."  # the id is the client's to lose


@pytest.mark.requirement("API-ENCRYPTED")
async def test_foreign_encrypted_reasoning_is_reported_or_rejected(serve: Serve, ask: Ask) -> None:
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAAB"}
    answer = await ask(serve(), input=[user("hi"), sealed, user("and?")])
    assert answer.terminal_response["input_transformations"] == [
        {
            "id": "rs_1",
            "action": "removed",
            "type": "reasoning",
            "reason": "organization_mismatch",
        }
    ]
    refusing = serve(on=MemoryStore(), undecryptable_items="refuse")
    rejection = (await ask(refusing, input=[user("hi"), sealed])).rejection
    assert (rejection["http"], rejection["param"]) == (400, "input[1].encrypted_content")
    assert rejection["code"] == "invalid_encrypted_content"


@pytest.mark.requirement("API-ENCRYPTED")
async def test_reasoning_is_encrypted_only_on_request(serve: Serve, ask: Ask) -> None:
    server = serve([[*reasoning_deltas("hm"), *message_deltas("Hi")]], seal=SEAL)
    assert "encrypted_content" not in (await ask(server)).output[0]
    assert (await ask(server, include=["reasoning.encrypted_content"])).output[0][
        "encrypted_content"
    ]


# --- compaction ----------------------------------------------------------------------------------


@pytest.mark.requirement("API-COMPACT")
async def test_compaction_trigger_adds_one_item(serve: Serve, ask: Ask) -> None:
    backend = ScriptedBackend(summarizing_model)
    server = serve(backend, seal=SEAL)
    talk = [user("I am Ann."), {"role": "assistant", "content": "Hello."}, TRIGGER]
    answer = await ask(server, input=talk, store=False)
    (item,) = answer.output
    assert item["type"] == "compaction" and set(item) == {"type", "id", "encrypted_content"}
    assert answer.terminal_response["usage"]["output_tokens"] == 4
    if answer.events:
        assert event_types(answer.events)[-4:] == [
            "output_item.added",
            "compaction.compacting",
            "output_item.done",
            "completed",
        ]
    replica = ScriptedBackend(summarizing_model)
    await ask(serve(replica, on=MemoryStore(), seal=SEAL), input=[item, user("Who am I?")])
    ann, result, last = prompt_texts(replica)
    assert (ann, last) == ("I am Ann.", "Who am I?")
    assert result.endswith("The sum of it.")


@pytest.mark.requirement("API-COMPACT")
async def test_compaction_keeps_a_pending_call(serve: Serve, ask: Ask) -> None:
    scripts = [
        call('{"city": "Rome"}', call_id="call_1"),
        message_deltas("The sum."),
        message_deltas("Warm."),
    ]
    server = serve(ScriptedBackend(scripts), seal=SEAL)
    first = await ask(server, input="Rome?")
    second = await ask(server, input=[TRIGGER], previous_response_id=first.terminal_response["id"])
    output = {"type": "function_call_output", "call_id": "call_1", "output": "22"}
    third = await ask(server, input=[output], previous_response_id=second.terminal_response["id"])
    assert third.text == "Warm."
    kinds = [item.__struct_config__.tag for item in server.backend.requests[-1][0].items]  # type: ignore[attr-defined]
    assert kinds == ["message", "message", "function_call", "function_call_output"]


@pytest.mark.requirement("API-COMPACT")
async def test_context_above_the_threshold_is_compacted(
    serve: Serve, ask: Ask, store: Store
) -> None:
    scripted_engine = engine(
        lambda prompt: "The sum of it." if COMPACTION_NOTICE in prompt else "Well."
    )
    server = serve(scripted_engine, on=store, seal=SEAL)
    first = await ask(server, input=[user("I am Ann."), user("x" * 300)])
    long = await ask(
        server,
        input=[{"role": "assistant", "content": "OLD" * 300}, user("And?")],
        previous_response_id=first.terminal_response["id"],
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    assert [item["type"] for item in long.output] == ["compaction", "message"]
    assert long.terminal_response["context_management"] == [
        {"type": "compaction", "compact_threshold": 1000}
    ]
    prompts = [scripted_engine.text(prompt) for prompt, _ in scripted_engine.requests]
    _, sum_up, shrunk = prompts
    assert COMPACTION_NOTICE in sum_up and "OLD" in sum_up
    assert "OLD" not in shrunk and "I am Ann." in shrunk and "The sum of it." in shrunk
    usage = long.terminal_response["usage"]
    assert usage["input_tokens"] == sum(
        len(prompt.ids) for prompt, _ in scripted_engine.requests[1:]
    )
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    await ask(server, input="More?", previous_response_id=long.terminal_response["id"])
    after, before = scripted_engine.requests[-1][0].ids, scripted_engine.requests[-2][0].ids
    assert after[: len(before)] == before  # what was sampled since is kept, and nothing older


@pytest.mark.requirement("API-COMPACT")
async def test_official_client_compacts_and_continues(serve: Serve, client_of: Clients) -> None:
    backend = ScriptedBackend(summarizing_model)
    api = client_of(serve(backend, seal=SEAL).app)
    first = await api.responses.create(model="tiny", input="I am Ann.")
    for request in (
        {"previous_response_id": first.id},
        {"input": [user("I am Ann."), {"role": "assistant", "content": "Well."}]},
        {"input": "I am Ann.", "instructions": "Be kind.", "prompt_cache_key": "k"},
    ):
        window = await api.responses.compact(model="tiny", **request)
        assert window.object == "response.compaction" and window.usage.total_tokens > 0
        assert window.id.startswith("resp_") and isinstance(window.created_at, int)
        assert [item.type for item in window.output] == ["message", "compaction"]
        # its types know no messages of the user in an output, but pass them on
        again = [item.model_dump(exclude_unset=True, warnings=False) for item in window.output]
        answer = await api.responses.create(model="tiny", input=[*again, user("Who am I?")])
        assert answer.output_text == "Well."
        assert [text[:20] for text in prompt_texts(backend)] == [
            "I am Ann.",
            "[The conversation up",
            "Who am I?",
        ]
    with pytest.raises(BadRequestError) as raised:
        await api.responses.compact(model="tiny", previous_response_id=window.id)
    assert raised.value.code == "previous_response_not_found"


@pytest.mark.requirement("API-COMPACT")
@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": "x"}, "model", "missing_required_parameter"),
        ({"model": "tiny"}, "input", "missing_required_parameter"),
        ({"model": "tiny", "input": [{"type": "x"}]}, "input[0].type", "invalid_value"),
        ({"model": "nobody", "input": "x"}, "model", "model_not_found"),
        ({"model": "tiny", "input": [TRIGGER]}, "input", None),
    ],
)
async def test_invalid_compaction_is_rejected(
    serve: Serve, body: Json, param: str, code: str | None
) -> None:
    answer = await serve().client.post("/v1/responses/compact", json=body)
    error = answer.json()["error"]
    assert answer.status_code in (400, 404)
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.requirement("API-COMPACT")
async def test_failed_compaction_is_an_error(serve: Serve) -> None:
    from antiphon.errors import BackendError

    server = serve(ScriptedBackend([BackendError("The engine stopped.")]))
    body = {"model": "tiny", "input": "x"}
    answer = await server.client.post("/v1/responses/compact", json=body)
    assert answer.status_code == 502
    assert answer.json()["error"]["message"] == "The engine stopped. You can retry your request."


# --- stored prompts ------------------------------------------------------------------------------


@pytest.fixture
def prompts(tmp_path: Path) -> Prompts:
    (tmp_path / "support").mkdir()
    (tmp_path / "support" / "1.toml").write_text(
        'instructions = "You work for {{company}}."\ntemperature = 0.5\n'
    )
    return Prompts(tmp_path)


@pytest.mark.requirement("API-PROMPTS", "D-66")
async def test_request_uses_a_stored_prompt(serve: Serve, ask: Ask, prompts: Prompts) -> None:
    backend = ScriptedBackend(["ok"])
    server = serve(backend, prompts=prompts)
    ref = {"id": "support", "variables": {"company": "Acme"}}
    answer = await ask(server, prompt=ref)
    assert answer.terminal_response["prompt"] == {**ref, "version": "1"}
    assert answer.terminal_response["instructions"] == "You work for Acme."
    assert answer.terminal_response["temperature"] == 0.5
    assert backend.requests[-1][0].instructions == "You work for Acme."
    await ask(server, prompt=ref, instructions="Mine.", temperature=1)
    assert backend.requests[-1][0].instructions == "Mine."
    rejection = (await ask(server, prompt={"id": "support"})).rejection
    assert (rejection["http"], rejection["param"]) == (400, "prompt.variables.company")
    rejection = (await ask(server, prompt={"id": "other"})).rejection
    assert (rejection["http"], rejection["param"]) == (404, "prompt.id")


@pytest.mark.requirement("API-PROMPTS")
async def test_official_client_uses_a_prompt_with_an_image(
    serve: Serve, client_of: Clients, prompts: Prompts
) -> None:
    backend = ScriptedBackend(["ok"])
    api = client_of(serve(backend, prompts=prompts).app)
    from antiphon.wire.resources.prompts import CreatePrompt

    content = [{"type": "input_text", "text": "What is on {{picture}}, {{name}}?"}]
    template = {"model": "gpt-5.5", "input": [{"role": "user", "content": content}]}
    await prompts.create(CreatePrompt(id="look", template=template))
    picture = {"type": "input_image", "image_url": data_url(png()), "detail": "low"}
    answer = await api.responses.create(
        prompt={"id": "look", "version": "1", "variables": {"picture": picture, "name": "Ann"}}
    )
    assert answer.prompt.id == "look" and answer.model == "gpt-5.5"
    assert answer.instructions[0].role == "user"
    (message,) = backend.requests[-1][0].items
    assert [type(part).__name__ for part in message.content] == [  # type: ignore[union-attr]
        "InputText",
        "InputImage",
        "InputText",
    ]
