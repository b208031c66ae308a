"""axe-core over the page: light, dark, and as wide as a phone. It also makes the docs' pictures."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Visitor, visiting
from tests.browser.test_responses import create
from tests.e2e.server import Server

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def violations(page: Any) -> list[str]:
    """Return what axe-core finds against WCAG 2.2, levels A and AA."""
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text() + ";0")
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    found = page.evaluate("(tags) => axe.run({runOnly: tags})", tags)
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


@pytest.fixture(params=["light", "dark", "phone"])
def look(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def guest(browser: Any, server: Server, look: str) -> Any:
    options: dict[str, Any] = {"reduced_motion": "reduce"}
    options |= PHONE if look == "phone" else {"color_scheme": look}
    with visiting(browser, server.root, **options) as found:
        yield found


@pytest.fixture
def picture(guest: Visitor, look: str, request: pytest.FixtureRequest) -> Any:
    """Save a picture of the light page for the docs, if `--pictures` asks for it."""

    def take(name: str) -> None:
        if request.config.getoption("--pictures") and look == "light":
            guest.page.screenshot(path=IMAGES / f"{name}-light.png", animations="disabled")

    return take


def test_playground_is_accessible(guest: Visitor, picture: Any) -> None:
    page = guest.open()
    page.get_by_role("heading", name="What should").wait_for()
    assert violations(page) == []
    turn = guest.answered("Tell me about rivers")
    turn.get_by_role("button", name="Thought for").click()
    turn.locator(".katex-display").wait_for()
    turn.locator("pre .hljs-keyword").first.wait_for()
    assert violations(page) == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) == 0
    picture("playground")
    turn.get_by_role("button", name="Edit", exact=True).click()
    turn.get_by_role("textbox", name="Edit the answer").wait_for()
    assert violations(page) == []


def test_request_settings_are_accessible(guest: Visitor, look: str) -> None:
    page = guest.open()
    if look == "phone":
        page.get_by_role("button", name="Request settings").click()
    for name in ("Output", "Reasoning", "Sampling"):
        page.get_by_role("button", name=name, exact=True).click()
    page.get_by_label("Format").select_option("json_schema")
    assert violations(page) == []
    page.get_by_role("button", name="Function", exact=True).click()
    page.get_by_role("dialog").wait_for()
    assert violations(page) == []


def test_page_works_with_the_keyboard_alone(guest: Visitor) -> None:
    page = guest.open()
    page.get_by_role("textbox", name="Message").wait_for()
    page.locator(".composer textarea:focus").wait_for()
    page.keyboard.type("Hi")
    page.keyboard.press("Enter")
    page.get_by_text("Hello there!").wait_for()
    page.get_by_role("button", name="Retry").wait_for()
    page.keyboard.press("Shift+Tab")
    names = set()
    for _ in range(30):
        names.add(page.evaluate("document.activeElement.textContent.trim()"))
        page.keyboard.press("Shift+Tab")
    assert {"Retry", "Copy", "JSON"} <= names


def test_responses_are_accessible(guest: Visitor, server: Server, picture: Any) -> None:
    background = create(server, input="Tell me about rivers", background=True)
    server.get(f"/v1/responses/{background}?stream=true")  # to its end
    page = guest.open("responses")
    page.get_by_role("link", name="Tell me about rivers").first.wait_for()
    page.locator(".spinner").wait_for(state="detached")
    assert violations(page) == []
    picture("responses")
    page = guest.open(f"responses/{background}")
    page.get_by_role("cell", name="Danube").wait_for()
    assert violations(page) == []
    page.get_by_role("tab", name="Events").click()
    page.get_by_role("button", name="response.completed").wait_for()
    assert violations(page) == []


@pytest.mark.parametrize("view", ["files", "stores", "containers", "models", "usage", "settings"])
def test_other_views_are_accessible(guest: Visitor, server: Server, view: str) -> None:
    create(server, input="Hi")
    page = guest.open(view)
    page.locator(".view-body > *").first.wait_for()
    page.locator(".spinner").wait_for(state="detached")
    assert violations(page) == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) == 0


@pytest.mark.parametrize("look", ["phone"], indirect=True)
def test_escape_closes_what_covers_the_page(guest: Visitor) -> None:
    page = guest.open()
    for button, covering in (("Menu", "nav.sidebar.open"), ("Request settings", "aside.panel")):
        page.get_by_role("button", name=button).click()
        page.locator(covering).wait_for()
        page.keyboard.press("Escape")
        page.locator(covering).wait_for(state="detached")
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Models").click()
    page.get_by_role("heading", name="Models").wait_for()
    page.locator("nav.sidebar.open").wait_for(state="detached")
