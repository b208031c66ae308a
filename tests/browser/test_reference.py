"""The API reference: trying requests in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.browser.conftest import Visitor, visiting
from tests.e2e.server import Server


def opened(visitor: Visitor, operation: str) -> Any:
    """Open the reference, and the form with which an operation is tried."""
    visitor.page.goto(f"{visitor.root}/docs")
    section = visitor.page.locator(f"#{operation}")
    section.get_by_text("Try it").click()
    section.get_by_role("button", name="Send").wait_for()
    return section


def test_response_is_created_and_retrieved(visitor: Visitor) -> None:
    section = opened(visitor, "createResponse")
    assert '"model": "scripted"' in section.get_by_label("JSON body").input_value()
    section.get_by_role("button", name="Send").click()
    section.get_by_text("200 · application/json · ").wait_for()
    id = section.locator("pre").inner_text().split('"id": "')[1].split('"')[0]
    section = opened(visitor, "getResponse")
    section.get_by_label("response_id").fill(id)
    section.get_by_role("button", name="Send").click()
    section.locator("pre").get_by_text(id).wait_for()


def test_stream_and_error_are_shown(visitor: Visitor) -> None:
    section = opened(visitor, "createResponse")
    body = section.get_by_label("JSON body")
    body.fill('{"model": "scripted", "input": "Hi", "stream": true}')
    section.get_by_role("button", name="Send").click()
    section.get_by_text("200 · text/event-stream · ").wait_for()
    assert "event: response.completed" in section.locator("pre").inner_text()
    body.fill('{"model": "scripted", "input": 3}')
    section.get_by_role("button", name="Send").click()
    section.get_by_text("400 · application/json · ").wait_for()
    assert '"param": "input"' in section.locator("pre").inner_text()


def test_file_is_uploaded_with_the_key(browser: Any, keyed_server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with visiting(browser, keyed_server.root) as visitor:
        upload(visitor, tmp_path / "a.txt")


def upload(visitor: Visitor, path: Path) -> None:
    section = opened(visitor, "createFile")
    section.get_by_label("file (body)").set_input_files(path)
    section.get_by_label("purpose (body)").fill("user_data")
    section.get_by_role("button", name="Send").click()
    section.get_by_text("401 · ").wait_for()
    visitor.page.get_by_label("API key").fill("sesame")
    visitor.page.get_by_label("API key").blur()
    section.get_by_role("button", name="Send").click()
    section.get_by_text("200 · ").wait_for()
    assert '"filename": "a.txt"' in section.locator("pre").inner_text()
