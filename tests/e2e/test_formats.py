"""Model formats through a real server and the official client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from openai import OpenAI

from antiphon.dialects.formats.tool_formats import TOOLS
from tests.dialects.replies import write_calls
from tests.e2e.server import antiphon, serving
from tests.models.test_format_files import example

TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
ARGUMENTS = {"city": "Oslo", "days": 2}


def _scenes(folder: Path, name: str, output_text: str, settings: str = "") -> str:
    """Return the settings of a model that writes a call and then, after its result, an answer."""
    text = f"[[scenes]]\nwhen = 'Weather?'\nturns = [{json.dumps(output_text)}, 'Sunny.']\n"
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    source = folder / f"{name}.toml"
    return f'[models.{name}]\nengine = "replay"\nsource = "{source}"\n{settings}\n'


@pytest.mark.requirement("FM-OWN", "FM-NAMES")
def test_formats_of_the_operator_are_served(tmp_path: Path) -> None:
    formats = tmp_path / "formats"
    formats.mkdir()
    files = example()
    (formats / "arrows.toml").write_text(files["arrows.toml"], encoding="utf-8")
    (tmp_path / "arrows.jinja").write_text(files["arrows.jinja"], encoding="utf-8")
    own = "(muse)Where?(/muse)\nI look.\n<call>weather\n- city -> Oslo;\n- days -> 2;\n</call>"
    call = [("weather", ARGUMENTS)]
    models = {
        "own": _scenes(tmp_path, "own", own, f'template = "{tmp_path}/arrows.jinja"'),
        "bare": _scenes(tmp_path, "bare", write_calls(TOOLS["xlam"], call), 'tool_format = "xlam"'),
        "jamba": _scenes(
            tmp_path, "jamba", write_calls(TOOLS["hunyuan_a13b"], call), 'tool_format = "jamba"'
        ),
    }
    settings = f'formats_dir = "{formats}"\n'
    with serving(tmp_path / "s", settings, model="".join(models.values())) as server:
        client = OpenAI(base_url=server.url, api_key="none", max_retries=0)
        for name in models:
            with client.responses.stream(
                input="Weather?",
                model=name,
                tools=[TOOL],  # type: ignore[list-item]
            ) as stream:
                first = stream.get_final_response()
            calls = [item for item in first.output if item.type == "function_call"]
            assert [json.loads(one.arguments) for one in calls] == [ARGUMENTS], name
            kinds = [item.type for item in first.output]
            assert kinds == (["reasoning", "message"] if name == "own" else []) + ["function_call"]
            if name == "own":  # whose second turn a player of scenes for ChatML cannot find
                continue
            outcome = {
                "type": "function_call_output", "call_id": calls[0].call_id, "output": "sunny",
            }  # fmt: skip
            second = client.responses.create(
                input=[outcome],  # type: ignore[list-item]
                model=name,
                tools=[TOOL],  # type: ignore[list-item]
                previous_response_id=first.id,
            )
            assert second.output_text == "Sunny."


def test_invalid_format_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x.toml").write_text('[tools.x]\nmark = "("\n', encoding="utf-8")
    (tmp_path / "antiphon.toml").write_text(
        'port = 0\nstore = "memory:"\nformats_dir = "f"\n' + _scenes(tmp_path, "m", "Hi"),
        encoding="utf-8",
    )
    ended = antiphon("serve", cwd=tmp_path)
    assert ended.returncode != 0
    assert "f/x.toml: tools.x" in ended.stderr and "Traceback" not in ended.stderr
