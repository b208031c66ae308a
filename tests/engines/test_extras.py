"""An engine whose extra is not installed says so, in one line that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.engines import openvino, transformers
from antiphon.errors import SetupError


async def test_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r'pip install "antiphon\[transformers\]"'):
        await transformers.load(Path("anywhere"))


async def test_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r'pip install "antiphon\[openvino\]"'):
        await openvino.load(Path("anywhere"))
