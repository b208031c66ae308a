"""How many layers of a model are computed on a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from antiphon.engines.llama import engine
from antiphon.engines.llama.engine import LoadOptions, load
from antiphon.engines.llama.process import LlamaProcess
from antiphon.engines.llama.server_program import ServerSetup, create_params
from antiphon.errors import SetupError
from tests.tiny_models.tiny_tools import GGUF


@pytest.mark.parametrize("kind", ["CPU", "GPU", "IGPU"])
def test_layers_are_fitted_to_a_gpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    device = {"type": SimpleNamespace(name=f"GGML_BACKEND_DEVICE_TYPE_{kind}")}
    monkeypatch.setattr(xllamacpp, "get_device_info", lambda: [device])
    setups = [
        ServerSetup(
            model=str(GGUF), threads=1, fields={"n_gpu_layers": layers}, cpu_fields={"n_batch": 7}
        )
        for layers in (-1, 4, 0)
    ]
    made = [create_params(each) for each in setups]
    assert [each.fit_params for each in made] == [kind != "CPU", False, False]
    assert [each.n_batch == 7 for each in made] == [kind == "CPU", kind == "CPU", True]


@pytest.mark.parametrize(("parallel", "is_plain"), [(1, True), (4, True), (5, False)])
async def test_few_generations_use_plain_attention(
    parallel: int, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    setups: list[ServerSetup] = []

    class Process(LlamaProcess):
        def __init__(self, setup: ServerSetup) -> None:
            super().__init__(setup)
            setups.append(setup)

        async def start(self) -> None:
            raise SetupError("not started")

    monkeypatch.setattr(engine, "LlamaProcess", Process)
    with pytest.raises(SetupError, match="not started"):
        await load(GGUF, LoadOptions(threads=1, context_size=256, parallel=parallel))
    assert ("flash_attn_type" in setups[0].cpu_fields) is is_plain
