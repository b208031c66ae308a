"""Server-side tools that settings enable and plug-ins add."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.bootstrap.containers import (
    ContainerDependencies,
    open_containers,
    prepare_control_groups,
)
from antiphon.bootstrap.tool_factories import ToolDependencies, open_tools
from antiphon.config.mcp import McpServer
from antiphon.config.settings import Settings
from antiphon.config.tables import (
    ImageGenerationSettings,
    McpSettings,
    ProgramSettings,
    SandboxSettings,
    WebSearchSettings,
)
from antiphon.errors import SetupError
from antiphon.limits.quotas import NO_QUOTAS
from antiphon.resources.skills import Skills
from antiphon.sandbox import cgroups
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.support import plugins
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.tools.base import CallContext, ResponseContext, ToolProvider, ToolResult
from antiphon.tools.containers.relay import ContainerRelay
from antiphon.tools.web_search.index import PageDocument, PageIndex
from antiphon.wire.tools import WebSearch
from tests.conformance.fake_containers import Uploads
from tests.sandbox.real_sandboxes import sandbox


async def types(**settings: Any) -> set[str]:
    """Return the tool types that these settings enable, without those that need no settings."""
    without_settings = await enabled(
        Settings(web_search=WebSearchSettings(index=Path("/no/index.db")))
    )
    return await enabled(Settings(**settings)) - without_settings


async def enabled(settings: Settings) -> set[str]:
    async with open_tools(ToolDependencies(settings=settings, clock=float)) as found:
        return {name for name, each in found.items() if works(each)}


def works(provider: Any) -> bool:
    return provider.unavailable_reason() is None


async def test_existing_index_enables_web_search(tmp_path: Path) -> None:
    path = tmp_path / "web.db"
    assert await types(web_search=WebSearchSettings(index=path)) == set()
    index = PageIndex(path)
    await index.add([PageDocument(url="u", title="t", text="x")])
    await index.close()
    assert "web_search" in await types(web_search=WebSearchSettings(index=path))
    assert (
        await types(
            web_search=WebSearchSettings(index=path, engine="off"),
        )
        == set()
    )


async def test_index_is_seen_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "web.db"
    settings = Settings(web_search=WebSearchSettings(index=path))
    async with open_tools(ToolDependencies(settings=settings, clock=float)) as found:
        provider: Any = found["web_search"]
        assert "antiphon index add FOLDER" in provider.unavailable_reason()
        index = PageIndex(path)
        await index.add([PageDocument(url="u", title="Rivers", text="The Rhine flows.")])
        await index.close()
        assert provider.unavailable_reason() is None
        context = ResponseContext(tenant="t", response_id="r", items=())
        async with provider.open(WebSearch(), context) as toolset:
            handler = next(each.handler for each in toolset.functions if each.tool.name == "search")
            assert handler is not None
            call = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=1000)
            *_, found = [step async for step in handler('{"query": "Rhine"}', call)]
        assert isinstance(found, ToolResult) and "The Rhine flows." in (found.text or "")


async def test_missing_settings_are_named_at_startup(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="set fetch_urls"):
        await types(
            web_search=WebSearchSettings(engine="exa", index=tmp_path / "no.db"),
        )


async def test_mcp_servers_take_the_place_of_built_in_tools(tmp_path: Path) -> None:
    servers = {
        "one": McpServer(
            url="http://127.0.0.1:9/mcp",
            implements="web_search",
            oauth_token_url="http://127.0.0.1:9/token",
        ),
        "two": McpServer(command="python", implements="code_interpreter"),
    }
    found = await types(
        web_search=WebSearchSettings(index=tmp_path / "no.db"), mcp=McpSettings(servers=servers)
    )
    assert {"web_search", "web_search_preview", "code_interpreter"} <= found
    assert "web_search" not in await types(
        web_search=WebSearchSettings(index=tmp_path / "no.db"),
        mcp=McpSettings(servers=servers, enabled=False),
    )


class ExampleProvider(ToolProvider[Any]):
    """A tool provider of a plug-in."""


@asynccontextmanager
async def open_example_tool(dependencies: ToolDependencies) -> AsyncIterator[Mapping[str, Any]]:
    yield {dependencies.settings.tool_options["example"]["type"]: ExampleProvider()}


def install(monkeypatch: pytest.MonkeyPatch, load: Callable[[], Any]) -> None:
    point = SimpleNamespace(name="example", group="antiphon.tools", load=load)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])


async def test_tool_plugin_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, lambda: open_example_tool)
    options = {"example": {"type": "image_generation"}}
    found = await enabled(
        Settings(web_search=WebSearchSettings(index=tmp_path / "no.db"), tool_options=options)
    )
    assert "image_generation" in found


@pytest.mark.parametrize(("type", "owner"), [("mcp", "mcp"), ("shell", "client")])
async def test_second_provider_of_a_tool_type_is_refused_with_the_first_one(
    monkeypatch: pytest.MonkeyPatch, type: str, owner: str
) -> None:
    install(monkeypatch, lambda: open_example_tool)
    message = f"tool example: the tool {owner} already provides '{type}'; turn one of them off"
    with pytest.raises(SetupError, match=message):
        await enabled(Settings(tool_options={"example": {"type": type}}))


async def test_tool_plugin_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise ImportError("no such module")

    install(monkeypatch, fail)
    with pytest.raises(SetupError, match="tool example cannot be loaded"):
        await enabled(Settings())


async def containers(log: Log, **settings: Any) -> bool:
    opened = open_containers(
        Settings(**settings),
        log,
        ContainerDependencies(
            uploads=Uploads({}),
            library=Skills(MemoryStore(), clock=lambda: 0.0, ids=lambda prefix: prefix),
            clock=lambda: 0.0,
            ids=lambda prefix: prefix,
            quotas=NO_QUOTAS,
            directory=MemoryStore().containers,
            relay=ContainerRelay(),
        ),
    )
    async with opened as registry:
        async with open_tools(
            ToolDependencies(
                settings=Settings(),
                clock=float,
                containers=registry.registry,
                no_containers=registry.reason,
            )
        ) as found:
            assert works(found["code_interpreter"]) == (registry.registry is not None)
            return works(found["code_interpreter"])


class Log:
    """A log that collects its messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, **more: Any) -> None:
        self.lines.append(text)

    warning = info

    def debug(self, text: str, **more: Any) -> None:
        """Nobody reads these."""


