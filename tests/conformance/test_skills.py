"""``/v1/skills``: versions, content, quotas and tenants."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest

from antiphon.limits.quotas import Quotas, TenantQuotas
from antiphon.store.base import Store
from tests.attachments.test_skill_bundles import zipped
from tests.conformance.conftest import Serve
from tests.conformance.server import Server

URL = "/v1/skills"


def manifest(name: str = "sums", about: str = "Adds numbers.") -> bytes:
    return f"---\nname: {name}\ndescription: {about}\n---\nRun add.py.\n".encode()


def skill_form(name: str = "sums", about: str = "Adds numbers.") -> list[Any]:
    """Return form files as clients upload a folder."""
    return [
        ("files[]", (f"{name}/SKILL.md", manifest(name, about))),
        ("files[]", (f"{name}/lib/add.py", b"print(1 + 1)")),
    ]


async def create_skill(server: Server, url: str = URL, **fields: str) -> Any:
    answer = await server.client.post(url, files=skill_form(**fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.requirement("API-SKILLS")
async def test_skill_can_be_created_listed_read_and_deleted(serve: Serve, store: Store) -> None:
    server = serve(on=store)
    first = await create_skill(server)
    assert first == {
        "id": first["id"],
        "object": "skill",
        "created_at": 1_700_000_000,
        "default_version": "1",
        "latest_version": "1",
        "name": "sums",
        "description": "Adds numbers.",
    }
    assert first["id"].startswith("skill_")
    second = await create_skill(server, name="other")
    one = f"{URL}/{first['id']}"
    assert (await server.client.get(one)).json() == first
    listed = (await server.client.get(URL)).json()
    assert [s["id"] for s in listed["data"]] == [second["id"], first["id"]]
    page = (await server.client.get(URL, params={"limit": 1, "order": "asc"})).json()
    assert (page["first_id"], page["has_more"]) == (first["id"], True)
    page = (await server.client.get(URL, params={"after": second["id"]})).json()
    assert [s["id"] for s in page["data"]] == [first["id"]] and not page["has_more"]
    page = (await server.client.get(URL, params={"before": first["id"]})).json()
    assert [s["id"] for s in page["data"]] == [second["id"]] and not page["has_more"]
    deleted = (await server.client.delete(one)).json()
    assert deleted == {"id": first["id"], "object": "skill.deleted", "deleted": True}
    for path in (one, one + "/content", one + "/versions", one + "/versions/1"):
        assert (await server.client.get(path)).status_code == 404
    assert (await server.client.delete(one)).status_code == 404


@pytest.mark.requirement("API-SKILLS")
async def test_skill_content_is_a_zip(serve: Serve) -> None:
    server = serve()
    content = zipped({"any/SKILL.md": manifest(), "any/add.py": b"1"})
    answer = await server.client.post(URL, files={"files": ("any.zip", content, "application/zip")})
    one = f"{URL}/{answer.json()['id']}"
    for path in ("/content", "/versions/1/content", "/versions/latest/content"):
        received = await server.client.get(one + path)
        assert "attachment" in received.headers["content-disposition"]
        assert received.headers["content-type"] == "application/zip"
        with zipfile.ZipFile(io.BytesIO(received.content)) as archive:
            assert sorted(archive.namelist()) == ["sums/SKILL.md", "sums/add.py"]


@pytest.mark.requirement("API-SKILLS")
async def test_skill_versions_lifecycle(serve: Serve, store: Store) -> None:
    server = serve(on=store)
    skill = await create_skill(server)
    one = f"{URL}/{skill['id']}"
    versions = one + "/versions"
    second = await create_skill(server, versions, about="Better.")
    assert second == {
        "id": second["id"],
        "object": "skill.version",
        "created_at": 1_700_000_000,
        "description": "Better.",
        "name": "sums",
        "skill_id": skill["id"],
        "version": "2",
    }
    shown = (await server.client.get(one)).json()
    assert (shown["default_version"], shown["latest_version"]) == ("1", "2")
    third = (
        await server.client.post(
            versions, files=skill_form(about="Best."), data={"default": "true"}
        )
    ).json()
    shown = (await server.client.get(one)).json()
    assert (shown["default_version"], shown["description"]) == ("3", "Best.")
    listed = (await server.client.get(versions)).json()
    assert [v["version"] for v in listed["data"]] == ["3", "2", "1"]
    page = (await server.client.get(versions, params={"after": third["id"], "limit": 1})).json()
    assert [v["version"] for v in page["data"]] == ["2"] and page["has_more"]
    assert (await server.client.get(versions + "/2")).json() == second
    chosen = (await server.client.post(one, json={"default_version": "2"})).json()
    assert (chosen["default_version"], chosen["description"]) == ("2", "Better.")
    rejection = await server.client.delete(versions + "/2")
    assert rejection.status_code == 400 and "default" in rejection.json()["error"]["message"]
    deleted = (await server.client.delete(versions + "/3")).json()
    assert deleted == {
        "id": third["id"],
        "object": "skill.version.deleted",
        "deleted": True,
        "version": "3",
    }
    assert (await server.client.get(versions + "/3/content")).status_code == 404
    for version in ("1", "2"):
        assert (await server.client.delete(f"{versions}/{version}")).status_code == 200
    assert (await server.client.get(one)).status_code == 404


@pytest.mark.parametrize("version", ["9", "0", "-1", "x", "1.0", "٣", "9" * 40])
async def test_unknown_version_returns_404(serve: Serve, version: str) -> None:
    server = serve()
    one = f"{URL}/{(await create_skill(server))['id']}"
    assert (await server.client.get(f"{one}/versions/{version}")).status_code == 404
    rejection = await server.client.post(one, json={"default_version": version})
    assert (rejection.status_code, rejection.json()["error"]["param"]) == (400, "default_version")


@pytest.mark.requirement("API-SKILLS-SAFE")
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([("files", ("a.zip", zipped({"../SKILL.md": manifest()})))], "not a valid relative path"),
        ([("files", ("a.zip", zipped({"a": bytes(26 << 20)})))], "more than 26214400 bytes"),
        ([("files", ("a.zip", b"PK\x03\x04"))], "not a zip"),
        ([("files[]", ("../../SKILL.md", manifest()))], "not a valid relative path"),
        ([("files", (".", manifest()))], "not a valid relative path"),
        ([("files[]", ("a/b.txt", b""))], "SKILL.md"),
        ([("files[]", ("SKILL.md", manifest())), ("files[]", ("SKILL.md", b""))], "occurs twice"),
        ([("files[]", ("SKILL.md", b"no front matter"))], "front matter"),
    ],
)
async def test_invalid_bundle_is_rejected(serve: Serve, files: Any, message: str) -> None:
    server = serve()
    rejection = (await server.client.post(URL, files=files)).json()["error"]
    assert (rejection["param"], rejection["code"]) == ("files", "invalid_skill")
    assert message in rejection["message"]
    assert (await server.client.get(URL)).json()["data"] == []


async def test_form_without_files_is_rejected(serve: Serve) -> None:
    server = serve()
    answer = await server.client.post(URL, files={"other": b""})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "files")
    answer = await server.client.post(URL, json={})
    assert answer.json()["error"]["code"] == "invalid_content_type"
    one = f"{URL}/{(await create_skill(server))['id']}"
    answer = await server.client.post(one, json={})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "default_version")
    answer = await server.client.post(
        one + "/versions", files=skill_form(), data={"default": "maybe"}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "default")


async def test_skill_over_the_quota_returns_429_or_413(serve: Serve) -> None:
    server = serve(quotas=TenantQuotas(Quotas(max_files_bytes=400)))
    skill = await create_skill(server)
    for url in (URL, f"{URL}/{skill['id']}/versions"):
        rejection = await server.client.post(url, files=skill_form())
        assert rejection.status_code == 429
        assert rejection.json()["error"]["code"] == "insufficient_quota"
    server = serve(quotas=TenantQuotas(Quotas(max_files_bytes=40)))
    rejection = await server.client.post(URL, files=skill_form())
    assert rejection.status_code == 413, "one that alone is too large"
    assert rejection.json()["error"]["code"] == "storage_limit_exceeded"


async def test_skill_of_another_tenant_is_unknown(serve: Serve) -> None:
    server = serve()
    skill = await server.service.skills.create("other", {"SKILL.md": manifest()})
    one = f"{URL}/{skill.id}"
    for method, path in (
        ("GET", one),
        ("POST", one),
        ("DELETE", one),
        ("GET", one + "/content"),
        ("GET", one + "/versions"),
        ("POST", one + "/versions"),
        ("GET", one + "/versions/1"),
        ("DELETE", one + "/versions/1"),
        ("GET", one + "/versions/1/content"),
    ):
        body: Any = {"json": {"default_version": "1"}} if path == one else {}
        answer = await server.client.request(method, path, **body)
        assert answer.status_code == 404, (method, path)
