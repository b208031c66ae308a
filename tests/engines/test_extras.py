"""An engine whose extra is not installed says so, in one line that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.engines import vllm
from antiphon.engines.openvino import engine as openvino
from antiphon.engines.transformers import engine as transformers
from antiphon.errors import SetupError


async def test_transformers_without_its_extra_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pip install .*\[transformers\]"):
        await transformers.load(Path("anywhere"))


async def test_openvino_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pip install .*\[openvino\]"):
        await openvino.load(Path("anywhere"))


async def test_vllm_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pip install .*\[vllm\]"):
        await vllm.load(Path("anywhere"))
