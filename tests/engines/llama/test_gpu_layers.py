"""How many layers of a model are computed on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.engines.llama.engine import start_server
from tests.tiny_models.tiny_tools import GGUF


@pytest.mark.parametrize("kind", ["CPU", "GPU", "IGPU"])
def test_layers_are_fitted_to_a_gpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    given: list[Any] = []
    device = {"type": SimpleNamespace(name=f"GGML_BACKEND_DEVICE_TYPE_{kind}")}
    monkeypatch.setattr(xllamacpp, "get_device_info", lambda: [device])
    monkeypatch.setattr(xllamacpp, "Server", given.append)
    for layers in (-1, 4):
        start_server(GGUF, 1, {"n_gpu_layers": layers})
    assert [params.fit_params for params in given] == [kind != "CPU", False]
