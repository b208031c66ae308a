"""Files through the official client, over every store."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import RequestError
from antiphon.http.app import create_app
from antiphon.http.middleware.auth import AuthConfig
from antiphon.http.middleware.request_context import RequestContext
from antiphon.http.requests.body import SMALL_BYTES
from antiphon.http.requests.multipart import open_form
from antiphon.limits.key_ring import AuthKey
from antiphon.limits.quotas import Quotas, TenantQuotas
from antiphon.limits.requests import RequestLimits
from antiphon.store.base import Store
from tests.conformance.conftest import Clients, Serve
from tests.conformance.server import NOW, Server
from tests.http.conftest import counted
from tests.resources.file_storage.test_migration import folder_blobs


@pytest.mark.requirement("FILE-OBJECT")
async def test_official_client_manages_files(
    store: Store, serve: Serve, client_of: Clients
) -> None:
    async with asyncio.timeout(60):
        client = client_of(serve(on=store).app)
        content = bytes(range(256)) * 9_000  # more than is held in memory while it comes
        first = await client.files.create(file=("Ünder/a 1.bin", content), purpose="user_data")
        assert first.object == "file" and first.id.startswith("file-")
        assert (first.bytes, first.created_at) == (len(content), NOW)
        assert (first.filename, first.purpose) == ("a 1.bin", "user_data")
        assert first.expires_at is None and "expires_at" not in first.model_dump(exclude_unset=True)
        second = await client.files.create(file=("b.png", b"\x89PNG"), purpose="vision")
        assert await client.files.retrieve(first.id) == first
        read = await client.files.content(first.id)
        assert read.content == content
        assert read.response.headers["content-disposition"].startswith("attachment;")
        assert [file.id async for file in client.files.list(limit=1)] == [second.id, first.id]
        assert [file.id async for file in client.files.list(order="asc")] == [first.id, second.id]
        assert [file.id async for file in client.files.list(purpose="vision")] == [second.id]
        deleted = await client.files.delete(first.id)
        assert (deleted.id, deleted.deleted, deleted.object) == (first.id, True, "file")
        for ask in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError) as rejection:
                await ask(first.id)
            assert rejection.value.body["message"] == f"No such File object: {first.id}"  # type: ignore[index]
        with pytest.raises(openai.BadRequestError, match="No such File object"):
            await client.files.list(after=first.id)


@pytest.mark.requirement("FILE-TENANTS")
async def test_file_of_another_tenant_is_unknown(
    store: Store, serve: Serve, client_of: Clients
) -> None:
    keys = tuple(
        AuthKey(name=name, tenant=name, sha256=hashlib.sha256(name.encode()).hexdigest())
        for name in ("mine", "theirs")
    )
    server = serve(on=store)
    app = create_app(server.service, AuthConfig(keys=keys), ids=counted(), log=_Log())
    mine, thief = client_of(app, "mine"), client_of(app, "theirs")
    async with asyncio.timeout(60):
        file = await mine.files.create(file=("a.txt", b"secret"), purpose="user_data")
        for ask in (thief.files.retrieve, thief.files.content, thief.files.delete):
            with pytest.raises(openai.NotFoundError):
                await ask(file.id)
        assert [each async for each in thief.files.list()] == []
        assert (await mine.files.content(file.id)).content == b"secret"


@pytest.mark.requirement("FILE-EXPIRY")
async def test_expired_file_is_deleted(serve: Serve, client_of: Clients) -> None:
    server = serve()
    client = client_of(server.app)
    short = await client.files.create(
        file=("a.txt", b"a"),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert short.expires_at == NOW + 3600
    batch = await client.files.create(file=("b.txt", b"b"), purpose="batch")
    assert batch.expires_at == NOW + 30 * 86_400
    server.now = NOW + 3600
    with pytest.raises(openai.NotFoundError):
        await client.files.content(short.id)
    assert [file.id async for file in client.files.list()] == [batch.id]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "purpose", "missing_required_parameter"),
        ({"purpose": "CANARY"}, "purpose", "invalid_value"),
        (
            {"purpose": "vision", "expires_after[anchor]": "created_at"},
            "expires_after.seconds",
            "missing_required_parameter",
        ),
        (
            {"purpose": "vision", "expires_after[seconds]": "3600"},
            "expires_after.anchor",
            "missing_required_parameter",
        ),
        (
            {
                "purpose": "vision",
                "expires_after[anchor]": "created_at",
                "expires_after[seconds]": "3599",
            },
            "expires_after.seconds",
            "integer_below_min_value",
        ),
        (
            {
                "purpose": "vision",
                "expires_after[anchor]": "created_at",
                "expires_after[seconds]": "x",
            },
            "expires_after.seconds",
            "invalid_type",
        ),
        (
            {
                "purpose": "vision",
                "expires_after[anchor]": "now",
                "expires_after[seconds]": "3600",
            },
            "expires_after.anchor",
            "invalid_value",
        ),
    ],
)
@pytest.mark.requirement("FILE-FORMS")
async def test_invalid_form_is_rejected_with_the_field(
    serve: Serve, fields: dict[str, str], param: str, code: str
) -> None:
    server = serve()
    answer = await server.client.post("/v1/files", data=fields, files={"file": ("a", b"x")})
    assert answer.status_code == 400, answer.text
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (param, code)
    assert await _listed(server) == []


@pytest.mark.requirement("FILE-FORMS")
async def test_form_without_a_file_is_rejected(serve: Serve) -> None:
    server = serve()
    for answer in (
        await server.client.post("/v1/files", json={"purpose": "vision"}),
        await server.client.post("/v1/files", data={"file": "x", "purpose": "vision"}),
        await server.client.post("/v1/files", files={"purpose": (None, "vision")}),
        await server.client.post("/v1/files", files=[("file", ("a", b"x")), ("b", ("b", b"x"))]),
        await server.client.post(
            "/v1/files", content=b"--x\r\n", headers={"content-type": "multipart/form-data"}
        ),
        await server.client.post(
            "/v1/files",
            files={"file": ("a", b"x")},
            headers={"content-encoding": "gzip"},
        ),
    ):
        assert answer.status_code == 400, answer.text
    assert await _listed(server) == []


@pytest.mark.requirement("FILE-FORMS")
async def test_cross_site_upload_is_rejected(serve: Serve) -> None:
    server = serve()
    for origin, status in (("http://localhost", 200), ("http://evil.test", 400), ("null", 400)):
        answer = await server.client.post(
            "/v1/files",
            data={"purpose": "vision"},
            files={"file": ("a", b"x")},
            headers={"origin": origin},
        )
        assert answer.status_code == status, (origin, answer.text)
    assert len(await _listed(server)) == 1


@pytest.mark.requirement("FILE-LIMITS")
async def test_file_and_total_size_limits(serve: Serve, client_of: Clients) -> None:
    server = serve(quotas=TenantQuotas(Quotas(max_files_bytes=150)))
    app = create_app(
        server.service, limits=RequestLimits(max_file_bytes=100), ids=counted(), log=_Log()
    )
    client = client_of(app)
    for size in (101, 1_000_000, 3_000_000):
        with pytest.raises(openai.APIStatusError) as rejection:
            await client.files.create(file=("a", b"x" * size), purpose="vision")
        assert (rejection.value.status_code, rejection.value.code) == (413, "request_too_large")
    await client.files.create(file=("a", b"x" * 100), purpose="vision")
    with pytest.raises(openai.APIStatusError) as full:
        await client.files.create(file=("b", b"x" * 51), purpose="vision")
    assert (full.value.status_code, full.value.code) == (429, "insufficient_quota")
    assert [file.filename async for file in client.files.list()] == ["a"]


@given(st.binary(max_size=200), st.binary(max_size=20))
@pytest.mark.requirement("FILE-FORMS")
async def test_any_form_is_accepted_or_rejected(body: bytes, boundary: bytes) -> None:
    messages = [
        {"type": "http.request", "body": body[:50], "more_body": True},
        {"type": "http.request", "body": b"--" + boundary + b"\r\n" + body[50:]},
    ]
    kind = b"multipart/form-data; boundary=" + boundary
    scope = {"type": "http", "headers": [(b"content-type", kind)]}

    async def receive() -> Any:
        return messages.pop(0)

    try:
        async with open_form(scope, receive, file="file", limit=100) as form:
            content = b"".join([chunk async for chunk in form.chunks])
    except RequestError:
        return
    assert form.filename and len(content) == form.size <= 100


class _Log:
    """A logger that discards everything."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


async def _listed(server: Server) -> list[Any]:
    return list((await server.client.get("/v1/files")).json()["data"])


@pytest.mark.parametrize("is_external", [False, True], ids=["in the store", "in a folder"])
async def test_large_content_counts_as_memory_until_its_client_has_read_it(
    store: Store,
    serve: Serve,
    client_of: Clients,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_external: bool,
) -> None:
    """Clients that download slowly hold the whole content, unless it is read in pieces."""
    blobs = folder_blobs(tmp_path) if is_external else None
    client = client_of(serve(on=store, blobs=blobs).app)
    held: list[int] = []
    hold = RequestContext.hold_memory

    async def recorded(context: RequestContext, size: int) -> None:
        held.append(size)
        await hold(context, size)

    for size, expected in ((1000, []), (SMALL_BYTES + 1, [SMALL_BYTES + 1])):
        file = await client.files.create(file=("a.txt", b"a" * size), purpose="user_data")
        with monkeypatch.context() as patch:
            patch.setattr(RequestContext, "hold_memory", recorded)
            assert len((await client.files.content(file.id)).content) == size
        assert held == ([] if is_external else expected)
