"""The pages for operators name settings, metrics and commands that exist."""

from __future__ import annotations

import re

import pytest

from antiphon.config.model import Model
from antiphon.config.options import options
from antiphon.config.settings import Settings
from scripts.docs import PAGES, ROOT


@pytest.mark.parametrize("name", ["operations", "security"])
def test_settings_exist(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    named = set(
        re.findall(r"`([a-z]+(?:_[a-z]+)+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    )
    tools = {"code_interpreter", "antiphon_loop_stalls_total"}
    assert named - tools <= {*options(Settings), *options(Model)}


def test_alarms_use_metrics_that_exist() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(\w+)`", PAGES["docs/metrics.md"](), re.MULTILINE))
    named = set(re.findall(r"\b((?:responses|antiphon)_\w+)[{>\[ ]", text))
    assert {re.sub("_bucket$", "", metric) for metric in named} <= known
