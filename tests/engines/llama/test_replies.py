"""The chat dialect over a real tokenizer, and the local backend over a small model, under the
shipped contracts."""

from __future__ import annotations

import pytest

from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.llama.engine import LlamaEngine
from antiphon.testing import backend_check, dialect_check

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


async def test_the_dialect_keeps_the_contract(tiny_llama: LlamaEngine) -> None:
    dialect = ChatDialect(tiny_llama.card, tiny_llama.tokenizer)
    dialect_check.check_dialect(
        dialect, tiny_llama.tokenizer, fingerprint=tiny_llama.card.fingerprint
    )


@pytest.mark.parametrize("check", backend_check.CHECKS.values(), ids=backend_check.CHECKS)
async def test_the_backend_keeps_the_contract(
    tiny_llama: LlamaEngine, check: backend_check.Check
) -> None:
    await check(LocalBackend(tiny_llama, ChatDialect(tiny_llama.card, tiny_llama.tokenizer)))
