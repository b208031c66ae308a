"""One server, shared by the tests that only send requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.e2e.server import Server, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url, api_key="none", max_retries=0) as openai_client:
        yield openai_client
