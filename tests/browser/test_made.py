"""What a response makes besides text: images, and files in a container."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.attachments.samples import png
from tests.browser.conftest import Visitor, model, visiting
from tests.browser.test_playground import sent_body
from tests.conformance.test_tool_search import tool_call
from tests.e2e.server import Server
from tests.harness import ServerSetup, scene
from tests.sandbox.real_sandboxes import sandbox
from tests.tools.image_generation.api import serve_images_api_in_thread

CODE = """with open("/mnt/data/table.csv", "w") as file:
    file.writelines(f"{n},{n * n}\\n" for n in range(4))
"""
#: Writes a picture of 8 x 6 pixels.
CHART = f"""import base64
open("/mnt/data/chart.png", "wb").write(base64.b64decode({base64.b64encode(png(8, 6))!r}))
"""
TABLE = "0,0\n1,1\n2,4\n3,9\n"
SCENES = {
    "the powers": [
        tool_call("python", {"input": CODE}),
        "They are in [the table](sandbox:/mnt/data/table.csv).",
    ],
    "a crash": [tool_call("python", {"input": "numbers = []\nnumbers[3]"}), "It failed."],
    "a chart": [
        tool_call("python", {"input": CHART}),
        "Here: [chart](sandbox:/mnt/data/chart.png).",
    ],
    "a red field": [
        tool_call("image_generation", {"prompt": "red", "size": "1024x1024"}),
        "Here it is.",
    ],
}


@pytest.fixture(scope="module")
def server_setup(server_folder: Path) -> Iterator[ServerSetup]:
    scenes = server_folder / "scenes.toml"
    scenes.write_text("".join(scene(when, *turns) for when, turns in SCENES.items()))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, sandbox()).result()  # or the tests are skipped
    with serve_images_api_in_thread() as images:
        settings = f'sandbox.kind = "bubblewrap"\nimage_generation.url = "{images.url}"'
        yield ServerSetup(settings=settings, model=model(scenes))


@pytest.fixture
def visitor(browser: Any, server: Server) -> Iterator[Visitor]:
    with visiting(browser, server.root) as found:
        yield found


def downloaded(page: Any, click: Any) -> tuple[str, bytes]:
    """Click on something that downloads a file. Returns its name and content."""
    with page.expect_download() as started:
        click()
    return started.value.suggested_filename, Path(started.value.path()).read_bytes()


def test_image_is_shown_enlarged_and_downloaded(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_role("switch", name="Image generation").check()
    turn = visitor.answered("Show me a red field")
    turn.get_by_role("button", name="Made an image").wait_for()
    picture = turn.get_by_role("button", name="Generated image, enlarge")
    shown = "(image) => image.complete && image.naturalWidth"
    assert picture.locator("img").evaluate(shown) == 8
    picture.click()
    assert page.get_by_role("dialog").get_by_role("img").evaluate(shown) == 8
    page.keyboard.press("Escape")
    name, content = downloaded(page, turn.get_by_role("link", name="Download").click)
    assert name == "image.png"
    assert struct.unpack(">II", content[16:24]) == (8, 6)
    assert "tokens/s" not in turn.locator(".figures").inner_text(), "a tool ran meanwhile"


def test_files_of_a_container_are_downloaded(visitor: Visitor, server: Server) -> None:
    page = visitor.open()
    page.get_by_role("switch", name="Code interpreter").check()
    page.get_by_text("Small models seldom call tools").wait_for()
    page.get_by_label("Tool choice").select_option("required")
    turn = visitor.answered("What are the powers?")
    turn.get_by_role("button", name="Ran code").wait_for()
    assert sent_body(visitor, server)["parallel_tool_calls"] is False
    source = turn.get_by_label("Sources").get_by_role("button", name="table.csv")
    assert downloaded(page, source.click) == ("table.csv", TABLE.encode())
    page = visitor.open("containers")
    button = page.get_by_role("button", name="Download table.csv").first
    assert downloaded(page, button.click) == ("table.csv", TABLE.encode())
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete auto").first.click()
    page.get_by_role("heading", name="No containers").wait_for()


def test_crashed_code_looks_crashed(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_role("switch", name="Code interpreter").check()
    turn = visitor.answered("Show me a crash")
    card = turn.get_by_role("button", name="Code failed")
    assert "IndexError: list index out of range" in card.inner_text()
    assert "failed" in card.locator("..").get_attribute("class")


def test_chart_of_code_is_shown(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_role("switch", name="Code interpreter").check()
    turn = visitor.answered("Show me a chart")
    picture = turn.get_by_role("button", name="chart.png, enlarge").locator("img")
    picture.wait_for()
    page.wait_for_function("document.querySelector('.turn .picture img').naturalWidth === 8")
