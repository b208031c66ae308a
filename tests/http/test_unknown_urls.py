"""Every path of the official clients is an endpoint, or the error says what is not offered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import anthropic
import ollama
import openai
import pytest

from antiphon.http.unknown_urls import UnknownUrls
from tests.http.openapi.test_document import Json

_PATH = re.compile(r"""["'](?:/v1|/api)?(/[a-z_]+(?:/[a-z_{}]+)*)(?:\?[a-z=]*)?["']""")


def client_paths(client: ModuleType, folder: str, prefix: str) -> Iterator[str]:
    """Yield the paths of the endpoints that a client's source code names, as patterns."""
    assert client.__file__ is not None
    for file in (Path(client.__file__).parent / folder).rglob("*.py"):
        for line in file.read_text().splitlines():
            if found := _PATH.search(line):
                yield pattern(prefix + found[1])


def pattern(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


@pytest.fixture(scope="module")
def served(document: Json) -> tuple[str, ...]:
    """The paths that the OpenAPI document describes."""
    return tuple(document["paths"])


@pytest.mark.parametrize(
    ("client", "folder", "prefix"),
    [
        (openai, "resources", "/v1"),
        (anthropic, "resources", "/v1"),
        (ollama, "", "/api"),
    ],
)
def test_path_of_a_client_is_served_or_refused_by_name(
    served: tuple[str, ...], client: ModuleType, folder: str, prefix: str
) -> None:
    unknown_urls = UnknownUrls(served)
    known = {pattern(path) for path in served}
    paths = {path for path in client_paths(client, folder, prefix) if path not in known}
    silent = [
        path
        for path in sorted(paths)
        if "does not offer" not in unknown_urls.error("GET", path).message
    ]
    assert not silent


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/openai/v1/responses", "Did you mean /v1/responses?"),
        ("/api/v1/models", "Did you mean /v1/models?"),
        ("/v1/api/chat", "Did you mean /api/chat?"),
        ("/chat/completions/chatcmpl_1/messages", "Did you mean /v1/chat/completions/chatcmpl_1/"),
        ("/api/chats", "Did you mean /api/chat?"),
        ("/openai/v1/threads", "does not offer the Assistants API"),
        ("/v1/responses/resp_1/nothing", "GET /docs lists all URLs."),
    ],
)
async def test_what_was_meant_is_named(served: tuple[str, ...], path: str, hint: str) -> None:
    assert hint in UnknownUrls(served).error("POST", path).message
