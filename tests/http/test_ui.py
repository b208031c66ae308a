"""The web page's files: who gets them, with which headers, and what is vendored."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.bootstrap.access import page_is_served
from antiphon.config.settings import Settings
from antiphon.http.middleware.auth import AuthConfig
from antiphon.http.ui.routes import STATIC
from tests.http.middleware.test_auth import ACCESS

VENDOR = STATIC / "vendor"
MANIFEST = json.loads((VENDOR / "manifest.json").read_text())
FILES = [file for package in MANIFEST["packages"] for file in package["files"]]
OURS = sorted(path for path in STATIC.rglob("*") if path.is_file() and VENDOR not in path.parents)


@pytest.fixture
def client(make_app: Any) -> httpx.AsyncClient:
    found: httpx.AsyncClient = make_app(access=AuthConfig(page=True)).client
    return found


async def test_page_and_its_files_are_served(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text == (STATIC / "index.html").read_text()
    for path in re.findall(r'(?:href|src)="(ui/[^"]+)"', page.text):
        assert (await client.get(f"/{path}")).status_code == 200
    script = await client.get("/ui/js/app.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    again = await client.get("/ui/js/app.js", headers={"if-none-match": script.headers["etag"]})
    assert again.status_code == 304


async def test_policy_allows_only_files_of_the_server(client: httpx.AsyncClient) -> None:
    for path in ("/", "/ui/js/app.js"):
        headers = (await client.get(path)).headers
        policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["img-src"] == "'self' data: blob:"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


async def test_preview_of_html_may_send_and_load_nothing(client: httpx.AsyncClient) -> None:
    policy = (await client.get("/ui/preview.html")).headers["content-security-policy"].split("; ")
    assert {"sandbox allow-scripts", "default-src 'none'", "form-action 'none'"} <= set(policy)
    assert not any("http" in rule or "allow-same-origin" in rule for rule in policy)
    page = (await client.get("/")).headers["content-security-policy"].split("; ")
    assert "frame-src 'self'" in page


@pytest.mark.parametrize(
    "path",
    ["/ui/", "/ui/js", "/ui/js/none.js", "/ui/../routes.py", "/ui/..%2froutes.py", "/ui/%00.js"],
)
async def test_other_paths_are_404(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.get(path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_url")


async def test_page_needs_no_key_but_the_api_does(make_app: Any) -> None:
    client = make_app(access=AuthConfig(keys=ACCESS.keys, page=True)).client
    assert (await client.get("/")).status_code == 200
    assert (await client.get("/ui/css/base.css")).status_code == 200
    assert (await client.get("/v1/models")).status_code == 401


async def test_page_can_be_switched_off(make_app: Any) -> None:
    client = make_app(access=AuthConfig()).client
    assert (await client.get("/")).status_code == 404
    assert (await client.get("/ui/js/app.js")).status_code == 404


@pytest.mark.parametrize(
    ("ui", "host", "served"),
    [
        ("auto", "127.0.0.1", True),
        ("auto", "localhost", True),
        ("auto", "0.0.0.0", False),
        ("on", "0.0.0.0", True),
        ("off", "127.0.0.1", False),
    ],
)
def test_setting_decides_where_the_page_is_served(ui: Any, host: str, served: bool) -> None:
    assert page_is_served(Settings(ui=ui, host=host)) is served


def test_manifest_lists_every_vendored_file_with_its_checksum() -> None:
    listed = {file["path"]: file["sha256"] for file in FILES}
    licenses = {package["license_file"] for package in MANIFEST["packages"]}
    present = {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()}
    assert present == {*listed, *licenses, "manifest.json"}
    for path, checksum in listed.items():
        assert hashlib.sha256((VENDOR / path).read_bytes()).hexdigest() == checksum, path
    assert all(package["version"] and package["license"] for package in MANIFEST["packages"])


def test_changed_files_say_what_was_changed() -> None:
    assert all(("changes" in file) == ("source_sha256" in file) for file in FILES)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_sources_name_no_other_host(path: Path) -> None:
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert set(re.findall(r"https?://[\w.]+", text)) <= {"https://example.com"}


def test_page_has_no_inline_script_and_no_inline_style() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page)
