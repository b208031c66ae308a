"""``/openapi.json``: valid, complete, and true of every endpoint."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from antiphon.backends.reading import (
    EmbeddingBackend,
    RerankBackend,
    SpeechBackend,
    TranscriptionBackend,
)
from antiphon.http.app import create_app
from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.resources.prompts import Prompts
from antiphon.store.base import Store
from antiphon.support.logs import open_log
from antiphon.webhooks.deliver import WebhookSender
from tests.conformance.conftest import Serve
from tests.conformance.documented import ApiDocument, DocumentedClient, record_query
from tests.conformance.fake_containers import code_interpreter_options, containers
from tests.conformance.server import NOW, Server, engine
from tests.conformance.test_api_keys import Process
from tests.conformance.test_mcp import listing_provider
from tests.conformance.test_skills import skill_form
from tests.fakes.audio import WordSpeaker, WordTranscriber
from tests.fakes.embedder import WordEmbedder
from tests.fakes.reranker import WordReranker
from tests.harness import asgi_client
from tests.oidc.issuer import NOW as ISSUED_AT
from tests.oidc.issuer import FakeIssuer, access_claims, fake_sign_in
from tests.tools.image_generation.fake_generator import (
    FakeImageGenerator,
    image_provider,
    solid_image,
)

Json = dict[str, Any]
MESSAGE = {"role": "user", "content": "hi"}


@pytest.fixture
def script() -> Any:
    return engine(lambda prompt: "Hello there!")


@pytest.fixture
async def webhooks() -> AsyncIterator[dict[str, Any]]:
    """The options of a server with webhook endpoints."""
    sender = WebhookSender.open()
    yield {"webhook_sender": sender, "private_webhooks": True}
    await sender.close()


@pytest.fixture
def server_options(tmp_path: Path, webhooks: dict[str, Any]) -> dict[str, Any]:
    options = code_interpreter_options(containers())
    return {"prompts": Prompts(tmp_path), **options, **webhooks}


@pytest.fixture(scope="module")
def documents() -> list[ApiDocument]:
    """The document of the first server. All servers of this module have the same one."""
    return []


@pytest.fixture
async def document(server: Server, documents: list[ApiDocument]) -> ApiDocument:
    if not documents:
        documents.append(ApiDocument((await server.client.get("/openapi.json")).json()))
    return documents[0]


@pytest.fixture
async def call(
    server: Server, document: ApiDocument, monkeypatch: pytest.MonkeyPatch
) -> DocumentedClient:
    return DocumentedClient(server.client, document, record_query(monkeypatch))


@pytest.mark.requirement("OPENAPI-TRUE")
async def test_every_operation_answers_as_documented(
    call: DocumentedClient, serve: Serve, server: Server
) -> None:
    await call_objects(call)
    await call_prompts(call)
    await call_server(call)
    for module in modules_with_calls():
        await module.documented_calls(call)
    keyed = Process(server).client
    keyed.headers["authorization"] = "Bearer root"
    await call_organization(call.using(keyed))
    await call_sign_in(call, server)
    embedding = call.using(serve(EmbeddingBackend("tiny", WordEmbedder(8))).client)
    await embedding("createEmbedding", json={"model": "tiny", "input": ["a", "b"]})
    await embedding("ollamaEmbed", json={"model": "tiny", "input": ["a", "b"]})
    await embedding("ollamaEmbeddings", json={"model": "tiny", "prompt": "a"})
    reranking = call.using(serve(RerankBackend("tiny", WordReranker())).client)
    await reranking("rerank", json={"model": "tiny", "query": "a", "documents": ["a", "b"]})
    hearing = call.using(serve(TranscriptionBackend("tiny", WordTranscriber())).client)
    recording = {"file": ("a.wav", b"Come in.")}
    for name in ("createTranscription", "createTranslation"):
        await hearing(name, files=recording, data={"model": "tiny"})
    speaking = call.using(serve(SpeechBackend("tiny", WordSpeaker())).client)
    await speaking("createSpeech", json={"model": "tiny", "voice": "alloy", "input": "Hi"})
    guarding = call.using(serve(["safe"], guards={"tiny": "llama_guard"}).client)
    await guarding("createModeration", json={"model": "tiny", "input": "Hi"})
    images = {"image_generation": image_provider(FakeImageGenerator())}
    painting = call.using(serve(providers=images).client)
    await painting("createImage", json={"prompt": "A cat"})
    form = {"image": ("a.png", solid_image().content)}
    await painting("createImageEdit", files=form, data={"prompt": "A cat"})
    asking = call.using(serve(providers={"mcp": listing_provider()}).client)
    assert (await asking("listMcpServerTools", "toys"))["data"]
    await asking("listMcpServerTools", "none", status=404)
    # No model is managed here, so none can be deleted.
    assert call.operation_ids == {*call.called, "ollamaDelete"}


def modules_with_calls() -> list[Any]:
    """Return the modules with conformance tests that have a function ``documented_calls``, which
    calls operations of the endpoint that they test."""
    paths = sorted(Path(__file__).parent.glob("test_*.py"))
    names = [path.stem for path in paths if "\nasync def documented_calls(" in path.read_text()]
    return [import_module(f"tests.conformance.{name}") for name in names]


@pytest.mark.requirement("API-TENANTS-ROUTES")
async def test_no_operation_shows_objects_of_another_tenant(
    serve: Serve,
    document: ApiDocument,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    webhooks: dict[str, Any],
) -> None:
    options = {**code_interpreter_options(containers()), **webhooks}
    server = serve(engine(lambda prompt: "Hello there!"), on=store, **options)
    key = AuthKey(name="a", tenant="theirs", sha256=hashlib.sha256(b"secret").hexdigest())
    app = create_app(
        server.service,
        AuthConfig(keys=(key,)),
        ids=lambda prefix: prefix,
        log=open_log(io.StringIO()),
    )
    async with asgi_client(app, headers={"authorization": "Bearer secret"}) as stranger:
        call = DocumentedClient(server.client, document, record_query(monkeypatch), stranger)
        await call_objects(call)
        for module in modules_with_calls():
            await module.documented_calls(call)
    assert call.refused == call.on_objects


async def call_objects(call: DocumentedClient) -> None:
    """Call what creates, reads and changes objects of a tenant."""
    await call_responses(call)
    await call_conversations(call)
    await call_files(call)
    await call_vector_stores(call)
    await call_containers(call)
    await call_skills(call)


async def call_responses(call: DocumentedClient) -> None:
    create: Json = {"model": "tiny", "input": "hi"}
    await call("listResponses", params={"status": "completed", "failed": "false"})
    first = await call("createResponse", json=create)
    await call("createResponse", json={"model": "tiny", "input": [MESSAGE], "stop": "x"})
    events = await call("createResponse", json={**create, "stream": True})
    assert events[0]["type"] == "response.created"
    await call("createResponse", json={**create, "model": "none"}, status=404)
    await call("createResponse", json={"model": "tiny", "inputs": "hi"}, status=400)
    queued = await call("createResponse", json={**create, "background": True, "stream": True})
    background = queued[0]["response"]["id"]
    await call("getResponse", background, params={"stream": "true", "starting_after": 1})
    await call("getResponse", first["id"])
    await call("getResponse", "resp_none", status=404)
    await call("cancelResponse", first["id"], status=400)
    queued = await call("createResponse", json={**create, "background": True})
    await call("cancelResponse", queued["id"])
    await call("listInputItems", first["id"], params={"limit": 1})
    await call("listInputItems", first["id"], params={"limit": 0}, status=400)
    await call("getInputTokenCounts", json=create)
    await call("compactResponse", json=create)
    await call("getTranscript", first["id"])
    await call("getTranscript", "resp_none", status=404)
    await call("getTimeline", first["id"])
    await call("getTimeline", "resp_none", status=404)
    await call("deleteResponse", first["id"])
    chat: Json = {"model": "tiny", "messages": [MESSAGE]}
    await call("createChatCompletion", json=chat)
    await call("createChatCompletion", json={**chat, "stream": True})
    message: Json = {**chat, "max_tokens": 50}
    await call("createMessage", json=message)
    await call("createMessage", json={**message, "stream": True})
    await call("createMessage", json={**message, "model": "none"}, status=404)
    await call("countMessageTokens", json=chat)
    await call("countMessageTokens", json={**chat, "model": "none"}, status=404)
    await call("createCompletion", json={"model": "tiny", "prompt": "a", "max_tokens": 4})
    await call("createCompletion", json={"model": "tiny", "prompt": ["a", "b"], "stream": True})


async def call_conversations(call: DocumentedClient) -> None:
    new = await call("createConversation", json={"items": [MESSAGE], "metadata": {"a": "b"}})
    id = new["id"]
    await call("getConversation", id)
    await call("updateConversation", id, json={"metadata": {}})
    await call("createConversationItems", id, json={"items": [MESSAGE]})
    page = await call("listConversationItems", id, params={"order": "asc"})
    item = page["data"][0]["id"]
    await call("getConversationItem", id, item)
    await call("deleteConversationItem", id, item)
    await call("deleteConversation", id)


async def call_files(call: DocumentedClient) -> None:
    form = {"file": ("a.txt", b"A small text.")}
    file = await call("createFile", files=form, data={"purpose": "user_data"})
    await call("createFile", files=form, status=400)
    await call("listFiles", params={"purpose": "user_data"})
    await call("retrieveFile", file["id"])
    assert await call("downloadFile", file["id"]) == b"A small text."
    await call("deleteFile", file["id"])
    new = {"bytes": 2, "filename": "a.bin", "mime_type": "text/plain", "purpose": "user_data"}
    upload = await call("createUpload", json=new)
    part = await call("addUploadPart", upload["id"], files={"data": b"ab"})
    await call("completeUpload", upload["id"], json={"part_ids": [part["id"]]})
    upload = await call("createUpload", json=new)
    await call("cancelUpload", upload["id"])


async def call_vector_stores(call: DocumentedClient) -> None:
    form = {"file": ("a.txt", b"A cat sat.")}
    file = await call("createFile", files=form, data={"purpose": "assistants"})
    store = await call("createVectorStore", json={"name": "notes", "metadata": {"a": "b"}})
    id = store["id"]
    await call("listVectorStores")
    await call("getVectorStore", id)
    await call("modifyVectorStore", id, json={"name": "more", "expires_after": None})
    added = {"file_id": file["id"], "attributes": {"year": 2026, "draft": True}}
    await call("createVectorStoreFile", id, json=added)
    await call("listVectorStoreFiles", id, params={"filter": "completed"})
    await call("getVectorStoreFile", id, file["id"])
    await call("updateVectorStoreFileAttributes", id, file["id"], json={"attributes": {"a": "b"}})
    await call("retrieveVectorStoreFileContent", id, file["id"])
    filters = {"type": "and", "filters": [{"type": "eq", "key": "a", "value": "b"}]}
    await call("searchVectorStore", id, json={"query": "cat", "filters": filters})
    batch = await call("createVectorStoreFileBatch", id, json={"file_ids": [file["id"]]})
    await call("getVectorStoreFileBatch", id, batch["id"])
    await call("listFilesInVectorStoreBatch", id, batch["id"])
    await call("cancelVectorStoreFileBatch", id, batch["id"])
    await call("deleteVectorStoreFile", id, file["id"])
    await call("deleteVectorStore", id)


async def call_containers(call: DocumentedClient) -> None:
    container = await call("createContainer", json={"name": "mine", "file_ids": ["file-1"]})
    id = container["id"]
    await call("listContainers")
    await call("retrieveContainer", id)
    await call("createContainerFile", id, json={"file_id": "file-1"})
    file = await call("createContainerFile", id, files={"file": ("b.txt", b"two")})
    await call("listContainerFiles", id)
    await call("retrieveContainerFile", id, file["id"])
    assert await call("retrieveContainerFileContent", id, file["id"]) == b"two"
    await call("deleteContainerFile", id, file["id"])
    await call("deleteContainer", id)


async def call_skills(call: DocumentedClient) -> None:
    skill = await call("createSkill", files=skill_form())
    id = skill["id"]
    await call("listSkills")
    await call("getSkill", id)
    await call("createSkillVersion", id, files=skill_form(), data={"default": "true"})
    await call("updateSkill", id, json={"default_version": "1"})
    await call("getSkillContent", id)
    await call("listSkillVersions", id)
    await call("getSkillVersion", id, "2")
    await call("getSkillVersionContent", id, "2")
    await call("deleteSkillVersion", id, "2")
    await call("deleteSkill", id)


async def call_prompts(call: DocumentedClient) -> None:
    prompt = await call("createPrompt", json={"template": {"instructions": "Hi, {{name}}."}})
    await call("listPrompts")
    await call("getPrompt", prompt["id"], params={"version": "1"})
    await call("deletePrompt", prompt["id"])


async def call_server(call: DocumentedClient) -> None:
    await call("listModels")
    await call("retrieveModel", "tiny")
    await call("retrieveModel", "none", status=404)
    tokens = await call("tokenize", json={"model": "tiny", "prompt": "hi"})
    await call("detokenize", json={"model": "tiny", "tokens": tokens["tokens"]})
    for id in (
        "getUsage",
        "listTools",
        "getVersion",
        "getLoad",
        "getHealth",
        "getReadiness",
        "getMetrics",
    ):
        await call(id)
    for id in ("getOpenapi", "getDocs", "getPageSession"):
        await call(id)
    for id, args in (("beginSignIn", ("corp",)), ("finishSignIn", ()), ("signOut", ())):
        await call(id, *args, status=403)


async def call_sign_in(call: DocumentedClient, server: Server) -> None:
    """Call what users of the page call to sign in and out."""
    fake = FakeIssuer()
    app = create_app(
        server.service,
        AuthConfig(issuers=("corp",)),
        ids=lambda prefix: prefix,
        log=open_log(io.StringIO()),
        sign_in=fake_sign_in(fake, "http://localhost", clock=lambda: ISSUED_AT),
    )
    async with asgi_client(app) as browser:
        signing_in = call.using(browser)
        await signing_in("beginSignIn", "corp", status=303)
        begun = await browser.get("/antiphon/sign-in/corp")
        query = fake.sign_in(begun.headers["location"], access_claims(aud="page"))
        await signing_in("finishSignIn", params=query, status=303)
        await signing_in("signOut")


async def call_organization(call: DocumentedClient) -> None:
    """Call what only operators may use."""
    kinds = ("completions", "embeddings", "audio-transcriptions", "audio-speeches")
    tools = ("web-search-calls", "file-search-calls", "code-interpreter-sessions")
    for id in (f"usage-{each}" for each in (*kinds, *tools, "costs")):
        await call(id, params={"start_time": NOW, "bucket_width": "1d"})
    created = await call("createApiKey", json={"name": "k", "tenant": "t"})
    assert created["value"]
    await call("createApiKey", json={"name": "k", "tenant": "t"}, status=409)
    await call("listApiKeys")
    await call("rotateApiKey", "k")
    await call("revokeApiKey", "k")
    await call("revokeApiKey", "k", status=404)
    await call("exportTenant", "t")
    await call("deleteTenant", "t")
    await call("listAuditEvents", params={"type": "api_key.created", "start_time": 0})


@pytest.mark.requirement("OPENAPI-HOSTS")
async def test_reference_needs_no_key(server: Server) -> None:
    key = AuthKey(name="a", tenant="a", sha256=hashlib.sha256(b"secret").hexdigest())
    app = create_app(
        server.service,
        AuthConfig(keys=(key,)),
        ids=lambda prefix: prefix,
        log=open_log(io.StringIO()),
    )
    async with asgi_client(app) as client:
        for path, status in (("/openapi.json", 200), ("/docs", 200), ("/v1/models", 401)):
            assert (await client.get(path)).status_code == status


@pytest.mark.requirement("OPENAPI-HOSTS")
@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_foreign_hosts_may_not_read_the_reference(server: Server, path: str) -> None:
    answer = await server.client.get(path, headers={"host": "evil.example"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "host_not_allowed"


async def test_errors_have_the_documented_body(call: DocumentedClient) -> None:
    error = await call("retrieveFile", "file-none", status=404)
    assert json.dumps(error["error"]["param"])


async def test_models_for_clients_of_messages_are_documented(call: DocumentedClient) -> None:
    version = {"anthropic-version": "2023-06-01"}
    page = await call("listModels", headers=version)
    entry = await call("retrieveModel", "tiny", headers=version)
    assert page["data"][0] == entry and entry["display_name"] == "tiny"


async def test_files_for_clients_of_messages_are_documented(call: DocumentedClient) -> None:
    version = {"anthropic-version": "2023-06-01"}
    file = await call("createFile", headers=version, files={"file": ("a.txt", b"hi")})
    assert await call("retrieveFile", file["id"], headers=version) == file
    assert (await call("listFiles", headers=version))["data"] == [file]
    assert (await call("deleteFile", file["id"], headers=version))["type"] == "file_deleted"
