"""Vector stores through the official client, and the file_search tool with citations."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from antiphon.attachments.documents import Documents
from antiphon.http.app import create_app
from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.store import open_store
from antiphon.store.base import Store
from tests.conformance.conftest import Clients, Serve
from tests.conformance.server import NOW, Ask, Server, engine, local
from tests.conformance.test_tool_search import rendered_prompts, tool_call
from tests.harness import asgi_client

FJORD = "A fjord is a narrow inlet.\n\nThe longest one is the Sognefjord: 205 km."


async def create_store(client: AsyncOpenAI, **files: str) -> str:
    """Create a vector store with these files, each with its name as an attribute."""
    vector_store = await client.vector_stores.create(name="books")
    for name, text in files.items():
        file = await client.files.create(file=(f"{name}.txt", text.encode()), purpose="assistants")
        added = await client.vector_stores.files.create_and_poll(
            file.id, vector_store_id=vector_store.id, attributes={"name": name, "size": len(text)}
        )
        assert added.status == "completed", added.last_error
    return vector_store.id


@pytest.mark.requirement("VS-STORES")
async def test_official_client_manages_vector_stores(
    store: Store, serve: Serve, client_of: Clients
) -> None:
    async with asyncio.timeout(60):
        client = client_of(serve(on=store).app)
        shelves = client.vector_stores
        file = await client.files.create(file=("a.txt", b"red fox"), purpose="assistants")
        first = await shelves.create(
            name="first",
            file_ids=[file.id],
            metadata={"a": "b"},
            expires_after={"anchor": "last_active_at", "days": 2},
        )
        assert first.object == "vector_store" and first.id.startswith("vs_")
        assert (first.status, first.file_counts.in_progress) == ("in_progress", 1)
        assert (first.created_at, first.expires_at) == (NOW, NOW + 2 * 86_400)
        await shelves.files.poll(file.id, vector_store_id=first.id)
        done = await shelves.retrieve(first.id)
        assert (done.status, done.file_counts.completed) == ("completed", 1)
        assert done.usage_bytes == len(b"red fox")
        second = await shelves.create(name="second")
        assert [one.id async for one in shelves.list(limit=1)] == [second.id, first.id]
        assert [one.id async for one in shelves.list(order="asc")] == [first.id, second.id]
        renamed = await shelves.update(first.id, name="new", metadata={})
        assert (renamed.name, renamed.metadata) == ("new", {})
        assert renamed.expires_after is not None and renamed.expires_after.days == 2
        lasting = await shelves.update(first.id, expires_after=None)
        assert (lasting.name, lasting.expires_after, lasting.expires_at) == ("new", None, None)
        deleted = await shelves.delete(first.id)
        assert (deleted.deleted, deleted.object) == (True, "vector_store.deleted")
        with pytest.raises(openai.NotFoundError):
            await shelves.retrieve(first.id)
        assert (await client.files.retrieve(file.id)).filename == "a.txt"


@pytest.mark.requirement("VS-FILES")
async def test_files_of_a_vector_store(store: Store, serve: Serve, client_of: Clients) -> None:
    async with asyncio.timeout(60):
        client = client_of(serve(on=store).app)
        text = " ".join(f"word{n}" for n in range(900))
        vector_store = await create_store(client, fox="red fox", long=text)
        files = client.vector_stores.files
        long, fox = [one async for one in files.list(vector_store)]
        assert (fox.attributes, long.object) == ({"name": "fox", "size": 7}, "vector_store.file")
        assert long.chunking_strategy is not None and long.chunking_strategy.type == "static"
        assert long.chunking_strategy.static.max_chunk_size_tokens == 800
        read = await files.content(long.id, vector_store_id=vector_store)
        assert "".join(part.text or "" for part in read.data) == text
        changed = await files.update(fox.id, vector_store_id=vector_store, attributes={"x": True})
        assert changed.attributes == {"x": True}
        assert (await files.retrieve(fox.id, vector_store_id=vector_store)).attributes == {
            "x": True
        }
        assert [one.id async for one in files.list(vector_store, filter="failed")] == []
        deleted = await files.delete(fox.id, vector_store_id=vector_store)
        assert (deleted.deleted, deleted.object) == (True, "vector_store.file.deleted")
        with pytest.raises(openai.NotFoundError):
            await files.retrieve(fox.id, vector_store_id=vector_store)
        await client.files.delete(long.id)
        assert (await client.vector_stores.retrieve(vector_store)).file_counts.total == 0


async def test_unreadable_file_reports_its_error(serve: Serve, client_of: Clients) -> None:
    async with asyncio.timeout(60):
        client = client_of(serve().app)
        vector_store = await client.vector_stores.create()
        file = await client.files.create(file=("a.bin", b"\0\1\2\xff"), purpose="assistants")
        failed = await client.vector_stores.files.create_and_poll(
            file.id, vector_store_id=vector_store.id
        )
        assert failed.status == "failed" and failed.last_error is not None
        assert failed.last_error.code == "unsupported_file"
        assert (await client.vector_stores.retrieve(vector_store.id)).file_counts.failed == 1


async def never(*arguments: Any, **named: Any) -> str:
    """Stands for work that takes too long."""
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.requirement("VS-BATCHES")
async def test_batches_of_files(
    store: Store, serve: Serve, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(60):
        server = serve(on=store)
        client = client_of(server.app)
        ids = [
            (await client.files.create(file=(f"{n}.txt", b"fox"), purpose="assistants")).id
            for n in range(3)
        ]
        vector_store = (await client.vector_stores.create()).id
        batches = client.vector_stores.file_batches
        batch = await batches.create(vector_store, file_ids=ids[:2], attributes={"n": 1})
        assert (batch.object, batch.file_counts.total) == ("vector_store.files_batch", 2)
        done = await batches.poll(batch.id, vector_store_id=vector_store)
        assert (done.status, done.file_counts.completed) == ("completed", 2)
        listed = [
            one.id async for one in batches.list_files(batch.id, vector_store_id=vector_store)
        ]
        assert listed == ids[1::-1]
        monkeypatch.setattr(Documents, "text", never)
        other = await batches.create(
            vector_store, files=[{"file_id": ids[2], "attributes": {"n": 2}}]
        )
        stopped = await batches.cancel(other.id, vector_store_id=vector_store)
        assert stopped.status == "cancelled" and stopped.file_counts.cancelled == 1
        with pytest.raises(openai.NotFoundError, match="No such File") as unknown:
            await batches.create(
                vector_store, files=[{"file_id": ids[0]}, {"file_id": "file-none"}]
            )
        assert unknown.value.param == "files[1].file_id"
        twice: Any = [{"file_id": ids[0], "attributes": {"n": n}} for n in (1, 2)]
        both = await batches.create(vector_store, files=twice)
        assert both.file_counts.total == 1
        assert (
            await client.vector_stores.files.retrieve(ids[0], vector_store_id=vector_store)
        ).attributes == {"n": 2}
        with pytest.raises(openai.NotFoundError, match="No batch"):
            await batches.retrieve("vsfb_none", vector_store_id=vector_store)


@pytest.mark.requirement("VS-SEARCH")
async def test_search_returns_the_best_chunks(
    store: Store, serve: Serve, client_of: Clients
) -> None:
    async with asyncio.timeout(60):
        client = client_of(serve(on=store).app)
        vector_store = await create_store(
            client, fjord=FJORD, palm="Palms. No fjord.", fox="A red fox."
        )
        search = client.vector_stores.search
        page = await search(vector_store, query="longest fjord")
        names = [one.filename for one in page.data]
        assert names == ["fjord.txt", "palm.txt"] and page.data[0].content[0].text == FJORD
        assert page.data[0].score == 1.0 > page.data[1].score > 0
        assert page.data[0].attributes == {"name": "fjord", "size": len(FJORD)}
        both = await search(vector_store, query=["fjord", "fox"], max_num_results=2)
        assert {one.filename for one in both.data} <= {"fjord.txt", "palm.txt", "fox.txt"}
        assert len(both.data) == 2
        strict: Any = {"score_threshold": 1.0}
        best = await search(vector_store, query="longest fjord", ranking_options=strict)
        assert [one.filename for one in best.data] == ["fjord.txt"]
        assert not (await search(vector_store, query="zebra")).data


FILTERS = [
    ({"type": "eq", "key": "name", "value": "palm"}, ["palm"]),
    ({"type": "ne", "key": "name", "value": "palm"}, ["fjord"]),
    ({"type": "gt", "key": "size", "value": 16}, ["fjord"]),
    ({"type": "lte", "key": "size", "value": 16}, ["palm"]),
    ({"type": "in", "key": "name", "value": ["palm", "x"]}, ["palm"]),
    ({"type": "nin", "key": "name", "value": ["palm"]}, ["fjord"]),
    ({"type": "eq", "key": "none", "value": 1}, []),
    (
        {
            "type": "or",
            "filters": [
                {"type": "eq", "key": "name", "value": "x"},
                {
                    "type": "and",
                    "filters": [
                        {"type": "gte", "key": "size", "value": 16},
                        {"type": "lt", "key": "size", "value": 17},
                    ],
                },
            ],
        },
        ["palm"],
    ),
]


@pytest.mark.requirement("VS-FILTERS")
async def test_filters_select_files(store: Store, serve: Serve, client_of: Clients) -> None:
    async with asyncio.timeout(60):
        client = client_of(serve(on=store).app)
        vector_store = await create_store(client, fjord=FJORD, palm="Palms. No fjord.")
        for request, names in FILTERS:
            page = await client.vector_stores.search(vector_store, query="fjord", filters=request)  # type: ignore[arg-type]
            assert [one.filename for one in page.data] == [f"{name}.txt" for name in names], request


@pytest.mark.requirement("VS-REFUSED")
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"name": 1}, "name"),
        ("", {"file_ids": [1]}, "file_ids[0]"),
        ("", {"expires_after": {"anchor": "created_at", "days": 1}}, "expires_after.anchor"),
        ("", {"expires_after": {"anchor": "last_active_at"}}, "expires_after.days"),
        ("", {"chunking_strategy": {"type": "static"}}, "chunking_strategy.static"),
        ("/vs/search", {}, "query"),
        ("/vs/search", {"query": " "}, "query"),
        ("/vs/search", {"query": ["a", 1]}, "query[1]"),
        ("/vs/search", {"query": "a", "max_num_results": 51}, "max_num_results"),
        ("/vs/search", {"query": "a", "rewrite_query": True}, "rewrite_query"),
        ("/vs/search", {"query": "a", "rewrite_query": {}}, "rewrite_query"),
        ("/vs", {"metadata": False}, "metadata"),
        ("/vs/search", {"query": "a", "filters": {"type": "is"}}, "filters.type"),
        (
            "/vs/search",
            {"query": "a", "filters": {"type": "or", "filters": [{"type": "gt", "key": "k"}]}},
            "filters.filters[0].value",
        ),
        (
            "/vs/search",
            {"query": "a", "ranking_options": {"score_threshold": 2}},
            "ranking_options.score_threshold",
        ),
        ("", {"nmae": "x"}, "nmae"),
        ("", {"expires_after": {"anchor": "last_active_at", "days": 1, "x": 1}}, "expires_after.x"),
        ("/vs/search", {"query": "a", "limit": 5}, "limit"),
        (
            "/vs/search",
            {"query": "a", "ranking_options": {"hybrid_search": {"rrf_k": 60}}},
            "ranking_options.hybrid_search.rrf_k",
        ),
        ("/vs/files/f", {}, "attributes"),
        ("/vs/files", {"file_id": "f", "x": 1}, "x"),
        (
            "/vs/file_batches",
            {
                "files": [
                    {"file_id": "f", "chunking_strategy": {"type": "static", "static": {"x": 1}}}
                ]
            },
            "files[0].chunking_strategy.static.x",
        ),
        ("/vs/files", {}, "file_id"),
        ("/vs/files", {"file_id": "f", "attributes": {"a": []}}, "attributes.a"),
        ("/vs/file_batches", {}, "file_ids"),
        ("/vs/file_batches", {"files": [{}]}, "files[0].file_id"),
        ("/vs/file_batches", {"files": [{"file_id": "f"}], "file_ids": ["f"]}, "files"),
    ],
)
async def test_invalid_fields_are_rejected(serve: Serve, path: str, body: Any, param: str) -> None:
    reply = await serve().client.post(f"/v1/vector_stores{path}", json=body)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text


@pytest.mark.requirement("VS-TENANTS")
async def test_vector_store_of_another_tenant_is_unknown(serve: Serve, client_of: Clients) -> None:
    keys = tuple(
        AuthKey(name=name, tenant=name, sha256=hashlib.sha256(name.encode()).hexdigest())
        for name in ("mine", "theirs")
    )
    server = serve()
    app = create_app(server.service, AuthConfig(keys=keys), ids=lambda p: f"{p}_x", log=_Silent())
    vector_store = await create_store(client_of(app, "mine"), fox="red fox")
    (file,) = (await client_of(app, "mine").vector_stores.files.list(vector_store)).data
    batch = f"/v1/vector_stores/{vector_store}/file_batches"
    one = f"/v1/vector_stores/{vector_store}"
    requests: list[tuple[str, str, Any]] = [
        ("GET", one, None),
        ("POST", one, {"name": "x"}),
        ("DELETE", one, None),
        ("POST", f"{one}/search", {"query": "fox"}),
        ("GET", f"{one}/files", None),
        ("POST", f"{one}/files", {"file_id": file.id}),
        ("GET", f"{one}/files/{file.id}", None),
        ("POST", f"{one}/files/{file.id}", {"attributes": {}}),
        ("DELETE", f"{one}/files/{file.id}", None),
        ("GET", f"{one}/files/{file.id}/content", None),
        ("POST", batch, {"file_ids": [file.id]}),
        ("GET", f"{batch}/b", None),
        ("POST", f"{batch}/b/cancel", {}),
        ("GET", f"{batch}/b/files", None),
        (
            "POST",
            "/v1/responses",
            {
                "model": "tiny",
                "input": "hi",
                "tools": [{"type": "file_search", "vector_store_ids": [vector_store]}],
            },
        ),
    ]
    async with asgi_client(app) as client:
        for method, path, body in requests:
            header = {"authorization": "Bearer theirs"}
            reply = await client.request(method, path, json=body, headers=header)
            assert reply.status_code == 404, (method, path)
            assert vector_store in reply.json()["error"]["message"]
    assert (await client_of(app, "theirs").vector_stores.list()).data == []
    assert (
        await client_of(app, "mine").vector_stores.retrieve(vector_store)
    ).file_counts.total == 1


class _Silent:
    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


# --- the tool ------------------------------------------------------------------------------------


async def test_integer_attributes_stay_integers(
    store: Store, serve: Serve, client_of: Clients
) -> None:
    """No integer becomes a decimal in any answer."""
    async with asyncio.timeout(60):
        server = serve(on=store)
        vector_store = await create_store(client_of(server.app), fox="red fox")
        reply = await server.client.post(
            f"/v1/vector_stores/{vector_store}/search", json={"query": "fox"}
        )
        assert '"size":7}' in reply.text


@pytest.mark.requirement("VS-REFUSED")
async def test_semantic_only_ranking_without_an_embedder_is_rejected(
    serve: Serve, ask_foreground: Ask, client_of: Clients
) -> None:
    server = serve()
    vector_store = await create_store(client_of(server.app), fox="red fox")
    options = {"hybrid_search": {"embedding_weight": 1, "text_weight": 0}}
    body = {"query": "fox", "ranking_options": options}
    reply = await server.client.post(f"/v1/vector_stores/{vector_store}/search", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "ranking_options.hybrid_search.text_weight"
    tool = {"type": "file_search", "vector_store_ids": [vector_store], "ranking_options": options}
    rejection = (await ask_foreground(server, tools=[tool])).rejection
    assert rejection["param"] == "tools[0].ranking_options.hybrid_search.text_weight"


STEPS = [
    tool_call("file_search", {"queries": ["longest fjord"]}),
    "The Sognefjord, of 205 km 【f1】. Palms 【f9】 are none 【f2†palm.txt】.",
]


async def create_searchable_store(server: Server, clients: Clients) -> str:
    return await create_store(clients(server.app), fjord=FJORD, palm="Palms. No fjord.")


@pytest.mark.requirement("FS-CITE")
async def test_call_searches_and_the_answer_cites_files(
    serve: Serve, ask: Ask, client_of: Clients
) -> None:
    server = serve(local(engine(STEPS)))
    vector_store = await create_searchable_store(server, client_of)
    answer = await ask(server, tools=[{"type": "file_search", "vector_store_ids": [vector_store]}])
    call, message = answer.output
    assert (call["type"], call["status"]) == ("file_search_call", "completed")
    assert call["queries"] == ["longest fjord"] and call["results"] is None
    (part,) = message["content"]
    assert part["text"] == "The Sognefjord, of 205 km. Palms 【f9】 are none."
    first, second = part["annotations"]
    assert (first["type"], first["filename"]) == ("file_citation", "fjord.txt")
    assert first["index"] == len("The Sognefjord, of 205 km")
    assert (second["filename"], second["index"]) == ("palm.txt", len(part["text"]) - 1)
    assert first["file_id"].startswith("file-")
    prompt = rendered_prompts(server)[1]
    assert "【f1†fjord.txt】" in prompt and "205 km" in prompt
    if answer.events:
        types = [e["type"].removeprefix("response.") for e in answer.events]
        at = types.index("file_search_call.in_progress")
        assert types[at - 1 : at + 4] == [
            "output_item.added",
            "file_search_call.in_progress",
            "file_search_call.searching",
            "file_search_call.completed",
            "output_item.done",
        ]
        assert "output_text.annotation.added" in types


@pytest.mark.requirement("FS-RESULTS")
async def test_results_are_included_only_on_request(
    serve: Serve, ask_foreground: Ask, client_of: Clients
) -> None:
    server = serve(local(engine(STEPS)))
    vector_store = await create_searchable_store(server, client_of)
    tool = {
        "type": "file_search",
        "vector_store_ids": [vector_store],
        "max_num_results": 1,
        "filters": {"type": "eq", "key": "name", "value": "palm"},
    }
    answer = await ask_foreground(server, tools=[tool], include=["file_search_call.results"])
    (result,) = answer.output[0]["results"]
    assert (result["filename"], result["text"]) == ("palm.txt", "Palms. No fjord.")
    assert result["attributes"] == {"name": "palm", "size": 16} and 0 < result["score"] <= 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "'queries' is missing"),
        ("x", "not a JSON object"),
        ({"queries": [" "]}, "missing"),
        ({"queries": 7}, "missing"),
    ],
)
async def test_failed_search_is_reported_to_the_model(
    serve: Serve, ask_foreground: Ask, client_of: Clients, arguments: Any, expected: str
) -> None:
    server = serve(local(engine([tool_call("file_search", arguments), "Sorry."])))
    vector_store = await create_searchable_store(server, client_of)
    answer = await ask_foreground(
        server, tools=[{"type": "file_search", "vector_store_ids": [vector_store]}]
    )
    assert answer.output[0]["status"] == "failed" and answer.text == "Sorry."
    assert expected in rendered_prompts(server)[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"vector_store_ids": []}, "tools[0].vector_store_ids"),
        ({"filters": {"type": "eq"}}, "tools[0].filters.key"),
        ({"ranking_options": {"ranker": "x"}}, "tools[0].ranking_options.ranker"),
    ],
)
async def test_invalid_tool_is_rejected(
    serve: Serve, ask_foreground: Ask, fields: Any, param: str
) -> None:
    tool = {"type": "file_search", "vector_store_ids": ["vs_1"], **fields}
    rejection = (await ask_foreground(serve(), tools=[tool])).rejection
    assert (rejection["http"], rejection["param"]) == (400, param)


async def test_unknown_vector_store_is_rejected_before_the_run(
    serve: Serve, ask_foreground: Ask
) -> None:
    tool = {"type": "file_search", "vector_store_ids": ["vs_none"]}
    rejection = (await ask_foreground(serve(), tools=[tool])).rejection
    assert rejection["http"] == 404 and "vs_none" in rejection["message"]
    assert rejection["param"] == "tools[0].vector_store_ids[0]"


@pytest.mark.requirement("FS-NUMBERS")
async def test_passage_numbers_continue_across_responses(
    serve: Serve, ask_foreground: Ask, client_of: Clients
) -> None:
    search = tool_call("file_search", {"queries": ["palms"]})
    cites = "Palms 【f51】, and as was said 【f1】."
    server = serve(local(engine([*STEPS, search, cites, *STEPS, search, cites])))
    vector_store = await create_searchable_store(server, client_of)
    for include in ([], ["file_search_call.results"]):
        body = {
            "tools": [{"type": "file_search", "vector_store_ids": [vector_store]}],
            "include": include,
        }
        first = await ask_foreground(server, **body)
        second = await ask_foreground(server, previous_response_id=first.response["id"], **body)
        assert "【f51†palm.txt】" in rendered_prompts(server)[-1]
        (part,) = second.output[1]["content"]
        cited = [note["filename"] for note in part["annotations"]]
        assert cited == ["palm.txt", "fjord.txt"]
        assert part["text"] == "Palms, and as was said."


async def test_unfinished_indexing_is_resumed(tmp_path: Path) -> None:
    """The next process resumes it."""
    from antiphon.testing.store_checks.files import make_file
    from antiphon.testing.store_checks.vectors import make_indexed_file, make_vector_store
    from tests.conformance.server import backend_of

    url = f"sqlite:{tmp_path}/antiphon.db"
    store = await open_store(url)
    await store.files.put("local", make_file("a"), b"x")
    await store.vectors.put("local", make_vector_store())
    await store.vectors.add_files("local", [make_indexed_file("a")], None)
    server = Server(backend_of("hi"), store)
    try:
        async with asyncio.timeout(60):
            while await store.vectors.list_unfinished():
                await asyncio.sleep(0.01)
        store_usage = await store.vectors.usage("local", "vs_a")
        assert store_usage.counts.completed == 1
    finally:
        await server.close()
