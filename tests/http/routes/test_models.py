"""The list of models, as OpenAI's clients and as Codex read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from antiphon.backends.base import BackendCapabilities, Status

ErrorOf = Callable[[httpx.Response], dict[str, Any]]


@pytest.mark.requirement("CL-MODELS")
async def test_every_name_and_alias_is_listed(make_app: Any) -> None:
    body = (await make_app().client.get("/v1/models?client_version=0.169.0")).json()
    assert body["object"] == "list"
    assert [entry["id"] for entry in body["data"]] == ["org/tiny", "gpt-5.5", "small", "upstream"]
    assert body["data"][0] == {
        "id": "org/tiny",
        "object": "model",
        "created": 1700000000,
        "owned_by": "antiphon",
        "status": {"value": "loaded"},
        "input_modalities": ["text", "image"],
    }


async def test_entry_says_whether_a_loaded_model_reads_images(make_app: Any) -> None:
    app = make_app()
    model = app.service.models()[0]
    app.service.models = lambda: (model,)
    model.backend.capabilities = BackendCapabilities(images=False)
    entry = (await app.client.get("/v1/models/org/tiny")).json()
    assert entry["input_modalities"] == ["text"]
    model.backend.status = Status(value="unloaded")
    assert "input_modalities" not in (await app.client.get("/v1/models/org/tiny")).json()


@pytest.mark.requirement("CL-MODELS")
async def test_codex_catalog_lists_the_same_names(make_app: Any) -> None:
    entries = (await make_app().client.get("/v1/models")).json()["models"]
    assert [entry["slug"] for entry in entries] == ["org/tiny", "gpt-5.5", "small", "upstream"]
    needed = {
        "slug",
        "display_name",
        "supported_reasoning_levels",
        "shell_type",
        "visibility",
        "supported_in_api",
        "priority",
        "support_verbosity",
        "truncation_policy",
        "experimental_supported_tools",
        "base_instructions",
    }
    assert all(needed <= set(entry) for entry in entries)
    assert [entry.get("context_window") for entry in entries] == [4096, 4096, 4096, None]
    efforts = [
        [each["effort"] for each in entry["supported_reasoning_levels"]] for entry in entries
    ]
    assert all(each in ([], ["low", "medium", "high"]) for each in efforts)


async def test_model_is_found_by_name_and_alias(make_app: Any, error_of: ErrorOf) -> None:
    client = make_app().client
    assert (await client.get("/v1/models/org/tiny")).json()["id"] == "org/tiny"
    assert (await client.get("/v1/models/org%2Ftiny")).json()["id"] == "org/tiny"
    assert (await client.get("/v1/models/small")).json()["id"] == "small"
    answer = await client.get("/v1/models/gpt-9")
    assert answer.status_code == 404
    error = error_of(answer)
    assert (error["code"], "'gpt-9'" in error["message"]) == ("model_not_found", True)
