"""Files, vector stores, containers, models, usage and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.browser.conftest import Visitor, visiting
from tests.browser.test_responses import create
from tests.e2e.server import Server

SATURN = "Saturn has rings of ice and rock.\n"


def upload(visitor: Visitor, folder: Path, name: str, text: str = SATURN) -> None:
    (folder / name).write_text(text)
    visitor.page.get_by_label("Files to upload").set_input_files(folder / name)
    visitor.page.get_by_label("Uploads").get_by_text("uploaded").wait_for()


def test_file_is_uploaded_downloaded_and_deleted(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.open("files")
    upload(visitor, tmp_path, "saturn.txt")
    page.get_by_role("table").get_by_text("saturn.txt", exact=True).wait_for()
    with page.expect_download() as started:
        page.get_by_role("button", name="Download saturn.txt").click()
    assert Path(started.value.path()).read_text() == SATURN
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete saturn.txt").click()
    page.get_by_role("table").get_by_text("saturn.txt", exact=True).wait_for(state="detached")


def test_vector_store_is_made_filled_and_searched(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.open("stores")
    page.get_by_label("Name of the new store").fill("Planets")
    page.get_by_role("button", name="New vector store").click()
    page.get_by_role("heading", name="Planets").wait_for()
    upload(visitor, tmp_path, "rings.txt")
    page.get_by_label("Files of the store").get_by_text("completed").wait_for()
    page.get_by_label("Search for").fill("rings of Saturn")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_label("Search in the store").get_by_text("ice and rock").wait_for()
    page.get_by_role("link", name="Playground").click()
    page.get_by_role("switch", name="File search").check()
    page.get_by_role("checkbox", name="Planets").check()


def test_containers_that_are_off_say_so(visitor: Visitor) -> None:
    page = visitor.open("containers")
    page.get_by_text("disabled").wait_for()


def test_model_is_unloaded_and_loaded(visitor: Visitor) -> None:
    page = visitor.open("models")
    model = page.locator("[data-model=scripted]")
    model.get_by_role("button", name="Unload").click()
    model.get_by_text("unloaded").wait_for()
    model.get_by_role("button", name="Load").click()
    model.get_by_text("loaded", exact=True).wait_for()
    model.get_by_role("button", name="Unload").wait_for()


def requests_of(page: Any, name: str) -> int:
    """Return the requests of a model or key, from its row of the table."""
    table = page.get_by_role("region", name="Usage by")
    row = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name, exact=True))
    return int(row.get_by_role("cell").first.inner_text().replace(",", ""))


def test_usage_is_shown_by_model_and_time(visitor: Visitor, server: Server) -> None:
    create(server, input="Hi")
    page = visitor.open("usage")
    page.get_by_text("Size of the responses").wait_for()
    requests = requests_of(page, "scripted")
    assert requests >= 1
    for title in ("Requests", "Tokens", "Mean time"):
        chart = page.get_by_role("region", name=title, exact=True)
        chart.get_by_role("img", name=title).wait_for()
        chart.get_by_text("Numbers").click()
        chart.get_by_role("columnheader", name="scripted").wait_for()
    page.get_by_role("region", name="Errors", exact=True).wait_for()
    page.get_by_role("tab", name="24 hours").click()
    chart = page.get_by_role("region", name="Requests", exact=True)
    hour = chart.get_by_role("rowheader").filter(has_text=":").first
    hour.wait_for()
    cells = chart.get_by_role("region").get_by_role("cell").all_inner_texts()
    assert sum(int(cell.replace(",", "")) for cell in cells if cell != "–") >= requests
    page.reload()  # the period is kept
    page.get_by_role("tab", name="24 hours", selected=True).wait_for()


def test_operators_see_the_usage_of_each_key(browser: Any, keyed_server: Server) -> None:
    create(keyed_server, key="open", input="Hi")
    create(keyed_server, key="sesame", input="Please fail", background=True)
    with visiting(browser, keyed_server.root) as visitor:
        page = visitor.open("usage")
        visitor.enter_key("sesame")
        page.get_by_role("tab", name="By API key").click()
        page.get_by_role("columnheader", name="API key", exact=True).wait_for()
        assert requests_of(page, "guest") >= 1
        page.get_by_role("button", name="Forget the key").click()
        visitor.enter_key("open")
        page.get_by_text("Counted are your stored responses").wait_for()
        assert requests_of(page, "scripted") >= 1
        assert page.get_by_role("tab", name="By API key").count() == 0


def test_settings_are_shown_with_their_origins(visitor: Visitor) -> None:
    page = visitor.open("settings")
    page.get_by_role("switch", name="Only what is set").check()
    page.get_by_role("searchbox").fill("log_level")
    page.get_by_text('"error"').wait_for()
    page.get_by_text("antiphon.toml", exact=True).wait_for()
    page.get_by_role("searchbox").fill("lease_s")
    page.get_by_text("lease_s", exact=True).wait_for(state="detached")


def test_model_is_added_configured_and_removed(visitor: Visitor) -> None:
    page = visitor.open("models")
    page.get_by_role("button", name="Add a model").click()
    found = page.get_by_role("list", name="Models that can be added")
    found.get_by_text("Qwen3-0.6B").wait_for()
    page.get_by_label("Search for a model").fill("qwen3-0.6")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_text("HF_HUB_OFFLINE is set").wait_for()
    found.get_by_role("button", name="Add Qwen3-0.6B").click()
    page.get_by_text("could not be loaded").wait_for()  # it cannot be downloaded here
    model = page.locator("[data-model='Qwen3-0.6B']")
    model.get_by_role("button", name="Options").click()
    page.get_by_label("Temperature").fill("0.6")
    page.get_by_label("System prompt").fill("You are a poet.")
    page.get_by_role("button", name="Save").click()
    model.get_by_role("button", name="Options").click()
    assert page.get_by_label("Temperature").input_value() == "0.6"
    assert page.get_by_label("System prompt").input_value() == "You are a poet."
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Add a model").click()
    page.get_by_label("Repository").fill("Qwen/Qwen3-0.6B-GGUF")
    page.get_by_label("Name", exact=True).fill("poet")
    page.get_by_role("button", name="Add repository").click()
    preset = page.locator("[data-model=poet]")
    for each in (model, preset):
        each.get_by_role("button", name="Options").wait_for()
    for each in (preset, model):
        page.once("dialog", lambda dialog: dialog.accept())
        each.get_by_role("button", name="Remove").click()
        each.wait_for(state="detached")
