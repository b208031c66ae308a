"""Server-side tools: the real process, an index built by its command, the official client."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.server import antiphon, serving

SCENES = """
[[scenes]]
when = "Fjords?"
turns = [
'''<tool_call>
{"name": "browser__search", "arguments": {"query": "fjord"}}
</tool_call>''',
'''<tool_call>
{"name": "browser__open", "arguments": {"id": 0, "cursor": 0}}
</tool_call>''',
'''It is narrow【1†L0】.''',
]
"""


@pytest.mark.requirement("GO-11")
def test_web_search_works_without_a_key_and_without_the_web(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "fjords.md").write_text("# Fjords\n\nA fjord is a narrow inlet.")
    (tmp_path / "scenes.toml").write_text(SCENES)
    settings = f'web_search.index = "{tmp_path}/web.db"\n'
    (tmp_path / "antiphon.toml").write_text(settings)
    created = antiphon(
        *("index", "add", str(tmp_path / "notes"), "--as", "https://wiki.example/"), cwd=tmp_path
    )
    assert "1 pages" in created.stdout
    model = f'[models.replay]\nengine = "replay"\nsource = "{tmp_path}/scenes.toml"\n'
    with serving(tmp_path / "server", settings, store="memory:", model=model) as server:
        client = OpenAI(base_url=server.url, api_key="none", max_retries=0)
        tools = [{"type": "web_search"}]
        with client.responses.stream(input="Fjords?", model="replay", tools=tools) as stream:  # type: ignore[arg-type]
            events = [event.type for event in stream]
            response = stream.get_final_response()
        client.close()
    assert [item.type for item in response.output] == ["web_search_call"] * 2 + ["message"]
    link = "([wiki.example](https://wiki.example/fjords.md))"
    assert response.output_text == f"It is narrow {link}."
    assert "response.output_text.annotation.added" in events
