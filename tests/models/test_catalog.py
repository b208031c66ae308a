"""The catalog: names, defaults, engines, and what stands at a model's place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.errors import NotFound, SetupError
from antiphon.inference.conversation import Conversation, Options
from antiphon.models import factories as module
from antiphon.models.catalog import Catalog, load
from antiphon.models.dialect_factories import read_template
from antiphon.stream.deltas import Text
from antiphon.support import plugins
from antiphon.testing.replies import deltas_of


def scripted(source: str = "Hello.", **fields: Any) -> Model:
    return Model(source=source, engine="scripted", **fields)


@pytest.fixture
async def catalog() -> AsyncIterator[Catalog]:
    models = {
        "one": scripted(aliases=("gpt-5.5", "uno")),
        "two": scripted(temperature=0.0, max_output_tokens=7),
    }
    loaded = await load(Settings(models=models, default_model="two"), now=1700)
    yield loaded
    await loaded.close()


async def test_models_are_found_by_name_and_alias(catalog: Catalog) -> None:
    one, two = catalog.all()
    assert (one.name, two.name, one.created) == ("one", "two", 1700)
    assert catalog.find("one") is catalog.find("gpt-5.5") is catalog.find("uno") is one
    assert catalog.find(None) is two


async def test_first_model_is_the_default() -> None:
    loaded = await load(Settings(models={"a": scripted(), "b": scripted()}))
    assert loaded.find(None).name == "a"


async def test_alias_may_be_the_default() -> None:
    models = {"a": scripted(), "b": scripted(aliases=("c",))}
    assert (await load(Settings(models=models, default_model="c"))).find(None).name == "b"


async def test_unknown_model_error_is_worded_like_openais(catalog: Catalog) -> None:
    with pytest.raises(NotFound) as caught:
        catalog.find("three")
    error = caught.value
    assert error.message == "The model 'three' does not exist or you do not have access to it."
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")


@pytest.mark.requirement("VN-2", "GO-2")
async def test_settings_override_recommended_sampling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def make(*_: Any) -> ScriptedBackend:
        backend = ScriptedBackend()
        backend.recommended_options = {"temperature": 0.2, "top_k": 40, "unheard_of": 1}
        return backend

    monkeypatch.setattr(module, "ENGINES", {"scripted": make})
    loaded = await load(Settings(models={"a": scripted(temperature=0.9, top_p=0.5)}))
    assert loaded.find("a").defaults == {"temperature": 0.9, "top_k": 40, "top_p": 0.5}


@pytest.mark.requirement("VN-45")
async def test_adapter_is_a_model_of_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    one = ScriptedBackend(context_size=77)

    async def make(*_: Any) -> ScriptedBackend:
        return one

    monkeypatch.setattr(module, "ENGINES", {"scripted": make})
    model = scripted(adapters={"poet": "/adapters/poet"}, aliases=("b",), load="demand", top_p=0.5)
    loaded = await load(Settings(models={"base": model}))
    base, poet = loaded.all()
    assert (base.name, poet.name, loaded.find("b")) == ("base", "poet", base)
    await poet.backend.ready()
    assert (poet.backend.context_size, poet.defaults, poet.backend.capabilities.images) == (
        77,
        {"top_p": 0.5},
        True,
    )
    for served in (poet, base):
        await served.backend.prepare(Conversation(items=()), Options(priority=3))
    requests = [(options.adapter, options.priority) for _, options in one.requests]
    assert requests == [("poet", 3), (None, 3)]
    await loaded.close()
    assert one.closed


async def test_closing_closes_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[ScriptedBackend] = []

    async def make(*_: Any) -> ScriptedBackend:
        created.append(ScriptedBackend())
        return created[-1]

    monkeypatch.setattr(module, "ENGINES", {"scripted": make, "responses": make})
    models = {"here": scripted(), "there": Model(source="http://h", engine="responses")}
    catalog = await load(Settings(models=models))
    assert catalog.find("there").backend is created[1], "nothing to load"
    await catalog.close()
    assert [backend.closed for backend in created] == [True, True]


async def test_loaded_models_are_closed_when_another_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = ScriptedBackend()

    async def make(name: str, *_: Any) -> ScriptedBackend:
        if name == "bad":
            raise SetupError("no")
        return first

    monkeypatch.setattr(module, "ENGINES", {"scripted": make})
    with pytest.raises(SetupError, match=r"^no$"):
        await load(Settings(models={"good": scripted(), "bad": scripted()}))
    assert first.closed


# --- engines -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("named", "meant"), [("lama", "llama"), ("openai", "chat_completions")])
async def test_unknown_engine_is_refused_with_the_known_ones(named: str, meant: str) -> None:
    with pytest.raises(SetupError, match=f"there is no engine '{named}'; did you mean {meant}"):
        await load(Settings(models={"m": Model(source="x", engine=named)}))


async def test_engines_of_others_come_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", "antiphon.models.factories:_scripted", "antiphon.engines")
    monkeypatch.setattr(plugins, "entry_points", lambda group: EntryPoints([point]))
    loaded = await load(Settings(models={"m": Model(source="Hi.", engine="theirs")}))
    reply = await loaded.find("m").backend.prepare(Conversation(items=()), Options())
    assert [d.text async for d in deltas_of(reply) if isinstance(d, Text)] == ["Hi."]
    await loaded.close()


# --- what a source is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "outcome"),
    [
        (["m.gguf", "mmproj-m.gguf", "README.md"], "/m.gguf"),
        (["m-00002-of-00002.gguf", "m-00001-of-00002.gguf"], "/m-00001-of-00002.gguf"),
        (["a.gguf", "b.gguf"], "holds several models: name one of a.gguf, b.gguf"),
        (["config.json", "model.safetensors"], "Hugging Face folder"),
        ([], "holds no GGUF file"),
    ],
)
async def test_folder_with_one_model_is_that_model(
    tmp_path: Path, files: list[str], outcome: str
) -> None:
    for file in files:
        (tmp_path / file).touch()
    loading = load(Settings(models={"m": Model(source=str(tmp_path))}))
    with pytest.raises(SetupError) as caught:
        await loading
    # An empty file is no GGUF file: that it was tried shows in the refusal.
    assert outcome in str(caught.value)


def test_picture_encoder_beside_the_model_is_its_own(tmp_path: Path) -> None:
    encoder = tmp_path / "mmproj-m.gguf"
    assert module.find_projector(Model(source=str(tmp_path))) is None
    encoder.touch()
    assert module.find_projector(Model(source=str(tmp_path))) == encoder
    named = tmp_path / "named.gguf"
    assert module.find_projector(Model(source=str(tmp_path), projector=named)) == named
    (tmp_path / "other-mmproj.gguf").touch()
    assert module.find_projector(Model(source=str(tmp_path))) is None
    assert module.find_projector(Model(source="org/model:Q4_K_M")) is None


async def test_option_the_engine_ignores_is_refused() -> None:
    model = Model(source="x", engine="transformers", adapters={"poet": "file"})
    with pytest.raises(SetupError, match=r"the engine 'transformers' takes no adapters"):
        await load(Settings(models={"m": model}))


async def test_template_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"The template .*absent\.jinja cannot be read"):
        read_template(tmp_path / "absent.jinja")


async def test_reload_keeps_unchanged_models_and_closes_the_others() -> None:
    models = {"same": scripted(), "other": scripted(), "gone": scripted()}
    catalog = await load(Settings(models=models), now=1)
    backends = {model.name: model.backend for model in catalog.all()}
    changed = {"same": scripted(), "other": scripted("New."), "new": scripted()}
    new = await load(Settings(models=changed, default_model="new"), now=2, earlier=catalog)
    catalog.replace(new)
    assert [model.name for model in catalog.all()] == ["same", "other", "new"]
    assert catalog.find(None).name == "new"
    assert catalog.find("same").backend is backends["same"]
    assert catalog.find("other").backend is not backends["other"]
    with pytest.raises(NotFound):
        catalog.find("gone")
    async with asyncio.timeout(60):
        while backends["gone"].status.value != "unloaded":
            await asyncio.sleep(0.01)
    assert backends["same"].status.value == "loaded"
    await catalog.close()


async def test_invalid_reload_closes_what_it_has_loaded() -> None:
    catalog = await load(Settings(models={"one": scripted()}))
    broken = {"one": scripted(), "two": scripted(), "three": Model(source="x", engine="none")}
    with pytest.raises(SetupError, match="no engine"):
        await load(Settings(models=broken), earlier=catalog)
    assert catalog.find("one").backend.status.value == "loaded"
    await catalog.close()
