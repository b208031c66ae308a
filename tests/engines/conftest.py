"""The embedded engine with the real model, loaded once: tests share it as clients would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.engines.base import LoadOptions
from antiphon.engines.llama.engine import LlamaEngine, load
from antiphon.testing.embedded_model import smollm2


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return smollm2()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def llama(smollm2_path: Path) -> AsyncIterator[LlamaEngine]:
    engine = await load(smollm2_path, LoadOptions(threads=1, context_size=1024, parallel=4))
    yield engine
    await engine.close()
