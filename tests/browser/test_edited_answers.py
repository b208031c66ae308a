"""Answers of the model that the user edits in the playground."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.browser.conftest import Visitor
from tests.browser.test_playground import add_mcp_server, open_file, save_as, sent_body
from tests.e2e.server import Server
from tests.tools.mcp.process import Toys


def edit_answer(turn: Any, text: str) -> None:
    """Change the only text of an answer with the keyboard."""
    turn.get_by_role("button", name="Edit", exact=True).press("Enter")
    box = turn.get_by_role("textbox", name="Edit the answer")
    box.fill(text)
    box.press("Control+Enter")


def stored_input(visitor: Visitor, server: Server) -> list[dict[str, Any]]:
    """Return what the server stored as the input of the last turn's response, without its past."""
    link = visitor.page.get_by_role("link", name="Details").last.get_attribute("href")
    items = json.loads(
        server.get(f"/v1/responses/{link.rpartition('/')[2]}/input_items?order=asc&limit=100")
    )
    data: list[dict[str, Any]] = items["data"]
    return data


def texts(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(item["role"], item["content"][0]["text"]) for item in items]


def test_conversation_goes_on_from_an_edited_answer(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    visitor.answered("Hi")
    turn = visitor.answered("Tell me about rivers")
    turn.get_by_role("button", name="Edit", exact=True).click()
    box = turn.get_by_role("textbox", name="Edit the answer")
    assert "**three rivers** of Europe" in box.input_value()
    box.fill("There is one river, the **Elbe**.")
    turn.get_by_role("button", name="Save").click()
    page.get_by_text("Edited by you.").wait_for()
    page.locator(".composer textarea:focus").wait_for()
    assert page.get_by_role("article").count() == 2
    assert page.locator("strong").inner_text() == "Elbe"
    visitor.answered("And its mouth?")
    body = sent_body(visitor, server)
    assert texts(body["input"]) == [
        ("user", "Tell me about rivers"),
        ("assistant", "There is one river, the **Elbe**."),
        ("user", "And its mouth?"),
    ]
    assert "id" not in body["input"][1]  # the model's answer is stored by its own id
    first = stored_input(visitor, server)
    assert texts(first) == [("user", "Hi"), ("assistant", "Hello there!"), *texts(body["input"])]


def test_model_continues_an_edited_answer(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    edit_answer(visitor.answered("Hi"), "The first word is")
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("button", name="Retry").nth(1).wait_for()
    sent = sent_body(visitor, server)["input"]
    assert (sent[-1]["content"][0]["text"], sent[-1]["status"]) == (
        "The first word is",
        "incomplete",
    )
    page.get_by_role("link", name="Details").click()
    page.get_by_role("tab", name="Prompt").click()
    prompt = page.get_by_label("Prompt and output").inner_text()
    assert "assistant\nThe first word isHello there!" in prompt.replace("\u200b", "")


def test_edited_answer_is_cancelled_with_escape(visitor: Visitor) -> None:
    page = visitor.open()
    turn = visitor.answered("Hi")
    turn.get_by_role("button", name="Edit", exact=True).press("Enter")
    box = turn.get_by_role("textbox", name="Edit the answer")
    box.fill(" ")
    assert turn.get_by_role("button", name="Save").is_disabled()
    box.press("Control+Enter")
    box.press("Escape")
    turn.get_by_text("Hello there!").wait_for()
    assert page.get_by_label("Versions").count() == 0
    page.wait_for_function("document.activeElement.textContent === 'Edit'")


def test_versions_of_an_answer_are_switched(visitor: Visitor) -> None:
    page = visitor.open()
    edit_answer(visitor.answered("Hi"), "Good morning!")
    edit_answer(page.get_by_role("article"), "Good evening!")
    page.get_by_text("3 / 3").wait_for()
    page.get_by_role("button", name="Previous version").click()
    page.get_by_text("Good morning!").wait_for()
    page.get_by_role("button", name="Previous version").click()
    page.get_by_text("Hello there!").wait_for()
    assert page.get_by_text("Edited by you.").count() == 0
    page.get_by_role("button", name="Next version").click()
    page.get_by_role("button", name="Retry").click()
    page.get_by_text("4 / 4").wait_for()
    page.get_by_text("Hello there!").wait_for()


def test_edited_answer_is_saved_reloaded_and_opened(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.open()
    edit_answer(visitor.answered("Hi"), "Good morning!")
    page.reload()
    page.get_by_text("Edited by you.").wait_for()
    for kind in ("Markdown", "JSON"):
        with page.expect_download() as download:
            save_as(page, f"Save as {kind}")
        download.value.save_as(tmp_path / kind)
    text = (tmp_path / "Markdown").read_text()
    assert text == "**You:** Hi\n\n**Answer:** Good morning!\n"
    page.get_by_role("button", name="New chat").click()
    open_file(page, tmp_path / "JSON")
    page.get_by_text("From a file.").wait_for()
    page.get_by_text("Good morning!").wait_for()


def test_tool_calls_of_an_edited_answer_are_sent(
    visitor: Visitor, server: Server, toys: Toys
) -> None:
    page = visitor.open()
    add_mcp_server(page, toys, approval="never")
    turn = visitor.answered("Please add two and three")
    edit_answer(turn, "Two and three are six.")
    page.get_by_role("button", name="add MCP · toys").wait_for()
    visitor.answered("Are you sure?")
    assert [item["type"] for item in stored_input(visitor, server)] == [
        *("message", "mcp_list_tools", "mcp_call", "message"),
        "message",
    ]


def test_thoughts_before_a_call_stay_and_those_before_a_changed_text_go(visitor: Visitor) -> None:
    def text(value: str) -> dict[str, Any]:
        return {"type": "message", "id": value, "content": [{"type": "output_text", "text": value}]}

    thought, call = {"type": "reasoning", "summary": []}, {"type": "web_search_call", "id": "ws"}
    output = [thought, text("One"), thought, call, thought, thought, text("Two"), text("Three")]
    page = visitor.open()
    edited = page.evaluate(
        """async ([output, texts]) => {
          const url = new URL("ui/js/playground/edited.js", document.baseURI);
          return (await import(url)).editedOutput(output, texts);
        }""",
        [output, {"1": "One", "6": "2", "7": " "}],
    )
    changed = {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "2", "annotations": []}],
    }
    assert edited == [thought, text("One"), thought, call, changed]


def test_code_of_a_conversation_that_ends_with_an_edited_answer(visitor: Visitor) -> None:
    page = visitor.open()
    edit_answer(visitor.answered("Hi"), "Good morning!")
    page.get_by_text("Edited by you.").wait_for()
    page.locator(".view-bar").get_by_role("button", name="Code").click()
    code = page.get_by_role("dialog").locator("pre").inner_text()
    assert code.index('"Hi"') < code.index('"Good morning!"') < code.index('"role": "user"', 200)
