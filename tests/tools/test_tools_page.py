"""The example in docs/tools.md meets the tool contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from antiphon.testing.tool_check import ToolCheckCase, check_tool
from antiphon.wire.tools import WebSearch

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


async def test_documented_example_meets_the_tool_contract(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("A page.")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "class Pages" in block)
    names: dict[str, Any] = {}
    exec(code, names)
    trial = ToolCheckCase(
        tool=WebSearch(),
        successful_call=("look", '{"name": "a.md"}'),
        failing_call=("look", '{"name": "b"}'),
    )
    await check_tool(names["Pages"](tmp_path), trial)
