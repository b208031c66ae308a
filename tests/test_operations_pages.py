"""The pages for operators name settings, metrics and commands that exist."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from antiphon.config.model import Model
from antiphon.config.options import options, setting_tables
from antiphon.config.settings import Settings
from antiphon.store import open_store
from antiphon.wire.admin.server_info import UnreadyReason
from scripts.docs import ROOT
from tests.conformance.server import Server, backend_of


@pytest.mark.parametrize("name", ["operations", "monitoring", "security"])
def test_settings_exist(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", prose))
    tables = "|".join(setting_tables(Settings))
    named |= set(re.findall(rf"`((?:{tables})\.[a-z_]+)`", prose))
    others = {"code_interpreter", "antiphon_loop_stalls_total", "encrypted_content"}
    others |= set(get_args(UnreadyReason))
    assert named - others <= {*options(Settings), *setting_tables(Settings), *options(Model)}


async def test_backup_of_a_running_store_has_its_responses(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^```sh\n(python3 .*?)^```", text, re.MULTILINE | re.DOTALL)
    source, copy = tmp_path / "responses.db", tmp_path / "copy.db"
    command = command.replace("~/.local/share/antiphon/responses.db", str(source))
    command = command.replace("/backup/responses.db", str(copy)).replace("python3", sys.executable)
    server = Server(backend_of("one"), await open_store(f"sqlite:{source}"))
    created = (await server.post()).json()
    await asyncio.to_thread(subprocess.run, ["sh", "-c", command], check=True, timeout=60)
    await server.close()
    restored = Server(backend_of("one"), await open_store(f"sqlite:{copy}"))
    assert (await restored.get(f"responses/{created['id']}")).json() == created
    await restored.close()
