"""The list of stored responses, and one of them in full."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Visitor, model, visiting
from tests.e2e.server import Server, serving
from tests.tools.mcp.process import Toys


def create(server: Server, *, key: str = "none", **fields: Any) -> str:
    """Create a response without the page. Returns its id."""
    body = json.dumps(fields).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{server.url}/responses", body, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(json.load(answer)["id"])


@pytest.fixture(scope="module")
def conversation(server: Server) -> Iterator[list[str]]:
    """Two turns, and a third one beside the second."""
    first = create(server, input="An orchid of the first turn")
    second = create(server, input="An orchid of the second turn", previous_response_id=first)
    beside = create(server, input="Beside the second", previous_response_id=first)
    yield [first, second, beside]


def rows(page: Any, count: int) -> None:
    """Wait until the table has this number of rows."""
    page.locator("tbody tr").nth(count).wait_for(state="detached")
    page.locator("tbody tr").nth(count - 1).wait_for()


def test_list_is_searched_and_filtered(
    visitor: Visitor, server: Server, conversation: list[str]
) -> None:
    create(server, input="Tell me a long story of a failing orchid, and fail", background=True)
    page = visitor.open("responses")
    page.get_by_role("searchbox").fill("ORCHID OF")
    rows(page, 2)
    assert page.locator("tbody .row-link").all_inner_texts() == [
        "An orchid of the second turn",
        "An orchid of the first turn",
    ]
    assert all(row.bounding_box()["height"] < 90 for row in page.locator("tbody tr").all())
    page.get_by_label("Error").select_option("true")
    page.get_by_role("heading", name="No responses").wait_for()
    page.get_by_label("Error").select_option("")
    page.get_by_role("searchbox").fill("orchid")
    page.get_by_label("Mode", exact=True).select_option("true")
    rows(page, 1)
    page.get_by_label("Mode", exact=True).select_option("")
    page.get_by_label("Status").select_option("completed")
    page.get_by_role("link", name="An orchid of the second turn").wait_for()


def test_older_responses_are_a_click_away(visitor: Visitor, server: Server) -> None:
    for number in range(32):
        create(server, input=f"tulip {number}")
    create(server, input="Something newer")
    page = visitor.open("responses")
    page.get_by_role("searchbox").fill("tulip")
    page.get_by_role("link", name="Something newer").wait_for(state="detached")
    rows(page, 30)
    page.get_by_role("button", name="Older").click()
    page.get_by_role("link", name="tulip 0", exact=True).wait_for()
    rows(page, 32)


def test_response_shows_its_tree(visitor: Visitor, conversation: list[str]) -> None:
    first, _, beside = conversation
    page = visitor.open(f"responses/{first}")
    page.get_by_role("link", name="An orchid of the second turn").wait_for()
    page.get_by_role("link", name="Beside the second").click()
    page.get_by_role("heading", name=beside).wait_for()
    page.get_by_role("button", name="Show 2 earlier items").click()
    page.get_by_role("tabpanel").get_by_text("An orchid of the first turn").wait_for()
    page.get_by_role("link", name="The response before this one").click()
    page.get_by_role("heading", name=first).wait_for()


def test_prompt_is_shown_as_the_model_saw_it(visitor: Visitor, conversation: list[str]) -> None:
    page = visitor.open(f"responses/{conversation[1]}")
    page.get_by_role("tab", name="Prompt").click()
    text = page.get_by_label("Prompt and output").inner_text()
    assert "<|im_start|>user\nAn orchid of the first turn<|im_end|>" in text
    page.get_by_role("tab", name="JSON").click()
    assert conversation[0] in page.get_by_label("Response", exact=True).last.inner_text()


def test_background_run_is_followed_and_cancelled(browser: Any, tmp_path: Path) -> None:
    scenes = tmp_path / "scenes.toml"  # the scripted model needs minutes for its answer
    scenes.write_text(f'pause_s = 1\nscenes = [{{turns = ["{"Once upon a time. " * 200}"]}}]')
    with (
        serving(tmp_path, model=model(scenes)) as slow,
        visiting(browser, slow.root) as visitor,
    ):
        name = create(slow, input="Tell me a story", background=True)
        page = visitor.open(f"responses/{name}")
        page.get_by_text("Once upon a time").wait_for()
        page.get_by_role("tab", name="Events").click()
        page.get_by_text("response.output_text.delta").first.wait_for()
        page.get_by_role("button", name="Cancel").click()
        page.locator(".facts .status.cancelled").wait_for()


def test_events_are_a_timeline(visitor: Visitor, server: Server) -> None:
    name = create(server, input="Hi", background=True)
    page = visitor.open(f"responses/{name}")
    page.get_by_role("tab", name="Events").click()
    page.get_by_role("button", name="response.completed").click()
    assert '"status": "completed"' in page.locator(".events pre").inner_text()
    names = page.locator(".event-name").all_inner_texts()
    assert names[:2] == ["response.queued", "response.in_progress"] or "created" in names[0]
    added = page.get_by_role("button", name="response.output_item.added")
    assert "+" in added.inner_text() and " s" in added.inner_text()


def test_foreground_response_has_a_timeline(visitor: Visitor, server: Server, toys: Toys) -> None:
    tool = {"type": "mcp", "server_label": "toys", "server_url": toys.url}
    tools = [{**tool, "require_approval": "never"}]
    name = create(server, input="Please add two and three", tools=tools)
    page = visitor.open(f"responses/{name}")
    rows = page.get_by_role("list", name="Timeline").get_by_role("listitem")
    rows.filter(has_text="mcp call").filter(has_text="tool").wait_for()
    rows.filter(has_text="message").wait_for()
    page.locator(".facts").get_by_text("First output").wait_for()
    page.get_by_role("tab", name="Events").click()
    rows.filter(has_text="message").wait_for()


def test_conversation_goes_on_in_the_playground(
    visitor: Visitor, conversation: list[str], server: Server
) -> None:
    page = visitor.open(f"responses/{conversation[1]}")
    page.get_by_role("button", name="Open in the playground").click()
    page.get_by_role("heading", name="An orchid of the first turn").wait_for()
    assert page.get_by_role("article").count() == 2
    visitor.answered("And a third turn")
    assert page.get_by_role("article").count() == 3
    page.get_by_role("link", name="Details").last.click()
    page.get_by_role("button", name="Show 4 earlier items").wait_for()


def test_recent_conversation_is_opened_with_its_settings(visitor: Visitor, server: Server) -> None:
    tool = {
        "type": "function",
        "name": "find_flower",
        "strict": False,
        "parameters": {"type": "object", "properties": {}},
    }
    fields = {
        "instructions": "Speak of flowers.",
        "tools": [tool, {"type": "web_search"}],
        "tool_choice": "none",
    }
    first = create(server, input="The first peony", **fields)
    create(server, input="The second peony", previous_response_id=first, **fields)
    page = visitor.open("files")
    recent = page.get_by_label("Recent conversations")
    recent.get_by_role("button", name="The first peony").click()
    page.get_by_role("article").get_by_text("The second peony").wait_for()
    assert "The second peony" not in recent.inner_text()
    assert page.get_by_label("Instructions", exact=True).input_value() == "Speak of flowers."
    assert page.get_by_role("switch", name="Web search").is_checked()
    assert page.get_by_role("switch", name="find_flower").is_checked()
    assert page.get_by_label("Tool choice").input_value() == "none"
    visitor.answered("A question of today")
    current = recent.locator("button[aria-current]")
    current.wait_for()
    assert current.inner_text() == "The first peony"


def test_response_is_deleted_after_a_question(visitor: Visitor, server: Server) -> None:
    name = create(server, input="A daisy to delete")
    page = visitor.open(f"responses/{name}")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Delete", exact=True).click()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("searchbox").fill("daisy")
    page.get_by_role("heading", name="No responses").wait_for()