async def test_sandbox_setting_enables_code_execution() -> None:
    await sandbox()
    log = Log()
    assert not await containers(log, sandbox=SandboxSettings(kind="off")) and log.lines == []
    assert await containers(
        log,
        sandbox=SandboxSettings(kind="bubblewrap", disk_mb=8),
    )
    assert log.lines == ["code execution is on, in sandboxes"]
    assert await containers(log, sandbox=SandboxSettings(disk_mb=8))


async def test_broken_sandbox_disables_code_execution(tmp_path: Path) -> None:
    log = Log()
    assert not await containers(
        log,
        sandbox=SandboxSettings(kind="bubblewrap", python=tmp_path / "none"),
    )
    assert not await containers(log, sandbox=SandboxSettings(python=tmp_path / "none"))
    line, again = log.lines
    assert line == again
    assert line.startswith("code execution is off: ") and "\n" not in line


def test_control_group_is_divided_for_bubblewrap_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(cgroups.ControlGroups, "detect", lambda: found.append("divided"))
    for kind in ("off", "kubernetes", "plugin"):
        prepare_control_groups(Settings(sandbox=SandboxSettings(kind=kind)))
    assert found == []
    prepare_control_groups(Settings())
    assert found == ["divided"]


async def test_url_of_an_images_api_enables_image_generation(tmp_path: Path) -> None:
    search = WebSearchSettings(index=tmp_path / "no.db")
    assert await types(web_search=search) == set()
    images = ImageGenerationSettings(url="http://127.0.0.1:9/v1")
    assert await types(web_search=search, image_generation=images) == {"image_generation"}
    with pytest.raises(SetupError, match="must begin with http"):
        await types(image_generation=ImageGenerationSettings(url="x"))


async def test_programs_are_enabled_if_their_extra_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def found(**settings: Any) -> bool:
        dependencies = ToolDependencies(
            settings=Settings(**settings),
            clock=float,
            encryptor=Encryptor([EncryptionKey.generate()]),
        )
        async with open_tools(dependencies) as providers:
            return works(providers["programmatic_tool_calling"])

    assert await found()
    assert not await found(programs=ProgramSettings(enabled=False))
    monkeypatch.setattr("antiphon.sandbox.javascript._QUICKJS_PACKAGE", "no-such-package")
    assert not await found()
    with pytest.raises(SetupError, match=r"pip install .*\[programs\]"):
        await found(programs=ProgramSettings(enabled=True))


async def test_mcp_is_available_if_its_extra_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(**settings: Any) -> bool:
        dependencies = ToolDependencies(settings=Settings(**settings), clock=float)
        async with open_tools(dependencies) as providers:
            return works(providers["mcp"])

    assert await found()
    assert not await found(mcp=McpSettings(enabled=False))
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert not await found()
    with pytest.raises(SetupError, match=r"pip install .*\[mcp\]"):
        await found(mcp=McpSettings(enabled=True))
    with pytest.raises(SetupError, match=r"pip install .*\[mcp\]"):
        await found(mcp=McpSettings(servers={"calc": McpServer(url="https://example.com")}))


def test_tools_open_without_the_import_of_the_mcp_sdk() -> None:
    """It takes longer than the rest of a server's start."""
    code = (
        "import asyncio, sys\n"
        "from antiphon.config.settings import Settings\n"
        "from antiphon.bootstrap.tool_factories import ToolDependencies, open_tools\n"
        "async def types():\n"
        "    async with open_tools(ToolDependencies(settings=Settings(), clock=float)) as found:\n"
        "        return 'mcp' in found, 'mcp' in sys.modules\n"
        "print(asyncio.run(types()))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "(True, False)", ended.stderr
