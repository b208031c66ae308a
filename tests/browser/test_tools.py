"""The cards of real tools: the tour of `antiphon demo`, opened in the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import visiting
from tests.browser.test_accessibility import IMAGES, violations

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo(browser: Any, tmp_path: Path) -> Iterator[str]:
    """The URL of a demo whose tour has ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "antiphon", "demo", "--port", "0"],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if "That was the tour" in line:
                break
        found = re.search(r"demo at (http://127\.0\.0\.1:\d+)/v1", "".join(lines))
        assert found is not None, "".join(lines)
        yield found[1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_tour_is_shown_with_its_tools(
    browser: Any, demo: str, request: pytest.FixtureRequest
) -> None:
    with visiting(browser, demo, viewport={"width": 1280, "height": 1180}) as visitor:
        page = visitor.open()
        page.get_by_label("Recent conversations").get_by_role("button").first.click()
        page.get_by_role("button", name="Searched the web").wait_for()
        for name, text in (
            ("Searched files", "speed of the ship"),
            ("Opened a page", "rivers.example/volga"),
            ("save_note MCP", "Saved as note 1."),
        ):
            page.get_by_role("button", name=name).first.click()
            page.locator(".card-body").get_by_text(text).first.wait_for()
        page.get_by_text("You approved the call.").wait_for()
        source = page.get_by_label("Sources").get_by_role("link").last
        assert source.get_attribute("href") == "https://rivers.example/volga"
        page.get_by_role("button", name="cruise-notes.md").first.click()
        page.get_by_role("dialog").get_by_text("14").first.wait_for()
        page.keyboard.press("Escape")
        assert violations(page) == []
        if request.config.getoption("--pictures"):
            page.mouse.move(0, 0)
            page.evaluate("document.activeElement.blur()")
            page.locator(".scroller").evaluate("(each) => each.scrollTo(0, 0)")
            page.screenshot(path=IMAGES / "tools.png", animations="disabled")
