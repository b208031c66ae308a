"""``engine = "auto"``: OpenVINO where it is better and has what the model's settings need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.config.model import DEFAULT_MODEL, Model
from antiphon.config.settings import Settings
from antiphon.engines.gguf.reader import read_gguf
from antiphon.models import engine_choice, factories
from antiphon.models.engine_choice import MIN_PARALLEL, engine_of_file
from antiphon.models.factories import backend_factory
from antiphon.models.files import fetch_files
from tests.tiny_models.tiny_tools import GGUF


@pytest.fixture(autouse=True)
def openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "_OPENVINO", "json")  # as if it were installed


def chosen(projector: Path | None = None, **settings: Any) -> str:
    model = Model(**{"source": str(GGUF), "parallel": MIN_PARALLEL, **settings})
    return engine_of_file(GGUF, model, projector)


def test_openvino_runs_many_streams_of_a_model_that_it_reads() -> None:
    assert chosen() == "openvino"
    assert chosen(engine_options={"device": "CPU"}) == "openvino"


@pytest.mark.parametrize(
    "settings",
    [
        {"parallel": MIN_PARALLEL - 1},
        {"adapters": {"poet": "poet.gguf"}},
        {"engine_options": {"dry_multiplier": 0.8}},
        {"source": DEFAULT_MODEL},
    ],
)
def test_llama_runs_what_openvino_lacks(settings: dict[str, Any]) -> None:
    assert chosen(**settings) == "llama"


def test_llama_runs_models_with_an_image_encoder() -> None:
    assert chosen(GGUF) == "llama"


def test_llama_runs_models_of_several_tenants() -> None:
    """OpenVINO's cache of prefixes cannot be divided."""
    model = Model(source=str(GGUF), parallel=MIN_PARALLEL)
    assert engine_of_file(GGUF, model, divides_cache=True) == "llama"


def test_llama_runs_models_that_openvino_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "read_gguf", lambda path: _with_architecture(path, "gemma3"))
    assert chosen() == "llama"


def _with_architecture(path: Path, name: str) -> Any:
    header = read_gguf(path)
    header.metadata["general.architecture"] = name
    return header


def test_llama_runs_models_where_openvino_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_choice, "_OPENVINO", "a_package_that_does_not_exist")
    assert chosen() == "llama"


async def test_the_chosen_engine_gets_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[tuple[str, str]] = []

    async def build(name: str, model: Model, *_: object) -> ScriptedBackend:
        made.append((name, model.engine))
        return ScriptedBackend(("hi",))

    for engine in ("llama", "openvino"):
        monkeypatch.setitem(factories.ENGINES, engine, build)  # type: ignore[arg-type]
    (tmp_path / "openvino_model.xml").touch()
    settings = Settings(cache_dir=tmp_path)
    for source, parallel in ((GGUF, 4), (GGUF, 16), (tmp_path, 4)):
        model = Model(source=str(source), engine="auto", parallel=parallel)
        assert await fetch_files(model, settings, None) == source
        await backend_factory("m", model)("m", model, settings, None)
    assert made == [("m", "llama"), ("m", "openvino"), ("m", "openvino")]
