"""The playground as its user drives it: type, click, drop, reload."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.attachments.samples import pdf, png
from tests.browser.conftest import Visitor, model, visiting
from tests.browser.test_accessibility import violations
from tests.browser.test_responses import create
from tests.e2e.server import Server, serving
from tests.tools.mcp.process import Toys

#: Packages of Node for the snippets.
NODE_MODULES = Path(__file__).parents[2] / ".venv-browser" / "node" / "node_modules"
#: A picture of one pixel.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
#: Give files to an element by a paste or a drop, as the browser does.
GIVE = """([name, type, content, event]) => {
  const data = new DataTransfer();
  const bytes = Uint8Array.from(atob(content), (each) => each.charCodeAt(0));
  data.items.add(new File([bytes], name, {type}));
  const target = event === "drop" ? document.body : document.querySelector(".composer textarea");
  const made = event === "drop"
    ? new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})
    : new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true});
  target.dispatchEvent(made);
}"""


def sent_body(visitor: Visitor, server: Server) -> dict[str, Any]:
    """Return the body of the last request, from the dialog of the last turn."""
    visitor.page.get_by_role("button", name="Code", exact=True).last.click()
    text = visitor.page.get_by_role("dialog").locator("pre").inner_text()
    visitor.page.keyboard.press("Escape")
    visitor.page.get_by_role("dialog").wait_for(state="detached")
    start = text.index("-d '") + 4
    body: dict[str, Any] = json.loads(text[start : text.rindex("'")].replace("'\\''", "'"))
    return body


def test_answer_streams_as_markdown_with_code_formulas_and_figures(visitor: Visitor) -> None:
    page = visitor.open()
    turn = visitor.ask("Tell me about rivers")
    page.get_by_role("button", name="Stop").wait_for()  # it is on its way
    turn.get_by_role("cell", name="Danube").wait_for()
    turn.get_by_role("button", name="Retry").wait_for()
    assert turn.locator("strong").first.inner_text() == "three rivers"
    headers = turn.get_by_role("columnheader")
    assert headers.all_inner_texts() == ["river", "length", "mouth"]
    assert all(header.is_visible() for header in headers.all())
    turn.locator(".katex-display").wait_for()
    assert turn.locator("span.formula .katex").count() == 2
    assert "A ticket costs $5 and $10." in turn.inner_text()
    turn.locator("pre .hljs-keyword").first.wait_for()
    figures = turn.locator(".figures").inner_text()
    assert all(name in figures for name in ("scripted", "in", "out", "first token", "tokens/s"))


def test_thoughts_are_collapsed_and_open_by_click(visitor: Visitor) -> None:
    visitor.open()
    turn = visitor.answered("Tell me about rivers")
    thoughts = turn.get_by_role("button", name="Thought for")
    assert thoughts.get_attribute("aria-expanded") == "false"
    assert "The Volga comes first" not in turn.inner_text()
    thoughts.press("Enter")
    assert "The Volga comes first" in turn.inner_text()


def test_output_of_the_model_runs_nothing_and_loads_nothing(visitor: Visitor) -> None:
    page = visitor.open()
    turn = visitor.answered("attack the page")
    assert page.evaluate("window.attacked") is None
    assert turn.locator("img, iframe, script, style, form, svg[onload]").count() == 0
    link = turn.get_by_role("link", name="image: pixel")
    assert link.get_attribute("href") == "https://evil.example/pixel.png"
    assert link.get_attribute("rel") == "noopener noreferrer"
    assert "End of the attack." in turn.inner_text()  # and the page is still visible
    visitor.violations.clear()  # parsing the attack tells of its handlers, which then do not run


def test_html_is_previewed_without_access_and_network(visitor: Visitor) -> None:
    page = visitor.open()
    failures: dict[str, str] = {}
    page.on("requestfailed", lambda request: failures.update({request.url: request.failure}))
    turn = visitor.answered("Make a web page")
    button = turn.get_by_role("button", name="Preview")
    button.press("Enter")
    frame = turn.frame_locator("iframe[title='Preview of the HTML']")
    frame.get_by_role("button", name="Count").click()
    frame.get_by_text("1 clicks").wait_for()
    frame.get_by_text("no access, no network").wait_for()
    assert turn.locator("iframe").get_attribute("sandbox") == "allow-scripts"
    assert frame.locator("button").evaluate("each => getComputedStyle(each).padding") != "1px 6px"
    assert failures == {"https://evil.example/pixel.png": "csp"}  # stopped before it was sent
    visitor.urls.remove("https://evil.example/pixel.png")
    visitor.violations.clear()
    button.press("Enter")
    turn.locator("iframe").wait_for(state="detached")
    assert button.get_attribute("aria-expanded") == "false"
    assert page.evaluate("document.title") == "Playground – Antiphon"


def test_stream_goes_on_after_a_reload(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    turn = visitor.ask("Tell me a long story")
    turn.get_by_text("Once upon a time").wait_for()
    page.reload()
    turn = page.get_by_role("article", name="Turn")
    turn.get_by_role("button", name="Retry").wait_for()
    text = turn.inner_text()
    assert text.count("Once upon a time") == 1
    assert "That was the whole story." in text
    page.reload()  # a finished turn is there again, too
    page.get_by_text("That was the whole story.").wait_for()
    assert server.get("/metrics").count("antiphon_num_requests_running 0") == 1


def test_stream_goes_on_after_the_connection_was_lost(visitor: Visitor) -> None:
    page = visitor.open()
    turn = visitor.ask("Tell me a long story")
    turn.get_by_text("Once upon a time").wait_for()
    page.context.set_offline(True)  # ends no open connection, but refuses new ones
    page.evaluate("window.stop()")  # ends the open ones
    page.context.set_offline(False)
    turn.get_by_role("button", name="Retry").wait_for()
    text = turn.inner_text()
    assert (text.count("Once upon a time"), text.count("That was the whole story.")) == (1, 1)
    assert any("starting_after" in url for url in visitor.urls)


def test_run_that_a_restarted_server_completes_is_followed_by_itself(
    browser: Any, tmp_path: Path
) -> None:
    """Without a click: the page looks for the server until it is there again."""
    with serving(tmp_path, "lease_s = 1", model=model()) as server:
        with visiting(browser, server.root) as visitor:
            page = visitor.open()
            turn = visitor.ask("Tell me a long story")
            turn.get_by_text("Once upon a time").wait_for()
            server.kill()
            turn.get_by_text("The connection was lost. Trying again").wait_for()
            port = {"ANTIPHON_PORT": server.root.rpartition(":")[2]}
            with serving(tmp_path, "lease_s = 1", model=model(), environment=port):
                turn.get_by_text("That was the whole story.").wait_for()
                turn.get_by_role("button", name="Retry").wait_for()
                assert turn.get_by_text("Trying again").count() == 0
                page.close()


def test_speed_after_a_reload_is_the_speed_of_the_model(visitor: Visitor) -> None:
    """Not that of the stored events, which come at once."""
    page = visitor.open()
    turn = visitor.ask("Tell me a long story")
    turn.get_by_text("Once upon a time").wait_for()
    page.reload()
    turn = page.get_by_role("article", name="Turn")
    rate = turn.locator(".figures div", has_text="tokens/s").locator("dd")
    rate.wait_for()
    assert 1 < float(rate.inner_text()) < 1_000


def stopped(visitor: Visitor) -> Any:
    """Ask for a long story and stop it after its beginning."""
    turn = visitor.ask("Tell me a long story")
    turn.get_by_text("Once upon a time").wait_for()
    visitor.page.get_by_role("button", name="Stop").click()
    turn.get_by_text("Stopped.").wait_for()
    return turn


def test_stop_keeps_what_was_written(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    turn = stopped(visitor)
    assert "Once upon a time" in turn.inner_text()
    assert "whole story" not in turn.inner_text()
    visitor.answered("Shorter, please")
    assert page.get_by_role("article").count() == 2
    body = sent_body(visitor, server)  # the server continues no cancelled response
    assert "previous_response_id" not in body
    assert [item["role"] for item in body["input"]] == ["user", "assistant", "user"]
    assert "Once upon a time" in body["input"][1]["content"][0]["text"]


def test_stopped_answer_is_continued(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    stopped(visitor).get_by_role("button", name="Continue").click()
    page.get_by_role("button", name="Retry").nth(1).wait_for()
    assert page.get_by_role("article").locator(".user").count() == 1
    assert sent_body(visitor, server)["input"][-1]["status"] == "incomplete"
    assert page.get_by_role("button", name="Continue").count() == 0


def test_draft_stays_while_another_view_is_shown(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_role("textbox", name="Message").fill("Not sent yet")
    page.evaluate(GIVE, ["notes.md", "text/markdown", "", "drop"])
    page.get_by_role("link", name="Models").click()
    page.get_by_role("heading", name="Models").wait_for()
    page.get_by_role("link", name="Playground").click()
    assert page.get_by_role("textbox", name="Message").input_value() == "Not sent yet"
    page.get_by_role("button", name="Remove notes.md").wait_for()


def test_large_attachment_is_there_after_a_reload(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    large = png() + bytes(6_000_000)  # 8 million characters: the storage of a tab is smaller
    page.evaluate(GIVE, ["noise.png", "image/png", base64.b64encode(large).decode(), "drop"])
    visitor.answered("Hi")
    page.reload()
    page.get_by_role("article").locator("img").wait_for()
    page.get_by_role("button", name="Retry").click()
    page.get_by_text("2 / 2").wait_for()
    page.get_by_role("button", name="Retry").wait_for()
    picture, _ = sent_body(visitor, server)["input"][0]["content"]
    assert len(picture["image_url"]) > len(large)


def test_code_is_copied_without_the_clipboard_of_secure_pages(visitor: Visitor) -> None:
    page = visitor.open()
    page.evaluate("delete Navigator.prototype.clipboard")
    page.locator(".view-bar").get_by_role("button", name="Code").click()
    page.get_by_role("dialog").get_by_role("button", name="Copy").click()
    page.get_by_role("dialog").get_by_role("button", name="Copied").click()
    page.get_by_role("dialog").get_by_role("button", name="Copy", exact=True).wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("textbox", name="Message").press("Control+V")
    assert "curl -N http" in page.get_by_role("textbox", name="Message").input_value()


def test_other_conversation_begins_while_an_answer_is_written(visitor: Visitor) -> None:
    page = visitor.open()
    turn = visitor.ask("Tell me a long story of two chats")
    turn.get_by_text("Once upon a time").wait_for()
    page.get_by_role("button", name="New chat").click()
    visitor.answered("Hi")
    assert page.get_by_role("article").count() == 1
    recent = page.get_by_label("Recent conversations")
    recent.get_by_role("button", name="Tell me a long story of two chats").click()
    page.get_by_role("article").get_by_text("That was the whole story.").wait_for()


def test_retries_are_one_conversation_and_programs_are_apart(
    visitor: Visitor, server: Server
) -> None:
    page = visitor.open()
    create(server, input="A program with a lotus")
    visitor.answered("Hi from a lotus")
    for versions in ("2 / 2", "3 / 3"):
        page.get_by_role("button", name="Retry").click()
        page.get_by_text(versions).wait_for()
        page.get_by_role("button", name="Retry").wait_for()
    recent = page.get_by_label("Recent conversations")
    page.reload()
    today = recent.get_by_role("list", name="Today")
    today.get_by_role("button", name="Hi from a lotus").wait_for()
    assert today.get_by_role("button", name="Hi from a lotus").count() == 1
    programs = recent.get_by_role("list", name="From programs")
    assert programs.get_by_role("button", name="A program with a lotus").count() == 1


def test_file_search_takes_the_only_store_or_asks(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    page.route("**/v1/vector_stores?*", lambda route: route.fulfill(json={"data": []}))
    page.get_by_role("switch", name="File search").check()
    visitor.ask("What do my files say?")
    page.get_by_text("File search needs a vector store.").wait_for()
    assert page.get_by_role("article").count() == 0
    page.unroute("**/v1/vector_stores?*")
    store = {"id": "vs_1", "name": "Library", "status": "completed"}
    page.route("**/v1/vector_stores?*", lambda route: route.fulfill(json={"data": [store]}))
    page.get_by_role("switch", name="File search").uncheck()
    page.get_by_role("switch", name="File search").check()
    page.get_by_role("checkbox", name="Library").wait_for()
    assert page.get_by_role("checkbox", name="Library").is_checked()
    page.get_by_role("button", name="Code", exact=True).click()
    page.get_by_role("dialog").get_by_text("vs_1").wait_for()


def test_what_a_new_chat_takes_over_is_visible(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_role("button", name="Output").click()
    page.get_by_label("Format").select_option("json_object")
    page.get_by_role("switch", name="Code interpreter").check()
    page.get_by_role("button", name="JSON · Code interpreter").wait_for()
    page.get_by_role("button", name="Ask without tools and output format").click()
    page.get_by_role("button", name="JSON · Code interpreter").wait_for(state="detached")
    assert page.get_by_label("Format").input_value() == "text"
    assert not page.get_by_role("switch", name="Code interpreter").is_checked()


@pytest.mark.parametrize(("button", "field"), [("MCP server", "Label"), ("Function", "Name")])
def test_dialogs_begin_in_their_first_field(visitor: Visitor, button: str, field: str) -> None:
    page = visitor.open()
    page.get_by_role("button", name=button, exact=True).click()
    page.wait_for_function("document.activeElement.matches('dialog input')")
    page.keyboard.type("weather")
    assert page.get_by_role("dialog").get_by_label(field).first.input_value() == "weather"


def test_phone_shows_the_whole_title_and_model(browser: Any, server: Server) -> None:
    with visiting(browser, server.root, viewport={"width": 390, "height": 844}) as visitor:
        page = visitor.open()
        visitor.answered("Hi, how are you on a phone?")
        for shown in (page.get_by_role("heading", level=1).first, page.get_by_label("Model")):
            assert shown.evaluate("(each) => each.scrollWidth <= each.clientWidth")
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_unknown_address_says_so(visitor: Visitor) -> None:
    visitor.open("vector-stores").get_by_role("heading", name="There is no such view").wait_for()


def test_cut_answer_is_continued(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    page.get_by_role("button", name="Sampling").click()
    page.get_by_label("Max output tokens").fill("20")
    visitor.ask("Tell me a long story").get_by_text("reached the limit").wait_for()
    page.get_by_label("Max output tokens").fill("")
    page.get_by_role("button", name="Continue").click()
    turn = page.get_by_role("article").nth(1)
    turn.get_by_role("button", name="Retry").wait_for()
    body = sent_body(visitor, server)
    assert "input" not in body and body["previous_response_id"].startswith("resp_")
    assert page.get_by_role("button", name="Continue").count() == 0
    page.get_by_role("link", name="Details").last.click()
    page.get_by_role("button", name="Open in the playground").click()
    page.get_by_role("article").nth(1).wait_for()
    assert page.get_by_role("article").locator(".user").count() == 1


def save_as(page: Any, button: str) -> None:
    page.get_by_role("button", name="Save or open conversations").click()
    page.get_by_role("button", name=button, exact=True).click()
    page.keyboard.press("Escape")


def open_file(page: Any, path: Path) -> None:
    page.get_by_role("button", name="Save or open conversations").click()
    page.get_by_label("File of conversations").set_input_files(path)


def test_saved_conversation_is_opened_and_continued(
    visitor: Visitor, server: Server, tmp_path: Path
) -> None:
    page = visitor.open()
    visitor.answered("Hi")
    visitor.answered("Tell me about rivers")
    rename(page, "Waters")
    file = tmp_path / "conversation.json"
    with page.expect_download() as download:
        save_as(page, "Save as JSON")
    download.value.save_as(file)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete the conversation").click()
    page.get_by_role("heading", name="What should scripted answer?").wait_for()
    open_file(page, file)
    page.get_by_role("heading", name="Waters").wait_for()
    page.get_by_role("cell", name="Danube").wait_for()
    visitor.answered("And their lengths?").get_by_role("cell", name="Danube").wait_for()
    body = sent_body(visitor, server)
    assert "previous_response_id" not in body
    assert [item["type"] for item in body["input"]] == [
        *("message", "message"),
        *("message", "reasoning", "message"),
        "message",
    ]
    page.get_by_role("button", name="New chat").click()
    recent = page.get_by_label("Recent conversations")
    recent.get_by_role("button", name="Waters").click()  # it is stored now, with all its turns
    page.get_by_role("heading", name="Waters").wait_for()
    assert page.get_by_role("article").count() == 3


def test_one_of_all_saved_conversations_is_opened(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.open()
    visitor.answered("Hi from a lily")
    page.get_by_role("button", name="New chat").click()
    visitor.answered("Hi from a poppy")
    with page.expect_download() as download:
        save_as(page, "Save all as JSON")
    download.value.save_as(tmp_path / "conversations.json")
    open_file(page, tmp_path / "conversations.json")
    choices = page.get_by_label("Conversations of the file")
    choices.get_by_role("button", name="Hi from a lily").click()
    page.get_by_role("article").get_by_text("Hi from a lily").wait_for()
    page.get_by_text("From a file.").wait_for()


def test_file_of_something_else_says_what_is_wrong(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.open()
    page.get_by_role("button", name="Save or open conversations").click()
    head = '{"format": "antiphon.conversations", "version": 1, "conversations": '
    for text, message in (
        ("Hello", "This file is not JSON."),
        ("[1]", "This file was not saved by this page."),
        (f"{head}[]}}", "This file has no conversations."),
        (f"{head}[7]}}", "conversations must be a list of objects."),
        (
            head + '[{"turns": [{"input": [], "output": [{"type": "reasoning", "summary": 7}]}]}]}',
            "conversations[0].turns[0].output[0].summary must be a list.",
        ),
    ):
        (tmp_path / "file.json").write_text(text)
        page.get_by_label("File of conversations").set_input_files(tmp_path / "file.json")
        page.get_by_role("alert").get_by_text(message, exact=True).wait_for()
    assert page.get_by_role("article").count() == 0


def test_conversation_is_saved_and_deleted(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.open()
    visitor.answered("Hi from a dahlia")
    with page.expect_download() as download:
        save_as(page, "Save as Markdown")
    download.value.save_as(tmp_path / "chat.md")
    text = (tmp_path / "chat.md").read_text()
    assert text == "**You:** Hi from a dahlia\n\n**Answer:** Hello there!\n"
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete the conversation").click()
    page.get_by_role("heading", name="What should scripted answer?").wait_for()
    page.get_by_role("link", name="Responses").click()
    page.get_by_role("searchbox").fill("dahlia")
    page.get_by_role("heading", name="No responses").wait_for()


def rename(page: Any, name: str) -> None:
    page.get_by_role("button", name="Rename the conversation").click()
    box = page.get_by_label("Name", exact=True)
    box.fill(name)
    box.press("Enter")


def test_conversation_is_renamed(visitor: Visitor) -> None:
    page = visitor.open()
    visitor.answered("Hi from a crocus")
    rename(page, "Flowers of spring")
    page.get_by_role("heading", name="Flowers of spring").wait_for()
    visitor.answered("And a rose?")
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("heading", name="New chat").wait_for()
    page.reload()
    recent = page.get_by_label("Recent conversations")
    recent.get_by_role("button", name="Flowers of spring").click()
    page.get_by_role("heading", name="Flowers of spring").wait_for()
    assert page.get_by_role("article").count() == 2
    rename(page, "")
    recent.get_by_role("button", name="Hi from a crocus").wait_for()
    assert page.evaluate("localStorage.getItem('antiphon.names')") is None


def test_edit_and_retry_make_branches(visitor: Visitor) -> None:
    page = visitor.open()
    visitor.answered("Hi")
    turn = visitor.answered("Tell me about rivers")
    turn.get_by_role("button", name="Edit and branch").click()
    box = page.get_by_role("textbox", name="Edit the message")
    box.fill("Name a city as JSON")
    box.press("Enter")
    page.get_by_text("Italy").wait_for()
    page.get_by_text("2 / 2").wait_for()
    assert page.get_by_role("article").count() == 2
    page.get_by_role("article").last.get_by_role("button", name="Retry").click()
    page.get_by_text("3 / 3").wait_for()
    page.get_by_role("button", name="Previous version").click()
    page.get_by_role("button", name="Previous version").click()
    page.get_by_role("cell", name="Danube").wait_for()


def test_function_is_answered_by_hand(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    page.get_by_role("button", name="Function", exact=True).click()
    dialog = page.get_by_role("dialog", name="Function")
    dialog.get_by_label("Name", exact=True).fill("get_weather")
    dialog.get_by_label("Description", exact=True).fill("The weather in a city")
    dialog.get_by_role("button", name="Add a field").click()
    dialog.get_by_label("Name of the field").last.fill("unit")
    dialog.get_by_label("Type").last.select_option("enum")
    dialog.get_by_label("Values of").fill("celsius, kelvin")
    dialog.get_by_role("button", name="Save").click()
    turn = visitor.answered("How is the weather in Rome?")
    assert '"city": "Rome"' in turn.inner_text()
    body = sent_body(visitor, server)
    parameters = body["tools"][0]["parameters"]
    assert parameters["properties"]["unit"] == {"type": "string", "enum": ["celsius", "kelvin"]}
    assert parameters["required"] == ["city", "unit"]
    turn.get_by_label("Result of get_weather").fill('{"sky": "sunny"}')
    turn.get_by_role("button", name="Send result").click()
    page.get_by_text("24 °C").wait_for()
    page.get_by_role("article").last.get_by_role("button", name="Retry").wait_for()
    assert [item["type"] for item in sent_body(visitor, server)["input"]] == [
        "function_call_output"
    ]


def add_mcp_server(page: Any, toys: Toys, approval: str = "always") -> None:
    page.get_by_role("button", name="MCP server").click()
    dialog = page.get_by_role("dialog", name="MCP server")
    dialog.get_by_label("Label", exact=True).fill("toys")
    dialog.get_by_label("URL").fill(toys.url)
    dialog.get_by_label("Approval").select_option(approval)
    dialog.get_by_role("button", name="Save").click()


def test_mcp_call_is_approved_by_click(visitor: Visitor, toys: Toys) -> None:
    page = visitor.open()
    add_mcp_server(page, toys)
    turn = visitor.ask("Please add two and three")
    turn.get_by_role("button", name="Approve").click()
    page.get_by_text("Two and three are five.").wait_for()
    page.get_by_text("You approved the call.").wait_for()
    page.get_by_role("button", name="add MCP · toys").click()
    assert "5" in page.locator("[data-item=mcp_call]").inner_text()


def test_mcp_servers_of_the_operator_are_offered(browser: Any, toys: Toys, tmp_path: Path) -> None:
    settings = f'[mcp.servers.toys]\nurl = "{toys.url}"\n'
    with (
        serving(tmp_path, settings, model=model()) as server,
        visiting(browser, server.root) as visitor,
    ):
        page = visitor.open()
        page.get_by_role("switch", name="toys").check()
        page.get_by_role("button", name="Edit toys").wait_for()
        turn = visitor.ask("Please add two and three")
        turn.get_by_role("button", name="Approve").click()
        page.get_by_text("Two and three are five.").wait_for()


def test_mcp_server_of_the_operator_is_tested(browser: Any, toys: Toys, tmp_path: Path) -> None:
    settings = (
        f'[mcp.servers.toys]\nurl = "{toys.url}"\n'
        f'[mcp.servers.broken]\nurl = "{toys.root}/broken"\n[mcp.servers.odd]\ncommand = "false"\n'
    )
    markup = '<img src=x onerror="document.title=1">'
    hostile = {"data": [{"name": markup, "description": f"{markup}\u202e", "read_only": True}]}
    with (
        serving(tmp_path, settings, model=model()) as server,
        visiting(browser, server.root) as visitor,
    ):
        page = visitor.open()
        page.route("**/mcp-servers/odd/tools", lambda route: route.fulfill(json=hostile))
        page.get_by_role("button", name="Test toys").click()
        page.get_by_text(re.compile(r"^\d+ tools, [\d.]+ m?s$")).click()
        tools = page.get_by_role("list", name="Tools of toys").get_by_role("listitem")
        assert "Add two numbers." in tools.first.inner_text()
        assert "only reads" in tools.first.inner_text()
        page.get_by_role("switch", name="toys").check()
        page.get_by_role("button", name="Edit toys").wait_for()
        assert tools.first.is_visible()  # the row is the same one
        page.get_by_role("button", name="Edit toys").click()
        page.get_by_label("Authorization").fill("secret")
        page.get_by_role("button", name="Save", exact=True).click()
        with page.expect_request("**/mcp-servers/toys/tools") as asked:
            page.get_by_role("button", name="Test toys").click()
        assert asked.value.headers["mcp-authorization"] == "secret"
        page.get_by_role("button", name="Test broken").click()
        page.get_by_text("Http status code: 503 (Service Unavailable)").wait_for()
        page.get_by_role("button", name="Test odd").click()
        page.get_by_text(re.compile("^1 tool, ")).click()
        odd = page.get_by_role("list", name="Tools of odd")
        assert odd.inner_text().count(markup) == 2
        assert odd.locator("img").count() == 0
        assert violations(page) == []


def test_mcp_call_is_denied_by_click(visitor: Visitor, toys: Toys) -> None:
    page = visitor.open()
    add_mcp_server(page, toys)
    turn = visitor.ask("Please delete it")
    turn.get_by_role("button", name="Deny").click()
    page.get_by_text("Then I do not do it.").wait_for()


def test_files_are_attached_by_drop_and_paste(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    content = base64.b64encode(b"Saturn has rings.").decode()
    page.evaluate(GIVE, ["notes.md", "text/markdown", content, "drop"])
    page.evaluate(GIVE, ["pixel.png", "image/png", base64.b64encode(PIXEL).decode(), "paste"])
    assert page.get_by_label("Attachments").get_by_role("listitem").count() == 2
    page.get_by_role("button", name="Remove pixel.png").click()
    turn = visitor.answered("what is in the file")
    assert "notes.md" in turn.inner_text()
    file, text = sent_body(visitor, server)["input"][0]["content"]
    assert file["filename"] == "notes.md"
    assert base64.b64decode(file["file_data"].partition(",")[2]) == b"Saturn has rings."
    assert text == {"type": "input_text", "text": "what is in the file"}


def test_model_reads_a_dropped_pdf(visitor: Visitor) -> None:
    page = visitor.open()
    content = base64.b64encode(pdf("Jupiter has many moons.")).decode()
    page.evaluate(GIVE, ["moons.pdf", "application/pdf", content, "drop"])
    turn = visitor.answered("what is in the file")
    turn.get_by_role("link", name="Details").click()
    page.get_by_role("tab", name="Prompt").click()
    assert "Jupiter has many moons." in page.get_by_label("Prompt and output").inner_text()


def test_pages_of_a_pdf_are_sent_as_images(visitor: Visitor, server: Server) -> None:
    listed = server.get("/v1/models").replace('["text"]', '["text","image"]')
    visitor.page.route("**/v1/models", lambda route: route.fulfill(json=json.loads(listed)))
    page = visitor.open()
    page.get_by_role("combobox", name="Model").get_by_text("scripted").wait_for(state="attached")
    content = base64.b64encode(pdf("Jupiter has many moons.")).decode()
    page.evaluate(GIVE, ["moons.pdf", "application/pdf", content, "drop"])
    button = page.get_by_role("button", name="Show the pages of moons.pdf as images")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    visitor.answered("what is in the file")
    assert sent_body(visitor, server)["input"][0]["content"][0]["detail"] == "high"


def test_images_for_a_model_that_reads_text_only_are_announced(visitor: Visitor) -> None:
    page = visitor.open()
    page.evaluate(GIVE, ["notes.md", "text/markdown", "", "drop"])
    page.get_by_role("button", name="Remove notes.md").wait_for()
    assert page.get_by_text("only a tool can use the image").count() == 0
    page.evaluate(GIVE, ["pixel.png", "image/png", base64.b64encode(PIXEL).decode(), "paste"])
    page.get_by_text("scripted reads text only: only a tool can use the image.").wait_for()


def test_refused_request_says_why_and_can_be_edited(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_role("button", name="Sampling").click()
    page.get_by_label("Temperature").fill("5")
    page.evaluate(GIVE, ["pixel.png", "image/png", base64.b64encode(PIXEL).decode(), "paste"])
    turn = visitor.answered("Hi")
    assert "temperature" in turn.get_by_role("alert").inner_text()
    page.get_by_label("Temperature").fill("")
    turn.get_by_role("button", name="Edit and branch").click()
    page.get_by_role("textbox", name="Edit the message").press("Enter")
    page.get_by_text("Hello there!").wait_for()
    assert page.get_by_role("article").last.locator("img").count() == 1  # it is still attached


def test_failure_of_the_engine_is_shown(visitor: Visitor) -> None:
    visitor.open()
    turn = visitor.answered("Please fail")
    assert "The engine is gone." in turn.get_by_role("alert").inner_text()


def test_structured_output_follows_the_schema_of_the_form(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    page.get_by_role("button", name="Output").click()
    page.get_by_label("Format").select_option("json_schema")
    page.get_by_label("Name of the field").fill("name")
    page.get_by_role("button", name="Add a field").click()
    page.get_by_label("Name of the field").last.fill("country")
    page.get_by_label("Name of the field").last.press("Tab")
    turn = visitor.answered("Name a city as JSON")
    turn.locator("pre .hljs-attr").nth(1).wait_for()
    assert turn.locator("pre .hljs-attr").count() == 2
    body = sent_body(visitor, server)
    assert body["text"]["format"]["schema"] == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "country": {"type": "string"}},
        "required": ["name", "country"],
        "additionalProperties": False,
    }


def test_settings_are_sent(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    page.get_by_label("Instructions", exact=True).fill("Be brief.")
    page.get_by_role("button", name="Sampling").click()
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_label("Top K").fill("40")
    page.get_by_role("switch", name="Web search").check()
    page.get_by_role("switch", name="Image generation not ready").check()
    page.get_by_text("No generator of images is configured").wait_for()
    turn = visitor.answered("Hi")
    body = sent_body(visitor, server)
    assert body["instructions"] == "Be brief."
    assert (body["temperature"], body["top_k"]) == (0.3, 40)
    assert [tool["type"] for tool in body["tools"]] == ["web_search", "image_generation"]
    assert "parallel_tool_calls" not in body
    assert "image_generation" in turn.get_by_role("note").last.inner_text()  # not enabled here


def test_python_snippet_sends_the_same_request(visitor: Visitor) -> None:
    page = visitor.open()
    visitor.answered('It\'s a "quote" and a backslash \\')
    page.get_by_role("button", name="Code", exact=True).last.click()
    page.get_by_role("tab", name="Python").click()
    code = page.get_by_role("dialog").locator("pre").inner_text()
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("Hello there!", "")


@pytest.mark.skipif(not (NODE_MODULES / "openai").exists(), reason="`make browser` installs it")
def test_javascript_snippet_sends_the_same_request(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.open()
    visitor.answered('It\'s a "quote" and a backslash \\')
    page.get_by_role("button", name="Code", exact=True).last.click()
    page.get_by_role("tab", name="JavaScript").click()
    code = page.get_by_role("dialog").locator("pre").inner_text()
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)  # where Node looks for packages
    (tmp_path / "snippet.mjs").write_text(code)
    ran = subprocess.run(
        ["node", "snippet.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("Hello there!", "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_snippet_sends_the_same_request(visitor: Visitor) -> None:
    page = visitor.open()
    visitor.answered('It\'s a "quote" and a backslash \\')
    page.get_by_role("button", name="Code", exact=True).last.click()
    code = page.get_by_role("dialog").locator("pre").inner_text()
    ran = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0
    assert "event: response.completed" in ran.stdout


def test_api_reference_is_a_click_away(visitor: Visitor) -> None:
    page = visitor.open()
    with page.expect_popup() as opened:
        page.get_by_role("link", name="API reference").click()
    opened.value.get_by_text("/v1/responses").first.wait_for()


def test_page_asks_for_a_key_and_forgets_it(browser: Any, keyed_server: Server) -> None:
    with visiting(browser, keyed_server.root) as visitor:
        page = visitor.open()
        visitor.enter_key("wrong")
        page.get_by_role("alert").wait_for()
        visitor.enter_key("sesame")
        assert "Hello there!" in visitor.answered("Hi").inner_text()
        stored = page.evaluate("[sessionStorage, localStorage].map((each) => JSON.stringify(each))")
        assert ["sesame" in each for each in stored] == [True, False]
        rename(page, "Secret plans")
        page.get_by_role("button", name="Forget the key").click()
        page.get_by_label("API key").wait_for()
        assert page.evaluate("localStorage.getItem('antiphon.names')") is None
        stored = page.evaluate("JSON.stringify(sessionStorage)")
        assert not any(secret in stored for secret in ("sesame", "Hello there!"))
        visitor.enter_key("open")
        page.get_by_role("heading", name="What should scripted answer?").wait_for()
