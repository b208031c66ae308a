"""The embedded engine, loaded once: tests share it as clients would.

``llama`` has the bundled model. ``tiny_llama`` has a model that is fifty times faster, for tests
that need many tokens and no knowledge.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.engines.base import LoadOptions
from antiphon.engines.llama.engine import LlamaEngine, load
from tests.real.embedded_model import smollm2
from tests.tiny_models.tiny_tools import GGUF


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return smollm2()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def llama(smollm2_path: Path) -> AsyncIterator[LlamaEngine]:
    engine = await load(smollm2_path, LoadOptions(threads=1, context_size=1024, parallel=4))
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def tiny_llama() -> AsyncIterator[LlamaEngine]:
    engine = await load(GGUF, LoadOptions(threads=1, context_size=1024, parallel=4))
    yield engine
    await engine.close()
