"""A server in a Python that lacks what Windows lacks, simulated by ``windows/sitecustomize.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.server import Server, serving

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    paths = f"{HERE / 'windows'}:{HERE.parents[1]}"
    folder = tmp_path_factory.mktemp("windows")
    with serving(folder, environment={"PYTHONPATH": paths}) as running:
        yield running


def test_models_run_and_chains_are_stored(server: Server) -> None:
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    first = client.responses.create(model="smollm2", input="Say hello.", max_output_tokens=16)
    assert first.output_text
    second = client.responses.create(
        model="smollm2", input="Again.", previous_response_id=first.id, max_output_tokens=16
    )
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > 0


def test_what_needs_linux_is_refused_by_name(server: Server) -> None:
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="code_interpreter"):
        client.responses.create(
            model="smollm2",
            input="Compute 2 + 2.",
            tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
            tool_choice={"type": "code_interpreter"},
        )


def test_vector_store_is_searched(server: Server) -> None:
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    file = client.files.create(file=("a.txt", b"The ship is red."), purpose="assistants")
    store = client.vector_stores.create(name="s")
    client.vector_stores.files.create_and_poll(vector_store_id=store.id, file_id=file.id)
    found = client.vector_stores.search(vector_store_id=store.id, query="colour of the ship")
    assert found.data[0].content[0].text == "The ship is red."
