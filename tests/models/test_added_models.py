"""Models that operators add while the server runs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from antiphon.config.load import load
from antiphon.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    Overloaded,
    QuotaExceeded,
    SetupError,
    StoreError,
)
from antiphon.models import added_models
from antiphon.models.added_models import AddedModels
from antiphon.models.suggestions import SUGGESTIONS, Machine
from antiphon.support.fair_threads import current_tenant
from antiphon.wire.admin.added_models import AddModel, ModelOptions

GB = 10**9
SOURCE = "owner/Tiny-GGUF:Q4_K_M"
PROMPT = 'You are a "poet".\n\\Write\tverse: \U0001f600 \x01\r\n'


class Named:
    """A served model."""

    def __init__(self, name: str) -> None:
        self.name, self.aliases = name, ()


class FakeServer:
    """Loads the settings again, as a server does. ``names``: the served models."""

    is_possible = True
    accepts = True

    def __init__(self, folder: Path) -> None:
        (folder / "antiphon.toml").write_text(
            f'added_models = "{folder}/models.toml"\n[models.own]\nsource = "/a.gguf"\n'
        )
        self.path = folder / "models.toml"
        self.file = folder / "antiphon.toml"
        self.names: list[str] = []
        self.settings: Any = None

    async def reload(self) -> bool:
        if not self.accepts:
            return False
        try:
            self.settings = load(environ={}, file=self.file).settings
        except SetupError:
            return False
        self.names = list(self.settings.models)
        return True

    async def check(self, name: str) -> None:
        """Behave like a hub whose repositories are all but ``owner/none``."""
        if name.startswith("owner/none"):
            raise SetupError("owner/none cannot be pulled: there is no such repository.")

    def models(self) -> AddedModels:
        return AddedModels(
            self.path,
            lambda: [Named(name) for name in self.names],  # type: ignore[misc]
            self,
            self.check,
            machine=lambda: Machine(5 * GB, 2),
        )


@pytest.fixture
async def server(tmp_path: Path) -> FakeServer:
    server = FakeServer(tmp_path)
    assert await server.reload()
    return server


async def test_added_model_is_served_until_it_is_removed(server: FakeServer) -> None:
    models = server.models()
    added = await models.add(AddModel(source=SOURCE, temperature=0.5))
    assert (added.id, added.source, added.temperature) == ("Tiny", SOURCE, 0.5)
    assert server.names == ["own", "Tiny"]
    found = server.settings.models["Tiny"]
    assert (found.source, found.load, found.temperature) == (SOURCE, "demand", 0.5)
    changed = await models.change("Tiny", ModelOptions(context_size=4096, instructions=PROMPT))
    assert (changed.temperature, changed.context_size) == (None, 4096)
    assert (await models.list()).data == (changed,)
    found = server.settings.models["Tiny"]
    assert (found.temperature, found.context_size, found.source) == (None, 4096, SOURCE)
    assert found.instructions == changed.instructions == PROMPT
    await models.remove("Tiny")
    assert server.names == ["own"] and (await models.list()).data == ()


async def test_names_and_sources_that_cannot_be_added(server: FakeServer) -> None:
    models = server.models()
    for source in (
        "/etc/passwd",
        "model.gguf",
        "http://host/v1",
        "owner/a/b",
        "../x",
        "owner/..",
        "a/b/../c.gguf",
        "hf:owner/x/a\x7fb.gguf",
        "hf:owner/x/a\nb.gguf",
    ):
        with pytest.raises(InvalidRequest, match="Invalid 'source'"):
            await models.add(AddModel(source=source))
    with pytest.raises(Conflict, match="There is a model named 'own' already"):
        await models.add(AddModel(source=SOURCE, name="own"))
    for call in (models.remove("own"), models.change("own", ModelOptions())):
        with pytest.raises(NotFound, match="was not added over the API"):
            await call
    assert server.names == ["own"]


async def test_refused_options_leave_the_file_as_it_was(server: FakeServer) -> None:
    models = server.models()
    await models.add(AddModel(source=SOURCE))
    before = server.path.read_text()
    server.accepts = False
    with pytest.raises(InvalidRequest, match="refuses these settings"):
        await models.change("Tiny", ModelOptions(context_size=4096))
    assert server.path.read_text() == before


async def test_models_are_added_at_the_same_time_by_two_processes(server: FakeServer) -> None:
    one, other = server.models(), server.models()
    wanted = [AddModel(source=SOURCE, name=f"m{n}") for n in range(8)]
    await asyncio.gather(*((one, other)[n % 2].add(each) for n, each in enumerate(wanted)))
    assert {each.id for each in (await one.list()).data} == {f"m{n}" for n in range(8)}


async def test_clients_add_only_models_that_the_operator_allows(server: FakeServer) -> None:
    models = server.models()
    models.allowed = ("owner/*",)
    names = ("other/x", "own", "owner/..", SOURCE, SOURCE)
    await asyncio.gather(*map(models.admit, names))
    assert server.names == ["own", SOURCE]
    assert server.settings.models[SOURCE].idle_unload_s == 600
    with pytest.raises(
        NotFound, match=r"model .*none:Q4_K_M.* does not exist .* no such repository"
    ):
        await models.admit("owner/none:Q4_K_M")
    assert server.names == ["own", SOURCE], "names that do not exist take no room"


async def test_clients_add_a_bounded_number_of_models(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(added_models, "_MOST", 2)
    models = server.models()
    models.allowed = ("owner/*",)
    await asyncio.gather(*(models.admit(f"owner/x:{n}") for n in (1, 2, 1, 2)))
    with pytest.raises(
        QuotaExceeded, match=r"quota of added models is exceeded \(added_models = 2\)"
    ):
        await models.admit("owner/x:3")
    await models.admit("owner/x:1")
    await models.add(AddModel(source=SOURCE))
    assert server.names == ["own", "owner/x:2", "owner/x:1", "Tiny"]


async def test_names_that_are_looked_up_are_bounded(server: FakeServer) -> None:
    answer, all_asked = asyncio.Event(), asyncio.Event()
    asked: list[str] = []

    async def check(name: str) -> None:
        asked.append(name)
        if len(asked) == 6:
            all_asked.set()
        await answer.wait()

    server.check = check  # type: ignore[method-assign]
    models = server.models()
    models.allowed = ("owner/*",)

    async def admit(tenant: str, number: int) -> None:
        current_tenant.set(tenant)
        await models.admit(f"owner/x:{number}")

    waiting = [asyncio.ensure_future(admit("flood", n)) for n in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="too many models are looked up"):
        await asyncio.create_task(admit("flood", 9))
    waiting += [asyncio.ensure_future(admit("victim", n)) for n in (4, 5)]
    async with asyncio.timeout(30):
        await all_asked.wait()
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        for tenant in ("flood", "other"):
            with pytest.raises(Overloaded, match="too many models are looked up"):
                await asyncio.create_task(admit(tenant, 9))
        answer.set()
        await asyncio.gather(*waiting[1:])
    assert sorted(server.names) == ["own", *(f"owner/x:{n}" for n in range(1, 6))]


@pytest.mark.parametrize("content", ["x = [", "models = 3", "[models]\nx = 3", "\xff"])
async def test_a_damaged_file_is_named_in_the_log(server: FakeServer, content: str) -> None:
    server.path.write_bytes(content.encode("latin-1"))
    models = server.models()
    models.allowed = ("*",)
    for call in (
        models.list(),
        models.add(AddModel(source=SOURCE)),
        models.admit(SOURCE),
        models.remove("x"),
    ):
        with pytest.raises(StoreError, match="cannot be read or changed"):
            await call
    with pytest.raises(SetupError, match=str(server.path)):
        load(environ={}, file=server.file)


async def test_folder_that_cannot_be_written(server: FakeServer) -> None:
    models = AddedModels(server.file / "models.toml", lambda: (), server, server.check)
    with pytest.raises(StoreError, match="cannot be read or changed"):
        await models.add(AddModel(source=SOURCE))


async def test_change_that_is_taken_back_keeps_those_of_other_processes(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = server.models()

    async def refuse() -> bool:
        monkeypatch.undo()
        await other.add(AddModel(source=SOURCE, name="theirs"))
        return False

    monkeypatch.setattr(server, "reload", refuse)
    with pytest.raises(InvalidRequest, match="refuses these settings"):
        await server.models().add(AddModel(source=SOURCE, name="mine"))
    assert [each.id for each in (await other.list()).data] == ["theirs"]


async def test_change_is_taken_back_though_its_client_left(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def refuse() -> bool:
        begun.set()
        await left.wait()
        return False

    monkeypatch.setattr(server, "reload", refuse)
    models = server.models()
    adding = asyncio.create_task(models.add(AddModel(source=SOURCE)))
    async with asyncio.timeout(60):
        await begun.wait()
        adding.cancel()
        await asyncio.wait([adding])
        assert (await models.list()).data
        left.set()
        await models.close()
    assert not (await models.list()).data


async def test_model_of_the_settings_hides_an_added_one(server: FakeServer) -> None:
    await server.models().add(AddModel(source=SOURCE, name="later"))
    server.file.write_text(server.file.read_text() + '[models.later]\nsource = "/b.gguf"\n')
    assert await server.reload()
    assert server.settings.models["later"].source == "/b.gguf"


async def test_search_finds_suggested_models_that_fit(server: FakeServer) -> None:
    found = (await server.models().search("")).data
    assert [each.name for each in found] == [each.name for each in SUGGESTIONS]
    assert [each.problem for each in found][:3] == [None, None, "needs 6 GB"]
    assert all(each.size_bytes and each.licence for each in found)


async def test_search_without_network_says_so(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = await server.models().search("gpt-oss")
    assert [each.name for each in found.data] == ["gpt-oss-20b"]
    assert found.problem == "Hugging Face cannot be searched: HF_HUB_OFFLINE is set."


async def test_search_does_not_wait_for_a_hub_that_does_not_answer(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr("huggingface_hub.HfApi.list_models", lambda *_, **__: answers.wait(30))
    monkeypatch.setattr("antiphon.models.huggingface_hub._SEARCH_S", 0.01)
    try:
        found = await server.models().search("gpt-oss")
    finally:
        answers.set()
    assert [each.name for each in found.data] == ["gpt-oss-20b"]
    assert found.problem == "Hugging Face cannot be searched: it does not answer."


async def test_server_without_reloads_adds_nothing(server: FakeServer) -> None:
    server.is_possible = False
    with pytest.raises(InvalidRequest, match="cannot add models"):
        await server.models().add(AddModel(source=SOURCE))
