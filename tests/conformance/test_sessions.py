"""The key by which routers and replicas keep a conversation on one engine."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.backends.base import Reply
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.sampling import Session
from antiphon.security.encryption import EncryptionKey, Encryptor
from tests.conformance.conftest import Serve
from tests.conformance.server import Server

KEYS = Encryptor((EncryptionKey.from_secret(b"k" * 32),))


class Recording(ScriptedBackend):
    """Records the session of each reply."""

    def __init__(self) -> None:
        super().__init__(("Yes.",))
        self.sessions: list[Session] = []

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        assert options.session is not None
        self.sessions.append(options.session)
        return await super().prepare(conversation, options)


async def ask(server: Server, **body: Any) -> str:
    reply = await server.post(**body)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


@pytest.fixture
def backend() -> Recording:
    return Recording()


@pytest.fixture
def script(backend: Recording) -> Recording:
    return backend


@pytest.fixture
def server_options() -> dict[str, Any]:
    return {"seal": KEYS}


@pytest.mark.requirement("UP-SESSION")
@pytest.mark.parametrize("mode", ["chain", "conversation", "whole", "cache key"])
async def test_session_is_the_same_on_every_turn(
    server: Server, backend: Recording, mode: str
) -> None:
    """However the client continues the conversation, and different for another one."""
    users = [{"role": "user", "content": f"Question {number}"} for number in range(3)]
    for opening in ("Hello", "Hi"):
        body: dict[str, Any] = {}
        if mode == "conversation":
            created = await server.client.post("/v1/conversations", json={})
            body["conversation"] = created.json()["id"]
        if mode == "cache key":
            body["prompt_cache_key"] = opening
        messages: list[dict[str, Any]] = [{"role": "user", "content": opening}]
        for user in users:
            if mode == "whole":
                messages += [{"role": "assistant", "content": "Yes."}, user]
                await ask(server, input=messages, store=False)
                continue
            response_id = await ask(server, input=[user], **body)
            if mode == "chain":
                body["previous_response_id"] = response_id
    keys = [session.key for session in backend.sessions]
    assert keys == [keys[0]] * 3 + [keys[3]] * 3 and keys[0] != keys[3]
    assert len({session.tenant_key for session in backend.sessions}) == 1


@pytest.mark.requirement("UP-SESSION")
async def test_responses_of_one_job_share_a_session(server: Server, backend: Recording) -> None:
    for name in ("one", "one", "two"):
        job = {"continuation_id": name}
        await ask(server, input="Hi", background=True, background_options=job)
    assert len({session.key for session in backend.sessions}) == 2


@pytest.mark.requirement("UP-SESSION")
async def test_session_cannot_be_computed_without_the_key(serve: Serve) -> None:
    """The same key on two servers gives the same session; without the key nobody can test a guess
    of the conversation or tenant."""
    other = Encryptor((EncryptionKey.from_secret(b"o" * 32),))
    sessions = []
    for seal in (KEYS, KEYS, other):
        backend = Recording()
        await ask(serve(backend, seal=seal), input="Hi", prompt_cache_key="of a customer")
        sessions += backend.sessions
    first, same, different = sessions
    assert first == same
    assert first.key != different.key and first.tenant_key != different.tenant_key


@pytest.mark.requirement("UP-SESSION")
async def test_tenants_have_different_sessions(server: Server) -> None:
    session = server.dependencies.session
    one, other = (session(tenant, "cache key same") for tenant in ("one", "other"))
    assert one.key != other.key and one.tenant_key != other.tenant_key
